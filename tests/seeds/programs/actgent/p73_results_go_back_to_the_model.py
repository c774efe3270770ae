"""The result of a tool is sent back to the model for further processing, as a message of the session through the inbox.

Document: ReAct Message Flow, Tool Execution Flow and Result Processing; Tool Integration.

Differs: The results of one answer are one message, which the agent enqueues before all other messages of the session.
A program needs no `createMessage(result, "system")`.
"""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


async def main() -> None:
    calls = [ToolCall("search", {"name": "notes"}), ToolCall("search", {"name": "plans"})]
    llm, answers = ScriptedLLM([calls, "Both are in /files.", "You are welcome."]), []
    async with BareAgent("clerk", llm=llm, tools=[search]) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await session.chat("Where are my notes and plans?")
        await session.chat("Thank you.")
        await session.wait_idle()
    assert answers == ["Both are in /files.", "You are welcome."]
    results = session.history[2]
    assert [result.content for result in results.tool_results] == ["/files/notes", "/files/plans"]
    assert [message.text for message in session.history if message.sender.kind == "user"] == [
        "Where are my notes and plans?",
        "Thank you.",
    ]
    second = llm.chats[1].messages
    assert [message.role for message in second] == ["user", "assistant", "tool"], second
    assert "Thank you." not in str(second)


trio.run(main)
