"""The flow continues to the synthesis even if some tools fail, and the synthesis call gets their errors, to report them.

Document: Error Handling, Tool Execution.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

CALLS = [{"toolName": "depth", "arguments": {"lake": lake}} for lake in ("Baikal", "Loch Ness")]


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is, in metres."""
    if lake != "Baikal":
        raise LookupError(f"no sounding of {lake}")
    return 1642


async def main() -> None:
    def plan(*calls: dict) -> str:
        return json.dumps({"intent": "know depths", "plan": "look up", "toolCalls": calls})

    llm = ScriptedLLM(
        [plan(*CALLS), "One is known.", plan(CALLS[1]), "It is not known.", plan(CALLS[0]), "1642."]
    )
    async with PlanAgent("guide", llm=llm, tools=[depth]) as art:
        some, all_, none = [await art.process("How deep?") for _ in range(3)]
    synthesis = str(llm.chats[1].messages)
    assert "no sounding of Loch Ness" in synthesis
    assert "1642" in synthesis
    assert [each.text for each in (some, all_, none)] == ["One is known.", "It is not known.", "1642."]
    assert [each.status for each in (some, all_, none)] == ["partial", "error", "success"]


trio.run(main)
