"""A pair can be replaced by another pair without any other change. One agent, with its tools, instructions and handlers,
works with each pair.

Document: Core Design Principles, Pluggable Mini-Systems; Design Benefits.
"""

import json

import trio

from actgent import Agent, AgentBuilder, ScriptedLLM, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


def simple(name: str, content: object) -> str:
    return json.dumps({"messageType": name, "content": content})


def react(name: str, content: object) -> str:
    if name == "mood":
        name, content = "DIRECT_RESPONSE", {"messageType": "mood", **content}
    return json.dumps({"primary_action": {"response_purpose": name, "response_content": content}})


async def outcomes_of(agent: Agent) -> list[tuple[str, object]]:
    out = []
    async with agent:
        session = await agent.create_session("ada")
        session.on_tool_result(lambda result: out.append(("tool", result.content)))
        session.on_conversation(lambda reply: out.append(("conversation", str(reply))))
        session.on_event(lambda event: out.append((event.name, event.data["level"])))
        for text in ("Where are my notes?", "How do I feel?"):
            await session.chat(text)
            await session.wait_idle()
    return out


async def main() -> None:
    mood = {"name": "mood", "schemaTemplate": {"level": 1}}
    builder = AgentBuilder("clerk").role("a clerk").instructions(mood).tools(search)
    found = {}
    for pair, form in (("simple", simple), ("react", react)):
        script = [
            form("TOOL_INVOCATION", {"name": "search", "parameters": {"name": "notes"}}),
            form("DIRECT_RESPONSE", "They are there."),
            form("mood", {"level": 3}),
        ]
        found[pair] = await outcomes_of(builder.protocol(pair).llm(ScriptedLLM(script)).build())
    expected = [("tool", "/files/notes"), ("conversation", "They are there."), ("mood", 3)]
    assert found == {"simple": expected, "react": expected}, found


trio.run(main)
