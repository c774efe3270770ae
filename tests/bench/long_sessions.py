"""LONG: turns of a long session, and its time to open after a restart.

The session lives in one process and is opened in another one each time, so no memory remains from earlier work.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import trio
from measure import Figures, Stopwatch, expect, percentile, rss

from actgent import BareAgent, ScriptedLLM, Session, SlidingWindow, SummarizingMemory, open_runtime

QUESTION, ANSWER = "What is the weather going to be today?", "It is going to rain, and then it is not."
FIRST = 50
"""Number of the turn after which the compared turns begin. They end at three times this number, so turn 100 is in the middle."""
PAGE = 100
VIEWS = {
    "sliding": lambda: SlidingWindow(turns=20),
    "summarizing": lambda: SummarizingMemory(
        llm=ScriptedLLM(["They talked."], repeat=True, keep=0), trigger=2_000
    ),
}
"""Further memories for the same measurement, in addition to the default."""
SHARES = (1, 5, 50)
"""Divisors of the session length."""


async def measure_long_sessions(size: int) -> Figures:
    """Measure a session of `size` turns, and shorter ones."""
    figures: Figures = {}
    for share in SHARES:
        found = await _in_processes(max(2 * FIRST, size // share))
        figures |= found if share == 1 else {f"{name}_{share}": found[name] for name in ("open_s", "rss_mb")}
    for view in VIEWS:
        found = await _in_processes(max(2 * FIRST, size), view, parts=("live", "open"))
        figures |= {f"{view}_{name}": found[name] for name in ("beside_ratio", "open_s", "rss_mb", "live_mb")}
    return figures


async def _in_processes(
    turns: int, view: str = "", parts: Sequence[str] = ("live", "look_back", "open")
) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        path = trio.Path(folder, "long.db")
        figures: Figures = {}
        for part in parts:
            command = [sys.executable, __file__, part, f"sqlite:///{path}", str(turns), view]
            done = await trio.run_process(command, capture_stdout=True)
            figures |= json.loads(done.stdout)
        return figures | {"file_mb": (await path.stat()).st_size / 1e6}


# --- the other processes -------------------------------------------------------------------


def _agent(view: str) -> BareAgent:
    memory = VIEWS[view]() if view else None
    return BareAgent("a", llm=ScriptedLLM([ANSWER], repeat=True, keep=0), memory=memory)


async def _alternately(one: Session, other: Session, rounds: int) -> tuple[float, float]:
    """Return the median turn of two sessions in microseconds. Their turns alternate, so both have the same machine speed."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[0].extend(await _turns(one, 1))
        times[1].extend(await _turns(other, 1))
    return percentile(times[0], 0.5), percentile(times[1], 0.5)


async def _turns(session: Any, count: int) -> list[float]:
    """Return CPU microseconds of each turn, including background work."""
    times = []
    for _ in range(count):
        watch = Stopwatch()
        await session.chat(QUESTION)
        await session.wait_idle()
        times.append(watch.cpu_us(1))
    return times


async def live(url: str, turns: int, view: str) -> Figures:
    """Run the session from its first turn. Return the median turn of the last tenth over the median around the hundredth turn.

    `mean_ratio` includes the snapshots that some turns write. `beside_ratio` compares turns at the end with turns of a session
    around its hundredth, which alternate, so both have the same machine speed.
    """
    last = max(FIRST, turns // 10)
    async with open_runtime(journal=url, durability="relaxed") as runtime:
        agent = await runtime.start(_agent(view))
        session = await agent.create_session("ada", session_id="s")
        await _turns(session, FIRST)
        hundredth = await _turns(session, min(2 * FIRST, turns - FIRST))
        await _turns(session, max(0, turns - 3 * FIRST - last))
        latest = await _turns(session, last)
        figures = {"live_mb": rss() / 1e6}
        fresh = await agent.create_session("ada", session_id="fresh")
        await _turns(fresh, FIRST)
        now_us, fresh_us = await _alternately(session, fresh, 2 * FIRST)
    hundredth_us, last_us = percentile(hundredth, 0.5), percentile(latest, 0.5)
    return figures | {
        "hundredth_us": hundredth_us,
        "last_us": last_us,
        "turn_ratio": last_us / hundredth_us,
        "beside_ratio": now_us / fresh_us,
        "mean_ratio": statistics.mean(latest) / statistics.mean(hundredth),
    }


async def look_back(url: str, turns: int, view: str) -> Figures:
    """Read the whole history, which a session that was opened from a snapshot reads from the journal."""
    async with open_runtime(journal=url) as runtime:
        session = await (await runtime.start(_agent(view))).open_session("s")
        watch = Stopwatch()
        seen = len(session.history)
    expect(seen=seen >= 2 * turns, wanted=True, what="messages")
    return {"history_s": watch.wall_s()}


async def open(url: str, turns: int, view: str) -> Figures:  # noqa: A001 - the name of the part
    """Open the session again. Return the time to open, the time with an answer, and the memory of the process."""
    async with open_runtime(journal=url) as runtime:
        agent, before = await runtime.start(_agent(view)), rss()
        watch = Stopwatch()
        session = await agent.open_session("s")
        opened_s, cpu_s = watch.wall_s(), watch.cpu_us(1) / 1e6
        await _turns(session, 1)
        answered_s = watch.wall_s()
        figures = {"rss_mb": rss() / 1e6, "grown_mb": (rss() - before) / 1e6}
        started = time.perf_counter()
        page = await session.messages(limit=PAGE, before=turns)
        page_ms = (time.perf_counter() - started) * 1e3
    texts = sorted({each.text for each in page if each.sender.kind != "system"})
    expect(seen=texts, wanted=sorted((QUESTION, ANSWER)), what="the page")
    return figures | {"open_s": opened_s, "open_cpu_s": cpu_s, "answer_s": answered_s, "page_ms": page_ms}


if __name__ == "__main__":
    print(json.dumps(trio.run(globals()[sys.argv[1]], sys.argv[2], int(sys.argv[3]), sys.argv[4])))
