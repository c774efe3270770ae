"""What goes on in sessions, to any number of readers: one follower a session, and each event encoded once.

A reader reads the journal behind its number first. When it has caught up it is live, and reads once more behind what it
has, since something may have come in between; what comes twice has a number that it has seen.
"""

import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from actgent.errors import ActgentError
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.messages import CallProgress
from actgent.runtime.following import SessionFollower
from actgent.runtime.runtime import Runtime
from actgent.sessions.following import Followed, Growing
from actgent.support.logs import Each, logger_of

from .happenings import PAGE, Happening, Teller, teller_at
from .streams import RETRY, TOGETHER, Frames, Write, bye, frame, write_all

_log = logger_of(__name__)


def to_frames(happenings: Sequence[Happening]) -> Iterator[tuple[int, bytes]]:
    """The events of records as they are sent: those of one record in one piece, the last of which has its number."""
    for number, told in itertools.groupby(happenings, key=lambda each: each.number):
        *others, last = told
        before = b"".join(frame(each.name, each.data) for each in others)
        yield number, before + frame(last.name, last.data, number=number)


@attrs.define(eq=False)
class Tail:
    """The end of one session, as its readers follow it."""

    key: SessionKey
    readers: set[Frames] = attrs.field(factory=set)
    ready: trio.Event = attrs.field(factory=trio.Event)
    """Set when it follows what is written."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    grown: Growing | None = None
    """All of the answer that grows."""

    def frame_of(self, item: Growing | CallProgress) -> bytes:
        """Return what grows, for those who have what grew before."""
        if isinstance(item, CallProgress):
            known = {"done": item.done, "total": item.total, "text": item.text}
            return frame("progress", {"call_id": item.call_id, "tool": item.tool_name, **known})
        shown = "" if self.grown is None or self.grown.reply_id != item.reply_id else self.grown.text
        self.grown = attrs.evolve(item, text=shown[: item.begin] + item.text, begin=0)
        return frame("token", attrs.asdict(item))

    def tell(self, data: bytes, number: int | None = None) -> None:
        """Give a frame to each reader; those that were cut off are no readers any more."""
        self.readers.difference_update([each for each in self.readers if not each.put(data, number)])

    def end(self, last: bytes) -> None:
        """End each reader."""
        for reader in self.readers:
            reader.end(last)


class Tails:
    """The tails of a gateway: of sessions that somebody reads."""

    def __init__(self, runtime: Runtime, journal: Journal, nursery: trio.Nursery) -> None:
        self._runtime = runtime
        self._journal = journal
        self._nursery = nursery
        self._tails: dict[SessionKey, Tail] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tails)

    def close(self) -> None:
        """Tell each reader that the server closes."""
        self._is_closed = True
        for tail in self._tails.values():
            for reader in tail.readers:
                reader.end(bye())

    @asynccontextmanager
    async def entered(self, key: SessionKey) -> AsyncGenerator[tuple[Tail, Frames], None]:
        """Follow a session for the block."""
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = Tail(key)
            self._nursery.start_soon(self._follow, tail)
        frames = Frames()
        if self._is_closed:
            frames.end(bye())
        tail.readers.add(frames)
        try:
            await tail.ready.wait()
            yield tail, frames
        finally:
            tail.readers.discard(frames)
            if not tail.readers:
                self._drop(tail)

    def _drop(self, tail: Tail) -> None:
        if self._tails.get(tail.key) is tail:
            del self._tails[tail.key]
        tail.scope.cancel()

    async def _follow(self, tail: Tail) -> None:
        """Tell what comes in a session, until nobody reads; whatever ends it ends its readers, who come back."""
        with tail.scope:
            try:
                async with self._runtime.follow(
                    tail.key.session_id, agent=tail.key.agent, after=None
                ) as follower:
                    await self._tell(tail, follower)
            except ActgentError as error:
                _log.warning("the events of session %s are not told on: %s", Each(tail.key.session_id), error)
            finally:
                tail.ready.set()
                tail.end(frame("lagged", {}))
                self._drop(tail)

    async def _tell(self, tail: Tail, follower: SessionFollower) -> None:
        teller = await teller_at(self._journal, tail.key, follower.cursor)
        tail.ready.set()
        async for item in follower:
            if isinstance(item, Followed):
                told = teller.tell(item.number, item.record, item.at or 0.0)
                for number, data in to_frames(told):
                    tail.tell(data, number)
                if any(each.name in ("answer", "ended") for each in told):
                    tail.grown = None
                if any(each.name == "closed" for each in told):
                    tail.end(b"")
            else:
                tail.tell(tail.frame_of(item))
                await trio.sleep(TOGETHER)  # what grows meanwhile is one frame
            if not tail.readers:  # all were cut off, and only end
                return


# --- one reader --------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SessionReading:
    """A client's reading of one session, from a number on."""

    journal: Journal
    tails: Tails
    key: SessionKey
    after: int

    async def run(self, write: Write) -> None:
        """Write all that is behind the number, and then what comes."""
        async with self.tails.entered(self.key) as (tail, frames):
            await write(f"retry: {RETRY}\n\n".encode())
            frames.seen = self.after
            head = await self.journal.head(*self.key)
            if head is not None and self.after > head.records:  # an older copy of the journal was put back
                frames.seen = head.records
                await write(frame("resync", {"records": head.records}, number=head.records))
            teller = await teller_at(self.journal, self.key, frames.seen)
            catch_up = partial(self._catch_up, frames, teller, write)
            is_over = await catch_up()
            frames.is_live = True
            if is_over or await catch_up():
                return
            if tail.grown is not None:
                frames.put_first(frame("growing", attrs.asdict(tail.grown)))
            await write_all(frames, write)

    async def _catch_up(self, frames: Frames, teller: Teller, write: Write) -> bool:
        """Write what the journal has behind what was written; True if the session was closed there."""
        while steps := await self.journal.read_steps(
            self.key.session_id, agent=self.key.agent, after=frames.seen, limit=PAGE
        ):
            told = [
                each for step in steps for each in teller.tell_all(step.first, step.records, step.at or 0.0)
            ]
            frames.seen = steps[-1].last
            await write(b"".join(data for _, data in to_frames(told)))
            if any(each.name == "closed" for each in told):
                return True
        return False
