"""A tool runs with a timeout. Its result reports the timeout, and the model still writes the answer.

Document: The 6 Stages of PES Execution, 4. Tool Execution Phase.
"""

import json

import trio
import trio.testing

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = json.dumps({"intent": "wait", "plan": "wait", "toolCalls": [{"toolName": "wait", "arguments": {}}]})


@tool(effect="pure", timeout=5)
async def wait() -> str:
    """Wait for ever."""
    await trio.sleep_forever()
    return "never"


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "It took too long."]), tools=[wait]) as art:
        began = trio.current_time()
        result = await art.process("Wait.")
        assert 5 <= trio.current_time() - began < 6
    assert result.tool_results[0].status == "error"
    assert "5 s" in (result.tool_results[0].error or ""), result.tool_results
    assert result.text == "It took too long."


trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
