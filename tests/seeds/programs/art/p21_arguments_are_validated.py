"""The planned arguments are validated against the tool's input schema. A tool does not run with invalid arguments.

Document: The 6 Stages of PES Execution, 4. Tool Execution Phase.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

ran = []
CALLS = [
    {"toolName": "sell", "arguments": {"number": "many"}},
    {"toolName": "sell", "arguments": {"number": 2}},
]
PLAN = json.dumps({"intent": "sell", "plan": "sell", "toolCalls": CALLS})


@tool
async def sell(number: int) -> str:
    """Sell some."""
    ran.append(number)
    return "sold"


async def main() -> None:
    async with PlanAgent("shop", llm=ScriptedLLM([PLAN, "Two are sold."]), tools=[sell]) as art:
        result = await art.process("Sell many, then two.")
    wrong, right = result.tool_results
    assert (wrong.status, right.status) == ("error", "success")
    assert "number" in (wrong.error or ""), wrong.error
    assert ran == [2]


trio.run(main)
