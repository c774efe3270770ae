"""An observation has an id, a time, its turn and thread, its parent, a title, a content and metadata.

Document: The 6 Stages of PES Execution (ObservationManager); Error Handling, Error details.
"""

import json
import time

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = json.dumps(
    {"intent": "know", "plan": "look up", "toolCalls": [{"toolName": "depth", "arguments": {}}]}
)


@tool(effect="pure")
async def depth() -> int:
    """Tell how deep the lake is, in metres."""
    return 1642


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "1642 metres."]), tools=[depth]) as art:
        thread = await art.create_session("ada")
        result = await art.process("How deep?", session=thread)
        seen = await thread.observations()
        history = {message.id for message in thread.history}
    assert len({each.id for each in seen}) == len(seen) >= 4
    for each in seen:
        assert each.turn == result.turn_id
        assert each.parent in history, each
        assert abs(each.at - time.time()) < 60
        assert each.title
        assert each.content
    (executed,) = [each for each in seen if each.type == "TOOL_EXECUTION"]
    assert executed.metadata["status"] == "success"


trio.run(main)
