"""Validation errors have a handler and recovery: wrong arguments run no tool, wrong content results in no event, and the model gets the
reason.

Document: Error Handling; Best Practices, Tool Integration ("Properly validate inputs/outputs").
"""

import json
from typing import Annotated

import msgspec
import trio

from actgent import ScriptedLLM, SimpleAgent, ToolCall, tool

RUNS = []


@tool(thread=False)
def order(item: str, number: Annotated[int, msgspec.Meta(ge=1)]) -> str:
    """Order items."""
    RUNS.append((item, number))
    return "ordered"


async def main() -> None:
    mood = {
        "name": "mood",
        "schema": {"type": "object", "properties": {"level": {"enum": [1, 2, 3]}}, "required": ["level"]},
    }
    script = [
        ToolCall("order", {"item": "tea", "number": 0}),
        ToolCall("order", {"item": "tea", "number": 2, "colour": "red"}),
        ToolCall("order", {"item": "tea", "number": 2}),
        json.dumps({"messageType": "mood", "content": {"level": 9}}),
        json.dumps({"messageType": "mood", "content": {"level": 3}}),
    ]
    llm, results, events = ScriptedLLM(script), [], []
    async with SimpleAgent("shop", llm=llm, types=[mood], tools=[order]) as agent:
        session = await agent.create_session("ada", "Two packs of tea.")
        session.on_tool_result(lambda result: results.append((result.status, result.text)))
        session.on_event(lambda event: events.append(event.data))
        await session.wait_idle()
    assert RUNS == [("tea", 2)]
    assert [status for status, _ in results] == ["error", "error", "success"], results
    assert "number" in results[0][1] and "colour" in results[1][1], results
    assert events == [{"level": 3}]
    assert "level" in str(llm.chats[4].messages[-1].parts)


trio.run(main)
