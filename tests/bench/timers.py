"""Many evicted sessions with one schedule each: cost after a restart, and lateness of the timers.

Another process writes the sessions, so that their memory is not measured here.
"""

import heapq
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

import trio
from measure import ANSWER, Figures, Stopwatch, expect, rss
from trio.lowlevel import checkpoint

from actgent import LLM, BareAgent, Sender, Text, open_runtime
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import NextTimerRecord, ScheduleRecord, SessionCreatedRecord
from actgent.llm.model_interface import ModelRequest, ModelResponse, OnText

RATE = 100_000 / 60
"""Timers due per second: 100,000 within a minute."""
START = 3.0
"""Seconds from the last write to the first due time."""
WRITTEN = 10_000
"""Sessions that the other process writes in about one second."""


def offsets(size: int) -> Iterator[float]:
    """Return the due time of each schedule in seconds after the first: evenly spread, with a hundredth at one moment, as at a full hour."""
    crowd = size // 100
    yield from (number / RATE for number in range(size - crowd))
    yield from [(size - crowd) / 2 / RATE] * crowd


class Lateness(LLM):
    """A model that records how late it is called for a schedule whose description has the due time."""

    name = "bench:lateness"

    def __init__(self, count: int) -> None:
        self.now: Callable[[], float] = time.time
        self.late: list[float] = []
        self.done = trio.Event()
        self._count = count

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        await checkpoint()
        part = chat.messages[-1].parts[0]
        assert isinstance(part, Text)
        self.note(float(part.text.split()[-2]))
        return ModelResponse(parts=(Text(ANSWER),))

    def note(self, due: float) -> None:
        self.late.append(self.now() - due)
        if len(self.late) == self._count:
            self.done.set()

    def figures(self, *, pending: int, grown: int, cpu_us: float) -> Figures:
        expect(seen=len(self.late), wanted=self._count, what="schedules fired")
        late = sorted(self.late)
        return {
            "rss_mb": max(pending, grown) / 1e6,
            "pending_mb": pending / 1e6,
            "late_s": late[-1],
            "median_ms": late[len(late) // 2] * 1e3,
            "fire_us": cpu_us,
        }


async def time_sessions(size: int) -> Figures:
    """Open a journal in SQLite after a restart and wait for all schedules."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/timers.db"
        await trio.run_process([sys.executable, __file__, url, str(size)])
        model = Lateness(size)
        before, started = rss(), time.perf_counter()
        async with open_runtime(journal=url) as runtime:
            model.now = runtime.clock.now
            await runtime.start(BareAgent("a", llm=model))
            start_s, pending, watch = time.perf_counter() - started, rss() - before, Stopwatch()
            await model.done.wait()
            figures = model.figures(pending=pending, grown=rss() - before, cpu_us=watch.cpu_us(size))
        return figures | {"start_s": start_s}


async def time_heap(size: int) -> Figures:
    """The floor: a heap of due times, a task that sleeps until the next, and an id for each session."""
    before, first = rss(), time.time() + START
    heap = [(first + offset, f"{number:032x}") for number, offset in enumerate(offsets(size))]
    heapq.heapify(heap)
    model = Lateness(size)
    pending, watch = rss() - before, Stopwatch()
    while heap:
        due, _ = heap[0]
        await trio.sleep(max(0.0, due - time.time()))
        heapq.heappop(heap)
        model.now = lambda due=due: max(due, time.time())  # type: ignore[misc]
        model.note(due)
    return model.figures(pending=pending, grown=rss() - before, cpu_us=watch.cpu_us(size))


# --- the other process: schedules from before the restart  -- ------------------------------


async def write(url: str, size: int) -> None:
    """Write sessions with one schedule each."""
    first = time.time() + START + size / WRITTEN
    await write_all(url, (entry(f"s{number}", first + offset) for number, offset in enumerate(offsets(size))))


async def write_all(url: str, entries: Iterable[Entry]) -> None:
    """Write one step for each of many sessions."""
    async with open_journal(url) as journal:
        epoch = await journal.acquire()
        for number, each in enumerate(entries):
            journal.enqueue_write(each, epoch=epoch)
            if number % 1000 == 0:
                await journal.unfinished("")  # which waits until all sessions are written


def entry(session_id: str, due: float) -> Entry:
    """Return a session with one schedule."""
    scheduled = ScheduleRecord(schedule_id="s", description=f"due at {due!r}", at=due)
    opened = SessionCreatedRecord(owner=Sender("ada"), created_at=due)
    return Entry(session_id=session_id, agent="a", records=(opened, scheduled, NextTimerRecord(at=due)))


if __name__ == "__main__":
    trio.run(write, sys.argv[1], int(sys.argv[2]))
