"""Before a tool runs, the tool system verifies that the tool is enabled for the thread. A program enables and disables
tools by thread.

Document: The 6 Stages of PES Execution, 4. Tool Execution Phase.
"""

import json

import trio

from actgent import ConfigurationError, PlanAgent, ScriptedLLM, tool

ran = []
PLAN = json.dumps({"intent": "sell", "plan": "sell", "toolCalls": [{"toolName": "sell", "arguments": {}}]})


@tool
async def sell() -> str:
    """Sell one."""
    ran.append("sell")
    return "sold"


async def main() -> None:
    async with PlanAgent("shop", llm=ScriptedLLM([PLAN, "Done."] * 3), tools=[sell]) as art:
        closed, open_ = await art.create_session("ada"), await art.create_session("bob")
        art.disable_tools(closed, "sell")
        refused = await art.process("Sell one.", session=closed)
        assert ran == []
        assert refused.tool_results[0].status == "error"
        assert (await art.process("Sell one.", session=open_)).status == "success"
        art.enable_tools(closed, "sell")
        assert (await art.process("Sell one.", session=closed)).status == "success"
        assert ran == ["sell", "sell"]
        for wrong in ("sel", ["sell"]):
            try:
                art.disable_tools(open_, wrong)
            except ConfigurationError:
                continue
            raise AssertionError(f"disable_tools({wrong!r}) did nothing")


trio.run(main)
