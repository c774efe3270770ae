"""A session's history and what happens in it from now on, as one stream without a gap, that can be resumed.

The feed is opened first, then the journal is read behind the cursor, and what the feed tells with a number that was read
is left out. A reader that falls behind the feed reads the journal again: it loses no record, and nobody waits for it.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from actgent.errors import (
    ConfigurationError,
    CursorUnknown,
    FeedLagged,
    Fenced,
    SessionMoved,
    SessionNotFound,
)
from actgent.journal.base import Journal
from actgent.journal.feed import Erased, FeedReader, Written
from actgent.journal.listing import SessionKey
from actgent.journal.records import Closed, Ended, Record, Said
from actgent.messages import CallProgress
from actgent.runtime.sessions.table import SessionTable
from actgent.sessions.following import Follow, Followed, Growing, LiveText, TurnNames, Waker, turn_at_end
from actgent.support.leads import for_readers

AT_ONCE = 100
"""Records of a step that are received with it; of a longer one each by itself, so that who takes them may break off."""
PAGE = 500
"""Records that are read from the journal at once."""
_ENDING = (Ended, Closed, Said)
"""Records that end what grows, or all."""


@for_readers
class SessionFollower(trio.abc.ReceiveChannel[Follow], Waker):
    """One reader's end: all records behind its cursor, in order and each once, and what grows in between."""

    def __init__(
        self, journal: Journal, key: SessionKey, after: int, live: LiveText, *, has_ended: bool
    ) -> None:
        """Args: `has_ended` is True where the cursor stands at the end of a session that is closed: nothing comes any more."""
        self.cursor = after
        """The number of the last record that was received."""
        self._journal = journal
        self._key = key
        self._live = live
        self._names: TurnNames | None = None
        self._ready: deque[Followed] = deque()
        self._is_behind = True
        self._has_ended, self._is_closed = has_ended, False
        self._shown: tuple[object, int] = (None, 0)
        """An answer that grows, and how many characters of it were received."""
        self._void = "" if live.is_growing else live.reply_id
        """The answer or turn that the newest record has ended: nothing of it grows any more."""
        self._progress: dict[str, CallProgress] = dict(live.progress)
        self._feed: FeedReader

    def listen(self, feed: FeedReader) -> None:
        """Take what is written from this feed."""
        self._feed = feed

    def wake(self) -> None:
        self._feed.wake()

    @property
    def live(self) -> LiveText:
        """What grows in the session."""
        return self._live

    async def receive(self) -> Follow:
        """The next record, or what has grown where there is none.

        Raises:
            trio.EndOfChannel: the session is closed or erased, or the journal's block is left, and all was received.
            trio.ClosedResourceError: the reader was closed.
            SessionMoved: another process goes on with the session, from where its readers go on behind the `cursor`.
            JournalError: the journal cannot be read.
        """
        await trio.lowlevel.checkpoint()
        while (item := self.receive_ready()) is None:
            await self.move_on()
        return item

    def receive_ready(self) -> Follow | None:
        """Return what is there: a record, or what has grown if no record is known to be waiting; None: nothing.

        Raises:
            trio.EndOfChannel, trio.ClosedResourceError: see `receive`.
        """
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._ready:
            return self._take()
        if self._has_ended:
            raise trio.EndOfChannel
        return None if self._is_behind or self._feed.has_news else self._take_grown()

    def receive_now(self) -> Follow | None:
        """Return what is there, as `receive_ready`, with what was written meanwhile; None: `move_on` has to be awaited.

        Raises:
            trio.EndOfChannel, trio.ClosedResourceError: see `receive`.
        """
        while (item := self.receive_ready()) is None:
            if self._is_behind or not self._feed.has_news or (told := self._next_now()) is None:
                return None
            self._take_in(told)
        return item

    def receive_step(self) -> Written | None:
        """Return the next step if it is there as a whole and need not be read: its records are received with that.

        None says nothing: `receive_now` gives what is there.

        Raises:
            trio.EndOfChannel, trio.ClosedResourceError: see `receive`.
        """
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._ready or self._is_behind or self._has_ended or not self._feed.has_news:
            return None
        item, names = self._next_now(), self._names
        is_next = isinstance(item, Written) and item.first == self.cursor + 1
        if isinstance(item, Written) and is_next and names and 0 < len(item.records) <= AT_ONCE:
            for record, turn in names.turns(item):
                if type(record) in _ENDING:
                    self._pass(record, turn)
            self.cursor = item.last
            return item
        if item is not None:
            self._take_in(item)
        return None

    def wake_for(self, woken_by: Callable[[Sequence[Record]], bool]) -> None:
        """Have `move_on` wait until such records are written, more waits than is good, or something grows."""
        self._feed.woken_by = woken_by

    @property
    def has_news(self) -> bool:
        """True if `move_on` has something to do: it does not wait then."""
        return self._is_behind or self._feed.has_news

    async def move_on(self) -> None:
        """Read the journal, hear the feed, or wait for that, or for something to grow."""
        if self._is_behind:
            await self._read_on()
        elif self._feed.has_news:
            await self._hear()
        else:
            await self._feed.wait()

    def _take(self) -> Followed:
        item = self._ready.popleft()
        self.cursor = item.number
        self._pass(item.record, item.turn)
        return item

    def _pass(self, record: Record, turn: str) -> None:
        """Know what a record ends that was received."""
        if type(record) is Ended:
            self._void = turn
        elif type(record) is Closed:
            self._has_ended = True
        elif type(record) is Said and record.stop:
            self._void = record.message.id

    async def _read_on(self) -> None:
        """Read a page behind the cursor; what comes while it is read is in the feed."""
        key = self._key
        if self._names is None:
            self._names = TurnNames(await self._find_turn())
        steps = await self._journal.read_steps(key.session_id, agent=key.agent, after=self.cursor, limit=PAGE)
        for step in steps:
            self._ready.extend(self._names.name(step, self.cursor))
        self._is_behind = bool(steps)

    async def _find_turn(self) -> str:
        """The turn that goes on at the cursor, as the records before it tell."""
        key, begin = self._key, self.cursor
        while begin > 0:
            end, begin = begin, max(0, begin - PAGE)
            records = await self._journal.read(
                key.session_id, agent=key.agent, after=begin, limit=end - begin
            )
            turn = turn_at_end(records[: end - begin])
            if turn is not None:
                return turn
        return ""

    async def _hear(self) -> None:
        try:
            self._take_in(await self._feed.receive())
        except FeedLagged:
            self._is_behind = True
        except trio.EndOfChannel:
            self._has_ended = True
        except Fenced as error:
            raise self._moved() from error

    def _next_now(self) -> Written | Erased | None:
        """The next of the feed, if that is there and need not be read."""
        try:
            return self._feed.receive_nowait()
        except FeedLagged:
            self._is_behind = True
        except trio.EndOfChannel:
            self._has_ended = True
        except trio.WouldBlock:
            pass
        except Fenced as error:
            raise self._moved() from error
        return None

    def _moved(self) -> SessionMoved:
        return SessionMoved(self._key.agent, self._key.session_id)

    def _take_in(self, item: Written | Erased) -> None:
        last = self._ready[-1].number if self._ready else self.cursor
        if isinstance(item, Erased):
            self._has_ended = True
        elif item.first > last + 1 or self._names is None or not item.records:
            self._is_behind = True
        elif item.last > last:
            self._ready.extend(self._names.name(item, last))

    def _take_grown(self) -> Growing | CallProgress | None:
        live = self._live
        if live.reply_id and self._void not in (live.reply_id, live.turn):
            answer, shown = self._shown
            begin = shown if answer is live.answer else 0
            if live.size > begin:
                self._shown = (live.answer, live.size)
                return Growing(
                    turn=live.turn,
                    reply_id=live.reply_id,
                    attempt=live.attempt,
                    begin=begin,
                    text=live.read(begin),
                )
        return self._take_progress() if live.progress else None

    def _take_progress(self) -> CallProgress | None:
        for call_id, progress in self._live.progress.items():
            if self._progress.get(call_id) is not progress:
                kept = {known: each for known, each in self._progress.items() if known in self._live.progress}
                self._progress = {**kept, call_id: progress}
                return progress
        return None

    def check_open(self) -> None:
        """Refuse to read on once it was closed."""
        if self._is_closed:
            raise trio.ClosedResourceError

    def close(self) -> None:
        """Receive no more."""
        self._is_closed = True
        self._feed.close()

    async def aclose(self) -> None:
        """The same, as channels have it."""
        self.close()
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def follow_session(
    journal: Journal | None,
    table: SessionTable | None,
    key: SessionKey,
    *,
    after: int | None,
    thinks: bool = False,
) -> AsyncGenerator[SessionFollower, None]:
    """Follow a session; `table` has it if it is in memory, None where its agent does not run. See `Session.follow`."""
    if journal is None:
        raise ConfigurationError(
            "a session is followed by its journal, and this runtime has none: open_runtime(journal='memory:')"
        )
    async with journal.feed(key) as feed:
        head = await journal.head(key.agent, key.session_id)
        if head is None:
            raise SessionNotFound(key.agent, key.session_id)
        if after is not None and after > head.records:
            raise CursorUnknown(key.session_id, after, head.records)
        live = LiveText() if table is None else table.followed.setdefault(key.session_id, LiveText())
        if table is not None and (context := table.get(key.session_id)) is not None:
            live.attach(context)
        cursor = head.records if after is None else after
        has_ended = head.closed and cursor == head.records
        follower = SessionFollower(journal, key, cursor, live, has_ended=has_ended)
        follower.listen(feed)
        live.add(follower, thinks=thinks)
        try:
            yield follower
        finally:
            follower.close()
            if live.remove(follower) and table is not None and table.followed.get(key.session_id) is live:
                del table.followed[key.session_id]
