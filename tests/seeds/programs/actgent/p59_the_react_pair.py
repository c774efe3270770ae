"""The ReAct pair reads `question_nature` and a `primary_action` with a purpose and a content (`name` and `parameters`, or `message`).

Document: Available Pairs; Response Format Agreement; Response Type Handling, ReAct Implementation.
"""

import trio

from actgent import ReActAgent, ScriptedLLM, tool

INVOCATION = """\
{
    "question_nature": "COMPLEX",
    "primary_action": {
        "response_purpose": "TOOL_INVOCATION",
        "response_content": { "name": "tool_name", "parameters": { "path": "/files" } }
    }
}"""
MESSAGE = """\
{
    "question_nature": "SIMPLE",
    "primary_action": {
        "response_purpose": "DIRECT_RESPONSE",
        "response_content": { "message": "There are two files." }
    }
}"""
EVENT = """\
{
    "question_nature": "SIMPLE",
    "context": { "understanding": "the user counts" },
    "primary_action": {
        "response_purpose": "DIRECT_RESPONSE",
        "response_content": { "messageType": "count", "files": 2 }
    }
}"""


@tool(thread=False, name="tool_name")
def list_files(path: str) -> str:
    """List files."""
    return f"{path}/a, {path}/b"


async def main() -> None:
    llm, out = ScriptedLLM([INVOCATION, MESSAGE, EVENT]), []
    count = {"name": "count", "schemaTemplate": {"files": 1}}
    async with ReActAgent("clerk", llm=llm, instructions=[count], tools=[list_files]) as agent:
        session = await agent.create_session("ada", "What is in /files?")
        session.on_tool_result(lambda result: out.append(result.content))
        session.on_conversation(lambda reply: out.append(str(reply)))
        session.on_event(lambda event: out.append((event.name, event.data["files"])))
        await session.wait_idle()
        await session.chat("Count them.")
        await session.wait_idle()
    assert out == ["/files/a, /files/b", "There are two files.", ("count", 2)], out
    assert len(llm.chats) == 3  # no answer was asked again


trio.run(main)
