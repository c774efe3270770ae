"""Observations of a session as a stream, and those of its history; thoughts come while the model writes them."""

from collections import deque
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import attrs
import trio

from actgent.control.arguments import at_least_one
from actgent.errors import CursorUnknown, SessionNotFound
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.runtime.sessions.table import SessionTable
from actgent.sessions.context import SessionContext
from actgent.sessions.following import (
    Followed,
    LiveText,
    ObservationView,
    Observed,
    ObservedType,
    RecentHistory,
    TurnNames,
    Waker,
    growing_thoughts,
    thoughts_id,
)
from actgent.sessions.recent_records import RecentRecords
from actgent.support.leads import for_readers

from .follower import PAGE, SessionFollower, follow_session

SHORT, STEP = 4096, 16
"""Characters up to which thoughts are looked for with each piece, and the part by which a longer answer grows until then."""


@attrs.frozen(kw_only=True)
class Wanted:
    """Which observations a subscriber wants."""

    types: Collection[ObservedType] | None = None
    turn: str | None = None

    def takes(self, observed: Observed) -> bool:
        is_typed = self.types is None or observed.type in self.types
        return is_typed and self.turn in (None, observed.turn)


@for_readers
class ObservationReader(trio.abc.ReceiveChannel[Observed]):
    """One subscriber's end; closed, it hears no more, and no other subscriber notices."""

    def __init__(
        self,
        follower: "SessionFollower | RecentFollower",
        view: ObservationView,
        wanted: Wanted,
    ) -> None:
        self._follower = follower
        self._view = view
        self._wanted = wanted
        self._ready: deque[Observed] = deque()
        self._looked: tuple[str, int] = ("", 0)
        """The answer in which thoughts were looked for, and its length then."""
        self._shown = ""

    @property
    def cursor(self) -> int:
        """The number of the last record whose observations were received, or were not wanted."""
        return self._follower.cursor if not self._ready else self._ready[0].number - 1

    async def receive(self) -> Observed:
        """The next observation, or thoughts that have grown.

        Raises:
            trio.EndOfChannel: the session is closed or erased, or the journal's block is left, and all was received.
            trio.ClosedResourceError: the reader was closed.
            JournalError: the journal cannot be read.
        """
        await trio.lowlevel.checkpoint()
        self._follower.check_open()
        while not self._ready:
            item = self._follower.receive_ready()
            if isinstance(item, Followed):
                self._ready.extend(filter(self._wanted.takes, self._view.read(item)))
            elif item is None and (thoughts := self._grown()) is not None:
                return thoughts
            elif item is None:
                await self._follower.move_on()
        return self._ready.popleft()

    def _grown(self) -> Observed | None:
        turn, answer, text = self._follower.live.whole
        known, size = self._looked if self._looked[0] == answer else ("", 0)
        if not answer or (known and size > SHORT and len(text) - size < size // STEP):
            return None
        self._looked = (answer, len(text))
        thoughts = growing_thoughts(text)
        if not thoughts or (known and thoughts == self._shown):
            return None
        self._shown = thoughts
        observed = Observed(
            id=thoughts_id(answer),
            type="THOUGHTS",
            title="Thoughts",
            number=0,
            at=None,
            turn=turn,
            parent=turn,
            content=thoughts,
            is_whole=False,
        )
        return observed if self._wanted.takes(observed) else None

    async def aclose(self) -> None:
        """Hear no more."""
        await self._follower.aclose()


@asynccontextmanager
async def observe(
    journal: Journal | None, table: SessionTable | None, key: SessionKey, *, after: int | None, wanted: Wanted
) -> AsyncGenerator[ObservationReader, None]:
    """A subscriber of a session's observations; see `Session.observe`."""
    async with follow_session(journal, table, key, after=after, thinks=True) as follower:
        view = ObservationView()
        if journal is not None:
            await _warm_up(journal, key, view, follower.cursor)
        yield ObservationReader(follower, view, wanted)


# --- without a journal -------------------------------------------------------------------


class RecentFollower(Waker):
    """Follows the records that a session without a journal keeps in memory."""

    def __init__(self, recent: RecentRecords, live: LiveText, cursor: int, view: ObservationView) -> None:
        """Args: `view` reads the records up to the cursor, so that it knows what later ones refer to."""
        self.cursor = cursor
        """The number of the last record that was received."""
        self.live = live
        self._recent = recent
        self._history = RecentHistory(recent)
        self._ready: deque[Followed] = deque()
        self._news: trio.Event | None = None
        self._is_closed = False
        while not self._ready and (records := self._history.read()):
            for each in records:
                if each.number > cursor:
                    self._ready.append(each)
                else:
                    deque(view.read(each), maxlen=0)

    def wake(self) -> None:
        if self._news is not None:
            self._news.set()

    def receive_ready(self) -> Followed | None:
        """Return the next record; None if no record is waiting.

        Raises:
            trio.EndOfChannel: The session is closed, and all records were received.
            trio.ClosedResourceError: The reader was closed.
        """
        self.check_open()
        if not self._ready:
            self._ready.extend(self._history.read())
        if not self._ready:
            if self._recent.is_closed:
                raise trio.EndOfChannel
            return None
        item = self._ready.popleft()
        self.cursor = item.number
        return item

    async def move_on(self) -> None:
        """Wait for a new record, or for growing text."""
        self._news = trio.Event()
        await self._news.wait()

    def check_open(self) -> None:
        """Raise `trio.ClosedResourceError` if the reader was closed."""
        if self._is_closed:
            raise trio.ClosedResourceError

    def close(self) -> None:
        """Receive no more."""
        self._is_closed = True
        self.wake()

    async def aclose(self) -> None:
        """Receive no more; see `trio.abc.AsyncResource`."""
        self.close()
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def observe_recent(
    context: SessionContext,
    recent: RecentRecords,
    table: SessionTable,
    *,
    after: int | None,
    wanted: Wanted,
) -> AsyncGenerator[ObservationReader, None]:
    """Subscribe to the observations of a session without a journal; see `Session.observe`."""
    if after is not None and after > recent.last:
        raise CursorUnknown(context.id, after, recent.last)
    view = ObservationView()
    live = table.followed.setdefault(context.id, LiveText())
    live.attach(context)
    follower = RecentFollower(recent, live, recent.last if after is None else after, view)
    live.add(follower, thinks=True)
    recent.add_reader(follower)
    try:
        await trio.lowlevel.checkpoint()
        yield ObservationReader(follower, view, wanted)
    finally:
        recent.remove_reader(follower)
        if live.remove(follower) and table.followed.get(context.id) is live:
            del table.followed[context.id]
        follower.close()


def list_recent(recent: RecentRecords, *, after: int, limit: int, wanted: Wanted) -> tuple[Observed, ...]:
    """Return observations of a session without a journal, oldest first; see `Session.observations`."""
    at_least_one("limit", limit)
    view, history, found = ObservationView(), RecentHistory(recent), list[Observed]()
    while len(found) < limit and (records := history.read()):
        for each in records:
            observed = [*view.read(each)]
            if each.number > after:
                found += filter(wanted.takes, observed)
    return tuple(found[:limit])


# --- with a journal ----------------------------------------------------------------------


async def list_observations(
    journal: Journal, key: SessionKey, *, after: int, limit: int, wanted: Wanted
) -> tuple[Observed, ...]:
    """Observations of a session's history, oldest first; see `Session.observations`.

    Raises:
        SessionNotFound: the journal has no such session.
    """
    at_least_one("limit", limit)
    if await journal.head(*key) is None:
        raise SessionNotFound(*key)
    view, found = ObservationView(), list[Observed]()
    names = await _warm_up(journal, key, view, after)
    while len(found) < limit:
        steps = await journal.read_steps(key.session_id, agent=key.agent, after=after, limit=PAGE)
        if not steps:
            break
        for step in steps:
            for item in names.name(step, after):
                found += filter(wanted.takes, view.read(item))
        after = steps[-1].last
    return tuple(found[:limit])


async def _warm_up(journal: Journal, key: SessionKey, view: ObservationView, number: int) -> TurnNames:
    """Read what stands before a record, so that what comes behind is known by it: results, texts, turns."""
    names = TurnNames()
    begin = max(0, number - PAGE)
    steps = (
        ()
        if not number
        else await journal.read_steps(key.session_id, agent=key.agent, after=begin, limit=number - begin)
    )
    for step in steps:
        for item in names.name(step, begin):
            if item.number <= number:
                deque(view.read(item), maxlen=0)
    return names
