"""Which sessions are told of now: those of one receiver take turns, and one that has to be tried again waits for its time.

A receiver has `SLOTS` attempts at a time, so one that is slow holds up what goes to it alone.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import attrs
import trio

from actgent.journal.listing import SessionKey

from .signing import SigningKeys

SLOTS = 8
"""Attempts at a time to one receiver."""
ALL_SLOTS = 96
"""Attempts at a time to all of them: below the connections that a guarded client has."""


@attrs.frozen(kw_only=True)
class Target:
    """Where the notifications of a session go."""

    url: str
    events: tuple[str, ...]
    keys: SigningKeys | None = None
    """None: the webhook's own."""

    @property
    def origin(self) -> str:
        """The receiver, as far as it is one server."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}".lower()


@attrs.define(eq=False)
class Line:
    """One session that has something to tell."""

    key: SessionKey
    target: Target
    seen: int
    """The last record that was dealt with."""
    known: int
    """The last record that may have something to tell."""
    again: str = ""
    """The id of the one notification that is sent again; empty: it goes on with all of them."""
    attempts: int = 0
    """Those that failed, for the notification that is next."""
    began: float = 0.0
    """When the first of them was, by trio's clock."""
    is_over: bool = False
    """True: the session was erased."""


@attrs.define(eq=False)
class _Lane:
    """The lines of one receiver that may be told now."""

    ready: deque[Line] = attrs.field(factory=deque)
    running: int = 0


class Lanes:
    """Has lines told, each by one task at a time.

    Args:
        tell: Tells a line; returns the seconds after which it is to be tried again, or None where nothing failed.
        finish: Called with each line that has nothing more to tell.
    """

    def __init__(
        self, tell: Callable[[Line], Awaitable[float | None]], finish: Callable[[Line], object]
    ) -> None:
        self._tell = tell
        self._finish = finish
        self._lanes: dict[str, _Lane] = {}
        self._running = 0
        self._late: list[tuple[float, int, Line]] = []
        """Lines that wait for their next attempt, as a heap by time."""
        self._order = itertools.count()
        self._alarm = trio.Event()
        self._nursery: trio.Nursery | None = None

    def late(self, most: int) -> list[Line]:
        """The lines that are tried again next."""
        return [line for _, _, line in heapq.nsmallest(most, self._late)]

    async def run(self) -> None:
        """Have them told, until it is cancelled."""
        async with trio.open_nursery() as self._nursery:
            for lane in list(self._lanes.values()):
                self._pump(lane)
            await self._watch_time()

    def add(self, line: Line) -> None:
        """Have a line told, when it is its turn."""
        lane = self._lanes.setdefault(line.target.origin, _Lane())
        lane.ready.append(line)
        self._pump(lane)

    async def _watch_time(self) -> None:
        while True:
            self._alarm = trio.Event()
            while self._late and self._late[0][0] <= trio.current_time():
                self.add(heapq.heappop(self._late)[2])
            with trio.move_on_at(self._late[0][0] if self._late else math.inf):
                await self._alarm.wait()

    def _pump(self, lane: _Lane) -> None:
        while self._nursery and lane.ready and lane.running < SLOTS and self._running < ALL_SLOTS:
            lane.running += 1
            self._running += 1
            self._nursery.start_soon(self._work, lane.ready.popleft(), lane)

    async def _work(self, line: Line, lane: _Lane) -> None:
        pause = None if line.is_over else await self._tell(line)
        was_full = self._running >= ALL_SLOTS
        lane.running -= 1
        self._running -= 1
        if pause is not None:
            heapq.heappush(self._late, (trio.current_time() + pause, next(self._order), line))
            self._alarm.set()
        elif line.seen < line.known and not line.is_over:
            lane.ready.append(line)
        else:
            self._finish(line)
        for each in list(self._lanes.values()) if was_full else [lane]:
            self._pump(each)
        if not lane.ready and not lane.running and self._lanes.get(line.target.origin) is lane:
            del self._lanes[line.target.origin]
