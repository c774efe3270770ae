"""A classifier parses the response of the model, distinguishes DIRECT_RESPONSE and TOOL_INVOCATION, and triggers the handlers of that
type.

Document: Core Architecture, Classifier; Classification Flow.
"""

import json

import trio

from actgent import ReActAgent, ScriptedLLM, tool


@tool(thread=False)
def file_search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


def action(purpose: str, content: object) -> str:
    return json.dumps(
        {
            "question_nature": "COMPLEX",
            "primary_action": {"response_purpose": purpose, "response_content": content},
        }
    )


INVOCATION = action("TOOL_INVOCATION", {"name": "file_search", "parameters": {"name": "notes"}})
DIRECT = action("DIRECT_RESPONSE", {"message": "They are in /files/notes."})


async def main() -> None:
    async with ReActAgent("clerk", llm=ScriptedLLM([INVOCATION, DIRECT]), tools=[file_search]) as agent:
        assert agent.protocol.classify(INVOCATION) == "TOOL_INVOCATION"
        assert agent.protocol.classify(DIRECT) == "DIRECT_RESPONSE"
        session = await agent.create_session("ada", "Where are my notes?")
        called = []
        session.on_tool_result(lambda result: called.append(("tool", result.content)))
        session.on_conversation(lambda reply: called.append(("conversation", str(reply))))
        await session.wait_idle()
    assert called == [("tool", "/files/notes"), ("conversation", "They are in /files/notes.")], called


trio.run(main)
