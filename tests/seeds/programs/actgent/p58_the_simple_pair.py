"""The Simple pair requests `{messageType, content}`, where content is text or `{name, parameters}` of a TOOL_INVOCATION.

Document: Available Pairs; Response Type Handling, Simple Implementation.
"""

import json

import trio

from actgent import ScriptedLLM, SimpleAgent, tool


@tool(thread=False)
def file_search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


def answer(message_type: str, content: object) -> str:
    return json.dumps({"messageType": message_type, "content": content})


SCRIPT = [
    answer("TOOL_INVOCATION", {"name": "file_search", "parameters": {"name": "notes"}}),
    answer("DIRECT_RESPONSE", "They are in /files/notes."),
    answer("mood", {"level": 3}),
    answer("strange", "It has no such type."),
    answer("DIRECT_RESPONSE", "Good night."),
]


async def main() -> None:
    llm, out = ScriptedLLM(SCRIPT), []
    async with SimpleAgent("clerk", llm=llm, instructions=["mood"], tools=[file_search]) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(lambda result: out.append(("tool", result.content)))
        session.on_conversation(lambda reply: out.append(("conversation", str(reply))))
        session.on_event(lambda event: out.append((event.name, event.data)))
        for text in ("Where are my notes?", "How do I feel?", "Good night!"):
            await session.chat(text)
            await session.wait_idle()
    assert out == [
        ("tool", "/files/notes"),
        ("conversation", "They are in /files/notes."),
        ("mood", {"level": 3}),
        ("conversation", "Good night."),
    ], out
    assert len(llm.chats) == 5  # the unknown type was asked again


trio.run(main)
