"""Built-in tools of modes: switch the mode, read the state, and suggest next actions to the user."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError, ModeChangeRejected, ToolError
from actgent.tools.function_tool import tool
from actgent.tools.tool_interface import Effect, Tool, ToolContext
from actgent.tools.tool_registry import ToolRegistry

from .integration_mode_tools import integration_state, integration_tools
from .mode_changes import changes_in
from .mode_enforcement import SET_MODE, Modes
from .onboarding_mode_tools import missing_settings, onboarding_tools

OTHER = "Other..."


class SetMode(Tool):
    """Tool with which the model requests another mode. Every mode allows the tool; `Modes` decides about the switch."""

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


def equip(registry: ToolRegistry, modes: Modes) -> None:
    """Add the tools of the modes, and the built-in tools of modes, to an agent's tools.

    A tool of the agent replaces a built-in tool with the same name, except for set_mode.

    Raises:
        ConfigurationError: The modes name a tool that the agent does not have.
        DuplicateTool: Another tool of the agent is named set_mode, or has the name of a tool object of the modes.
    """
    if not isinstance(modes, Modes):
        raise ConfigurationError(f"modes= takes Modes(...), not {modes!r}")
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
        raise ToolError("suggest at least one action")
    shown = [attrs.evolve(action, value=action.value or action.label) for action in actions]
    if not any(action.is_other for action in shown):
        shown.append(SuggestedAction(OTHER, "other", is_other=True))
    return {"actions": [attrs.asdict(action) for action in shown]}
