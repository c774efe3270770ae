"""Each call of a tool is recorded as a `TOOL_EXECUTION` observation with its status, and the UI is notified of it.

Document: The 6 Stages of PES Execution, 4. Tool Execution Phase; Error Handling, Tool Execution.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

CALLS = [{"toolName": "depth", "arguments": {"lake": lake}} for lake in ("Baikal", "Loch Ness")]
PLAN = json.dumps({"intent": "know depths", "plan": "look up", "toolCalls": CALLS})


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is, in metres."""
    return {"Baikal": 1642}[lake]


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "1642 m."]), tools=[depth]) as art:
        thread = await art.create_session("ada")
        async with thread.observe(types=["TOOL_EXECUTION"]) as socket:
            await art.process("How deep are they?", session=thread)
            received = [await socket.receive() for _ in CALLS]
        kept = await thread.observations(types=["TOOL_EXECUTION"])
    assert [each.metadata["status"] for each in kept] == ["success", "error"]
    assert "1642" in str(kept[0].content)
    assert "KeyError" in str(kept[1].content) + str(kept[1].metadata), kept[1]
    assert [each.id for each in received] == [each.id for each in kept]


trio.run(main)
