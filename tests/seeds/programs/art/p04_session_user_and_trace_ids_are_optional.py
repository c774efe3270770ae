"""Session id of the UI, user id and trace id are optional. They are stored with the messages. A trace connects all steps
of a request.

Document: Input (AgentProps).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool
from actgent.messages import traceparent

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PLAN = json.dumps(
    {"intent": "trace", "plan": "ask", "toolCalls": [{"toolName": "which_trace", "arguments": {}}]}
)


@tool(effect="pure")
async def which_trace() -> str:
    """Tell the trace of this call."""
    return traceparent.get() or ""


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "Done."]), tools=[which_trace]) as art:
        thread = await art.create_session("ada")
        traceparent.set(TRACE)
        result = await art.process("Trace it.", session=thread, metadata={"tab": "window 7"})
        user, final = (await thread.messages(roles=["user", "assistant"])).messages
        links = await thread.message_trace(final)
    assert (user.sender.name, user.metadata["tab"]) == ("ada", "window 7")
    assert result.owner == "ada"
    assert result.turn_id == user.id == links.turn
    assert result.tool_results[0].content == TRACE
    assert links.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"


trio.run(main)
