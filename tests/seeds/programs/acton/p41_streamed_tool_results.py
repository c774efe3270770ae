"""The outputs of tools are streamed in real time, while a tool works.

Document: Future Extensibility, 2. Streaming Tool Results.
"""

import json

import trio

from actgent import CallProgress, ScriptedLLM, StepsAgent, ToolResult, tool


@tool(effect="pure")
async def count():
    """Count to three."""
    for number in (1, 2, 3):
        yield number
        await go_on[number - 1].wait()


async def main() -> None:
    step = {"tool_calls": [{"id": "1", "tool_name": "count", "parameters": {}}]}
    llm = ScriptedLLM([json.dumps(step), json.dumps({"final_answer": "Three."})])
    seen = []
    async with StepsAgent("clerk", llm=llm, tools=[count]) as agent, agent.stream("Count.") as events:
        with trio.fail_after(2):
            async for event in events:
                if isinstance(event, CallProgress):
                    seen.append(event.text)
                    go_on[len(seen) - 1].set()
                elif isinstance(event, ToolResult):
                    seen.append(event.content)
    assert seen == ["1", "2", "3", "3"], seen


go_on = [trio.Event() for _ in range(3)]
trio.run(main)
