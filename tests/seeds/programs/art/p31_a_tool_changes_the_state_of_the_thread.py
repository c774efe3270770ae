"""State that a turn has modified is saved at its end, and the change is an observation that the UI can read.

Document: The 6 Stages of PES Execution, 6. Finalization and Response Delivery (StateRepository).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, ToolContext, tool

PLAN = json.dumps({"intent": "count", "plan": "count", "toolCalls": [{"toolName": "count", "arguments": {}}]})


@tool(effect="idempotent")
async def count(context: ToolContext) -> int:
    """Count."""
    context.state.dispatch(("visits", context.state.get("visits", 0) + 1))
    return context.state["visits"]


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "Counted."] * 2), tools=[count]) as art:
        thread = await art.create_session("ada")
        for visits in (1, 2):
            await art.process("Count.", session=thread)
            assert thread.state["visits"] == visits
        changes = await thread.observations(types=["STATE_UPDATE"])
    titles = [each.title for each in changes if isinstance(each.content, dict) and "visits" in each.content]
    assert titles == ["State: visits"] * 2, [(each.title, each.content) for each in changes]


trio.run(main)
