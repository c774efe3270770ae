"""Group commit: the part of all journals that does not depend on the storage.

One task writes and is never interrupted. A caller may leave or time out while its batch is being written. Batches of all
sessions are collected during the commit and go together into the next transaction. If the storage is idle, the caller starts the
write at once and waits for the storage itself. This caller is the leader. Waking the writer task would cost as much as the batch.
If the leading caller is cancelled or times out, the writer task completes the transaction. Batches without a waiting
caller start no transaction for `FLUSH_DELAY_SECONDS`.
"""

import itertools
import math
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Self

import attrs
import outcome
import trio

from actgent.errors import (
    ActgentError,
    Fenced,
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalSlow,
    UsageError,
)
from actgent.errors.text_escaping import counted
from actgent.journal.encryption import check_readable, current_keys
from actgent.journal.journal_interface import (
    Entry,
    JournalStatistics,
    SessionSummary,
    SessionTail,
    Snapshot,
    only_session_key,
)
from actgent.journal.record_feed_readers import FeedReader, WrittenBatch
from actgent.journal.record_types import Record
from actgent.journal.session_list_queries import ALL, Cursor, SessionFilter, SessionKey, State, to_searchable
from actgent.support.safe_logging import logger_of

from .pending_write_queue import Batches, BatchQueue, QueuedBatch, make_queued
from .read_batching import Found, PageRequest, ReadBatcher
from .record_feed_publisher import FeedPublisher, written_batches
from .row_format import EncodedBatch, Head, Page, Row, encode_entry, find_parent, join_batches, place_batch
from .session_list_pages import Pages
from .session_summary_cache import HeadCache
from .storage_interface import HeadFound, StoredJournal, Work

logger = logger_of(__name__)

FLUSH_DELAY_SECONDS = 0.05
"""Maximum seconds that a batch without a waiting caller is delayed to be written with others."""
ALL_SESSIONS = SessionKey("", "")
"""Key of a batch without records. The batch is complete after the batches of all sessions."""
ACQUIRE_TIMEOUT_SECONDS = 0.5
"""Seconds for which `acquire` waits for a terminating owner to release the journal."""
RETRY_SECONDS = 1.0
"""Seconds between retries of failed batches without a waiting caller."""
CLOSE_TIMEOUT_SECONDS = 10.0
"""Maximum seconds that closing the journal waits for the storage."""
MAX_LOGGED_SESSIONS = 10
"""Maximum number of session names in one log line."""


@attrs.define(eq=False)
class _Transaction:
    """Rows and new session summaries of a group of batches, which are written in one transaction."""

    heads: dict[SessionKey, Head]
    before: Mapping[SessionKey, Head]
    """Stored summaries of the sessions before the transaction."""
    rows: list[Row]
    original_records: list[Sequence[Record]]
    """Records of each row as the writers passed them."""
    at: float
    """Start time of the transaction as Unix time in seconds."""


@attrs.define(eq=False)
class _StartedGroup:
    """A group of batches whose transaction the storage has started and maybe completed."""

    group: list[QueuedBatch]
    transaction: _Transaction
    work: Work
    leader: QueuedBatch | None
    """Queued batch whose caller waits for the storage in place of the writer task; None if the writer task itself waits."""
    is_left: bool = False
    """True if the caller of `leader` has stopped waiting, so the writer task must wait for the storage."""


class GroupedJournal(StoredJournal):
    """Base class of all journals: order, groups, epochs and errors. Subclasses implement `StoredJournal`."""

    def __init__(self) -> None:
        self.statistics: JournalStatistics = JournalStatistics()
        self._keys = current_keys()
        self._epoch = 0
        self._has_stopped = False
        """True if the writer task has ended, so nothing more can be written."""
        self._queue = BatchQueue()
        self._started: _StartedGroup | None = None
        self._retry_at = 0.0
        self._arrived = trio.Event()
        self._needs_write = False
        """True if a caller waits for a queued batch, or the flush delay has passed."""
        self._is_idle = False
        """True if the writer task has nothing to do, or waits for a started write."""
        self._writer: trio.lowlevel.Task | None = None
        """Writer task while it waits in `_wait_called`; None otherwise."""
        self._heads = HeadCache()
        self._storage = trio.Semaphore(1, max_value=1)
        """Lock of the storage. A task may acquire it and another task release it."""
        self._read_batcher = ReadBatcher(self._storage)
        self._pages = Pages(self._storage, self, self._heads)
        self._feed = FeedPublisher(self._read_batch)
        self._is_open = False

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self, None]:
        """Async context manager: run the writer task of the journal until the block exits.

        At the end, write the queued batches and release the storage, even if the block is cancelled.
        """
        error: BaseException | None = None
        async with trio.open_nursery() as nursery:
            self._is_open = True
            # Shielded: the queue is written even if the block is cancelled.
            writing, rousing = trio.CancelScope(shield=True), trio.CancelScope(shield=True)
            nursery.start_soon(self._write_groups, writing, name="journal writer")
            nursery.start_soon(self._run_timer, rousing, name="journal clock")
            try:
                yield self
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - raised again below, not wrapped into a group
                error = raised
            try:
                with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
                    await self._close_despite_interrupt()
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - as above
                error = error or raised
            finally:
                writing.cancel()
                rousing.cancel()
                self._mark_closed()  # must run even if the close failed
        if error is not None:
            raise error

    async def _close_despite_interrupt(self) -> None:
        """Write the queue and release the storage, even if Ctrl-C interrupts it once.

        A second Ctrl-C ends the close.
        """
        try:
            await self._write_and_release()
        except KeyboardInterrupt:
            await self._write_and_release()
            raise

    async def _write_and_release(self) -> None:
        """Write the queued batches, then release the storage.

        A failed write is logged and does not prevent the release.
        """
        if self._epoch:
            self._retry_failed_batches()
            try:
                await self._flush(ALL_SESSIONS)
                while self._queue.batches:  # of callers that were cancelled together with the block
                    await self._flush(ALL_SESSIONS)
            except ActgentError as error:
                logger.error("the queued records could not be written when the journal was closed: %s", error)  # noqa: TRY400 - expected errors
        await self._lock_storage()
        self._epoch, self._has_stopped = 0, True  # from now on, a batch is rejected instead of lost
        try:
            await self._release()
        finally:
            self._storage.release()

    @trio.lowlevel.enable_ki_protection
    def _mark_closed(self) -> None:
        """Close the journal in any state: end the feed and log the sessions with unwritten batches."""
        left = self._queue.count_unwritten()
        self._is_open = False
        self._epoch, self._has_stopped = 0, True
        self._feed.close()
        self._release_now()
        if left:
            names = ", ".join(repr("/".join(key)) for key in itertools.islice(left, MAX_LOGGED_SESSIONS))
            more = "" if len(left) <= MAX_LOGGED_SESSIONS else ", ..."
            text = "the journal was closed with %s of %s unwritten: %s%s"
            logger.error(
                text, counted(left.total(), "batch", "batches"), counted(len(left), "session"), names, more
            )

    # --- the journal ----------------------------------------------------------------------

    async def acquire(self) -> int:
        if not self._is_open:
            raise UsageError(
                "the journal is not open: use it inside its `async with open_journal(...)` block"
            )
        async with self._storage:
            former, self._epoch = self._epoch, await self._acquire_with_retries()
            if self._keys is None:
                check_readable(await self._newest_body(), None)
            self._has_stopped = False
            self._heads.begin_epoch()
            if self._epoch != former + 1:  # another owner may have written in between
                self._heads.uncertain.clear()
                self._queue.fail_all(
                    Fenced(f"epoch {former} of the journal is over: the records were not written")
                )
            self._retry_failed_batches()
        return self._epoch

    def epoch_of(self, session_id: str) -> int:
        return self._epoch

    async def _acquire_with_retries(self) -> int:
        until = time.monotonic() + ACQUIRE_TIMEOUT_SECONDS
        while True:
            try:
                return await self._acquire_storage()
            except Fenced:
                if time.monotonic() > until:
                    raise
            await trio.sleep(ACQUIRE_TIMEOUT_SECONDS / 10)

    async def commit(self, entry: Entry, *, epoch: int, durable: bool = True) -> None:
        batch = encode_entry(entry)
        if durable or self._queue.must_wait(batch.key) or self._may_id_exist(batch):
            await self._wait_written(batch, epoch, entry.timeout_seconds, is_retried=entry.is_retried)
        else:
            self._enqueue(make_queued(batch, epoch))
            await trio.lowlevel.checkpoint()

    def _may_id_exist(self, batch: EncodedBatch) -> bool:
        """Return True if another session may already have the id of the new session in `batch`.

        The caller must then wait until the batch is written or rejected.
        """
        is_there = self._queue.has_unwritten(batch.key) or batch.key in self._heads.by_key
        return batch.creation is not None and (batch.is_refused or (is_there and batch.begins))

    def enqueue_write(self, entry: Entry, *, epoch: int) -> None:
        self._enqueue(make_queued(encode_entry(entry), epoch))
        if entry.is_urgent:
            self._request_write()

    async def load(self, session_id: str, *, agent: str | None = None) -> tuple[Record, ...]:
        key = await self._key_of(session_id, agent)
        if key is None:
            return ()
        await self._resolve(key)
        return (await self._read_batcher.read(key, self._read_known)).records

    async def load_tail(self, session_id: str, *, agent: str) -> SessionTail:
        key = SessionKey(agent, session_id).searchable()
        await self._resolve(key)
        stored = await self._read_batcher.read(key, self._read_known_tails)
        return SessionTail(records=stored.records, snapshot=stored.snapshot)

    async def read(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        key = await self._key_of(session_id, agent)
        if key is None:
            return ()
        return (await self._page_of(key, after, limit)).records

    async def read_batches(
        self, session_id: str, *, agent: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[WrittenBatch, ...]:
        key = await self._key_of(session_id, agent)
        return () if key is None else written_batches(key, await self._page_of(key, after, limit))

    async def _page_of(self, key: SessionKey, after: int, limit: int) -> Page:
        await self._resolve(key)
        head = self.cached_head(*key)
        if head is not None and after >= head.records:
            await trio.lowlevel.checkpoint()
            return Page(after=after)
        return await self._read_batcher.read(PageRequest(key, after, limit), self._read_pages)

    def feed(
        self, session: SessionKey | None = None, *, capacity: int = 1000, records: bool = True
    ) -> AbstractAsyncContextManager[FeedReader]:
        return self._feed.open(session, capacity=capacity, with_records=records)

    async def _read_batch(self, key: SessionKey, after: int, count: int) -> tuple[Record, ...]:
        return (await self.read(key.session_id, agent=key.agent, after=after, limit=count))[:count]

    def read_blocking(
        self, session_id: str, *, agent: str, after: int = 0, limit: int = 1000
    ) -> tuple[Record, ...]:
        return self._read_page_blocking(SessionKey(agent, session_id), after, limit).records

    async def find_snapshot(self, session_id: str, *, agent: str) -> Snapshot | None:
        key = SessionKey(agent, session_id)
        await self._resolve(key)
        async with self._storage:
            return await self._find_snapshot(key)

    async def keep_snapshot(self, session_id: str, snapshot: Snapshot, *, agent: str, epoch: int) -> bool:
        async with self._storage:
            self._check_session(SessionKey(agent, session_id), epoch)
            return await self._keep_snapshot(SessionKey(agent, session_id), snapshot, epoch)

    async def drop_snapshots(self, session_id: str, *, agent: str, epoch: int) -> None:
        async with self._storage:
            self._check_session(SessionKey(agent, session_id), epoch)
            await self._drop_snapshots(SessionKey(agent, session_id), epoch)

    async def _resolve(self, key: SessionKey) -> None:
        """Write the queued batches of a session, so that the storage contains its current state.

        If an earlier batch failed and may nevertheless be stored, roll it back.
        """
        await self._flush_session(key)
        if key in self._heads.uncertain:
            async with self._storage:
                await self._resolve_uncertain([key])

    @asynccontextmanager
    async def _all_written(self) -> AsyncGenerator[None, None]:
        """Async context manager: write all queued batches, then lock the storage while the block runs.

        Sessions that do not fit on the disk are skipped.
        """
        with suppress(JournalFull):
            await self._flush(ALL_SESSIONS)
        async with self._storage:
            await self.resolve_all()
            yield

    async def resolve_all(self) -> None:
        await self._resolve_uncertain([*self._heads.uncertain])

    async def _key_of(self, session_id: str, agent: str | None) -> SessionKey | None:
        if agent is not None:
            return SessionKey(agent, session_id).searchable()
        return only_session_key(await self.agents_with_session(session_id), session_id)

    async def _flush_session(self, key: SessionKey) -> None:
        if self._queue.has_unwritten(key):
            await self._flush(key)
        self._check_epoch(self._epoch)

    async def _read_known(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        """Read sessions that will be written soon, and cache their summaries."""
        return self._kept_heads(await self._read_some(keys))

    async def _read_known_tails(self, keys: Sequence[SessionKey]) -> Sequence[Found]:
        return self._kept_heads(await self._read_tails(keys))

    def _kept_heads(self, found: Sequence[Found]) -> Sequence[Found]:
        stored = [each.value for each in found if isinstance(each, outcome.Value)]
        self._heads.put({each.head.key: each.head for each in stored if each.head is not None})
        return found

    async def unfinished(self, agent: str) -> list[str]:
        with suppress(JournalFull):
            await self._flush(ALL_SESSIONS)
        return await self._read_batcher.read(agent, self._find_unfinished)

    async def _find_unfinished(self, agents: Sequence[str]) -> Sequence[outcome.Outcome[list[str]]]:
        await self.resolve_all()
        return await self._list_unfinished_of(agents)

    async def waiting(self) -> dict[str, int]:
        async with self._all_written():
            return await self._count_waiting()

    async def due(self, agent: str) -> list[tuple[str, float]]:
        with suppress(JournalFull):
            await self._flush(ALL_SESSIONS)
        return await self._read_batcher.read(agent, self._find_due)

    async def _find_due(self, agents: Sequence[str]) -> Sequence[outcome.Outcome[list[tuple[str, float]]]]:
        await self.resolve_all()
        return await self._list_due_of(agents)

    async def suspended(self, agent: str, *, after: str = "", limit: int = 100) -> list[str]:
        async with self._all_written():
            return await self._list_suspended(agent, to_searchable(after), limit)

    async def sessions(self, agent: str | None = None) -> list[SessionSummary]:
        async with self._all_written():
            return [head.summary for head in await self._list_heads(agent)]

    async def agents_with_session(self, session_id: str) -> list[str]:
        with suppress(JournalFull):
            await self._flush(ALL_SESSIONS)
        return await self._read_batcher.read(session_id, self._find_agents)

    async def _find_agents(self, session_ids: Sequence[str]) -> list[outcome.Outcome[list[str]]]:
        """Find the agents with each session id, including sessions that are not written because the disk is full."""
        await self.resolve_all()
        found = await self._list_agents([to_searchable(each) for each in session_ids])
        unwritten: dict[str, list[str]] = {}
        for agent, session_id in self._queue.failed:
            unwritten.setdefault(session_id, []).append(agent)
        return [
            outcome.Value(sorted({*each.value, *unwritten.get(session_id, ())}))
            if isinstance(each, outcome.Value)
            else each
            for each, session_id in zip(found, session_ids, strict=False)
        ]

    async def head(self, agent: str, session_id: str) -> SessionSummary | None:
        key = SessionKey(agent, session_id).searchable()
        await self._flush_session(key)
        if (known := self._heads.get_if_certain(key)) is not None:
            await trio.lowlevel.checkpoint()
            return known.summary
        found = await self._read_batcher.read(key, self._find_heads)
        return None if found is None else found.summary

    async def _find_heads(self, keys: Sequence[SessionKey]) -> list[outcome.Outcome[Head | None]]:
        await self._resolve_uncertain(keys)
        known = await self._known_heads(keys)
        return [outcome.Value(known.get(key)) for key in keys]

    def cached_head(self, agent: str, session_id: str) -> SessionSummary | None:
        key = SessionKey(agent, session_id)
        known = None if self._queue.has_unwritten(key) or not self._epoch else self._heads.get_if_certain(key)
        return None if known is None else known.summary

    async def children(self, agent: str, session_id: str) -> list[SessionSummary]:
        return await self.children_of([SessionKey(agent, session_id)])

    async def children_of(self, keys: Sequence[SessionKey]) -> list[SessionSummary]:
        async with self._all_written():
            return [head.summary for head in await self._list_children([key.searchable() for key in keys])]

    async def delete(self, session_id: str, *, agent: str | None = None) -> None:
        key = await self._key_of(session_id, agent)
        if key is None:
            return
        async with self._erasing():
            await self._erase(key, self._epoch)
            self._drop_erased_sessions([key])

    @asynccontextmanager
    async def _erasing(self) -> AsyncGenerator[None, None]:
        """Async context manager for a block that erases sessions: write queued batches, lock the storage, and shield the block.

        If the block fails, its sessions count as possibly erased.
        """
        async with self._all_written():
            try:
                with trio.CancelScope(shield=True):
                    yield
            except JournalFailed:
                self._mark_all_possibly_erased()
                raise

    def _mark_all_possibly_erased(self) -> None:
        """Clear the summary cache, and mark all sessions with failed batches as possibly erased.

        The storage is checked for these sessions before their batches are written again.
        """
        self._heads.clear()
        self._queue.note_possibly_erased()

    def _drop_erased_sessions(self, gone: Sequence[SessionKey]) -> None:
        """Remove the erased sessions `gone` from the cache, drop their failed batches, and notify feed readers.

        A failed batch would create its session again, but without the first record.
        """
        self._heads.erase(gone)
        self._queue.drop_failed(gone)
        self._feed.publish_erased(gone)

    async def to_erase(self, limit: int = 100) -> list[SessionKey]:
        async with self._all_written():
            return await self._list_to_erase(limit)

    async def erase_trees(
        self, roots: Sequence[SessionKey], *, unchanged_since: float = math.inf
    ) -> list[SessionKey]:
        async with self._erasing():
            gone = await self._erase_trees(roots, unchanged_since, self._epoch)
            self._drop_erased_sessions(gone)
            self.statistics.erased += len(gone)
        return gone

    async def page(
        self, session_filter: SessionFilter = ALL, *, after: Cursor | None = None, limit: int = 100
    ) -> list[SessionSummary]:
        after = None if after is None else after.searchable()
        with suppress(JournalFull):
            await self._flush(ALL_SESSIONS)
        return [head.summary for head in await self._pages.select(session_filter, after, limit)]

    async def counts(self, agent: str | None = None) -> dict[State, int]:
        with suppress(JournalFull):
            await self._flush(ALL_SESSIONS)
        return await self._pages.count(agent)

    # --- the queue ------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def _enqueue(self, queued: QueuedBatch) -> None:
        """Queue a batch that no caller waits for. Raise `Fenced` if this process no longer owns the session."""
        if queued.epoch != self._epoch or not self._epoch:
            self._check_batch(queued.batch, queued.epoch)
        self._queue.put(queued)
        self._arrived.set()

    def _check_batch(self, batch: EncodedBatch, epoch: int) -> None:
        """Raise `Fenced` if this process has lost the ownership (`epoch`) that it had when the batch was made."""
        self._check_session(batch.key, epoch)

    def _check_session(self, key: SessionKey, epoch: int) -> None:
        """Raise `Fenced` if this process has lost the ownership (`epoch`) that permits writes to a session."""
        self._check_epoch(epoch)

    def _check_epoch(self, epoch: int) -> None:
        if not self._epoch and self._has_stopped:
            raise JournalFailed(
                "the journal is closed, because its `async with` block has ended: open it again"
            )
        if not self._epoch:
            raise UsageError(
                "a process must own a journal to write: call `acquire()` first, inside the `async with open_journal(...)` block"
            )
        if epoch != self._epoch:
            raise Fenced(
                f"this process no longer owns the journal in epoch {epoch}, because the current epoch is {self._epoch}: the records were "
                "not written"
            )

    @trio.lowlevel.enable_ki_protection
    async def _wait_written(
        self,
        batch: EncodedBatch,
        epoch: int,
        timeout_seconds: float | None = None,
        *,
        is_retried: bool = False,
    ) -> None:
        waiting = make_queued(batch, epoch, is_retried=is_retried)
        if epoch != self._epoch or not epoch:
            self._check_batch(batch, epoch)
        self._queue.put(waiting)
        if timeout_seconds is not None:
            waiting.timeout_seconds, waiting.until = timeout_seconds, trio.current_time() + timeout_seconds
            self._arrived.set()
        if (started := self._request_write(waiting)) is not None:
            await self._lead(started)
            if waiting.error is not None:
                raise waiting.error
            if waiting.is_over:
                return
        await waiting.wait()

    async def _lead(self, started: _StartedGroup) -> None:
        """Wait in the calling task until the storage has written the group `started`, then complete the group.

        If the write failed, the writer task completes the group instead.
        """
        try:
            await self._wait_led(started.work)
        finally:
            started.is_left = True
            if self._started is started and not self._finish_if_written(started):
                self._call()

    def _finish_if_written(self, started: _StartedGroup) -> bool:
        """Complete the transaction of a group if it succeeded, and start the next transaction.

        Return False if it failed, or if the next transaction cannot start without waiting.
        """
        if not isinstance(started.work.result, outcome.Value):
            return False
        self._started = None
        try:
            self._note_written(started.transaction)
            self._queue.finish(started.group)
        finally:
            self._release_group(started.group)
        return not self._needs_write or self._start_next()

    async def _flush(self, key: SessionKey) -> None:
        """Wait until all queued batches are complete. Raise the errors of the batches of session `key`."""
        if key == ALL_SESSIONS and self._queue.is_empty:
            self._check_epoch(self._epoch)
            await trio.lowlevel.checkpoint()
            return
        await self._wait_written(EncodedBatch(key, 0, b""), self._epoch)

    @trio.lowlevel.enable_ki_protection
    async def _run_timer(self, scope: trio.CancelScope) -> None:
        """Start writes of batches for which no caller waits, and raise timeouts in waiting callers, until cancelled.

        One timer is cheaper than a deadline per batch.
        """
        with scope:
            while True:
                await self._arrived.wait()
                await trio.sleep(FLUSH_DELAY_SECONDS)
                self._arrived = trio.Event()
                self._on_timer(trio.current_time())

    def _on_timer(self, now: float) -> None:
        self._raise_timeouts(now)
        queue = self._queue
        if queue.failed and self._epoch and now >= self._retry_at:
            self._retry_at = now + RETRY_SECONDS
            self._retry_failed_batches()
        if queue.batches:
            self._request_write()
        if queue.failed or queue.writing or queue.batches:
            self._arrived.set()

    def _retry_failed_batches(self) -> None:
        for key in self._queue.failed:
            self._queue.put(make_queued(EncodedBatch(key, 0, b""), self._epoch))

    def _raise_timeouts(self, now: float) -> None:
        """Raise `JournalSlow` in callers whose timeout has expired at `now`. Their batches are still written."""
        started = self._started
        if (
            started is not None
            and not started.is_left
            and started.leader is not None
            and started.leader.until <= now
        ):
            started.leader.error = JournalSlow(started.leader.timeout_seconds)
            self._stop_waiting(started.work)
        self._queue.raise_timeouts(now)

    @trio.lowlevel.enable_ki_protection
    async def _write_groups(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                while True:
                    if self._started is not None or not self._needs_write or self._start_next():
                        await self._wait_idle()
                    else:
                        await self._write_next()
        finally:
            self._epoch, self._has_stopped = 0, True  # no caller may wait for the writer task any more
            self._fail_unfinished(self._queue.unfinished())

    async def _wait_idle(self) -> None:
        """Suspend the writer task until it is called to write batches.

        Before it returns, complete a group of batches that is being written and for which no other task waits.
        """
        self._is_idle = True
        try:
            await self._wait_called()
        finally:
            self._is_idle = False
        started = self._started
        if started is None or (started.leader is not None and not started.is_left):
            return
        if started.leader is not None:
            await self._wait_led(started.work)
        if started.work.result is not None:
            self._started = None
            await self._finish_group(started.group, started)

    @trio.lowlevel.enable_ki_protection  # Ctrl-C here would leave a task registered that no longer waits
    async def _wait_called(self) -> None:
        """Suspend the writer task until `_call` is called or a prepared write is complete. May return early."""

        def leave(_: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._writer = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(leave)

    def _call(self) -> None:
        """Wake the writer task in `_wait_called`. Rescheduling it directly is cheaper than an event."""
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    def _request_write(self, leader: QueuedBatch | None = None) -> _StartedGroup | None:
        """Let the writer task or the calling task write the queued batches.

        Return the started group if the caller of the batch `leader` must wait for the storage itself; None otherwise.
        """
        self._needs_write = True
        if not self._is_idle or self._started is not None:
            return None
        if not self._start_next(leader) or self._writer is not None:
            self._call()
        return self._started if leader is not None else None

    @trio.lowlevel.enable_ki_protection
    def _start_next(self, leader: QueuedBatch | None = None) -> bool:
        """Start to write the queued batches. Return False if the write cannot start without waiting."""
        queue, known = self._queue, self._heads.by_key
        if not self._may_start or not self._storage.value or self._heads.uncertain or queue.failed:
            return False
        new = queue.sessions_beginning(known)
        if new is None:
            return False
        self._storage.acquire_nowait()
        group = queue.take_group()
        if not queue.batches:
            self._needs_write = False
        try:
            by_session = queue.by_session(group)
            if by_session:
                transaction = self._build_transaction(
                    by_session, {key: known[key] for key in by_session if key not in new}
                )
                heads = list(transaction.heads.values())
                work = self._prepare_writing(transaction.rows, heads, new, is_led=leader is not None)
                self._started = _StartedGroup(group, transaction, work, leader)
            else:
                queue.finish(group)
        finally:
            if self._started is None:
                self._release_group(group)
        return True

    async def _write_next(self) -> None:
        await self._lock_storage()
        group = self._queue.take_group()
        if not self._queue.batches:
            self._needs_write = False
        await self._finish_group(group)

    async def _lock_storage(self) -> None:
        try:
            self._storage.acquire_nowait()  # without a checkpoint: the write itself waits for the disk
        except trio.WouldBlock:
            await self._storage.acquire()

    async def _finish_group(self, group: list[QueuedBatch], started: _StartedGroup | None = None) -> None:
        """Write a group of batches, or complete its write `started`. Then wake the callers that wait for the batches.

        The callers are woken even if this call fails.
        """
        try:
            await self._write_group(group, started)
        finally:
            self._release_group(group)

    def _release_group(self, group: list[QueuedBatch]) -> None:
        self._storage.release()
        if sys.exc_info()[1] is not None:
            self._fail_unfinished(group)
        self._queue.writing = ()

    def _fail_unfinished(self, batches: Iterable[QueuedBatch]) -> None:
        """Fail the batches still queued when the writer stops on an unexpected error, so that no caller hangs."""
        error = sys.exc_info()[1]
        rest = [waiting for waiting in batches if not waiting.is_over]
        if rest:
            self._fail(rest, JournalFailed(f"the journal stopped during a write: {error!r}"))

    async def _write_group(self, group: list[QueuedBatch], started: _StartedGroup | None = None) -> None:
        try:
            if started is None or not await self._is_group_written(started):
                await self._try_group(group)
        except JournalDamaged as damage:
            await self._write_alone(group, damage)
        except (JournalError, Fenced) as error:
            self._fail(group, error)
        else:
            self._queue.finish(group)

    async def _is_group_written(self, started: _StartedGroup) -> bool:
        """Return True if a started group is written. Raise the error if its write failed.

        Return False if the id of a new session exists in the storage, so the group must be written again.
        """
        try:
            await self._note_result(started.transaction, started.work.result)
        except HeadFound:
            return False
        return True

    async def _write_alone(self, group: list[QueuedBatch], damage: JournalDamaged) -> None:
        """After `JournalDamaged`, write each session of a group separately, so that only the damaged sessions fail."""
        by_session: dict[SessionKey, list[QueuedBatch]] = {}
        for waiting in group:
            by_session.setdefault(waiting.batch.key, []).append(waiting)
        if len(by_session) == 1:
            self._fail(group, damage)
            return
        for batches in by_session.values():
            await self._write_group(batches)

    async def _try_group(self, group: list[QueuedBatch]) -> None:
        by_session, before = await self._admit(group)
        if not by_session:
            return
        await self._read_parents(by_session, before)
        transaction = self._build_transaction(by_session, before)
        try:
            await self._write(transaction.rows, list(transaction.heads.values()), self._epoch)
        except (JournalError, Fenced) as error:
            written: outcome.Outcome[None] = outcome.Error(error)
        else:
            written = outcome.Value(None)
        await self._note_result(transaction, written)

    async def _admit(self, group: list[QueuedBatch]) -> tuple[Batches, Mapping[SessionKey, Head]]:
        """Return the batches of a group that may be written, by session, and the session summaries before them.

        Fail the batches of duplicate and erased sessions.
        """
        if self._queue.possibly_erased:
            self._queue.drop_erased(await self._find_existing(sorted(self._queue.possibly_erased)))
        by_session = self._queue.by_session(group)
        if self._heads.uncertain:
            await self._resolve_uncertain(by_session)
        before = await self._known_heads(list(by_session))
        if len(before) < len(by_session):
            by_session = self._queue.reject_erased(group, by_session, before)
        return self._queue.reject_duplicates(group, by_session, before), before

    async def _find_existing(self, keys: Sequence[SessionKey]) -> set[SessionKey]:
        """Return the sessions of `keys` that exist in the storage. A damaged session counts as existing."""
        try:
            return {*await self._read_heads(keys)}
        except JournalDamaged:
            if len(keys) == 1:
                return {*keys}
        return {there for key in keys for there in await self._find_existing([key])}

    async def _read_parents(
        self, by_session: Mapping[SessionKey, Sequence[EncodedBatch]], before: Mapping[SessionKey, Head]
    ) -> None:
        """Read the summaries of the parents of new sessions into the cache.

        The summary of a new session gets its root session from the session summary of its parent.
        """
        if before.keys() >= by_session.keys():  # no session is new
            return
        above = {
            find_parent(join_batches(batches)) for key, batches in by_session.items() if key not in before
        }
        unknown = [each for each in above if each is not None and each not in by_session]
        if unknown:
            self._heads.put(await self._known_heads(unknown))

    def _build_transaction(
        self, by_session: Mapping[SessionKey, Sequence[EncodedBatch]], before: Mapping[SessionKey, Head]
    ) -> _Transaction:
        """Build the transaction that writes batches: its rows and the new session summaries. The transaction is not started.

        `before` has the summaries of the sessions before the batches.
        """
        now, rows, original_records = time.time(), [], []
        heads: dict[SessionKey, Head] = {}
        for key, batches in by_session.items():
            batch = join_batches(batches)
            head = before.get(key) or self._heads.begin(batch, heads, epoch=self._epoch, now=now)
            row, heads[key] = place_batch(
                batch, head, now=now, at=now, identity=self.identity, keys=self._keys
            )
            rows.append(row)
            original_records.append(batch.original_records)
        return _Transaction(heads, before, rows, original_records, now)

    async def _note_result(self, transaction: _Transaction, written: "outcome.Outcome[None] | None") -> None:
        """Process the result `written` of a transaction: update the caches and publish its rows, or raise its error.

        None as `written` means that the transaction succeeded.
        """
        heads = transaction.heads
        try:
            if written is not None:
                written.unwrap()
        except (JournalError, Fenced) as error:
            self._heads.evict(heads)
            if not isinstance(error, JournalFailed) or not await self._is_written(heads, transaction.before):
                raise
        self._note_written(transaction)

    def _note_written(self, transaction: _Transaction) -> None:
        statistics = self.statistics
        statistics.commits += 1
        statistics.batches += len(transaction.rows)
        statistics.failure = ""
        for row in transaction.rows:
            statistics.bytes += len(row.body)
        if statistics.on_commit is not None:
            statistics.on_commit(time.time() - transaction.at)
        self._heads.note_written(transaction.heads, transaction.before)
        if self._feed.is_read:
            self._feed.publish(
                transaction.rows, transaction.heads, transaction.original_records, self.identity
            )

    async def _is_written(self, heads: Mapping[SessionKey, Head], before: Mapping[SessionKey, Head]) -> bool:
        """Return True if a transaction was stored although its commit reported a failure.

        If the storage fails again during this check, the sessions of the transaction are marked as uncertain.
        """
        try:
            return await self._read_heads(sorted(heads)) == heads
        except (JournalError, Fenced):
            self._heads.mark_uncertain(heads, before)
            return False

    async def _resolve_uncertain(self, keys: Iterable[SessionKey]) -> None:
        """Roll back failed batches of sessions that may be stored nevertheless, because callers may retry these batches."""
        uncertain = self._heads.uncertain
        for key in [each for each in keys if each in uncertain]:
            await self._roll_back(key, uncertain[key], self._epoch)
            self._heads.mark_rolled_back(key)

    async def _known_heads(self, keys: Sequence[SessionKey]) -> dict[SessionKey, Head]:
        by_key = self._heads.by_key
        known = {key: by_key[key] for key in keys if key in by_key}
        missing = set(keys) - known.keys()
        return known | await self._read_heads(sorted(missing)) if missing else known

    def _fail(self, group: Iterable[QueuedBatch], error: JournalError | Fenced) -> None:
        if isinstance(error, JournalFull | JournalFailed | Fenced):
            self.statistics.failure = type(error).__name__
            self.statistics.failed_at = trio.current_time()
        if self._queue.fail(group, error):
            self._arrived.set()
