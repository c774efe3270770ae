"""Timeouts end long operations: the whole run, a tool, and the model. The result has the partial results.

Document: Production Considerations, Error Handling (Timeout Management).
"""

import json

import trio
import trio.testing

from actgent import DeadlineExceeded, Limits, ScriptedLLM, run_agent, tool


async def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


@tool(effect="pure", timeout=3)
async def hang() -> str:
    """Never end."""
    await trio.sleep_forever()
    return "never"


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


async def main() -> None:
    script = [
        act("execute", tool="hang", args={}),
        act("execute", tool="lookup"),
        act("evaluate", achieved=True, answer="it hangs"),
    ]
    result = await run_agent("Try it.", ScriptedLLM(script), tools={"lookup": lookup, "hang": hang})
    assert result.achieved
    assert result.tool_results[0].status == "error"

    began = trio.current_time()
    slow = ScriptedLLM([act("execute", tool="hang", args={})], repeat=True, delay=4)
    result = await run_agent("Try it.", slow, tools=[hang], timeout=10)
    assert trio.current_time() - began <= 11
    assert (result.status, type(result.failure)) == ("incomplete", DeadlineExceeded)
    assert result.tool_results

    began = trio.current_time()
    stuck = ScriptedLLM([act("plan", steps=["a"])], delay=3600)
    result = await run_agent("Try it.", stuck, limits=Limits(model_timeout=20))
    assert trio.current_time() - began <= 100
    assert not result.achieved
    assert result.failure is not None


trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
