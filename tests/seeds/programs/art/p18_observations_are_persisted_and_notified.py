"""Observations are persisted, so that they are available after a restart, and the UI receives those of its subscription.

Document: The 6 Stages of PES Execution, 3. Planning Call (ObservationRepository, ObservationSocket).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, open_runtime

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        art = await runtime.start(PlanAgent("guide", llm=ScriptedLLM([PLAN, "Hello."])))
        thread = await art.ensure_session("ada", "t1")
        async with thread.observe(types=["INTENT", "PLAN"]) as socket:
            turn = (await art.process("Hello?", session=thread)).turn_id
            received = [await socket.receive() for _ in range(2)]
        kept = await thread.observations()
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        art = await runtime.start(PlanAgent("guide", llm=ScriptedLLM([])))
        thread = await art.open_session("t1")
        assert await thread.observations() == kept
        assert [each.id for each in await thread.observations(types=["INTENT", "PLAN"], turn=turn)] == [
            each.id for each in received
        ]
        assert await thread.observations(turn="another") == ()
    assert [each.type for each in received] == ["INTENT", "PLAN"]


trio.run(main)
