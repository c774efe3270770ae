"""Answers of the model are inbound messages: they are classified, and start tools or direct replies.

Document: Message Flow Overview, Inbound Messages (LLM Responses).

Differs: The turn of a request also classifies the answer, so other messages wait until then. `agent.on_message(fn)`
receives answers and tool results like all other messages.
"""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


async def main() -> None:
    seen, answers = [], []
    llm = ScriptedLLM([ToolCall("search", {"name": "notes"}), "They are in /files/notes."])
    agent = BareAgent("clerk", llm=llm, tools=[search])
    agent.on_message(lambda message: seen.append((message.sender.kind, message.text)))
    async with agent:
        session = await agent.create_session("ada", "Where are my notes?")
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await session.wait_idle()
    kinds = [kind for kind, _ in seen]
    assert kinds == ["user", "assistant", "tool", "assistant"], seen
    assert answers == ["They are in /files/notes."] == [seen[-1][1]]


trio.run(main)
