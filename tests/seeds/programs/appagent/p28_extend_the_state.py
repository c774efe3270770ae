"""The state is extended by new fields, a tool that reads them, and a tool that updates them.

Document: Adding New Functionality, Extend State.
"""

import attrs
import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, ToolContext, tool


@attrs.define
class AppAgentState:
    basket: list[str] = attrs.field(factory=list)
    theme: str = "light"


@tool(thread=False, effect="idempotent")
def add_to_basket(item: str, context: ToolContext) -> str:
    """Add an item to the basket."""
    context.state.dispatch(lambda state: ("basket", [*state.get("basket", ()), item]))
    return "added"


@tool(thread=False, effect="pure")
def get_basket(context: ToolContext) -> list[str]:
    """Tell what is in the basket."""
    return list(context.state["basket"])


@tool(thread=False)
def set_theme(theme: str, context: ToolContext) -> str:
    """Set the theme."""
    context.state.dispatch(("theme", 7 if theme == "seven" else theme))
    return "set"


async def main() -> None:
    script = [
        ToolCall("add_to_basket", {"item": "tea"}),
        ToolCall("get_basket", {}),
        ToolCall("get_agent_state", {}),
        ToolCall("set_theme", {"theme": "seven"}),
        "Tea.",
    ]
    modes = Modes(universal=[get_basket], execution=[add_to_basket, set_theme], initial="act")
    async with BareAgent("app", llm=ScriptedLLM(script), modes=modes, state=AppAgentState) as app:
        session = await app.create_session("ada", "Tea, please.")
        results = []
        session.on_tool_result(lambda result: results.append((result.status, result.text)))
        await session.wait_idle()
    assert [status for status, _ in results] == ["success", "success", "success", "error"], results
    assert results[1][1] == '["tea"]' and "tea" in results[2][1]
    assert "theme" in results[3][1]
    assert list(session.state["basket"]) == ["tea"]


trio.run(main)
