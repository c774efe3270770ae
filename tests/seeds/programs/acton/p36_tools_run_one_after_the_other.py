"""The tools of a step run one after the other by default, in the order of the answer.

Document: Performance Considerations, 4. Tool Execution (Sequential by default).
"""

import json

import trio

from actgent import FunctionTool, ScriptedLLM, StepsAgent

trace = []


async def write(name: str) -> str:
    trace.append(f"{name} begins")
    await trio.sleep(0.001)
    trace.append(f"{name} ends")
    return name


async def main() -> None:
    names = ("one", "two", "three")
    calls = [{"id": name, "tool_name": "write", "parameters": {"name": name}} for name in names]
    llm = ScriptedLLM([json.dumps({"tool_calls": calls}), json.dumps({"final_answer": "Written."})] * 5)
    async with StepsAgent("clerk", llm=llm, tools=[FunctionTool("write", "Writes.", write)]) as agent:
        for _ in range(5):
            trace.clear()
            await agent.run("Write three things.")
            assert trace == [f"{name} {what}" for name in names for what in ("begins", "ends")], trace


trio.run(main)
