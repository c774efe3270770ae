"""A session's end of the journal: what happens in it, written step by step."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import attrs
import trio

from actgent.control.budget import Funding
from actgent.errors import Fenced, JournalSlow, SessionClosed, SessionMoved, SessionNotFound
from actgent.journal.base import Creation, Entry, Journal
from actgent.journal.grouped import refer
from actgent.journal.records import (
    NO_LIMITS,
    NOTHING as NO_BAGGAGE,
    REFUSED,
    WIRE,
    Accepted,
    Closed,
    Due,
    Ended,
    Finished,
    Opened,
    Record,
    Said,
    Told,
    TurnOptions,
    make_accepted,
    make_ended,
)
from actgent.messages import Message, ToolResult
from actgent.state.store import StateRecord
from actgent.support.quick_init import maker

from .waiting.turn_checkpoint import TurnCheckpoint

_make_entry = maker(Entry)
_NOTHING = nullcontext()
LONG = 15_000
"""Records behind which a session gets its next snapshot: about 0.15 s of the time in which it is opened."""


@attrs.define(eq=False)
class SessionLog:
    """Collects what happens in one session, and writes it step by step, in order; Ctrl-C cuts nothing of that."""

    session_id: str
    agent: str
    _journal: Journal
    _epoch: int
    _pending: list[Record] = attrs.field(factory=list)
    _finished: set[str] = attrs.field(factory=set)
    """Calls of the answer that is dealt with whose results were written."""
    _steps: int = 0
    """The number that the journal was given."""
    _durable: int = 0
    """The number of them that are known to be written, the oldest."""
    _is_over: bool = False
    _is_closed: bool = False
    is_unused: bool = False
    """True: nobody got the session, so its id is free as soon as it is over."""
    is_temporary: bool = False
    """True: the session was opened for one question, and leaves the journal when it has ended."""
    _is_paused: bool = False
    _opened: trio.Event | None = None
    """Set when the step that opens the session is not on its way any more; None: it is not."""
    grown: int = 0
    """Records since the newest snapshot of the session, or since it was opened."""
    on_long: "Callable[[SessionLog], object] | None" = None
    """Called at the end of a turn when `LONG` records were written since the last snapshot."""
    on_fenced: "Callable[[SessionLog], object] | None" = None
    """Called when another process is found to own the session; None where that is nothing to go on from."""
    has_moved: bool = False
    """True: another process goes on with the session, or is about to."""
    due: float = 0.0
    """Unix time in seconds of the session's earliest date, as its records have it; 0 is that there is none."""
    creation: Creation | None = None
    """Of a session that is new; None: the journal brought it back, and others below it may be in the journal alone."""

    def begin(self, opened: Opened) -> None:
        """The session is new, and this is its first record: where another one has its id, nothing of it is written."""
        self.creation = Creation()
        self.add(opened)

    def set_timer(self, at: float) -> None:
        """The session's earliest date is this from its next step on."""
        if at != self.due:
            self.due = at
            if self._pending and isinstance(self._pending[-1], Due):
                self._pending.pop()
            self.add(Due(at=at))

    def add(self, *records: Record) -> None:
        """Part of the session's next step."""
        self._pending.extend(records)

    async def accept(
        self,
        message: Message,
        *others: Record,
        funding: Funding | None = None,
        options: TurnOptions | None = None,
        baggage: Mapping[str, Any] = NO_BAGGAGE,
    ) -> None:
        """Write that a message waits, for as long as the message has; durable on return.

        Cancelled or failed, it may be there or not: `end` it.

        Raises:
            JournalError: it could not be written, and is not accepted.
        """
        accepted = accepted_record(message, funding, options, baggage)
        await self.write(*others, accepted, patience=message.deadline)

    @trio.lowlevel.enable_ki_protection
    async def write(self, *records: Record, patience: float | None = None) -> None:
        """Write a step with these records, behind what was noted; durable on return.

        Raises:
            JournalSlow: it takes longer than `patience` seconds. It is written later, or not at all.
            JournalError: it could not be written. What was noted goes before the next step, and these records do not.
            SessionExists: it is the first step, and another session has the id. Nothing of it is written.
        """
        if self._opened is not None:
            patience = await self._wait_opened(patience)
        self._flush_before()
        noted, self._pending = self._pending, []
        with self._opening() if _opens(noted) else _NOTHING:
            try:
                await self._commit([*noted, *records], patience)
            except (JournalSlow, SessionMoved):
                raise
            except Exception:
                late = [each for each in noted if not isinstance(each, Due) or each.at == self.due]
                self._pending = (
                    late + self._pending
                )  # without a date behind which there is another one by now
                raise

    def _flush_before(self) -> None:
        """Write what was noted by itself, before what others write meanwhile: the step that comes may fail.

        A date goes with that step, as a timer that fires has its next date in the step of its message. What opens a session does, too.
        """
        dates = [each for each in self._pending if isinstance(each, Due)]
        if len(dates) < len(self._pending) and not _opens(self._pending):
            self._pending = [each for each in self._pending if not isinstance(each, Due)]
            self.flush_soon()
            self._pending += dates[-1:]

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Write nothing else while the step that opens the session is on its way: that is its first, whatever comes of it."""
        self._is_paused, self._opened = True, trio.Event()
        try:
            yield
        finally:
            self._opened.set()
            self._is_paused, self._opened = False, None
            if not _opens(self._pending):
                self.flush_soon()

    async def _wait_opened(self, patience: float | None = None) -> float | None:
        """Wait for the step that opens the session; returns what is left of the patience.

        Raises:
            JournalSlow: it has not come to an end by then, and nothing was written.
        """
        if patience is None:
            while self._opened is not None:
                await self._opened.wait()
            return None
        with trio.move_on_after(patience) as scope:
            await self._wait_opened()
        if self._opened is not None:
            raise JournalSlow(patience)
        return max(0.0, scope.deadline - trio.current_time())

    def tell(self, outcomes: Iterable[Told], checkpoint: TurnCheckpoint | None) -> None:
        """Outcomes are about to be told; those that a turn which goes on has told before are written."""
        for told in outcomes:
            if checkpoint is None or told.id not in checkpoint.told:
                self.add(told)

    def finish(self, result: ToolResult) -> None:
        """One of several tool calls has its result."""
        self.keep((result,))
        self.flush_soon()

    def keep(self, results: Iterable[ToolResult]) -> None:
        """Some of several tool calls have their results, of which each is written once."""
        for result in results:
            if result.call_id not in self._finished:
                self.add(Finished(result=result))
                self._finished.add(result.call_id)

    def know_finished(self, call_id: str) -> None:
        """A tool call has had its result since before a restart."""
        self._finished.add(call_id)

    def say_results(self, said: Said) -> None:
        """All calls of an answer have their results; where some were written already, each is written once."""
        if self._finished:
            self.keep(said.message.tool_results)
            said = refer(said)
            self._finished.clear()
        self.add(said)

    def end(
        self,
        *message_ids: str,
        failed: str | None,
        error: str = "",
        words: str = "",
        closes: bool = False,
        is_awaited: bool = False,
    ) -> None:
        """Messages were dealt with, all in one turn; with `closes` the session ends with them. `is_awaited` by readers."""
        for message_id in message_ids:
            self.add(make_ended(message_id=message_id, failed=failed, error=error, words=words))
        if closes:
            self.note_closed()
        self.flush_soon(is_awaited=is_awaited)
        if self.grown >= LONG:
            self.tell_long()

    def tell_long(self) -> None:
        """Have the session snapshot if so much was written, or read, since its last snapshot."""
        if self.grown >= LONG and self.on_long is not None:
            self.on_long(self)

    def note_refused(self, message_id: str) -> None:
        """A message that may be written as accepted never got in."""
        self.add(Ended(message_id=message_id, failed=REFUSED))

    def note_closed(self) -> None:
        """The session is over; saying it again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.add(Closed(unused=self.is_unused, erase=self.is_temporary))

    @trio.lowlevel.enable_ki_protection
    async def flush(self) -> None:
        """Write what was noted; that, and all that was written before, is durable on return.

        Raises:
            JournalError: it could not be written; it goes before the next step.
            SessionExists: the session is new, and another one has its id. Nothing of it is written.
            Fenced: another process owns the session by now.
        """
        if not self._pending and not self.has_moved and self._durable == self._steps:
            return
        await self._wait_opened()
        noted, self._pending = self._pending, []
        with self._opening() if _opens(noted) else _NOTHING:
            await self._commit(() if self._is_over else noted, is_kept=True)

    @trio.lowlevel.enable_ki_protection
    def flush_soon(self, *, is_awaited: bool = False) -> None:
        """Write what was noted, without waiting: durable with the next step, or shortly; at once where readers wait for it."""
        if self._pending and not self._is_paused:
            step, self._pending = self._pending, []
            if not self._is_over:
                self._write_soon(step, is_awaited=is_awaited)

    @property
    def is_relaxed(self) -> bool:
        """True if what is durable on return is only queued."""
        return self._journal.is_relaxed

    @property
    def is_idle(self) -> bool:
        """True if no record waits for the next step."""
        return not self._pending

    def pause(self) -> None:
        """Keep what is noted until `unpause`: the session is perhaps about to be erased."""
        self._is_paused = True

    def unpause(self) -> None:
        """Write again, first what was noted meanwhile."""
        self._is_paused = False
        self.flush_soon()

    def close(self) -> None:
        """Write nothing any more: the session is about to be erased."""
        self._is_over = True

    def leave(self) -> None:
        """Write nothing any more: another process goes on with the session."""
        self._is_over = self.has_moved = True
        self._pending.clear()

    def withdraw(self) -> bool:
        """Nobody got the session, so its id is free; returns whether the journal may have something of it."""
        creation = self.creation
        is_refused = creation is not None and creation.is_refused
        is_there = bool(self._steps) and not (self.has_moved or is_refused)
        if is_there:
            self.is_unused = True
            self.note_closed()
            self.flush_soon()
        self._is_over = True
        if creation is not None and not creation.is_written:
            self.is_temporary = False  # the id may be another one's, which is not to be erased
        return is_there

    @trio.lowlevel.enable_ki_protection
    def change(self, record: StateRecord) -> None:
        """Write what happened to the state, without waiting, after what was noted.

        Raises:
            NotSerializable: it holds what is no plain data. Nothing of it is written, and all else is.
            SessionMoved: another process goes on with the session.
            SessionClosed: the session is erased.
        """
        if self.has_moved:
            raise SessionMoved(self.agent, self.session_id)
        if self._is_over:
            raise SessionClosed(self.session_id)
        if self._is_paused:
            WIRE.encode([record], Record)  # what cannot be written must not fail what waits beside it
            self.add(record)
            return
        self.flush_soon()
        self._write_soon([record])

    def _write_soon(self, records: Sequence[Record], *, is_awaited: bool = False) -> None:
        self._steps += 1
        try:
            self._journal.write_soon(self._entry(records, is_awaited=is_awaited), epoch=self._epoch)
        except Fenced:
            if self.on_fenced is None:
                raise
            self._find_moved(self.on_fenced)

    async def _commit(
        self, records: Sequence[Record], patience: float | None = None, *, is_kept: bool = False
    ) -> None:
        self._steps = step = self._steps + 1
        is_written = False
        if self._is_over and records and not self.has_moved:
            raise SessionClosed(self.session_id)  # it is erased: a record would begin it again
        try:
            if not self.has_moved:
                await self._journal.commit(self._entry(records, patience, is_kept=is_kept), epoch=self._epoch)
                is_written = True
        except SessionNotFound as error:
            self._is_over = True
            raise SessionClosed(self.session_id) from error
        except Fenced:
            if self.on_fenced is None:
                raise
            self._find_moved(self.on_fenced)
        if self.has_moved:  # perhaps meanwhile: what was written is the other process's to go on with
            moved = SessionMoved(self.agent, self.session_id)
            moved.is_written = is_written
            raise moved
        self._durable = max(self._durable, step)  # and all before it: a session's steps stay in order

    def _find_moved(self, on_fenced: "Callable[[SessionLog], object]") -> None:
        """Another process was found to own the session."""
        if not self.has_moved:
            self.leave()
            on_fenced(self)

    def _entry(
        self,
        step: Sequence[Record],
        patience: float | None = None,
        *,
        is_kept: bool = False,
        is_awaited: bool = False,
    ) -> Entry:
        self.grown += len(step)
        creation = self.creation
        return _make_entry(
            session_id=self.session_id,
            agent=self.agent,
            records=tuple(step),
            patience=patience,
            is_kept=is_kept,
            is_awaited=is_awaited,
            follows=not (step and type(step[0]) is Opened),  # written out, as each step comes here
            creation=None if creation is None or creation.is_written else creation,
        )


@contextmanager
def unless_written() -> Iterator[None]:
    """A block whose `SessionMoved` is no error if all that it was to write is written: the other process goes on with that."""
    try:
        yield
    except SessionMoved as moved:
        if not moved.is_written:
            raise


def _opens(records: Sequence[Record]) -> bool:
    """Return True if these are the first records of a session."""
    return bool(records) and isinstance(records[0], Opened)


def accepted_record(
    message: Message,
    funding: Funding | None,
    options: TurnOptions | None = None,
    baggage: Mapping[str, Any] = NO_BAGGAGE,
) -> Accepted:
    """Build the record of a message that waits."""
    if funding is None:
        return make_accepted(message=message, options=options, baggage=baggage)
    return Accepted(
        message=message,
        limits=funding.limits or NO_LIMITS,
        within=tuple(account.key for account in funding.accounts),
        depth=funding.depth,
        deepest=funding.deepest,
        options=options,
        baggage=baggage,
    )
