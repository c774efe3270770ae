"""Translation of the code block in the document of ART."""

import json

from actgent import PlanAgent, ScriptedLLM


async def test_block_1_a_request_is_processed():
    """`process` returns the text, the status and the number of model calls."""
    plan = json.dumps({"intent": "greet", "plan": "answer"})
    agent = PlanAgent("a", llm=ScriptedLLM([plan, "Hello."]))
    async with agent:
        session = await agent.create_session("ada")
        # block 1
        result = await agent.process("Hi", session=session)
        # end
    assert result.text == "Hello."
    assert result.status == "success"
    assert result.model_calls == 2
