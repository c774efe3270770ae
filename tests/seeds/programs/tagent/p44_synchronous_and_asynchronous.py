"""`run_agent` is a function that blocks until the run ends, and returns the result.

Document: Main Agent Loop (def run_agent).

Differs: `run_agent` is async, so that many runs share a thread. Scripts write `run_agent_sync` with equal arguments.
"""

import json

import trio

from actgent import ScriptedLLM, UsageError, run_agent, run_agent_sync

DECISIONS = [
    {"action": "summarize", "params": {"summary": "42"}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "42"}},
]
SCRIPT = [json.dumps(each) for each in DECISIONS]
assert run_agent_sync("What is the answer?", ScriptedLLM(SCRIPT)).achieved


async def main() -> None:
    results = []

    async def work() -> None:
        results.append(await run_agent("What is the answer?", ScriptedLLM(SCRIPT)))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(work)
    assert all(result.achieved for result in results)
    try:
        run_agent_sync("What is the answer?", ScriptedLLM(SCRIPT))
    except UsageError as error:
        assert "run_agent" in str(error)
    else:
        raise AssertionError("it blocked the loop")


trio.run(main)
