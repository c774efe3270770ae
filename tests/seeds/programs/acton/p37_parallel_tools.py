"""Independent tools can be run in parallel; their results keep the order of the calls.

Document: Performance Considerations, 4. Tool Execution (Could be parallelized); Future Extensibility, 1. Parallel Tool Execution.
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent, tool

here = []


@tool(effect="pure")
async def meet(name: str) -> str:
    """Wait until all three are here."""
    here.append(name)
    with trio.fail_after(2):
        while len(here) < 3:
            await trio.lowlevel.checkpoint()
    return f"met {name}"


async def main() -> None:
    calls = [{"id": n, "tool_name": "meet", "parameters": {"name": n}} for n in ("one", "two", "three")]
    llm = ScriptedLLM([json.dumps({"tool_calls": calls}), json.dumps({"final_answer": "Met."})])
    async with StepsAgent("clerk", llm=llm, tools=[meet]) as agent:
        assert str(await agent.run("Meet.")) == "Met."
    results = str(llm.chats[1].messages)
    assert results.index("met one") < results.index("met two") < results.index("met three")


trio.run(main)
