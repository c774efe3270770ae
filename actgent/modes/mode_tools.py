"""Built-in tools of modes: switch the mode, read the state, and suggest next actions to the user."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from actgent.errors import ConfigurationError, ModeChangeRejected, ToolError
from actgent.state.session_state import Pair
from actgent.tools.function_tool import tool
from actgent.tools.tool_interface import Effect, Tool, ToolContext
from actgent.tools.tool_registry import ToolRegistry

from .mode_changes import changes_in
from .tool_permissions_by_mode import SET_MODE, Modes

OTHER = "Other..."


class SetMode(Tool):
    """Tool with which the model requests a switch to another mode. Every mode allows the tool; `Modes` checks the switch."""

    name = SET_MODE
    effect: Effect = "idempotent"
    sinks = ()  # the calls that a mode allows are checked
    keeps_references = True
    exclusive = True
    inline = True

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        known = ", ".join(mode.name for mode in modes)
        self.description = (
            f"Switch to another mode ({known}). Calls after this one are judged by the new mode."
        )
        self.parameters: Mapping[str, Any] = {
            "type": "object",
            "properties": {
                "mode": {"type": "string", "description": f"One of {known}."},
                "reason": {"type": "string", "description": "Why, in a few words."},
            },
            "required": ["mode"],
            "additionalProperties": False,
        }

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        try:
            change = self._modes.switch(
                context.state,
                arguments["mode"],
                by="agent",
                reason=arguments.get("reason", ""),
                key=context.idempotency_key,
            )
        except (ModeChangeRejected, ConfigurationError) as refused:
            raise ToolError(str(refused)) from refused
        return {"success": True, "previous_mode": change.previous, "current_mode": change.current}


def add_mode_tools(registry: ToolRegistry, modes: Modes) -> None:
    """Add the tools of an agent's modes, and the built-in tools for modes such as set_mode, to the agent's tools.

    A tool of the agent replaces a built-in tool with the same name, except for set_mode.

    Raises:
        ConfigurationError: The modes name a tool that the agent does not have.
        DuplicateTool: Another tool of the agent is named set_mode, or has the name of a tool object of the modes.
    """
    if not isinstance(modes, Modes):
        raise ConfigurationError(f"modes= must be Modes(...), not {modes!r}")
    for given in modes.tools:
        if registry.get(given.name) is not given:
            registry.add(given)
    unknown = sorted(name for name in modes.named_tools if registry.get(name) is None)
    if unknown and not registry.has_toolsets:
        known = ", ".join(each.name for each in registry.list()) or "none"
        raise ConfigurationError(
            f"the modes name tools that the agent does not have: {', '.join(unknown)} (existing tools: {known}): correct the name, "
            "pass the tool in tools=, or give the mode a rule if the tool comes later"
        )
    registry.add(SetMode(modes))
    for builtin in _builtin_tools(modes, registry):
        if registry.get(builtin.name) is None:
            registry.add(builtin)


def _builtin_tools(modes: Modes, registry: ToolRegistry) -> list[Tool]:
    tools = [_mode_info(modes, registry), _agent_state(modes)]
    if not modes.is_ready:
        return tools
    return [
        *tools,
        _agent_config(modes),
        get_integration_state,
        suggest_actions,
        *onboarding_tools(modes.required_settings),
        *integration_tools(),
    ]


# --- state retrieval ------------------------------------------------------------------------------


def _agent_state(modes: Modes) -> Tool:
    @tool(thread=False, effect="pure")
    def get_agent_state(context: ToolContext) -> dict[str, Any]:
        """Return the state of this session: its mode, settings, set-up progress, and all other state values."""
        return {
            "settings": {},
            "is_onboarding_complete": False,
            "is_integration_complete": False,
            **{key: context.state[key] for key in context.state if not key.startswith("_")},
            "mode": modes.mode_of(context.state),
        }

    return get_agent_state


def _agent_config(modes: Modes) -> Tool:
    @tool(thread=False, effect="pure")
    def get_agent_config(context: ToolContext) -> dict[str, Any]:
        """Return the saved settings of the session, and the names of missing required settings."""
        return {
            "settings": context.state.get("settings", {}),
            "missing": missing_settings(context.state, modes.required_settings),
            "is_onboarding_complete": context.state.get("is_onboarding_complete", False),
        }

    return get_agent_config


@tool(thread=False, effect="pure")
def get_integration_state(context: ToolContext) -> dict[str, Any]:
    """Return the results of all tool tests so far, the tool documentation and the last report."""
    return integration_state(context.state)


def _mode_info(modes: Modes, registry: ToolRegistry) -> Tool:
    @tool(thread=False, effect="pure")
    def get_mode_info(context: ToolContext) -> dict[str, Any]:
        """Return the mode, its tools, the other modes with the actors that may switch to them, and the last changes."""
        current = modes.mode_of(context.state)
        return {
            "mode": current,
            "tools": [each.name for each in registry if modes.allows(current, each, context=context)],
            "modes": {
                mode.name: {
                    "description": mode.prompt,
                    "who_may": sorted(modes.permitted_actors(current, mode.name)),
                }
                for mode in modes
                if mode.name != current
            },
            "changes": [
                {"from": change.previous, "to": change.current, "by": change.by, "reason": change.reason}
                for change in changes_in(context.state)[-5:]
            ],
        }

    return get_mode_info


# --- suggestions ----------------------------------------------------------------------------------


@attrs.frozen
class SuggestedAction:
    """An action that the user may choose."""

    label: str
    """Text of the suggestion for the user."""
    value: str = ""
    """Text that is sent when the action is chosen; empty sends the label."""
    primary: bool = False
    """True for the recommended action."""
    is_other: bool = False
    """True if the user can write a free text after choosing the action."""


@tool(thread=False, effect="pure")
def suggest_actions(actions: Sequence[SuggestedAction]) -> dict[str, Any]:
    """Suggest next actions to the user. "Other..." is added if no suggestion accepts free text."""
    if not actions:
        raise ToolError("`actions` must have at least one action")
    shown = [attrs.evolve(action, value=action.value or action.label) for action in actions]
    if not any(action.is_other for action in shown):
        shown.append(SuggestedAction(OTHER, "other", is_other=True))
    return {"actions": [attrs.asdict(action) for action in shown]}


# --- onboarding mode tools -------------------------------------------------------------------


def missing_settings(state: Mapping[str, Any], required: Sequence[str]) -> list[str]:
    """Return the required settings that are missing or empty."""
    settings = state.get("settings", {})
    return [name for name in required if settings.get(name) in (None, "", [], {})]


def onboarding_tools(required: Sequence[str]) -> list[Tool]:
    """Return the onboarding tools; `required` are the settings without which the onboarding cannot be completed."""

    @tool(thread=False, effect="idempotent")
    def save_settings(settings: dict[str, Any], context: ToolContext) -> dict[str, Any]:  # noqa: D417 - the model does not pass the context
        """Save settings; other settings stay unchanged.

        Args:
            settings: Names and values, e.g. language, operators, admin_contact.
        """

        def saved(state: Mapping[str, Any]) -> list[Pair]:
            return [("settings", {**state.get("settings", {}), **settings}), ("onboarding_step", "settings")]

        context.state.dispatch(saved, once=context.idempotency_key)
        return {"saved": sorted(settings), "missing": missing_settings(context.state, required)}

    @tool(thread=False, effect="idempotent")
    def complete_onboarding(context: ToolContext) -> dict[str, Any]:
        """Mark the set-up as complete; rejected as long as required settings are missing."""
        if missing := missing_settings(context.state, required):
            raise ToolError(f"onboarding is not complete: these settings are missing: {', '.join(missing)}")
        changes = [
            ("is_onboarding_complete", True),
            ("onboarding_step", "complete"),
            _recommend_mode("onboarding", "integration", "the agent is configured; its tools can be tested"),
        ]
        context.state.dispatch(changes, once=context.idempotency_key)
        return {"is_onboarding_complete": True, "recommended_mode": "integration"}

    @tool(thread=False, effect="pure")
    def check_existing_config(context: ToolContext) -> dict[str, Any]:
        """Return the saved settings and the names of missing required settings."""
        settings = context.state.get("settings", {})
        return {
            "exists": bool(settings),
            "settings": settings,
            "missing": missing_settings(context.state, required),
        }

    @tool(thread=False, effect="pure")
    def get_onboarding_status(context: ToolContext) -> dict[str, Any]:
        """Return the current step of the onboarding, and whether it is complete."""
        return {
            "step": context.state.get("onboarding_step", "start"),
            "is_complete": context.state.get("is_onboarding_complete", False),
            "missing": missing_settings(context.state, required),
        }

    return [save_settings, complete_onboarding, check_existing_config, get_onboarding_status]


def _recommend_mode(start: str, end: str, reason: str) -> Pair:
    return "transition_recommendation", {"from_mode": start, "to_mode": end, "reason": reason}


# --- integration mode tools ------------------------------------------------------------------

TestStatus = Literal["passed", "failed", "skipped"]
ToolState = Literal["working", "issues", "unknown"]


def integration_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the test results, documentation, last report and completion of the tool tests from a session's state."""
    return {
        "test_results": state.get("test_results", {}),
        "tool_documentation": state.get("tool_documentation", {}),
        "test_report": state.get("test_report"),
        "is_integration_complete": state.get("is_integration_complete", False),
    }


def report_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of tools that passed, failed and were skipped, by the last result of each tool."""
    results: Mapping[str, Any] = state.get("test_results", {})
    counts = Counter(result["status"] for result in results.values())
    return {
        "total": len(results),
        **{status: counts[status] for status in ("passed", "failed", "skipped")},
        "failed_tools": sorted(name for name, result in results.items() if result["status"] == "failed"),
    }


def integration_tools() -> list[Tool]:
    """Return the tools that record and evaluate a session's test results."""
    return [record_test_result, document_tool, generate_test_report, complete_integration_testing]


@tool(thread=False, effect="idempotent")
def record_test_result(  # noqa: D417 - the model does not pass the context
    tool_name: str, status: TestStatus, context: ToolContext, details: str = ""
) -> dict[str, Any]:
    """Record how the test of a tool ended; a later result takes the place of an earlier one.

    Args:
        tool_name: The tool that was tested.
        status: How it ended.
        details: Evidence of the check.
    """
    result = {"status": status, "details": details}
    _put(context, "test_results", tool_name, result)
    return {"recorded": tool_name, **result}


@tool(thread=False, effect="idempotent")
def document_tool(  # noqa: D417 - the model does not pass the context
    tool_name: str, description: str, context: ToolContext, status: ToolState = "unknown", notes: str = ""
) -> dict[str, Any]:
    """Store the purpose, state and usage notes of a tool in the session state, under `tool_documentation`.

    Args:
        tool_name: Name of the tool.
        description: Purpose of the tool.
        status: State of the tool: `working`, `issues` or `unknown`.
        notes: Hints for the use of the tool.
    """
    _put(
        context,
        "tool_documentation",
        tool_name,
        {"description": description, "status": status, "notes": notes},
    )
    return {"documented": tool_name, "status": status}


@tool(thread=False, effect="idempotent")
def generate_test_report(context: ToolContext) -> dict[str, Any]:
    """Count the results: passed, failed, skipped."""
    report = report_of(context.state)
    context.state.dispatch(("test_report", report), once=context.idempotency_key)
    return report


@tool(thread=False, effect="idempotent")
def complete_integration_testing(context: ToolContext, force: bool = False) -> dict[str, Any]:  # noqa: D417, FBT001, FBT002 - the model passes it by name
    """Mark the tools as tested. Rejected if no tool was tested or a tool failed.

    Args:
        force: Mark them as tested in spite of missing or failed tests.
    """
    report = report_of(context.state)
    if not force and (reason := _incomplete_reason(report)):
        raise ToolError(f"integration testing is not complete: {reason}")
    recommended = {
        "from_mode": "integration",
        "to_mode": "plan",
        "reason": "the tools are tested",
        "warnings": [f"{name} failed" for name in report["failed_tools"]],
    }
    changes = [
        ("test_report", report),
        ("is_integration_complete", True),
        ("transition_recommendation", recommended),
    ]
    context.state.dispatch(changes, once=context.idempotency_key)
    return {"is_integration_complete": True, "report": report, "recommended_mode": "plan"}


def _incomplete_reason(report: Mapping[str, Any]) -> str:
    if report["failed"]:
        return f"{report['failed']} of {report['total']} failed ({', '.join(report['failed_tools'])})"
    return "" if report["total"] else "no result was recorded"


def _put(context: ToolContext, key: str, name: str, value: Mapping[str, Any]) -> None:
    """Set the entry `name` of the mapping under `key` in the session's state. Concurrent changes of other entries are not lost."""

    def put(state: Mapping[str, Any]) -> Pair:
        return key, {**state.get(key, {}), name: value}

    context.state.dispatch(put, once=context.idempotency_key)
