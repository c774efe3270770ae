"""Many sessions with a date each, all asleep: what they cost after a restart, and how late they fire.

The spread is a service's with a reminder for each of its users: most are due in the next days, a twentieth in the
next 20 seconds, evenly, which is 216 times as many as an even day would have, and a two-hundredth at one moment among
them, as at a full hour. The sessions are written by another
process, so that nothing of that is in the memory that is measured here.
"""

import heapq
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import trio
from measure import ANSWER, Figures, Stopwatch, expect, rss
from trio.lowlevel import checkpoint

from actgent import LLM, BareAgent, Sender, Text, open_runtime
from actgent.journal.base import Entry
from actgent.journal.opening import open_journal
from actgent.journal.records import Due, Opened, Scheduled
from actgent.llm.base import Answer, Chat, OnText

WINDOW = 20.0
"""Seconds over which they fire."""
DAY = 86_400.0
MEGABYTE = 1_000_000


def soon(size: int) -> Iterator[float]:
    """When each session is due that fires in the run, in seconds after the first."""
    evenly, crowd = max(1, size // 20), max(1, size // 200)
    yield from (WINDOW * number / evenly for number in range(evenly))
    yield from [WINDOW / 2] * crowd


class Lateness(LLM):
    """Notes how late it is asked to do what a description dates."""

    name = "bench:lateness"

    def __init__(self, count: int) -> None:
        self.now: Callable[[], float] = time.time
        self.late: list[float] = []
        self.done = trio.Event()
        self._count = count

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        await checkpoint()
        part = chat.messages[-1].parts[0]
        assert isinstance(part, Text)
        self.note(float(part.text.split()[-2]))
        return Answer(parts=(Text(ANSWER),))

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
    """A journal in SQLite, a restart, and what fires then; the rest stays pending."""
    count = len([*soon(size)])
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/timers.db"
        await trio.run_process([sys.executable, __file__, url, str(size)])
        model = Lateness(count)
        before, begun = rss(), time.perf_counter()
        async with open_runtime(journal=url) as runtime:
            model.now = runtime.clock.now
            await runtime.start(BareAgent("a", llm=model))
            start_s, pending, watch = time.perf_counter() - begun, rss() - before, Stopwatch()
            await model.done.wait()
            figures = model.figures(pending=pending, grown=rss() - before, cpu_us=watch.cpu_us(count))
        return figures | {"start_s": start_s}


async def time_heap(size: int) -> Figures:
    """The floor: a heap of dates, a task that sleeps until the next, and an id that is kept for each session."""
    before, first = rss(), time.time() + 1
    heap = [(first + offset, f"{number:032x}") for number, offset in enumerate(soon(size))]
    later = range(size - len(heap))
    count, model = len(heap), Lateness(len(heap))
    heap += [(first + DAY + number, f"{number:032x}") for number in later]
    heapq.heapify(heap)
    pending, watch = rss() - before, Stopwatch()
    while len(model.late) < count:
        due, _ = heap[0]
        await trio.sleep(max(0.0, due - time.time()))
        heapq.heappop(heap)
        model.now = lambda due=due: max(due, time.time())  # type: ignore[misc]
        model.note(due)
    return model.figures(pending=pending, grown=rss() - before, cpu_us=watch.cpu_us(count))


# --- the other process: what was scheduled before the restart ------------------------------


async def write(url: str, size: int) -> None:
    """Write sessions that are due in a day or more, and then those that are due in a few seconds."""
    offsets = [*soon(size)]
    async with open_journal(url) as journal:
        epoch = await journal.acquire()
        for number in range(size - len(offsets)):
            journal.write_soon(entry(f"later {number}", time.time() + DAY + number), epoch=epoch)
            if number % 1000 == 0:
                await journal.unfinished("")  # which waits until all of them are written
        first = time.time() + 4 + len(offsets) / 2000
        for number, offset in enumerate(offsets):
            journal.write_soon(entry(f"soon {number}", first + offset), epoch=epoch)
            if number % 1000 == 0:
                await journal.unfinished("")


def entry(session_id: str, due: float) -> Entry:
    """A session with one schedule."""
    scheduled = Scheduled(schedule_id="s", description=f"due at {due!r}", at=due)
    opened = Opened(owner=Sender("ada"), created_at=due)
    return Entry(session_id=session_id, agent="a", records=(opened, scheduled, Due(at=due)))


if __name__ == "__main__":
    trio.run(write, sys.argv[1], int(sys.argv[2]))
