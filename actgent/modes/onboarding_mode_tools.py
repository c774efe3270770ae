"""Tools of the onboarding mode: save settings step by step, and complete the onboarding once all are set."""

from collections.abc import Mapping, Sequence
from typing import Any

from actgent.errors import ToolError
from actgent.state.session_state import Pair
from actgent.tools.function_tool import tool
from actgent.tools.tool_interface import Tool, ToolContext


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
