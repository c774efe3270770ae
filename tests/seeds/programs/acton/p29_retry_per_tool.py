"""Each tool has its own retries, for the errors that it names. After the last retry, the model gets the error.

Document: Performance Considerations, 4. Tool Execution (Retry logic per tool); Data Flow, Execute Tools.
"""

import json

import trio
import trio.testing

from actgent import ScriptedLLM, StepsAgent, tool

tries = []


@tool(retries=2, retry_on=ConnectionError, retry_delay=2)
async def steady() -> str:
    """Work at the third attempt."""
    tries.append(trio.current_time())
    if len(tries) < 3:
        raise ConnectionError("no line")
    return "worked"


@tool(retries=2, retry_on=ConnectionError)
async def wrong() -> str:
    """Never work."""
    tries.append(0)
    raise ValueError("not a number")


async def main() -> None:
    calls = [{"id": name, "tool_name": name, "parameters": {}} for name in ("steady", "wrong")]
    llm = ScriptedLLM([json.dumps({"tool_calls": calls}), json.dumps({"final_answer": "Done."})])
    async with StepsAgent("clerk", llm=llm, tools=[steady, wrong]) as agent:
        assert str(await agent.run("Work.")) == "Done."
    assert len(tries) == 4
    assert tries[1] - tries[0] >= 1
    assert "worked" in str(llm.chats[1].messages)
    assert "not a number" in str(llm.chats[1].messages)


trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
