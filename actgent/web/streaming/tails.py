"""What goes on in sessions, to any number of readers: one follower a session, and each event encoded once.

A reader reads the journal behind its number first. When it has caught up it is live, and reads once more behind what it
has, since something may have come in between; what comes twice has a number that it has seen.
"""

import itertools
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence, Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import trio

from actgent.errors import ActgentError, Fenced
from actgent.journal.base import Journal
from actgent.journal.feed import Written
from actgent.journal.listing import SessionKey
from actgent.journal.records import Closed, Record
from actgent.messages import CallProgress
from actgent.runtime.following import SessionFollower
from actgent.runtime.runtime import Runtime
from actgent.sessions.following import Followed, Growing
from actgent.support.logs import Each, logger_of

from .happenings import PAGE, Happening, Teller, event_names, teller_at
from .streams import ALIVE, MAX_BYTES, MAX_FRAMES, RETRY, Frames, Piece, StreamWriter, bye, frame

TOGETHER = 0.05
"""Seconds in which what comes is told together."""
LOOK = 2.5
"""Seconds after which it is looked which streams are quiet for long."""
AT_ONCE = 100
"""Readers that are told something before others of the process have their turn."""
_log = logger_of(__name__)


def to_frames(happenings: Sequence[Happening]) -> Iterator[tuple[int, bytes]]:
    """The events of records as they are sent: those of one record in one piece, the last of which has its number."""
    for number, told in itertools.groupby(happenings, key=lambda each: each.number):
        yield number, to_piece(list(told))


def to_piece(told: Sequence[Happening]) -> bytes:
    """The events of one record."""
    last = told[-1]
    data = frame(last.name, last.data, number=last.number)
    return data if len(told) == 1 else b"".join([frame(each.name, each.data) for each in told[:-1]]) + data


@attrs.define(eq=False)
class Tail:
    """The end of one session, as its readers follow it."""

    key: SessionKey
    shows_foreign: bool = False
    """True: its readers' scopes show the words of exceptions that are not ours."""
    readers: set[Frames] = attrs.field(factory=set)
    ready: trio.Event = attrs.field(factory=trio.Event)
    """Set when it follows what is written."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    told_at: float = -TOGETHER
    """When something was told, by trio's clock."""
    grown: Growing | None = None
    """All of the answer that grows."""
    is_over: bool = False
    """True: the session was closed."""
    _waiting: list[tuple[int | None, bytes]] = attrs.field(factory=list)
    """Frames that are told together."""
    _size: int = 0
    _is_awaited: bool = False
    """True: a reader waits for one of them."""
    _is_changed: bool = True
    """True: readers have come or gone since it was looked what they wait for."""
    _wanted: AbstractSet[str] | None = None
    """The events that any of them waits for; None: all."""
    _told: AbstractSet[str] | None = None
    """Those that any of them is told; None: all."""

    def grow(self, item: Growing | CallProgress) -> None:
        """Have what grows told to those who want it, and have what grew before; who comes later gets all of it."""
        if isinstance(item, Growing):
            shown = "" if self.grown is None or self.grown.reply_id != item.reply_id else self.grown.text
            self.grown = attrs.evolve(item, text=shown[: item.begin] + item.text, begin=0)
            if self._is_wanted(["token"]):
                self._add(frame("token", attrs.asdict(item)), None)
        elif self._is_wanted(["progress"]):
            known = {"done": item.done, "total": item.total, "text": item.text}
            self._add(frame("progress", {"call_id": item.call_id, "tool": item.tool_name, **known}), None)

    def add(self, teller: Teller, first: int, records: Sequence[Record], at: float) -> None:
        """Have the events of records told with those that are told next, unless nobody is told such."""
        if self._is_changed:
            self._look_at_readers()
        wanted, told = self._wanted, self._told
        for number, record in enumerate(records, first):
            names = event_names(record)
            if told is not None and told.isdisjoint(names):
                teller.pass_over(number, record)
            elif happenings := teller.tell(number, record, at):
                self._add(to_piece(happenings), number)
            else:
                continue
            if "answer" in names or "ended" in names:
                self.grown = None
            self.is_over = self.is_over or "closed" in names
            self._is_awaited = self._is_awaited or wanted is None or not wanted.isdisjoint(names)

    def _add(self, data: bytes, number: int | None) -> None:
        self._waiting.append((number, data))
        self._size += len(data)
        self._is_awaited = self._is_awaited or number is None

    def _is_wanted(self, names: Collection[str]) -> bool:
        """True if a reader waits for one of these events."""
        if self._is_changed:
            self._look_at_readers()
        return self._wanted is None or not self._wanted.isdisjoint(names)

    def _look_at_readers(self) -> None:
        self._is_changed = False
        self._wanted = _union([each.wanted for each in self.readers])
        self._told = _union([each.told for each in self.readers])

    def join(self, reader: Frames) -> None:
        """Have somebody read it, too."""
        self.readers.add(reader)
        self._is_changed = True

    def leave(self, reader: Frames) -> None:
        """Have somebody read it no more."""
        self.readers.discard(reader)
        self._is_changed = True

    @property
    def is_due(self) -> bool:
        """True if what waits is to be told: all of it goes with an event that somebody wants."""
        return self._is_awaited or self.is_over or self.is_much

    @property
    def is_much(self) -> bool:
        """True if what waits is better told than collected."""
        return 2 * self._size > MAX_BYTES or 2 * len(self._waiting) > MAX_FRAMES

    async def tell_due(self, now: float) -> None:
        """Tell what is due, and nothing more for a while."""
        self.told_at = now
        if self.is_due:
            await self.tell(now)

    async def tell(self, now: float) -> None:
        """Tell each reader what was collected; those that were cut off are no readers any more."""
        if not self._waiting:
            return
        piece = Piece(self._waiting)
        self._waiting, self._size, self._is_awaited = [], 0, False
        for number, reader in enumerate(tuple(self.readers), 1):
            if not reader.put(piece, now):
                self.leave(reader)
            if number % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def is_woken_by(self, records: Sequence[Record]) -> bool:
        """Return True if one of these records is told at once: others are, together with the next of them."""
        if self._is_changed:
            self._look_at_readers()
        wanted = self._wanted
        for each in records:  # with each step of each session
            if wanted is None or type(each) is Closed or not wanted.isdisjoint(event_names(each)):
                return True
        return False

    def end(self, last: bytes) -> None:
        """End each reader."""
        for reader in self.readers:
            reader.end(last)


def _union(sets: Sequence[AbstractSet[str] | None]) -> AbstractSet[str] | None:
    """All that is in any of the sets; None, which is everything, where one of them is."""
    return None if None in sets else frozenset().union(*filter(None, sets))


class Tails:
    """The tails of a gateway: of sessions that somebody reads."""

    def __init__(self, runtime: Runtime, journal: Journal, nursery: trio.Nursery) -> None:
        self._runtime = runtime
        self._journal = journal
        self._nursery = nursery
        self._tails: dict[tuple[SessionKey, bool], Tail] = {}
        self._is_closed = False
        self._is_reminding = False

    def __len__(self) -> int:
        return len(self._tails)

    def close(self) -> None:
        """Tell each reader that the server closes."""
        self._is_closed = True
        for tail in self._tails.values():
            for reader in tail.readers:
                reader.end(bye())

    @asynccontextmanager
    async def entered(
        self, key: SessionKey, frames: Frames, *, shows_foreign: bool = False
    ) -> AsyncGenerator[Tail, None]:
        """Follow a session for the block, for the connection of a client."""
        if not self._is_reminding:
            self._is_reminding = True
            self._nursery.start_soon(self._remind)
        tail = self._tails.get((key, shows_foreign))
        if tail is None:
            tail = self._tails[key, shows_foreign] = Tail(key, shows_foreign)
            self._nursery.start_soon(self._follow, tail)
        if self._is_closed:
            frames.end(bye())
        tail.join(frames)
        try:
            await tail.ready.wait()
            yield tail
        finally:
            tail.leave(frames)
            if not tail.readers:
                self._drop(tail)

    async def _remind(self) -> None:
        """Have streams in which nothing happens say that they are there, as long as there are any."""
        while self._tails:
            await trio.sleep(LOOK)
            now = trio.current_time()
            before = now - ALIVE + LOOK
            quiet = [each for tail in self._tails.values() for each in tail.readers if each.told_at <= before]
            for number, reader in enumerate(quiet, 1):
                reader.remind(now)
                if number % AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
        self._is_reminding = False

    def _drop(self, tail: Tail) -> None:
        place = tail.key, tail.shows_foreign
        if self._tails.get(place) is tail:
            del self._tails[place]
        tail.scope.cancel()

    async def _follow(self, tail: Tail) -> None:
        """Tell what comes in a session, until nobody reads; whatever ends it ends its readers, who come back."""
        with tail.scope:
            try:
                async with self._runtime.follow(
                    tail.key.session_id, agent=tail.key.agent, after=None
                ) as follower:
                    await self._tell(tail, follower)
            except Fenced as moved:  # its readers come back to where it lives
                _log.debug(
                    "the events of session %s are told elsewhere: %s", Each(tail.key.session_id), moved
                )
            except ActgentError as error:
                _log.warning("the events of session %s are not told on: %s", Each(tail.key.session_id), error)
            finally:
                tail.ready.set()
                tail.end(frame("lagged", {}))
                self._drop(tail)

    async def _tell(self, tail: Tail, follower: SessionFollower) -> None:
        teller = await teller_at(self._journal, tail.key, follower.cursor, shows_foreign=tail.shows_foreign)
        tail.ready.set()
        follower.wake_for(tail.is_woken_by)
        with suppress(trio.EndOfChannel):
            while tail.readers:  # without them all were cut off, and only end
                has_grown = _collect(tail, teller, follower)
                if not (has_grown or tail.is_due):
                    await follower.move_on()
                    continue
                now = trio.current_time()
                if (early := tail.told_at + TOGETHER - now) > 0:
                    await trio.sleep(early)  # what comes meanwhile is one piece
                    now = trio.current_time()
                    _collect(tail, teller, follower)
                await tail.tell_due(now)
                if tail.is_over:
                    tail.end(b"")
        await tail.tell(trio.current_time())


def _collect(tail: Tail, teller: Teller, follower: SessionFollower) -> bool:
    """Take what is there of a session; True if some of it only grows.

    Raises:
        trio.EndOfChannel: nothing follows what was taken.
    """
    has_grown = False
    while not tail.is_much:
        if (step := follower.receive_step()) is not None:
            tail.add(teller, step.first, step.records, step.at or 0.0)
        elif (item := follower.receive_now()) is None:
            break
        elif isinstance(item, Followed):
            tail.add(teller, item.number, (item.record,), item.at or 0.0)
        else:
            has_grown = True
            tail.grow(item)
    return has_grown


# --- one reader --------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SessionReading:
    """A client's reading of one session, from a number on."""

    journal: Journal
    tails: Tails
    key: SessionKey
    after: int
    wanted: AbstractSet[str] | None = None
    """The names of the events that it waits for: others come with the next of them, and of what grows only these; None is all."""
    along: AbstractSet[str] | None = None
    """Those of the others that it wants, with the next of these; None is all."""
    shows_foreign: bool = False
    """True: its scope shows the words of exceptions that are not ours."""

    async def run(self, wire: StreamWriter) -> None:
        """Write all that is behind the number, and then what comes."""
        frames = Frames(wire, self.wanted, self.along)
        async with self.tails.entered(self.key, frames, shows_foreign=self.shows_foreign) as tail:
            await wire(f"retry: {RETRY}\n\n".encode())
            frames.seen = self.after
            head = await self.journal.head(*self.key)
            if head is not None and self.after > head.records:  # an older copy of the journal was put back
                frames.seen = head.records
                await wire(frame("resync", {"records": head.records}, number=head.records))
            teller = await teller_at(self.journal, self.key, frames.seen, shows_foreign=self.shows_foreign)
            catch_up = partial(self._catch_up, frames, teller, wire)
            is_over = await catch_up()
            frames.is_live = True
            if is_over or await catch_up():
                return
            if tail.grown is not None and frames.wants(["growing"]):
                frames.put_first(frame("growing", attrs.asdict(tail.grown)))
            await frames.write_all()

    async def _catch_up(self, frames: Frames, teller: Teller, wire: StreamWriter) -> bool:
        """Write what the journal has behind what was written; True if the session was closed there."""
        while steps := await self.journal.read_steps(
            self.key.session_id, agent=self.key.agent, after=frames.seen, limit=PAGE
        ):
            told = [each for step in steps for each in _tell_step(step, teller, frames)]
            frames.seen = steps[-1].last
            await wire(b"".join(data for _, data in to_frames(told)))
            if any(each.name == "closed" for each in told):
                return True
        return False


def _tell_step(step: Written, teller: Teller, frames: Frames) -> Iterator[Happening]:
    """The events of a step that a client is told."""
    for number, record in enumerate(step.records, step.first):
        if frames.is_told(event_names(record)):
            yield from teller.tell(number, record, step.at or 0.0)
        else:
            teller.pass_over(number, record)
