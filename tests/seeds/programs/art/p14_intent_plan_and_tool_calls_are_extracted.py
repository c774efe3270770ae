"""Intent, plan and tool calls are extracted from the answer of the planning call, also from a code block with text around it.

Document: The 6 Stages of PES Execution, 3. Planning Call (OutputParser).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = {
    "intent": "compare two lakes",
    "plan": ["look up both", "compare"],
    "toolCalls": [
        {"callId": "c1", "toolName": "depth", "arguments": {"lake": "Baikal"}},
        {"callId": "c2", "toolName": "depth", "arguments": {"lake": "Tanganyika"}},
    ],
}


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is, in metres."""
    return {"Baikal": 1642, "Tanganyika": 1470}[lake]


async def main() -> None:
    written = f"Here is my plan.\n```json\n{json.dumps(PLAN)}\n```\nThat is all."
    async with PlanAgent("guide", llm=ScriptedLLM([written, "Baikal."]), tools=[depth]) as art:
        thread = await art.create_session("ada")
        result = await art.process("Which is deeper?", session=thread)
        intent, plan = await thread.observations(types=["INTENT", "PLAN"])
    assert "compare two lakes" in str(intent.content)
    assert "look up both" in str(plan.content)
    assert "compare" in str(plan.content)
    calls = [(each.call_id, each.tool_name, each.arguments, each.content) for each in result.tool_results]
    assert calls == [
        ("c1", "depth", {"lake": "Baikal"}, "1642"),
        ("c2", "depth", {"lake": "Tanganyika"}, "1470"),
    ], calls


trio.run(main)
