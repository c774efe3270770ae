"""The tool system runs the planned calls one after the other and returns an array with the result of every call: success or error, output.

Document: The 6 Stages of PES Execution, 4. Tool Execution Phase (ToolResult).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

order = []
NAMES = ("write", "fail", "read")
PLAN = json.dumps(
    {"intent": "work", "plan": "work", "toolCalls": [{"toolName": name, "arguments": {}} for name in NAMES]}
)


@tool
async def write() -> str:
    """Write."""
    await trio.sleep(0.01)
    order.append("write")
    return "written"


@tool
async def fail() -> None:
    """Fail."""
    order.append("fail")
    raise RuntimeError("no paper")


@tool(effect="pure")
async def read() -> dict:
    """Read."""
    order.append("read")
    return {"lines": 3}


async def main() -> None:
    async with PlanAgent("guide", llm=ScriptedLLM([PLAN, "Done."]), tools=[write, fail, read]) as art:
        received = []
        thread = await art.create_session("ada")
        thread.on_tool_result(received.append)
        result = await art.process("Work.", session=thread)
    assert order == list(NAMES)
    assert [(each.tool_name, each.status) for each in result.tool_results] == [
        ("write", "success"),
        ("fail", "error"),
        ("read", "success"),
    ]
    assert result.tool_results[0].content == "written"
    assert "no paper" in (result.tool_results[1].error or "")
    assert json.loads(result.tool_results[2].content) == {"lines": 3}
    assert [each.tool_name for each in received] == list(NAMES)


trio.run(main)
