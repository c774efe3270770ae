"""A call of a missing tool is a `ToolNotFoundError`; the model gets the error, and the run continues.

Document: Error Handling Strategy, ToolNotFoundError.

Differs: The error is named `ToolNotFound`, because errors of actgent have no `Error` at the end of their names. Write
`except ToolNotFound`.
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent, ToolNotFound, ToolResult, tool


@tool
async def walk() -> str:
    """Walk."""
    return "walked"


async def main() -> None:
    step = {"tool_calls": [{"id": "1", "tool_name": "fly", "parameters": {}}]}
    llm = ScriptedLLM([json.dumps(step), json.dumps({"final_answer": "I cannot fly."})])
    results = []
    async with StepsAgent("clerk", llm=llm, tools=[walk]) as agent:
        async with agent.stream("Fly.") as events:
            async for event in events:
                if isinstance(event, ToolResult):
                    results.append(event)
        try:
            agent.tools.remove("fly")
        except ToolNotFound as error:
            assert "fly" in str(error)
        else:
            raise AssertionError("it was removed")
    assert "fly" in results[0].error
    assert "not found" in results[0].error
    assert "not found" in str(llm.chats[1].messages)


trio.run(main)
