"""LONG: a session of many turns, as it goes on, and as it comes back after a restart.

It lives in a process, and is opened in another one each time, so that neither has what the other left in memory.
"""

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import trio
from measure import Figures, Stopwatch, expect, percentile, rss

from actgent import BareAgent, ScriptedLLM, open_runtime

QUESTION, ANSWER = "What is the weather going to be today?", "It is going to rain, and then it is not."
FIRST = 50
"""The turns behind which those begin that the last are compared with, as many again and half: the hundredth in the middle."""
PAGE = 100
SHARES = (1, 5, 50)
"""How many times shorter the sessions are."""


async def measure_long_sessions(size: int) -> Figures:
    """A session of `size` turns, and shorter ones."""
    figures: Figures = {}
    for share in SHARES:
        found = await _in_processes(max(2 * FIRST, size // share))
        figures |= found if share == 1 else {f"{name}_{share}": found[name] for name in ("open_s", "rss_mb")}
    return figures


async def _in_processes(turns: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        path = trio.Path(folder, "long.db")
        figures: Figures = {}
        for part in ("live", "look_back", "open"):
            command = [sys.executable, __file__, part, f"sqlite:///{path}", str(turns)]
            done = await trio.run_process(command, capture_stdout=True)
            figures |= json.loads(done.stdout)
        return figures | {"file_mb": (await path.stat()).st_size / 1e6}


# --- the other processes -------------------------------------------------------------------


def _agent() -> BareAgent:
    return BareAgent("a", llm=ScriptedLLM([ANSWER], repeat=True, keep=0))


async def _turns(session: Any, count: int) -> list[float]:
    """Microseconds of CPU of each turn, with what is done beside it."""
    times = []
    for _ in range(count):
        watch = Stopwatch()
        await session.chat(QUESTION)
        await session.wait_idle()
        times.append(watch.cpu_us(1))
    return times


async def live(url: str, turns: int) -> Figures:
    """The session, from its first turn on: the median turn of the last tenth over that round the hundredth.

    In `mean_ratio` are the snapshots, too, which are made beside some of them.
    """
    last = max(FIRST, turns // 10)
    async with open_runtime(journal=url, durability="relaxed") as runtime:
        agent = await runtime.start(_agent())
        session = await agent.create_session("ada", session_id="s")
        await _turns(session, FIRST)
        hundredth = await _turns(session, min(2 * FIRST, turns - FIRST))
        await _turns(session, max(0, turns - 3 * FIRST - last))
        latest = await _turns(session, last)
        figures = {"live_mb": rss() / 1e6}
    hundredth_us, last_us = percentile(hundredth, 0.5), percentile(latest, 0.5)
    return figures | {
        "hundredth_us": hundredth_us,
        "last_us": last_us,
        "turn_ratio": last_us / hundredth_us,
        "mean_ratio": statistics.mean(latest) / statistics.mean(hundredth),
    }


async def look_back(url: str, turns: int) -> Figures:
    """All that was said, which a session that was opened from a snapshot has to read."""
    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(_agent())).open_session("s")
        watch = Stopwatch()
        seen = len(session.history)
    expect(seen=seen >= 2 * turns, wanted=True, what="messages")
    return {"history_s": watch.wall_s()}


async def open(url: str, turns: int) -> Figures:  # noqa: A001 - the name of the part
    """The session again: how long that takes, an answer with it, and what the process takes then."""
    async with open_runtime(journal=url) as runtime:
        agent, before = await runtime.start(_agent()), rss()
        watch = Stopwatch()
        session = await agent.open_session("s")
        opened_s, cpu_s = watch.wall_s(), watch.cpu_us(1) / 1e6
        await _turns(session, 1)
        answered_s = watch.wall_s()
        figures = {"rss_mb": rss() / 1e6, "grown_mb": (rss() - before) / 1e6}
        begun = time.perf_counter()
        page = await session.messages(limit=PAGE, before=turns)
        page_ms = (time.perf_counter() - begun) * 1e3
    expect(seen=[each.text for each in page][-2:], wanted=[QUESTION, ANSWER], what="the page")
    return figures | {"open_s": opened_s, "open_cpu_s": cpu_s, "answer_s": answered_s, "page_ms": page_ms}


if __name__ == "__main__":
    print(json.dumps(trio.run(globals()[sys.argv[1]], sys.argv[2], int(sys.argv[3]))))
