"""`SessionLog`: writes the records of one session to the journal, in order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import trio

from actgent.errors import Fenced, JournalError, JournalSlow, SessionClosed, SessionMoved, SessionNotFound
from actgent.journal.journal_interface import Creation, Entry, Journal
from actgent.journal.record_types import (
    NO_LIMITS,
    NOTHING as NO_BAGGAGE,
    REFUSED,
    WIRE,
    AgentMessageRecord,
    CallFinishedRecord,
    MessageAcceptedRecord,
    MessageEndRecord,
    NextTimerRecord,
    OutcomeRecord,
    Record,
    SessionClosedRecord,
    SessionCreatedRecord,
    TurnOptions,
    make_message_accepted_record,
    make_message_end_record,
    reference_results,
)
from actgent.limits_and_schedules.budget import Funding
from actgent.messages import Message, ToolResult
from actgent.state.session_state import StateRecord
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor

from .pending.turn_checkpoint import TurnCheckpoint

_make_entry = fast_constructor(Entry)
SNAPSHOT_RECORDS = 15_000
"""Number of records since the last snapshot after which the next snapshot is taken. Loading that many records takes about 0.15 s."""


@attrs.define(eq=False, repr=False)
class SessionLog(FieldRepr):
    """Writer of one session's records: collects them and writes them to the journal in batches, in order.

    Ctrl-C does not interrupt a write.
    """

    session_id: str
    """Id of the session."""
    agent: str
    """Name of the session's agent."""
    _journal: Journal
    _epoch: int
    _pending: list[Record] = attrs.field(factory=list)
    _finished: set[str] = attrs.field(factory=set)
    """Ids of those tool calls of the current answer whose results are recorded."""
    _batches: int = 0
    """Number of batches passed to the journal."""
    _durable: int = 0
    """Number of batches, counted from the first, that are known to be durable."""
    _has_stopped: bool = False
    is_closed: bool = False
    """True once the close of the session was added."""
    is_unused: bool = False
    """True if the creation of the session failed, so that its id can be used again after the close."""
    has_withdrawn_child: bool = False
    """True if the journal may have a child session whose creation failed or was cancelled, so that it is not in memory."""
    is_temporary: bool = False
    """True if the session serves a single request, and the journal erases it at its end."""
    _is_paused: bool = False
    _opened: trio.Event | None = None
    """Event that is set when the batch that creates the session is complete; None unless that batch is being
    written.
    """
    records_since_snapshot: int = 0
    """Number of records of the session that were written since its last snapshot."""
    on_snapshot_due: "Callable[[SessionLog], object] | None" = None
    """Function that is called at the end of a turn if `SNAPSHOT_RECORDS` records were written since the last snapshot."""
    on_fenced: "Callable[[SessionLog], object] | None" = None
    """Function that is called if another process owns the session; None raises `Fenced` instead."""
    has_moved: bool = False
    """True if another process owns the session or acquires it."""
    due: float = 0.0
    """Recorded Unix time in seconds of the session's next timer; 0 if no timer is set."""
    creation: Creation | None = None
    """State of the creation of a new session; None for a session that was loaded from the journal."""

    def record_creation(self, opened: SessionCreatedRecord) -> None:
        """Add the record that creates a new session. If another session has the id, the journal rejects the batch."""
        self.creation = Creation()
        self.add(opened)

    def set_timer(self, at: float) -> None:
        """Add the time of the session's next timer, in Unix seconds, to the next batch, if the time has changed."""
        if at != self.due:
            self.due = at
            if self._pending and isinstance(self._pending[-1], NextTimerRecord):
                self._pending.pop()
            self.add(NextTimerRecord(at=at))

    def add(self, record: Record) -> None:
        """Add a record to the next batch, without writing the batch."""
        self._pending.append(record)

    async def accept(
        self,
        message: Message,
        *others: Record,
        funding: Funding | None = None,
        options: TurnOptions | None = None,
        baggage: Mapping[str, Any] = NO_BAGGAGE,
    ) -> None:
        """Write the record of an accepted message. The record is durable on return.

        After a cancellation or failure, the record may exist or not: then call `record_rejection` for the message.

        Raises:
            JournalError: The record could not be written, and the message is not accepted.
        """
        accepted = accepted_record(message, funding, options, baggage)
        await self.write(*others, accepted, timeout_seconds=message.deadline)

    @trio.lowlevel.enable_ki_protection
    async def write(self, *records: Record, timeout_seconds: float | None = None) -> None:
        """Write a batch with the collected records and `records`. They are durable on return.

        Raises:
            JournalSlow: The write takes longer than `timeout_seconds` seconds. The batch is written later, or not at all.
            JournalError: The batch could not be written. The collected records go into the next batch; `records` do not.
            SessionExists: The batch creates the session, and another session has the id. No record is written.
        """
        if self._opened is not None:
            timeout_seconds = await self._wait_opened(timeout_seconds)
        if self._pending:
            self._flush_before()
        noted, self._pending = self._pending, []
        if is_first := _opens(noted):
            self._begin_opening()
        try:
            await self._commit([*noted, *records], timeout_seconds)
        except (JournalSlow, SessionMoved):
            raise
        except Exception:
            late = [each for each in noted if not isinstance(each, NextTimerRecord) or each.at == self.due]
            self._pending = late + self._pending  # an older timer record is outdated
            raise
        finally:
            if is_first:
                self._end_opening()

    def _flush_before(self) -> None:
        """Queue the collected records as a batch of their own, because the next batch may fail.

        The times of timers stay in the next batch, because a due timer records its next time together with its message. If the
        session is not created yet, queue nothing.
        """
        dates = [each for each in self._pending if isinstance(each, NextTimerRecord)]
        if len(dates) < len(self._pending) and not _opens(self._pending):
            self._pending = [each for each in self._pending if not isinstance(each, NextTimerRecord)]
            self.flush_soon()
            self._pending += dates[-1:]

    def _begin_opening(self) -> None:
        """Collect further records without writing them, while the batch that creates the session is being written."""
        self._is_paused, self._opened = True, trio.Event()

    def _end_opening(self) -> None:
        """Resume writing, beginning with the records that were collected while the session was created."""
        if self._opened is not None:
            self._opened.set()
        self._is_paused, self._opened = False, None
        if not _opens(self._pending):
            self.flush_soon()

    async def _wait_opened(self, timeout_seconds: float | None = None) -> float | None:
        """Wait until the batch that creates the session was written or failed. Return the rest of `timeout_seconds`.

        Raises:
            JournalSlow: The batch was not finished within `timeout_seconds` seconds.
        """
        if timeout_seconds is None:
            while self._opened is not None:
                await self._opened.wait()
            return None
        with trio.move_on_after(timeout_seconds) as scope:
            await self._wait_opened()
        if self._opened is not None:
            raise JournalSlow(timeout_seconds)
        return max(0.0, scope.deadline - trio.current_time())

    def add_outcomes(self, outcomes: Iterable[OutcomeRecord], checkpoint: TurnCheckpoint | None) -> None:
        """Add the records of outcomes, such as replies, before handlers receive these outcomes.

        Outcomes that were recorded before a restart are skipped.
        """
        for outcome in outcomes:
            if checkpoint is None or outcome.id not in checkpoint.recorded_outcomes:
                self.add(outcome)

    def record_result_soon(self, result: ToolResult) -> None:
        """Record the result of one tool call without waiting for the write."""
        self.add_results((result,))
        self.flush_soon()

    def add_results(self, results: Iterable[ToolResult]) -> None:
        """Add the results of tool calls to the next batch. Results that are already recorded are skipped."""
        for result in results:
            if result.call_id not in self._finished:
                self.add(CallFinishedRecord(result=result))
                self._finished.add(result.call_id)

    def note_recorded_result(self, call_id: str) -> None:
        """Note that the journal has the result of a tool call from before a restart."""
        self._finished.add(call_id)

    def record_results(self, record: AgentMessageRecord) -> None:
        """Add the record of the message with all tool results of an answer. The record omits results that are already recorded."""
        if self._finished:
            self.add_results(record.message.tool_results)
            record = reference_results(record)
            self._finished.clear()
        self.add(record)

    def record_end(
        self,
        *message_ids: str,
        failed: str | None,
        error: str = "",
        error_text: str = "",
        closes: bool = False,
        is_urgent: bool = False,
    ) -> None:
        """Record that the messages of one turn have ended, and queue the batch of records for the journal.

        Args:
            message_ids: Ids of the ended messages.
            failed: Failure kind; None if the messages were answered.
            error: Class name of the exception; empty without one.
            error_text: Text of the exception; empty without one.
            closes: True also records the close of the session.
            is_urgent: True starts the write at once, because readers wait for the records.
        """
        for message_id in message_ids:
            self.add(
                make_message_end_record(
                    message_id=message_id, failed=failed, error=error, error_text=error_text
                )
            )
        if closes:
            self.note_closed()
        self.flush_soon(is_urgent=is_urgent)
        if self.records_since_snapshot >= SNAPSHOT_RECORDS:
            self.request_snapshot()

    def request_snapshot(self) -> None:
        """Call `on_snapshot_due`, because `SNAPSHOT_RECORDS` records were written since the last snapshot."""
        if self.records_since_snapshot >= SNAPSHOT_RECORDS and self.on_snapshot_due is not None:
            self.on_snapshot_due(self)

    def record_rejection(self, message_id: str) -> None:
        """Add a record that a message was rejected, because the journal may contain the record of its acceptance."""
        self.add(MessageEndRecord(message_id=message_id, failed=REFUSED))

    def note_closed(self) -> None:
        """Add the record of the session's close, unless it was added before."""
        if not self.is_closed:
            self.is_closed = True
            self.add(SessionClosedRecord(unused=self.is_unused, erase=self.is_temporary))

    @trio.lowlevel.enable_ki_protection
    async def flush(self) -> None:
        """Write the collected records. These and all earlier records are durable on return.

        Raises:
            JournalError: The records could not be written; they go into the next batch.
            SessionExists: The session is new, and another session has its id. No record is written.
            Fenced: Another process owns the session.
        """
        if not self._pending and not self.has_moved and self._durable == self._batches:
            return
        await self._wait_opened()
        noted, self._pending = self._pending, []
        if is_first := _opens(noted):
            self._begin_opening()
        try:
            await self._commit(() if self._has_stopped else noted, is_retried=True)
        finally:
            if is_first:
                self._end_opening()

    @trio.lowlevel.enable_ki_protection
    def flush_soon(self, *, is_urgent: bool = False) -> None:
        """Queue the collected records for writing, without waiting.

        They become durable with the next batch or shortly after. `is_urgent` starts the write at once, because readers wait for the
        records.
        """
        if self._pending and not self._is_paused:
            batch, self._pending = self._pending, []
            if not self._has_stopped:
                self._enqueue_write(batch, is_urgent=is_urgent)

    @property
    def is_relaxed(self) -> bool:
        """True if the journal commits asynchronously, so that records are not durable when a write returns."""
        return self._journal.is_relaxed

    @property
    def is_idle(self) -> bool:
        """True if no record waits for the next batch."""
        return not self._pending

    def pause(self) -> None:
        """Collect records without writing them until `unpause`, because the session may be erased in the meantime."""
        self._is_paused = True

    def unpause(self) -> None:
        """Resume writing, beginning with the records that were collected during the pause."""
        self._is_paused = False
        self.flush_soon()

    def close(self) -> None:
        """Stop writing records, because the session is about to be erased."""
        self._has_stopped = True

    def abandon(self) -> None:
        """Stop writing for good and drop the collected records, because another process owns the session."""
        self._has_stopped = self.has_moved = True
        self._pending.clear()

    def withdraw(self) -> bool:
        """Record that the creation of the session has failed, so that its id can be used again, and stop writing records.

        Return True if the journal may have records of the session, which must then be erased.
        """
        creation = self.creation
        is_refused = creation is not None and creation.is_refused
        may_exist = bool(self._batches) and not (self.has_moved or is_refused)
        if may_exist:
            self.is_unused = True
            self.note_closed()
            with suppress(JournalError):  # the caller needs the error that prevented the creation
                self.flush_soon()
        self._has_stopped = True
        if creation is not None and not creation.is_written:
            self.is_temporary = False  # the id may belong to another session, which must not be erased
        return may_exist

    @trio.lowlevel.enable_ki_protection
    def record_state_change(self, record: StateRecord) -> None:
        """Queue the record of a state change for writing, after the collected records.

        Raises:
            NotSerializable: A value is not plain data. This record is not written; all others are.
            SessionMoved: Another process owns the session.
            SessionClosed: The session is erased.
        """
        if self.has_moved:
            raise SessionMoved(self.agent, self.session_id)
        if self._has_stopped:
            raise SessionClosed(self.session_id)
        if self._is_paused:
            WIRE.encode([record], Record)  # raise here, so that a bad record does not fail the batch
            self.add(record)
            return
        self.flush_soon()
        self._enqueue_write([record])

    def _enqueue_write(self, records: Sequence[Record], *, is_urgent: bool = False) -> None:
        self._batches += 1
        try:
            self._journal.enqueue_write(self._entry(records, is_urgent=is_urgent), epoch=self._epoch)
        except Fenced:
            if self.on_fenced is None:
                raise
            self._find_moved(self.on_fenced)

    async def _commit(
        self, records: Sequence[Record], timeout_seconds: float | None = None, *, is_retried: bool = False
    ) -> None:
        self._batches = number = self._batches + 1
        is_written = False
        if self._has_stopped and records and not self.has_moved:
            raise SessionClosed(self.session_id)  # a record would recreate the erased session
        try:
            if not self.has_moved:
                await self._journal.commit(
                    self._entry(records, timeout_seconds, is_retried=is_retried), epoch=self._epoch
                )
                is_written = True
        except SessionNotFound as error:
            self._has_stopped = True
            raise SessionClosed(self.session_id) from error
        except Fenced:
            if self.on_fenced is None:
                raise
            self._find_moved(self.on_fenced)
        if self.has_moved:  # perhaps during the commit: the other process continues with the written records
            moved = SessionMoved(self.agent, self.session_id)
            moved.is_written = is_written
            raise moved
        self._durable = max(self._durable, number)  # and all before it: a session's batches stay in order

    def _find_moved(self, on_fenced: "Callable[[SessionLog], object]") -> None:
        """Stop writing records, because a write has found that another process owns the session. Then call `on_fenced`."""
        if not self.has_moved:
            self.abandon()
            on_fenced(self)

    def _entry(
        self,
        batch: Sequence[Record],
        timeout_seconds: float | None = None,
        *,
        is_retried: bool = False,
        is_urgent: bool = False,
    ) -> Entry:
        self.records_since_snapshot += len(batch)
        creation = self.creation
        return _make_entry(
            session_id=self.session_id,
            agent=self.agent,
            records=tuple(batch),
            timeout_seconds=timeout_seconds,
            is_retried=is_retried,
            is_urgent=is_urgent,
            follows=not (
                batch and type(batch[0]) is SessionCreatedRecord
            ),  # without helper functions: called for each batch
            creation=None if creation is None or creation.is_written else creation,
        )


@contextmanager
def unless_written() -> Iterator[None]:
    """Return a block that suppresses `SessionMoved` if the records were written, because the new owner has them."""
    try:
        yield
    except SessionMoved as moved:
        if not moved.is_written:
            raise


def _opens(records: Sequence[Record]) -> bool:
    """Return True if these records contain the creation of a session."""
    return bool(records) and isinstance(records[0], SessionCreatedRecord)


def accepted_record(
    message: Message,
    funding: Funding | None,
    options: TurnOptions | None = None,
    baggage: Mapping[str, Any] = NO_BAGGAGE,
) -> MessageAcceptedRecord:
    """Return the journal record of an accepted message with its budget sources, model options and context variables.

    `baggage` has the values of the context variables that the journal stores, by name.
    """
    if funding is None:
        return make_message_accepted_record(message=message, options=options, baggage=baggage)
    return MessageAcceptedRecord(
        message=message,
        limits=funding.limits or NO_LIMITS,
        within=tuple(account.key for account in funding.accounts),
        depth=funding.depth,
        deepest=funding.deepest,
        options=options,
        baggage=baggage,
    )
