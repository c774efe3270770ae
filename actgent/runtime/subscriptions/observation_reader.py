"""Observations of a session as a live stream and as pages of its history, including partial thoughts."""

from collections import deque
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from typing import get_args

import attrs
import trio

from actgent.errors import ConfigurationError, InvalidCursor, SessionNotFound, did_you_mean_or_list
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.runtime.sessions.session_table import SessionTable
from actgent.sessions.recent_records_without_journal import RecentRecords
from actgent.sessions.session_context import SessionContext
from actgent.sessions.subscriptions import (
    FollowedRecord,
    LiveText,
    ObservationView,
    Observed,
    ObservedType,
    RecentHistory,
    TurnAssigner,
    WakeableReader,
    growing_thoughts,
    thoughts_id,
)
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_readers

from .session_follower import PAGE_RECORDS, SessionFollower, follow_session

SHORT_CHARS, GROWTH_DIVISOR = 4096, 16
"""A partial answer of at most `SHORT_CHARS` characters is searched for thoughts at each delta.

A longer answer is searched each time it has grown by 1/`GROWTH_DIVISOR` of its length.
"""


@attrs.frozen(kw_only=True, repr=False)
class ObservationFilter(FieldRepr):
    """Filter of observations by type and by turn (id of its message). None accepts all types or turns."""

    types: Collection[ObservedType] | None = None
    turn: str | None = None

    def __attrs_post_init__(self) -> None:
        """Raise if a type is unknown, because a reader would wait for it forever.

        Raises:
            ConfigurationError: `types` is a text, or contains an unknown type.
        """
        known = get_args(ObservedType)
        if isinstance(self.types, str):
            raise ConfigurationError(
                f"types= must be a list of observation types, not {self.types!r}: write [{self.types!r}]"
            )
        if unknown := next((each for each in self.types or () if each not in known), None):
            raise ConfigurationError(
                f"{unknown!r} is not an observation type: {did_you_mean_or_list(unknown, known)}"
            )

    def takes(self, observed: Observed) -> bool:
        is_typed = self.types is None or observed.type in self.types
        return is_typed and self.turn in (None, observed.turn)


@hints_for_readers
class ObservationReader(trio.abc.ReceiveChannel[Observed]):
    """Reader of a session's observations. Closing it does not affect other readers."""

    def __init__(
        self,
        follower: "SessionFollower | RecentFollower",
        view: ObservationView,
        observation_filter: ObservationFilter,
    ) -> None:
        self._follower = follower
        self._view = view
        self._wanted = observation_filter
        self._ready: deque[Observed] = deque()
        self._looked: tuple[str, int] = ("", 0)
        """Id of the answer that was last searched for thoughts, and its length at that time."""
        self._shown = ""

    @property
    def cursor(self) -> int:
        """Number of the last record whose observations were received or filtered out."""
        return self._follower.cursor if not self._ready else self._ready[0].number - 1

    async def receive(self) -> Observed:
        """Wait for the next observation or the next delta of a thought.

        Raises:
            trio.EndOfChannel: The session is closed or erased, or the journal was closed, and everything was received.
            trio.ClosedResourceError: The reader was closed.
            JournalError: The journal cannot be read.
        """
        await trio.lowlevel.checkpoint()
        self._follower.check_open()
        while not self._ready:
            item = self._follower.receive_ready()
            if isinstance(item, FollowedRecord):
                self._ready.extend(filter(self._wanted.takes, self._view.read(item)))
            elif item is None and (thoughts := self._partial_thoughts()) is not None:
                return thoughts
            elif item is None:
                await self._follower.wait_for_news()
        return self._ready.popleft()

    def _partial_thoughts(self) -> Observed | None:
        """Return the new thoughts in the partial answer as an observation; None if there are none, or the filter rejects them."""
        turn, answer, text = self._follower.live.whole
        known, size = self._looked if self._looked[0] == answer else ("", 0)
        if not answer or (known and size > SHORT_CHARS and len(text) - size < size // GROWTH_DIVISOR):
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
        """Close the reader."""
        await self._follower.aclose()


@asynccontextmanager
async def observe(
    journal: Journal | None,
    table: SessionTable | None,
    key: SessionKey,
    *,
    after: int | None,
    observation_filter: ObservationFilter,
) -> AsyncGenerator[ObservationReader, None]:
    """Yield a reader of a session's observations for the block.

    Args:
        journal: Journal of the runtime.
        table: The agent's sessions in memory; None if the agent is not running in this process.
        key: Agent and id of the session.
        after: Record number after which observations start; None starts at the newest record.
        observation_filter: Filter by type and turn.
    """
    async with follow_session(journal, table, key, after=after, thinks=True) as follower:
        view = ObservationView()
        if journal is not None:
            await _preload(journal, key, view, follower.cursor)
        yield ObservationReader(follower, view, observation_filter)


# --- without a journal -------------------------------------------------------------------


class RecentFollower(WakeableReader):
    """Reader of the records that a session without a journal keeps in memory."""

    def __init__(self, recent: RecentRecords, live: LiveText, cursor: int, view: ObservationView) -> None:
        """Args: `view` has processed the records up to `cursor`, so that it can resolve references in later records."""
        self.cursor = cursor
        """Number of the last received record."""
        self.live = live
        self._recent = recent
        self._history = RecentHistory(recent)
        self._ready: deque[FollowedRecord] = deque()
        self._news: trio.Event | None = None
        self._is_closed = False
        while not self._ready and (records := self._history.read()):
            for each in records:
                if each.number > cursor:
                    self._ready.append(each)
                else:
                    deque(view.read(each), maxlen=0)

    def wake(self) -> None:
        """Wake the task that waits in `wait_for_news`."""
        if self._news is not None:
            self._news.set()

    def receive_ready(self) -> FollowedRecord | None:
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

    async def wait_for_news(self) -> None:
        """Wait until a new record or new partial text is available, without receiving it."""
        self._news = trio.Event()
        await self._news.wait()

    def check_open(self) -> None:
        """Raise `trio.ClosedResourceError` if the reader was closed."""
        if self._is_closed:
            raise trio.ClosedResourceError

    def close(self) -> None:
        """Close the reader."""
        self._is_closed = True
        self.wake()

    async def aclose(self) -> None:
        """Close the reader; same as `close`."""
        self.close()
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def observe_recent(
    context: SessionContext,
    recent: RecentRecords,
    table: SessionTable,
    *,
    after: int | None,
    observation_filter: ObservationFilter,
) -> AsyncGenerator[ObservationReader, None]:
    """Yield a reader of the observations of a session without a journal, for the block.

    Raises:
        InvalidCursor: `after` is larger than the number of the last record.
    """
    if after is not None and after > recent.last:
        raise InvalidCursor(context.id, after, recent.last)
    view = ObservationView()
    live = table.followed.setdefault(context.id, LiveText())
    live.attach(context)
    follower = RecentFollower(recent, live, recent.last if after is None else after, view)
    live.add(follower, thinks=True)
    recent.add_reader(follower)
    try:
        await trio.lowlevel.checkpoint()
        yield ObservationReader(follower, view, observation_filter)
    finally:
        recent.remove_reader(follower)
        if live.remove(follower) and table.followed.get(context.id) is live:
            del table.followed[context.id]
        follower.close()


def list_recent(
    recent: RecentRecords, *, after: int, limit: int, observation_filter: ObservationFilter
) -> tuple[Observed, ...]:
    """Return at most `limit` observations after record `after` of a session without a journal, oldest first."""
    at_least_one("limit", limit)
    view, history, found = ObservationView(), RecentHistory(recent), list[Observed]()
    while len(found) < limit and (records := history.read()):
        for each in records:
            observed = [*view.read(each)]
            if each.number > after:
                found += filter(observation_filter.takes, observed)
    return tuple(found[:limit])


# --- with a journal ----------------------------------------------------------------------


async def list_observations(
    journal: Journal, key: SessionKey, *, after: int, limit: int, observation_filter: ObservationFilter
) -> tuple[Observed, ...]:
    """Return at most `limit` observations after record `after` of a session in the journal, oldest first.

    Raises:
        SessionNotFound: The journal has no such session.
    """
    at_least_one("limit", limit)
    if await journal.head(*key) is None:
        raise SessionNotFound(*key)
    view, found = ObservationView(), list[Observed]()
    names = await _preload(journal, key, view, after)
    while len(found) < limit:
        batches = await journal.read_batches(key.session_id, agent=key.agent, after=after, limit=PAGE_RECORDS)
        if not batches:
            break
        for batch in batches:
            for item in names.number_records(batch, after):
                found += filter(observation_filter.takes, view.read(item))
        after = batches[-1].last
    return tuple(found[:limit])


async def _preload(journal: Journal, key: SessionKey, view: ObservationView, number: int) -> TurnAssigner:
    """Pass the page of records before record `number` to `view`, so that it can resolve references in later records.

    Return a `TurnAssigner` that has processed the same records and assigns later records to their turns.
    """
    names = TurnAssigner()
    begin = max(0, number - PAGE_RECORDS)
    batches = (
        ()
        if not number
        else await journal.read_batches(key.session_id, agent=key.agent, after=begin, limit=number - begin)
    )
    for batch in batches:
        for item in names.number_records(batch, begin):
            if item.number <= number:
                deque(view.read(item), maxlen=0)
    return names
