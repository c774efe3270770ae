"""The saved messages have rich metadata: they link to the trace, the tool calls and the observations of their turn.

Document: The 6 Stages of PES Execution, 6. Finalization and Response Delivery.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = json.dumps(
    {
        "intent": "know a depth",
        "plan": "look it up",
        "toolCalls": [{"toolName": "depth", "arguments": {"lake": "Baikal"}}],
    }
)


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is, in metres."""
    return 1642


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "1642 metres."]), tools=[depth]) as art:
        thread = await art.create_session("ada")
        result = await art.process("How deep?", session=thread)
        user, final = (await thread.messages(roles=["user", "assistant"])).messages
        both = [await thread.message_trace(message) for message in (user, final)]
    for links in both:
        assert links.turn == result.turn_id
        assert [(call.name, call.arguments) for call in links.calls] == [("depth", {"lake": "Baikal"})]
        assert [each.content for each in links.results] == ["1642"]
        types = [each.type for each in links.observations if each.type != "STATE_UPDATE"]
        assert types == ["INTENT", "PLAN", "TOOL_EXECUTION", "FINAL_RESPONSE"], types


trio.run(main)
