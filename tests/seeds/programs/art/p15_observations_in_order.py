"""The stages of a turn are recorded as observations in order: THOUGHTS, INTENT, PLAN, TOOL_EXECUTION, and the final response.

Document: The 6 Stages of PES Execution (ObservationManager).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = {
    "thoughts": "One lookup will do.",
    "intent": "know a depth",
    "plan": "look it up",
    "toolCalls": [{"toolName": "depth", "arguments": {"lake": "Baikal"}}],
}


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is, in metres."""
    return 1642


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([json.dumps(PLAN), "1642 m."]), tools=[depth]) as art:
        thread = await art.create_session("ada")
        await art.process("How deep is Baikal?", session=thread)
        seen = [each for each in await thread.observations() if each.type != "STATE_UPDATE"]
        only = await thread.observations(types=["INTENT", "PLAN"])
    types = [each.type for each in seen]
    assert types == ["THOUGHTS", "INTENT", "PLAN", "TOOL_EXECUTION", "FINAL_RESPONSE"], types
    assert [each.type for each in only] == ["INTENT", "PLAN"]
    assert only[0].content == "know a depth"
    assert only[1].content["outline"] == "look it up"


trio.run(main)
