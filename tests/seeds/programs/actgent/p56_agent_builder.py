"""AgentBuilder is a fluent API that uses SchemaBuilder, loads configuration, and wires model, pair and tools together.

Document: Helper Classes, AgentBuilder.
"""

from pathlib import Path

import trio

from actgent import AgentBuilder, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def rooms(floor: int) -> str:
    """Tell the free rooms of a floor."""
    return f"{floor}01 and {floor}02"


async def main() -> None:
    Path("host").mkdir()
    Path("host/brain.md").write_text("---\nrole: a host\ninstructions: []\n---\n")
    llm = ScriptedLLM(
        [
            ToolCall("rooms", {"floor": 2}),
            '{"messageType": "offer", "content": {"content": "201", "price": 90}}',
        ]
    )
    builder = (
        AgentBuilder.from_folder("host")
        .goal("find a room for each guest")
        .instructions({"name": "offer", "schemaTemplate": '{"content": "<the room>", "price": 1}'})
        .protocol("simple")
        .tools(rooms)
        .llm(llm)
    )
    async with builder.build() as agent:
        reply = await agent.run("A room on the second floor, please.")
    assert (reply.message_type, reply.data) == ("offer", {"content": "201", "price": 90})
    assert [each.name for each in agent.profile.types] == ["offer"]
    assert "a host" in llm.chats[0].system
    assert "find a room for each guest" in llm.chats[0].system
    assert "rooms" in [spec.name for spec in llm.chats[0].tools]


trio.run(main)
