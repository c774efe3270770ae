"""Subscription to one session: its history and its new records as one gapless stream that resumes from a cursor.

The feed is opened first, then the journal is read from the cursor. Records of the feed that were already read are dropped. If
a reader is too slow for the buffer of the feed, it reads the missed records from the journal. So it loses no record, and writers
never wait for a reader.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import trio

from actgent.errors import (
    ConfigurationError,
    FeedLagged,
    Fenced,
    InvalidCursor,
    SessionMoved,
    SessionNotFound,
)
from actgent.journal.journal_interface import Journal
from actgent.journal.record_feed_readers import Erased, FeedReader, WrittenBatch
from actgent.journal.record_types import AgentMessageRecord, MessageEndRecord, Record, SessionClosedRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import CallProgress
from actgent.runtime.sessions.session_table import SessionTable
from actgent.sessions.subscriptions import (
    FollowedItem,
    FollowedRecord,
    LiveText,
    PartialText,
    TurnAssigner,
    WakeableReader,
    turn_at_end,
)
from actgent.support.common_mistake_hints import hints_for_readers

MAX_BATCH_RECORDS = 100
"""Maximum number of records that `receive_batch` returns. The records of larger batches are received one by one."""
PAGE_RECORDS = 500
"""Maximum number of records per read of the journal."""
FIRST_PAGE_RECORDS = 16
"""Number of records in the first page of a backwards read; in most cases the running turn began within these records."""
_ENDING = (MessageEndRecord, SessionClosedRecord, AgentMessageRecord)
"""Record classes that end a partial answer, a turn or the session."""


def page_ranges_before(number: int) -> Iterator[tuple[int, int]]:
    """Yield page ranges that cover the records up to `number`, newest first: (number before the page, last number of the page).

    The size of the pages doubles from `FIRST_PAGE_RECORDS` to `PAGE_RECORDS`. A follower is opened for each event stream, and a first
    page of 500 records took most of the CPU time of a followed message.
    """
    size = FIRST_PAGE_RECORDS
    while number > 0:
        begin = max(0, number - size)
        yield begin, number
        number, size = begin, min(2 * size, PAGE_RECORDS)


@hints_for_readers
class SessionFollower(trio.abc.ReceiveChannel[FollowedItem], WakeableReader):
    """Reader of one session. It receives each record after its cursor once and in order, with partial answers and tool progress in between."""

    def __init__(
        self, journal: Journal, key: SessionKey, after: int, live: LiveText, *, has_ended: bool
    ) -> None:
        """Args: `has_ended` is True if the session is closed and the cursor is at its last record."""
        self.cursor = after
        """Number of the last received record."""
        self._journal = journal
        self._key = key
        self._live = live
        self._names: TurnAssigner | None = None
        self._ready: deque[FollowedRecord] = deque()
        self._is_behind = True
        self._has_ended, self._is_closed = has_ended, False
        self._shown: tuple[object, float] = (None, 0) if live.is_growing else (live.answer, math.inf)
        """Partial answer that was last received, and the number of characters received of it.
        Infinity if its record was received, which replaces the partial text.
        """
        self._progress: dict[str, CallProgress] = dict(live.progress)
        self._feed: FeedReader

    def listen(self, feed: FeedReader) -> None:
        """Attach the feed of new records to this reader. Call this method once, before the first read."""
        self._feed = feed

    def start_idle(self, *, is_current: bool) -> None:
        """Start the reader at a cursor at which no turn is open, so that the reader need not search for the open turn.

        `is_current` is True if the cursor is at the last record. Then all further records arrive in the feed.
        """
        self._names = TurnAssigner()
        self._is_behind = not is_current

    def wake(self) -> None:
        """Wake the task that waits in `wait_for_news`."""
        self._feed.wake()

    @property
    def live(self) -> LiveText:
        """Partial answer and tool progress of the session, which are not recorded yet."""
        return self._live

    async def receive(self) -> FollowedItem:
        """Wait for the next record; return new partial text or tool progress if no record is available.

        Raises:
            trio.EndOfChannel: The session is closed or erased, or the journal was closed, and everything was received.
            trio.ClosedResourceError: The reader was closed.
            SessionMoved: Another process owns the session now; a reader there resumes from `cursor`.
            JournalError: The journal cannot be read.
        """
        await trio.lowlevel.checkpoint()
        while (item := self.receive_ready()) is None:
            await self.wait_for_news()
        return item

    def receive_ready(self) -> FollowedItem | None:
        """Return a buffered record, or partial text if no record is buffered; None if nothing is available.

        Raises:
            trio.EndOfChannel: The session is closed or erased, and everything was received.
            trio.ClosedResourceError: The reader was closed.
        """
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._ready:
            return self._pop_ready()
        if self._has_ended:
            raise trio.EndOfChannel
        return None if self._is_behind or self._feed.has_news else self._pop_new_text()

    def receive_now(self) -> FollowedItem | None:
        """Return the next item, also from the feed, without blocking; None if `wait_for_news` has to be awaited first.

        Raises:
            trio.EndOfChannel: The session is closed or erased, and everything was received.
            trio.ClosedResourceError: The reader was closed.
        """
        while (item := self.receive_ready()) is None:
            if self._is_behind or not self._feed.has_news or (received := self._next_item_nowait()) is None:
                return None
            self._add_feed_item(received)
        return item

    def receive_batch(self) -> WrittenBatch | None:
        """Return the next batch (records that the journal wrote together) of the feed, and mark its records as received.

        Return None if the feed has no complete batch of at most `MAX_BATCH_RECORDS` records. Items may still be available from
        `receive_now`.

        Raises:
            trio.EndOfChannel: The session is closed or erased, and everything was received.
            trio.ClosedResourceError: The reader was closed.
        """
        if self._is_closed:
            raise trio.ClosedResourceError
        if self._ready or self._is_behind or self._has_ended or not self._feed.has_news:
            return None
        item, names = self._next_item_nowait(), self._names
        is_next = isinstance(item, WrittenBatch) and item.first == self.cursor + 1
        if (
            isinstance(item, WrittenBatch)
            and is_next
            and names
            and 0 < len(item.records) <= MAX_BATCH_RECORDS
        ):
            for record, _ in names.turns(item):
                if type(record) in _ENDING:
                    self._note_received(record)
            self.cursor = item.last
            return item
        if item is not None:
            self._add_feed_item(item)
        return None

    def wake_for(self, woken_by: Callable[[Sequence[Record]], bool]) -> None:
        """Set the records for which `wait_for_news` returns.

        After this call, `wait_for_news` returns only for records that `woken_by` accepts, for a full feed buffer, or for partial
        text.
        """
        self._feed.woken_by = woken_by

    @property
    def has_news(self) -> bool:
        """True if `wait_for_news` would return without waiting."""
        return self._is_behind or self._feed.has_news

    async def wait_for_news(self) -> None:
        """Wait for new records without receiving them. If the reader is behind the feed, read a page of the journal."""
        if self._is_behind:
            await self._read_page()
        elif self._feed.has_news:
            await self._read_feed()
        else:
            await self._feed.wait()

    def _pop_ready(self) -> FollowedRecord:
        """Remove and return the next buffered record, and advance the cursor to it."""
        item = self._ready.popleft()
        self.cursor = item.number
        self._note_received(item.record)
        return item

    def _note_received(self, record: Record) -> None:
        """Process a record that the reader has received: it can end the partial answer, the turn or the session."""
        live = self._live
        if type(record) is MessageEndRecord:
            if record.message_id == live.turn:
                self._shown = (live.answer, math.inf)
        elif type(record) is SessionClosedRecord:
            self._has_ended = True
        elif type(record) is AgentMessageRecord and record.stop and record.message.id == live.reply_id:
            self._shown = (live.answer, math.inf)

    async def _read_page(self) -> None:
        """Read a page of records after the cursor from the journal.

        Records written during the read arrive in the feed.
        """
        key = self._key
        if self._names is None:
            self._names = TurnAssigner(await _find_turn(self._journal, key, self.cursor))
        batches = await self._journal.read_batches(
            key.session_id, agent=key.agent, after=self.cursor, limit=PAGE_RECORDS
        )
        for batch in batches:
            self._ready.extend(self._names.number_records(batch, self.cursor))
        self._is_behind = bool(batches)

    async def _read_feed(self) -> None:
        try:
            self._add_feed_item(await self._feed.receive())
        except FeedLagged:
            self._is_behind = True
        except trio.EndOfChannel:
            self._has_ended = True
        except Fenced as error:
            raise self._moved() from error

    def _next_item_nowait(self) -> WrittenBatch | Erased | None:
        """Return the next item of the feed without blocking; None if the feed is empty, has ended, or has dropped records.

        Dropped records are read from the journal next.

        Raises:
            SessionMoved: Another process owns the session now.
        """
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

    def _add_feed_item(self, item: WrittenBatch | Erased) -> None:
        """Add the records of a feed item to the buffered records. After a gap, mark the reader to read the journal."""
        last = self._ready[-1].number if self._ready else self.cursor
        if isinstance(item, Erased):
            self._has_ended = True
        elif item.first > last + 1 or self._names is None or not item.records:
            self._is_behind = True
        elif item.last > last:
            self._ready.extend(self._names.number_records(item, last))

    def _pop_new_text(self) -> PartialText | CallProgress | None:
        live = self._live
        if live.reply_id:
            answer, shown = self._shown
            begin = shown if answer is live.answer else 0
            if live.size > begin:
                begin = int(begin)
                self._shown = (live.answer, live.size)
                return PartialText(
                    turn=live.turn,
                    reply_id=live.reply_id,
                    attempt=live.attempt,
                    begin=begin,
                    text=live.read(begin),
                )
        return self._pop_progress() if live.progress else None

    def _pop_progress(self) -> CallProgress | None:
        for call_id, progress in self._live.progress.items():
            if self._progress.get(call_id) is not progress:
                kept = {known: each for known, each in self._progress.items() if known in self._live.progress}
                self._progress = {**kept, call_id: progress}
                return progress
        return None

    def check_open(self) -> None:
        """Raise `trio.ClosedResourceError` if the reader was closed."""
        if self._is_closed:
            raise trio.ClosedResourceError

    def close(self) -> None:
        """Close the reader."""
        self._is_closed = True
        self._feed.close()

    async def aclose(self) -> None:
        """Close the reader; same as `close`."""
        self.close()
        await trio.lowlevel.checkpoint()


async def _find_turn(journal: Journal, key: SessionKey, cursor: int) -> str:
    """Return the id of the turn that is open after record `cursor`, from the records before it; empty if no turn is open."""
    for begin, end in page_ranges_before(cursor):
        records = await journal.read(key.session_id, agent=key.agent, after=begin, limit=end - begin)
        turn = turn_at_end(records[: end - begin])
        if turn is not None:
            return turn
    return ""


async def read_past(
    journal: Journal, key: SessionKey, *, after: int, last: int
) -> AsyncGenerator[FollowedRecord, None]:
    """Yield the records of a session after record `after` up to record `last`, each with its turn.

    The generator does not wait for new records, so it can also read sessions that other processes own.
    """
    names = TurnAssigner(await _find_turn(journal, key, after))
    while after < last:
        batches = await journal.read_batches(key.session_id, agent=key.agent, after=after, limit=PAGE_RECORDS)
        if not batches:
            return
        for batch in batches:
            for item in list(names.number_records(batch, after)):
                if item.number > last:
                    return
                yield item
            after = batch.last


@asynccontextmanager
async def follow_session(
    journal: Journal | None,
    table: SessionTable | None,
    key: SessionKey,
    *,
    after: int | None,
    thinks: bool = False,
    is_idle: bool = False,
) -> AsyncGenerator[SessionFollower, None]:
    """Yield a reader of a session's records for the block.

    Args:
        journal: Journal of the runtime.
        table: The agent's sessions in memory; None if the agent is not running in this process.
        key: Agent and id of the session.
        after: Record number after which the reader starts; None starts at the newest record.
        thinks: True if the reader also receives partial thoughts.
        is_idle: True if no turn is open after record `after`. Then the search for the open turn and the first read of the
            journal are omitted.

    Raises:
        ConfigurationError: The runtime has no journal.
        SessionNotFound: The journal has no such session.
        InvalidCursor: `after` is larger than the number of the last record.
    """
    if journal is None:
        raise ConfigurationError(
            "sessions are followed through the journal, and this runtime has no journal: pass journal= to open_runtime(), "
            "such as journal='memory:'"
        )
    async with journal.feed(key) as feed:
        head = await journal.head(key.agent, key.session_id)
        if head is None:
            raise SessionNotFound(key.agent, key.session_id)
        if after is not None and after > head.records:
            raise InvalidCursor(key.session_id, after, head.records)
        live = LiveText() if table is None else table.followed.setdefault(key.session_id, LiveText())
        if table is not None and (context := table.get(key.session_id)) is not None:
            live.attach(context)
        cursor = head.records if after is None else after
        has_ended = head.closed and cursor == head.records
        follower = SessionFollower(journal, key, cursor, live, has_ended=has_ended)
        follower.listen(feed)
        if is_idle:
            follower.start_idle(is_current=cursor == head.records)
        live.add(follower, thinks=thinks)
        try:
            yield follower
        finally:
            follower.close()
            if live.remove(follower) and table is not None and table.followed.get(key.session_id) is live:
                del table.followed[key.session_id]
