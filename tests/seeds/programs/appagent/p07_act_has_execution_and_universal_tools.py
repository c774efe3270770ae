"""Act mode executes plans: it has the execution tools and the universal tools.

Document: Agent Modes, Act Mode; Mode-Based Tool Access Control.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def browse(address: str) -> str:
    """Read a page."""
    return f"the page of {address}"


@tool(thread=False)
def set_theme(theme: str) -> str:
    """Set the theme."""
    return theme


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return "deployed"


async def main() -> None:
    calls = [
        ToolCall("deploy", {"service": "shop"}),
        ToolCall("browse", {"address": "example.org"}),
        ToolCall("set_theme", {"theme": "dark"}),
        ToolCall("save_settings", {"settings": {}}),
        ToolCall("generate_test_report", {}),
    ]
    modes = Modes(universal=[browse], configuration=[set_theme], execution=[deploy], initial="act")
    async with BareAgent("app", llm=ScriptedLLM([calls, "Deployed."]), modes=modes) as app:
        session = await app.create_session("ada", "Deploy the shop.")
        results = []
        session.on_tool_result(lambda result: results.append(result.status))
        await session.wait_idle()
    assert results == ["success", "success", "error", "error", "error"], results


trio.run(main)
