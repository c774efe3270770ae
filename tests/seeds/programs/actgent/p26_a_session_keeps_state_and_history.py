"""A session maintains the state of the conversation and its history.

Document: Core Architecture, Session; Memory and Context Management (SessionContext).
"""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolContext, tool


@tool(thread=False)
def add_item(item: str, context: ToolContext) -> str:
    """Add an item to the basket."""
    context.state.dispatch(("basket", [*context.state.get("basket", ()), item]))
    return "added"


async def main() -> None:
    script = [ToolCall("add_item", {"item": "tea"}), "Tea.", ToolCall("add_item", {"item": "milk"}), "Milk."]
    async with BareAgent("shop", llm=ScriptedLLM(script), tools=[add_item]) as agent:
        session = await agent.create_session("ada", "Tea, please.")
        await session.wait_idle()
        await session.chat("And milk.")
        await session.wait_idle()
    assert list(session.state["basket"]) == ["tea", "milk"]
    assert [message.text for message in session.history if message.text] == [
        "Tea, please.",
        "Tea.",
        "And milk.",
        "Milk.",
    ]


trio.run(main)
