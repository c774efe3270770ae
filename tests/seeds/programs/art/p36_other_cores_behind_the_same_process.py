"""Another reasoning pattern can implement the same interface `process(props)`, with the same input and the same result.

Document: Core Interface (IAgentCore); Overview (based on a chosen reasoning pattern).
"""

import json

import trio

from actgent import AgentCore, BareAgent, PlanAgent, ScriptedLLM, StepsAgent

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


class ShoutingCore(AgentCore):
    """A core of one's own, which overrides a step of the pipeline."""

    async def reply(self, context, turn, deliveries):
        steps.append("reply")
        await super().reply(context, turn, deliveries)


class ShoutingAgent(BareAgent):
    core_type = ShoutingCore


steps = []
SCRIPTS = {
    PlanAgent: [PLAN, "Hello."],
    StepsAgent: [json.dumps({"final_answer": "Hello."})],
    BareAgent: ["Hello."],
    ShoutingAgent: ["Hello."],
}


async def main() -> None:
    for kind, script in SCRIPTS.items():
        async with kind("guide", llm=ScriptedLLM(script)) as art:
            thread = await art.ensure_session("ada", "t1")
            result = await art.process("Hello?", session=thread)
        assert (result.status, result.text, result.session_id) == ("success", "Hello.", "t1"), kind
        assert result.model_calls == len(script)
        assert result.seconds > 0
    assert steps == ["reply"]


trio.run(main)
