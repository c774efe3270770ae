"""Onboarding mode has configuration tools and universal tools only, for security during the setup.

Document: Agent Modes, Onboarding Mode; Mode-Based Tool Access Control.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool

RAN = []


@tool(thread=False)
def time_now() -> str:
    """Tell the time."""
    RAN.append("time_now")
    return "noon"


@tool(thread=False)
def set_theme(theme: str) -> str:
    """Set the theme."""
    RAN.append("set_theme")
    return theme


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    RAN.append("deploy")
    return service


async def main() -> None:
    calls = [
        ToolCall("time_now", {}),
        ToolCall("set_theme", {"theme": "dark"}),
        ToolCall("deploy", {"service": "x"}),
    ]
    modes = Modes(universal=[time_now], configuration=[set_theme], execution=[deploy])
    async with BareAgent("app", llm=ScriptedLLM([calls, "Done."]), modes=modes) as app:
        session = await app.create_session("ada", "Set me up.")
        results = []
        session.on_tool_result(lambda result: results.append((result.tool_name, result.status)))
        await session.wait_idle()
    assert session.mode == "onboarding"
    assert results == [("time_now", "success"), ("set_theme", "success"), ("deploy", "error")], results
    assert RAN == ["time_now", "set_theme"]


trio.run(main)
