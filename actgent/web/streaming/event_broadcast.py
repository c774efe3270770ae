"""Broadcasts of session events to any number of readers: one journal reader per session; each event is encoded once.

A reader first reads the journal after its cursor. Then it becomes live and reads the journal once more, because records may
have been written in between. An event that arrives twice has a number that was sent before, and is dropped.
"""

import itertools
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Sequence,
    Set as AbstractSet,
)
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import trio

from actgent.errors import ActgentError, Fenced
from actgent.journal.journal_interface import Journal
from actgent.journal.record_feed_readers import WrittenBatch
from actgent.journal.record_types import Record, SessionClosedRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import CallProgress
from actgent.runtime.runtime import Runtime
from actgent.runtime.subscriptions.session_follower import SessionFollower
from actgent.sessions.subscriptions import FollowedRecord, PartialText
from actgent.support.safe_logging import LogVariable, logger_of

from .session_event_types import event_names
from .session_events import PAGE_SIZE, EventEncoder, SessionEvent, encoder_at
from .sse import (
    ALIVE_INTERVAL_SECONDS,
    MAX_FRAMES,
    MAX_QUEUED_BYTES,
    RETRY_MILLISECONDS,
    FrameBatch,
    FrameQueue,
    StreamWriter,
    bye,
    frame,
)

BATCH_WINDOW_SECONDS = 0.05
"""Time in seconds for which events are collected before they are sent together."""
IDLE_CHECK_SECONDS = 2.5
"""Interval in seconds between two searches for streams that need a keep-alive comment."""
READERS_PER_CHECKPOINT = 100
"""Number of readers that are served before other tasks may run."""
_log = logger_of(__name__)


def to_frames(events: Sequence[SessionEvent]) -> Iterator[tuple[int, bytes]]:
    """Yield record number and encoded events of each record. Only the last event of a record carries its number as id."""
    for number, of_record in itertools.groupby(events, key=lambda each: each.number):
        yield number, encode_record(list(of_record))


def encode_record(events: Sequence[SessionEvent]) -> bytes:
    """Encode the events of one journal record as bytes. Only the last event carries the record number as id."""
    *others, last = events
    data = frame(last.name, last.data, number=last.number)
    return b"".join([frame(each.name, each.data) for each in others]) + data if others else data


@attrs.define(eq=False)
class SessionBroadcast:
    """Distributes the new events of one session to its readers, the queues of client connections."""

    key: SessionKey
    shows_exception_texts: bool = False
    """True to include the messages of exceptions raised by user code or libraries."""
    readers: set[FrameQueue] = attrs.field(factory=set)
    ready: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set as soon as the broadcast receives new records of the session."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    flushed_at: float = -BATCH_WINDOW_SECONDS
    """Time of the last flush, in seconds of trio's clock."""
    partial_answer: PartialText | None = None
    """Text of the model's unfinished answer so far; None if the model is not answering."""
    is_session_closed: bool = False
    """True if the session is closed."""
    _waiting: list[tuple[int | None, bytes]] = attrs.field(factory=list)
    """Frames (encoded events) that the next flush sends, each with its record number; None for events without a record."""
    _size: int = 0
    """Size of the waiting frames in bytes."""
    _is_urgent: bool = False
    """True if a reader asked to get one of the waiting frames without delay."""
    _is_changed: bool = True
    """True if readers were added or removed since `_immediate` and `_accepted` were computed."""
    _immediate: AbstractSet[str] | None = None
    """Names of the events that any reader asked for without delay; None means all."""
    _accepted: AbstractSet[str] | None = None
    """Names of the events that any reader accepts; None means all."""

    def add_delta(self, item: PartialText | CallProgress) -> None:
        """Queue an event for new answer text or tool call progress, if a reader asked for such events.

        The whole answer text so far is stored for readers that join later.
        """
        if isinstance(item, PartialText):
            shown = (
                ""
                if self.partial_answer is None or self.partial_answer.reply_id != item.reply_id
                else self.partial_answer.text
            )
            self.partial_answer = attrs.evolve(item, text=shown[: item.begin] + item.text, begin=0)
            if self._is_immediate(["token"]):
                self._add(frame("token", attrs.asdict(item)), None)
        elif self._is_immediate(["progress"]):
            known = {"done": item.done, "total": item.total, "text": item.text}
            self._add(frame("progress", {"call_id": item.call_id, "tool": item.tool_name, **known}), None)

    def add(self, encoder: EventEncoder, first: int, records: Sequence[Record], at: float) -> None:
        """Queue the events of new records, as far as a reader has subscribed to these events.

        `first` is the number of the first record, `at` the Unix time in seconds at which the records were written.
        """
        if self._is_changed:
            self._update_names()
        wanted, accepted = self._immediate, self._accepted
        for number, record in enumerate(records, first):
            names = event_names(record)
            if accepted is not None and accepted.isdisjoint(names):
                encoder.skip(number, record)
            elif events := encoder.encode(number, record, at):
                self._add(encode_record(events), number)
            else:
                continue
            if "answer" in names or "ended" in names:
                self.partial_answer = None
            self.is_session_closed = self.is_session_closed or "closed" in names
            self._is_urgent = self._is_urgent or wanted is None or not wanted.isdisjoint(names)

    def _add(self, data: bytes, number: int | None) -> None:
        self._waiting.append((number, data))
        self._size += len(data)
        self._is_urgent = self._is_urgent or number is None

    def _is_immediate(self, names: Collection[str]) -> bool:
        """Return True if a reader wants one of these events without delay."""
        if self._is_changed:
            self._update_names()
        return self._immediate is None or not self._immediate.isdisjoint(names)

    def _update_names(self) -> None:
        self._is_changed = False
        self._immediate = _union([each.immediate for each in self.readers])
        self._accepted = _union([each.accepted for each in self.readers])

    def subscribe(self, reader: FrameQueue) -> None:
        """Add a reader (the queue of one connection). The reader receives frames from the next `flush` on."""
        self.readers.add(reader)
        self._is_changed = True

    def unsubscribe(self, reader: FrameQueue) -> None:
        """Remove a reader. A reader that is not subscribed is ignored."""
        self.readers.discard(reader)
        self._is_changed = True

    @property
    def is_due(self) -> bool:
        """True if the waiting frames must be sent now, because one is urgent, they are large, or the session was closed."""
        return self._is_urgent or self.is_session_closed or self.is_large

    @property
    def is_large(self) -> bool:
        """True if the waiting frames reach half of the queue limits of a connection."""
        return 2 * self._size > MAX_QUEUED_BYTES or 2 * len(self._waiting) > MAX_FRAMES

    async def flush_if_due(self, now: float) -> None:
        """Send the waiting frames if they are due, and start a new collection period. `now` is the time by trio's clock."""
        self.flushed_at = now
        if self.is_due:
            await self.flush(now)

    async def flush(self, now: float) -> None:
        """Send the waiting frames to each reader. Readers with a closed queue are removed."""
        if not self._waiting:
            return
        batch = FrameBatch(self._waiting)
        self._waiting, self._size, self._is_urgent = [], 0, False
        for number, reader in enumerate(tuple(self.readers), 1):
            if not reader.put(batch, now):
                self.unsubscribe(reader)
            if number % READERS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()

    def is_woken_by(self, records: Sequence[Record]) -> bool:
        """Return True if one of these records becomes an event that a reader asked to get without delay."""
        if self._is_changed:
            self._update_names()
        wanted = self._immediate
        for each in records:  # called for each batch of each session
            if (
                wanted is None
                or type(each) is SessionClosedRecord
                or not wanted.isdisjoint(event_names(each))
            ):
                return True
        return False

    def close(self, last: bytes) -> None:
        """Close the queue of each reader. `last` is the final frame that each reader still receives."""
        for reader in self.readers:
            reader.close(last)


def _union(sets: Sequence[AbstractSet[str] | None]) -> AbstractSet[str] | None:
    """Return the union of sets of event names. None means all names, so the result is None if one of the sets is None."""
    return None if None in sets else frozenset().union(*filter(None, sets))


class Broadcasts:
    """All broadcasts of a gateway, one for each session that has readers."""

    def __init__(self, runtime: Runtime, journal: Journal, nursery: trio.Nursery) -> None:
        self._runtime = runtime
        self._journal = journal
        self._nursery = nursery
        self._broadcasts: dict[tuple[SessionKey, bool], SessionBroadcast] = {}
        self._is_closed = False
        self._sends_keep_alives = False

    def __len__(self) -> int:
        return len(self._broadcasts)

    def close(self) -> None:
        """Send the event `bye` to each reader of each session, and close the streams."""
        self._is_closed = True
        for broadcast in self._broadcasts.values():
            for reader in broadcast.readers:
                reader.close(bye())

    @asynccontextmanager
    async def subscribed(
        self, key: SessionKey, frames: FrameQueue, *, shows_exception_texts: bool = False
    ) -> AsyncGenerator[SessionBroadcast, None]:
        """Add a connection's queue to the broadcast of a session during the `async with` block. Yield the broadcast."""
        if not self._sends_keep_alives:
            self._sends_keep_alives = True
            self._nursery.start_soon(self._send_keep_alives)
        broadcast = self._broadcasts.get((key, shows_exception_texts))
        if broadcast is None:
            broadcast = self._broadcasts[key, shows_exception_texts] = SessionBroadcast(
                key, shows_exception_texts
            )
            self._nursery.start_soon(self._follow, broadcast)
        if self._is_closed:
            frames.close(bye())
        broadcast.subscribe(frames)
        try:
            await broadcast.ready.wait()
            yield broadcast
        finally:
            broadcast.unsubscribe(frames)
            if not broadcast.readers:
                self._drop(broadcast)

    async def _send_keep_alives(self) -> None:
        """Send keep-alive comments to idle streams, until no session has readers."""
        while self._broadcasts:
            await trio.sleep(IDLE_CHECK_SECONDS)
            now = trio.current_time()
            before = now - ALIVE_INTERVAL_SECONDS + IDLE_CHECK_SECONDS
            quiet = [
                each
                for broadcast in self._broadcasts.values()
                for each in broadcast.readers
                if each.sent_at <= before
            ]
            for number, reader in enumerate(quiet, 1):
                reader.keep_alive(now)
                if number % READERS_PER_CHECKPOINT == 0:
                    await trio.lowlevel.checkpoint()
        self._sends_keep_alives = False

    def _drop(self, broadcast: SessionBroadcast) -> None:
        index = broadcast.key, broadcast.shows_exception_texts
        if self._broadcasts.get(index) is broadcast:
            del self._broadcasts[index]
        broadcast.scope.cancel()

    async def _follow(self, broadcast: SessionBroadcast) -> None:
        """Broadcast the new records of a session until it has no readers. After an error, close all its streams."""
        with broadcast.scope:
            try:
                async with self._runtime.follow(
                    broadcast.key.session_id, agent=broadcast.key.agent, after=None
                ) as follower:
                    await self._broadcast_new(broadcast, follower)
            except Fenced as moved:  # the readers reconnect and reach the new owner of the session
                _log.debug(
                    "session %s moved to another node, which now sends its events: %s",
                    LogVariable(broadcast.key.session_id),
                    moved,
                )
            except ActgentError as error:
                _log.warning(
                    "session %s: its event streams were closed after an error: %s",
                    LogVariable(broadcast.key.session_id),
                    error,
                )
            finally:
                broadcast.ready.set()
                broadcast.close(frame("lagged", {}))
                self._drop(broadcast)

    async def _broadcast_new(self, broadcast: SessionBroadcast, follower: SessionFollower) -> None:
        encoder = await encoder_at(
            self._journal,
            broadcast.key,
            follower.cursor,
            shows_exception_texts=broadcast.shows_exception_texts,
        )
        broadcast.ready.set()
        follower.wake_for(broadcast.is_woken_by)
        with suppress(trio.EndOfChannel):
            while broadcast.readers:  # empty if all were closed because they read too slowly
                has_grown = _collect(broadcast, encoder, follower)
                if not (has_grown or broadcast.is_due):
                    await follower.wait_for_news()
                    continue
                now = trio.current_time()
                if (early := broadcast.flushed_at + BATCH_WINDOW_SECONDS - now) > 0:
                    await trio.sleep(early)  # events of one window are sent as one batch
                    now = trio.current_time()
                    _collect(broadcast, encoder, follower)
                await broadcast.flush_if_due(now)
                if broadcast.is_session_closed:
                    broadcast.close(b"")
        await broadcast.flush(trio.current_time())


def _collect(broadcast: SessionBroadcast, encoder: EventEncoder, follower: SessionFollower) -> bool:
    """Queue all available records and answer deltas of a session without waiting. Return True if there were deltas.

    Raises:
        trio.EndOfChannel: The follower is closed and has no more records.
    """
    has_grown = False
    while not broadcast.is_large:
        if (batch := follower.receive_batch()) is not None:
            broadcast.add(encoder, batch.first, batch.records, batch.at or 0.0)
        elif (item := follower.receive_now()) is None:
            break
        elif isinstance(item, FollowedRecord):
            broadcast.add(encoder, item.number, (item.record,), item.at or 0.0)
        else:
            has_grown = True
            broadcast.add_delta(item)
    return has_grown


# --- one reader --------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SessionEventStream:
    """Event stream of one session for one client. It starts after a record number."""

    journal: Journal
    broadcasts: Broadcasts
    key: SessionKey
    after: int
    immediate: AbstractSet[str] | None = None
    """Names of the events to send without delay; None means all except `token` and `progress`, which must be listed."""
    delayed: AbstractSet[str] | None = None
    """Names of events to collect, to save traffic. They are sent together with the next event of `immediate`.
    None means all events that are not in `immediate`.
    """
    shows_exception_texts: bool = False
    """True to include the messages of exceptions raised by user code or libraries."""
    wait_over: Callable[[], Awaitable[int]] | None = None
    """Async function that returns when the stream must end, with the number of the last record to send.
    If None, the stream ends when the session is closed.
    """

    async def run(self, wire: StreamWriter) -> None:
        """Write the events of the journal records after number `after` to a stream. Then write new events until the stream ends."""
        frames = FrameQueue(wire, self.immediate, self.delayed)
        async with self.broadcasts.subscribed(
            self.key, frames, shows_exception_texts=self.shows_exception_texts
        ) as broadcast:
            await wire(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
            frames.seen = self.after
            head = await self.journal.head(*self.key)
            if head is not None and self.after > head.records:  # an older backup of the journal was restored
                frames.seen = head.records
                await wire(frame("resync", {"records": head.records}, number=head.records))
            encoder = await encoder_at(
                self.journal, self.key, frames.seen, shows_exception_texts=self.shows_exception_texts
            )
            catch_up = partial(self._catch_up, frames, encoder, wire)
            is_session_closed = await catch_up()
            frames.is_live = True
            if is_session_closed or await catch_up():
                return
            if broadcast.partial_answer is not None and frames.wants(["growing"]):
                frames.put_first(frame("growing", attrs.asdict(broadcast.partial_answer)))
            if self.wait_over is None:
                await frames.write_all()
            else:
                await self._write_until_over(frames, wire, self.wait_over)

    async def _write_until_over(
        self, frames: FrameQueue, wire: StreamWriter, wait_over: Callable[[], Awaitable[int]]
    ) -> None:
        """Write new events until `wait_over` returns a record number. Then write the remaining events up to this record."""
        last, broken = 0, None

        async def close_when_over() -> None:
            nonlocal last
            try:
                last = await wait_over()
            except ActgentError as error:  # the client reconnects, and gets the error
                _log.warning(
                    "session %s: the stream of a run was closed after an error: %s",
                    LogVariable(self.key.session_id),
                    error,
                )
                frames.close(frame("lagged", {}))
            else:
                frames.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close_when_over)
            try:
                await frames.write_all()
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                broken = error  # raised below, not wrapped into a group
            nursery.cancel_scope.cancel()
        if broken is not None:
            raise broken
        if frames.seen < last and not wire.is_cut:
            encoder = await encoder_at(
                self.journal, self.key, frames.seen, shows_exception_texts=self.shows_exception_texts
            )
            await self._catch_up(frames, encoder, wire)

    async def _catch_up(self, frames: FrameQueue, encoder: EventEncoder, wire: StreamWriter) -> bool:
        """Write the events of journal records that were not written yet. Return True if the session was closed."""
        while batches := await self.journal.read_batches(
            self.key.session_id, agent=self.key.agent, after=frames.seen, limit=PAGE_SIZE
        ):
            events = [each for batch in batches for each in _encode_batch(batch, encoder, frames)]
            frames.seen = batches[-1].last
            await wire(b"".join(data for _, data in to_frames(events)))
            if any(each.name == "closed" for each in events):
                return True
        return False


def _encode_batch(batch: WrittenBatch, encoder: EventEncoder, frames: FrameQueue) -> Iterator[SessionEvent]:
    """Yield the events of newly written records that the client accepts."""
    for number, record in enumerate(batch.records, batch.first):
        if frames.accepts(event_names(record)):
            yield from encoder.encode(number, record, batch.at or 0.0)
        else:
            encoder.skip(number, record)
