"""Tool integration is optional: Bare has no tool support, Simple has basic tool invocation, and ReAct has full tool integration.

Document: Implementation Patterns, Tool Integration.

Differs: All pairs run native calls, because models call functions with any text format. The BareAgent of the document
also needs this for its `tools`. An agent without tools runs no calls.
"""

import json

import trio

from actgent import BareAgent, ReActAgent, ScriptedLLM, SimpleAgent, ToolCall, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search for a file."""
    return f"/files/{name}"


def simple(name: str, content: object) -> str:
    return json.dumps({"messageType": name, "content": content})


def react(name: str, content: object) -> str:
    return json.dumps({"primary_action": {"response_purpose": name, "response_content": content}})


CALL = {"name": "search", "parameters": {"name": "notes"}}
NATIVE = ToolCall("search", {"name": "notes"})
SCRIPTS = {
    BareAgent: [NATIVE, "Found."],
    SimpleAgent: [NATIVE, simple("TOOL_INVOCATION", CALL), simple("DIRECT_RESPONSE", "Found.")],
    ReActAgent: [NATIVE, react("TOOL_INVOCATION", [CALL, CALL]), react("DIRECT_RESPONSE", "Found.")],
}


async def main() -> None:
    for (kind, script), runs in zip(SCRIPTS.items(), (1, 2, 3), strict=True):
        async with kind("clerk", llm=ScriptedLLM(script), tools=[search]) as agent:
            session = await agent.create_session("ada", "Where are my notes?")
            results, answers = [], []
            session.on_tool_result(lambda result, results=results: results.append(result.content))
            session.on_conversation(lambda reply, answers=answers: answers.append(str(reply)))
            await session.wait_idle()
        assert results == ["/files/notes"] * runs, (kind, results)
        assert answers == ["Found."]
    llm = ScriptedLLM(["No tools here."])
    async with BareAgent("clerk", llm=llm) as agent:
        await agent.run("Hello")
    assert not llm.chats[0].tools


trio.run(main)
