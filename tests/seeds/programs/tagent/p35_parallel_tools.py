"""Independent operations are executed in parallel.

Document: Production Considerations, Performance Optimization (Parallel Tool Execution).
"""

import json

import trio

from actgent import GoalAgent, ScriptedLLM, ToolCall, tool

here = []


@tool(effect="pure")
async def meet(name: str) -> str:
    """Wait until both are here."""
    here.append(name)
    with trio.fail_after(2):
        while len(here) < 2:
            await trio.lowlevel.checkpoint()
    return f"met {name}"


async def main() -> None:
    calls = [ToolCall("meet", {"name": name}) for name in ("one", "two")]
    model = ScriptedLLM(
        [calls, json.dumps({"action": "evaluate", "params": {"achieved": True, "answer": "met"}})]
    )
    async with GoalAgent("guide", llm=model, tools=[meet]) as agent:
        result = await agent.run_goal("Meet.")
    assert result.achieved
    assert [each.content for each in result.tool_results] == ["met one", "met two"]


trio.run(main)
