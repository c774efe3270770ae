"""`process` takes a query and a thread, and returns the final message with its metadata: status, duration, ids and error.

Document: Core Interface (IAgentCore), Input (AgentProps), Output (AgentFinalResponse).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer at once", "toolCalls": []})


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "Hello Ada."])) as art:
        thread = await art.create_session("ada", session_id="t1")
        result = await art.process("Say hello.", session=thread)
        final = (await thread.messages(roles=["assistant"])).messages
    assert result.reply is not None
    assert [message.text for message in final] == ["Hello Ada."] == [result.reply.text]
    assert (result.status, result.error) == ("success", None)
    assert result.seconds > 0
    assert (result.session_id, result.owner) == ("t1", "ada")
    assert result.turn_id
    assert (result.model_calls, result.tool_calls) == (2, 0)


trio.run(main)
