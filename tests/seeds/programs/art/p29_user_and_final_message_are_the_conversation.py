"""The user's message and the final message are saved to the history of the thread. Plans, thoughts and calls are not
part of the history.

Document: The 6 Stages of PES Execution, 6. Finalization and Response Delivery.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, open_runtime, tool

PLAN = json.dumps(
    {"intent": "know a depth", "plan": "look it up", "toolCalls": [{"toolName": "depth", "arguments": {}}]}
)


@tool(effect="pure")
async def depth() -> int:
    """Tell how deep the lake is, in metres."""
    return 1642


async def main() -> None:
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        art = await runtime.start(PlanAgent("guide", llm=ScriptedLLM([PLAN, "1642 metres."]), tools=[depth]))
        thread = await art.ensure_session("ada", "t1")
        await art.process("How deep?", session=thread)
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        art = await runtime.start(PlanAgent("guide", llm=ScriptedLLM([]), tools=[depth]))
        thread = await art.open_session("t1")
        saved = (await thread.messages(roles=["user", "assistant"])).messages
    assert [message.text for message in saved] == ["How deep?", "1642 metres."]
    assert len({message.id for message in saved}) == 2
    assert [message.session_id for message in saved] == ["t1", "t1"]
    assert [message.sender.name for message in saved] == ["ada", "guide"]
    assert 0 < saved[0].created_at <= saved[1].created_at


trio.run(main)
