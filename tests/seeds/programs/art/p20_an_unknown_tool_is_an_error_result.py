"""If the registry does not have a planned tool, the call gets an error result. The synthesis call still writes the answer.

Document: The 6 Stages of PES Execution, 4. Tool Execution Phase (ToolRegistry).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = json.dumps({"intent": "fly", "plan": "fly", "toolCalls": [{"toolName": "fly", "arguments": {}}]})


@tool
async def walk() -> str:
    """Walk."""
    raise AssertionError("it was not asked to")


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "I cannot fly."]), tools=[walk]) as art:
        result = await art.process("Fly!")
    (call,) = result.tool_results
    assert (call.tool_name, call.status) == ("fly", "error")
    assert "fly" in (call.error or "")
    assert "not found" in call.error
    assert result.text == "I cannot fly."


trio.run(main)
