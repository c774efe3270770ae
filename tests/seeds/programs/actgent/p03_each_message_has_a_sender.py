"""Each message has a sender in its metadata: the user, the assistant (answers of the model), the agent (tool results), or the system.

Document: Message Flow Overview, Message Senders; Implementation Details, Common Message Types.

Differs: Tool results have the sender kind `tool`. A program can thus distinguish results from answers by
`message.sender.kind`.
"""

import trio

from actgent import BareAgent, ScriptedLLM, Sender, ToolCall, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


async def main() -> None:
    llm = ScriptedLLM([ToolCall("search", {"name": "notes"}), "It is in /files.", "Understood."])
    async with BareAgent("clerk", llm=llm, tools=[search]) as agent:
        session = await agent.create_session("ada", "Where are my notes?")
        await session.wait_idle()
        await session.chat("The disk is read-only now.", Sender("system", "system"))
        await session.wait_idle()
    kinds = [message.sender.kind for message in session.history]
    assert kinds == ["user", "assistant", "tool", "assistant", "system", "assistant"], kinds
    assert session.history[0].sender.name == "ada"
    assert session.history[1].sender.name == "clerk"


trio.run(main)
