"""Queue of batches that are not stored yet: queued, being written, or failed and to be retried."""

import itertools
import math
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence

import attrs
import trio

from actgent.errors import (
    ActgentError,
    Fenced,
    JournalDamaged,
    JournalError,
    JournalFailed,
    JournalFull,
    JournalSlow,
    SessionExists,
    SessionNotFound,
)
from actgent.journal.journal_interface import Creation
from actgent.journal.session_list_queries import SessionKey
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.safe_logging import LogVariable, logger_of

from .row_format import EncodedBatch, Head, find_parent

_log = logger_of(__name__)
GROUP_BATCHES = 1000
"""Maximum number of batches in one transaction."""
GROUP_BYTES = 16_000_000
"""Maximum bytes of one transaction. A single larger batch is written nevertheless."""


Batches = dict[SessionKey, list[EncodedBatch]]
"""Batches of one group by session, in the order in which they are written."""


@attrs.define(eq=False)
class QueuedBatch:
    """A queued batch, and the task that waits until it is stored."""

    batch: EncodedBatch
    epoch: int
    is_retried: bool = False
    """True if the batch is kept for a retry after a failed write, even though a task waits for it."""
    is_over: bool = False
    error: ActgentError | None = None
    task: trio.lowlevel.Task | None = None
    """Task that waits until the batch is stored; None if no task waits."""
    timeout_seconds: float = math.inf
    """Maximum seconds that the waiting task waits."""
    until: float = math.inf
    """Deadline of the waiting task on trio's clock, in seconds."""

    async def wait(self) -> None:
        """Wait until the batch is written, and raise its error.

        If the caller is cancelled during the wait, it cannot receive the error, so the queue retries the batch if it fails.
        """
        if self.is_over:
            await trio.lowlevel.checkpoint()
        else:
            await self._wait_over()
        if self.error is not None:
            raise self.error

    @trio.lowlevel.enable_ki_protection  # Ctrl-C here would leave a task registered that no longer waits
    async def _wait_over(self) -> None:

        def leave(_: object) -> trio.lowlevel.Abort:
            self.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self.task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(leave)

    def wake(self) -> None:
        """Wake the task that waits until this batch is written; do nothing if no task waits."""
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None


make_queued = fast_constructor(QueuedBatch)


@attrs.define(eq=False)
class BatchQueue:
    """Ordered queue of batches with their waiting tasks. Forms groups and distributes their outcome."""

    batches: deque[QueuedBatch] = attrs.field(factory=deque)
    """Batches in order of arrival that wait for a write, without the group that is being written."""
    writing: Sequence[QueuedBatch] = ()
    """Queued batches of the group that is being written."""
    failed: dict[SessionKey, list[EncodedBatch]] = attrs.field(factory=dict)
    """Failed batches by session that no caller retries. They are written before the next batch of their session."""
    possibly_erased: set[SessionKey] = attrs.field(factory=set)
    """Sessions in `failed` that may have been erased.
    Their batches must not be written unless the first batch of the session is among them.
    """
    _bytes: int = 0
    """Total size of the queued `batches` in bytes."""
    _unwritten: dict[SessionKey, int] = attrs.field(factory=dict)
    """Number of batches that are not stored yet, by session."""

    @trio.lowlevel.enable_ki_protection
    def put(self, queued: QueuedBatch) -> None:
        """Append a batch to the queue. The next group that has room for the batch writes it."""
        batch, unwritten = queued.batch, self._unwritten
        self.batches.append(queued)
        self._bytes += len(batch.body)
        unwritten[batch.key] = unwritten.get(batch.key, 0) + 1

    def must_wait(self, key: SessionKey) -> bool:
        """Return True if a batch of this session must wait: the session has failed batches, or the queue is full."""
        return key in self.failed or len(self.batches) >= GROUP_BATCHES or self._bytes >= GROUP_BYTES

    @property
    def is_empty(self) -> bool:
        """True if no batch is queued, being written or kept for a retry."""
        return not (self.batches or self.writing or self.failed)

    def has_unwritten(self, key: SessionKey) -> bool:
        """Return True if a batch of this session is not stored."""
        return key in self._unwritten or key in self.failed

    def count_unwritten(self) -> Counter[SessionKey]:
        """Return the number of batches with records that are not stored, by session."""
        left = Counter({key: len(batches) for key, batches in self.failed.items()})
        for queued in self.unfinished():
            if queued.batch.count and not queued.is_over:
                left[queued.batch.key] += 1
        return left

    def unfinished(self) -> Sequence[QueuedBatch]:
        """Return the batches that are being written, followed by the queued batches."""
        return [*self.writing, *self.batches]

    # --- a group --------------------------------------------------------------------------

    def sessions_beginning(self, known: Mapping[SessionKey, Head]) -> Sequence[SessionKey] | None:
        """Return the keys of the sessions that queued batches create. `known` has the cached session summaries.

        Return None if a queued batch belongs to an existing session whose summary is not in `known`. That summary must be
        read from the storage before the queue can be written.
        """
        for queued in self.batches:
            batch = queued.batch
            if batch.count and (batch.creation is not None or batch.key not in known):
                return self._find_beginning(known)
        return ()

    def _find_beginning(self, known: Mapping[SessionKey, Head]) -> Sequence[SessionKey] | None:
        new = dict[SessionKey, None]()
        for queued in itertools.islice(self.batches, GROUP_BATCHES):
            batch = queued.batch
            if not batch.count:
                continue
            is_there = batch.key in known or batch.key in new
            if batch.is_refused or (is_there and batch.begins):
                return None
            if is_there:
                continue
            above = find_parent(batch)
            if not batch.begins or (above is not None and above not in known and above not in new):
                return None
            new[batch.key] = None
        return list(new)

    def take_group(self) -> list[QueuedBatch]:
        """Remove the first batches from the queue and return them as the group that is being written."""
        if len(self.batches) <= GROUP_BATCHES and self._bytes < GROUP_BYTES:
            group, self._bytes = [*self.batches], 0
            self.batches.clear()
        else:
            group = self._take_some()
        self.writing = group
        return group

    def _take_some(self) -> list[QueuedBatch]:
        group: list[QueuedBatch] = []
        size = 0
        while self.batches and len(group) < GROUP_BATCHES and size < GROUP_BYTES:
            group.append(self.batches.popleft())
            size += len(group[-1].batch.body)
        self._bytes -= size
        return group

    def by_session(self, group: list[QueuedBatch]) -> Batches:
        """Group batches by session. In each session, the batches whose write failed earlier come first."""
        by_session: Batches = {}
        kept = self.failed
        for queued in group:
            batch = queued.batch
            batches = by_session.get(batch.key)
            if batches is None:
                batches = by_session[batch.key] = [*kept[batch.key]] if batch.key in kept else []
            if batch.count:
                batches.append(batch)
        if all(by_session.values()):
            return by_session
        return {key: batches for key, batches in by_session.items() if batches}

    def reject_duplicates(
        self, group: Iterable[QueuedBatch], by_session: Batches, known: Container[SessionKey]
    ) -> Batches:
        """Reject new sessions whose id is taken, with all their batches. Return the batches to write."""
        if all(batch.creation is None for batches in by_session.values() for batch in batches):
            return by_session
        admitted = {key: _admit(batches, is_there=key in known) for key, batches in by_session.items()}
        for queued in group:
            if queued.batch.is_refused and not queued.is_over:
                self._answer(queued)
        return {key: batches for key, batches in admitted.items() if batches}

    def reject_erased(
        self, group: Iterable[QueuedBatch], by_session: Batches, known: Container[SessionKey]
    ) -> Batches:
        """Reject batches of erased sessions, because they would create a session without its first record. Return the batches to write.

        If a later batch creates the session again, that batch and the following ones are written.
        """
        gone = [key for key, batches in by_session.items() if key not in known and batches[0].follows]
        if not gone:
            return by_session
        left = dict(by_session)
        refused: set[int] = set()
        for key in gone:
            rest = [*itertools.dropwhile(lambda batch: not batch.begins, left.pop(key))]
            refused.update(id(batch) for batch in by_session[key][: len(by_session[key]) - len(rest)])
            self.failed.pop(key, None)
            if rest:
                left[key] = rest
            _log.warning(
                "agent %s: records of session %s were dropped because the session was erased",
                *map(LogVariable, key),
            )
        for queued in group:
            if id(queued.batch) in refused and not queued.is_over:
                queued.error = SessionNotFound(*queued.batch.key)
                self._answer(queued)
        return left

    # --- outcome --------------------------------------------------------------------------

    def finish(self, group: list[QueuedBatch]) -> None:
        """Complete the batches of a written group, and wake the tasks that wait for these batches."""
        for queued in group:
            if self.failed:
                self.failed.pop(queued.batch.key, None)
            if not queued.is_over:
                self._answer(queued)

    def fail(self, group: Iterable[QueuedBatch], error: JournalError | Fenced) -> bool:
        """Fail all batches of a group with an error.

        Return True if batches without a waiting task were kept for a retry.
        """
        is_any_retained = False
        for queued in group:
            if queued.is_over:
                continue
            # One error for each waiting task, so that tasks do not share a traceback.
            fresh = error if isinstance(error, JournalDamaged) else type(error)(*error.args)
            fresh.__cause__ = error.__cause__
            queued.error = fresh
            is_lost = (queued.is_retried or queued.task is None) and queued.batch.count
            if is_lost and isinstance(error, JournalFull | JournalFailed):
                self.failed.setdefault(queued.batch.key, []).append(queued.batch)
                is_any_retained = True
            self._answer(queued)
        return is_any_retained

    def drop_failed(self, erased: Iterable[SessionKey]) -> None:
        """Remove the failed batches of erased sessions from the queue, and the batches that create child sessions of erased sessions."""
        if not self.failed:
            return
        gone = set(erased)
        for key, batches in [*self.failed.items()]:
            if key in gone or (batches[0].begins and find_parent(batches[0]) in gone):
                del self.failed[key]
                gone.add(key)

    def note_possibly_erased(self) -> None:
        """Mark the sessions with failed batches as possibly erased."""
        self.possibly_erased = {key for key, batches in self.failed.items() if not batches[0].begins}

    def drop_erased(self, existing: Container[SessionKey]) -> None:
        """Remove the failed batches of the possibly erased sessions that are not in `existing`. Clear the mark of all."""
        for key in self.possibly_erased:
            if key not in existing:
                self.failed.pop(key, None)
        self.possibly_erased.clear()

    def fail_all(self, error: Fenced) -> None:
        """Fail all queued batches with `error`, and discard the failed batches that were kept for a retry."""
        waiting = [*self.batches]
        self.batches.clear()
        self.failed.clear()
        self._bytes = 0
        self.fail(waiting, error)

    def raise_timeouts(self, now: float) -> None:
        """Raise `JournalSlow` in tasks whose timeout has expired. Their batches are still written."""
        for queued in self.unfinished():
            if queued.until <= now and queued.task is not None:
                queued.error = JournalSlow(queued.timeout_seconds)
                queued.wake()

    def _answer(self, queued: QueuedBatch) -> None:
        key, unwritten = queued.batch.key, self._unwritten
        left = unwritten[key] - 1
        if left:
            unwritten[key] = left
        else:
            del unwritten[key]
        queued.is_over = True
        if (creation := queued.batch.creation) is not None:
            _record_outcome(creation, queued)
        if queued.task is not None:
            queued.wake()


def _admit(batches: Iterable[EncodedBatch], *, is_there: bool) -> list[EncodedBatch]:
    """Return the batches of one session that may be written. `is_there` is True if the storage already has the session.

    If a batch creates a session whose id is taken, mark this creation as rejected, and omit all of its batches.
    """
    admitted = []
    for batch in batches:
        if is_there and batch.begins and batch.creation is not None:
            batch.creation.is_refused = True  # even if the other session is still queued and may fail
        if not batch.is_refused:
            admitted.append(batch)
            is_there = True
    return admitted


def _record_outcome(creation: Creation, queued: QueuedBatch) -> None:
    """Store the outcome of the written batch `queued` in `creation`, the creation of its session.

    If the id of the new session was taken, set `SessionExists` as the error of the batch instead.
    """
    if creation.is_refused:
        queued.error = SessionExists(*queued.batch.key)
    elif queued.error is None:
        creation.is_written = True
