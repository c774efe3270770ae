"""Integration mode has all tools, for tests of the tools.

Document: Agent Modes, Integration Mode; Mode-Based Tool Access Control.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def time_now() -> str:
    """Tell the time."""
    return "noon"


@tool(thread=False)
def set_theme(theme: str) -> str:
    """Set the theme."""
    return theme


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return service


async def main() -> None:
    calls = [
        ToolCall("time_now", {}),
        ToolCall("set_theme", {"theme": "dark"}),
        ToolCall("deploy", {"service": "shop"}),
        ToolCall("get_agent_state", {}),
        ToolCall("save_settings", {"settings": {"language": "en"}}),
    ]
    modes = Modes(universal=[time_now], configuration=[set_theme], execution=[deploy], initial="integration")
    async with BareAgent("app", llm=ScriptedLLM([calls, "All work."]), modes=modes) as app:
        session = await app.create_session("ada", "Test all tools.")
        results = []
        session.on_tool_result(lambda result: results.append((result.tool_name, result.status)))
        await session.wait_idle()
        assert results == [(call.name, "success") for call in calls], results
        assert all(modes.allows("integration", each) for each in app.tools)


trio.run(main)
