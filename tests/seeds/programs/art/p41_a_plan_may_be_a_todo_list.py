"""A plan of several steps is executed step by step: a step waits for its dependencies, and the UI is notified of each step.

Document: The Plan-Execute-Synthesize (PES) Pattern (a step-by-step plan).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, ToolCall, tool

ITEMS = [
    {"id": "step_2", "description": "compare", "stepType": "reasoning", "dependencies": ["step_1"]},
    {
        "id": "step_1",
        "description": "look up",
        "stepType": "tool",
        "dependencies": [],
        "requiredTools": ["depth"],
    },
]
PLAN = json.dumps({"intent": "compare", "plan": "two steps", "todoList": ITEMS})


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is, in metres."""
    return 1642


async def main() -> None:
    script = [
        PLAN,
        ToolCall("depth", {"lake": "Baikal"}),
        json.dumps({"content": "1642 m"}),
        json.dumps({"content": "deeper"}),
        "Baikal is deeper.",
    ]
    async with PlanAgent("guide", llm=ScriptedLLM(script), tools=[depth]) as art:
        thread = await art.create_session("ada")
        result = await art.process("Is it deeper?", session=thread)
        changes = await thread.observations(types=["ITEM_STATUS_CHANGE"])
    assert (result.status, result.text) == ("success", "Baikal is deeper.")
    assert {item.id: item.status for item in result.plan.items} == {
        "step_1": "completed",
        "step_2": "completed",
    }
    texts = [str(each.content) for each in changes]
    first = next(number for number, text in enumerate(texts) if "step_2" in text)
    assert "step_1" in texts[0]
    assert any("step_1" in text and "completed" in text for text in texts[:first])


trio.run(main)
