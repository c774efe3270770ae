"""Outbound messages go to the user (conversation handlers, event handlers) and to the model (prompt, tool results, history).

Document: Message Flow Overview, Outbound Messages.
"""

import json

import trio

from actgent import ScriptedLLM, SimpleAgent, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


def answer(message_type: str, content: object) -> str:
    return json.dumps({"messageType": message_type, "content": content})


SCRIPT = [
    answer("TOOL_INVOCATION", {"name": "search", "parameters": {"name": "notes"}}),
    answer("DIRECT_RESPONSE", "They are in /files/notes."),
    answer("mood", {"level": 3}),
]


async def main() -> None:
    llm, out = ScriptedLLM(SCRIPT), []
    mood = {"name": "mood", "schemaTemplate": {"level": "<1 to 5>"}}
    async with SimpleAgent("clerk", llm=llm, instructions=[mood], tools=[search]) as agent:
        session = await agent.create_session("ada", "Where are my notes?")
        session.on_conversation(lambda reply: out.append(("conversation", str(reply))))
        session.on_event(lambda event: out.append(("event", event.data)))
        await session.wait_idle()
        await session.chat("How do I feel?")
        await session.wait_idle()
    assert out == [("conversation", "They are in /files/notes."), ("event", {"level": 3})], out
    after_the_tool, last = ([str(message.parts) for message in chat.messages] for chat in llm.chats[1:])
    assert "/files/notes" in after_the_tool[-1]
    assert len(last) == 5
    assert "Where are my notes?" in last[0]


trio.run(main)
