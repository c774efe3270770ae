"""Direct responses go to conversation handlers, tool results to tool result handlers, events to event handlers, exceptions to exception handlers.

Document: ReAct Message Flow, Response Delivery.
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


def action(purpose: str, content: object) -> str:
    return json.dumps({"primary_action": {"response_purpose": purpose, "response_content": content}})


async def main() -> None:
    script = [
        action("DIRECT_RESPONSE", {"message": "Hello."}),
        action("TOOL_INVOCATION", {"name": "search", "parameters": {"name": "notes"}}),
        action("DIRECT_RESPONSE", {"messageType": "mood", "level": 3}),
        ConnectionError("no network"),
    ]
    mood = {"name": "mood", "schemaTemplate": {"level": 1}}
    llm, got = ScriptedLLM(script), []
    async with ReActAgent("clerk", llm=llm, instructions=[mood], tools=[search]) as agent:
        session = await agent.create_session("ada")
        for kind in ("conversation", "tool_result", "event", "exception"):
            getattr(session, f"on_{kind}")(lambda value, kind=kind: got.append((kind, type(value).__name__)))
        for text in ("Hello", "Where are my notes?", "And now?"):
            await session.chat(text)
            await session.wait_idle()
    assert got == [
        ("conversation", "Reply"),
        ("tool_result", "ToolResult"),
        ("event", "Event"),
        ("exception", "Failure"),
    ], got


trio.run(main)
