"""The thread id is mandatory; it identifies history, state and configuration.

Document: Input (AgentProps).

Differs: `session=` is optional. Without it, `process` creates a thread and returns its id. To continue a thread,
write `process(query, session=await agent.ensure_session(owner, thread_id))`.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    llm = ScriptedLLM([PLAN, "One.", PLAN, "Two.", PLAN, "Three."])
    async with PlanAgent("guide", llm=llm) as art:
        await art.process("first", session=await art.ensure_session("ada", "t1"))
        await art.process("second", session=await art.ensure_session("ada", "t1"))
        alone = await art.process("third")
    planning = [str(chat.messages) for chat in llm.chats[::2]]
    assert "first" in planning[1]
    assert "One." in planning[1]
    assert "first" not in planning[2]
    assert alone.session_id not in {"", "t1"}


trio.run(main)
