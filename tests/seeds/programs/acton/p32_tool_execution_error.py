"""A failing tool is a `ToolExecutionError` that is handled: the model gets the error as the result, and the run continues.

Document: Error Handling Strategy, ToolExecutionError; Data Flow, Execute Tools (Error handle).

Differs: The run raises no exception, because the error stays inside the run. Read `ToolResult.error` in the events.
Raise `ToolError` in a tool to choose the text for the model.
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent, ToolError, ToolResult, tool


@tool
async def crash() -> str:
    """Crash."""
    raise ZeroDivisionError("by zero")


@tool
async def refuse() -> str:
    """Refuse."""
    raise ToolError("the shop is closed")


async def main() -> None:
    calls = [{"id": name, "tool_name": name, "parameters": {}} for name in ("crash", "refuse")]
    llm = ScriptedLLM([json.dumps({"tool_calls": calls}), json.dumps({"final_answer": "Both failed."})])
    results = []
    async with StepsAgent("clerk", llm=llm, tools=[crash, refuse]) as agent, agent.stream("Work.") as events:
        async for event in events:
            if isinstance(event, ToolResult):
                results.append(event)
    assert [(each.tool_name, each.status) for each in results] == [("crash", "error"), ("refuse", "error")]
    assert "ZeroDivisionError: by zero" in results[0].error
    assert results[1].error.endswith("the shop is closed")
    assert "by zero" in str(llm.chats[1].messages)


trio.run(main)
