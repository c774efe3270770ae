"""A session's end of the journal, and a session made again from what stands there."""

from collections.abc import Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any

import attrs
import trio

from actgent.control.budget import NOTHING, Amounts
from actgent.errors import JournalSlow
from actgent.journal.base import Entry, Journal
from actgent.journal.records import (
    NO_LIMITS,
    NOT_KEPT,
    NOTHING as NO_BAGGAGE,
    REFUSED,
    Accepted,
    ActionFailed,
    Appended,
    Changed,
    Closed,
    Decided,
    Delivered,
    Due,
    Ended,
    Finished,
    Fired,
    Led,
    Opened,
    PersonAsked,
    Prompted,
    Record,
    Resumed,
    RolledBack,
    Said,
    Scheduled,
    Spent,
    Started,
    Suspended,
    TurnOptions,
    Unscheduled,
)
from actgent.journal.references import refer
from actgent.messages import Message, Sender, ToolResult
from actgent.state.store import StateRecord

from .acceptance import Acceptance, Asked
from .context import SessionContext
from .open_calls import close_calls
from .schedules import restore_schedule
from .turn import Resume, can_go_on


@attrs.define(eq=False)
class SessionLog:
    """Collects what happens in one session, and writes it step by step, in order."""

    session_id: str
    agent: str
    _journal: Journal
    _epoch: int
    _pending: list[Record] = attrs.field(factory=list)
    _finished: set[str] = attrs.field(factory=set)
    """Calls of the answer that is dealt with whose results were written."""
    _steps: int = 0
    """How many the journal was given."""
    _durable: int = 0
    """How many of them are known to be written, the oldest."""
    _is_over: bool = False
    _is_closed: bool = False
    is_unused: bool = False
    """True: nobody got the session, so its id is free as soon as it is over."""
    is_temporary: bool = False
    """True: the session was opened for one question, and leaves the journal when it has ended."""
    _is_paused: bool = False
    due: float = 0.0
    """Unix time in seconds of the session's earliest date, as its records have it; 0 is that there is none."""

    def set_due(self, at: float) -> None:
        """The session's earliest date is this from its next step on."""
        if at != self.due:
            self.due = at
            if self._pending and isinstance(self._pending[-1], Due):
                self._pending.pop()
            self.note(Due(at=at))

    def note(self, *records: Record) -> None:
        """Part of the session's next step."""
        self._pending.extend(records)

    async def accept(
        self,
        message: Message,
        *others: Record,
        asked: Asked | None = None,
        options: TurnOptions | None = None,
        baggage: Mapping[str, Any] = NO_BAGGAGE,
    ) -> None:
        """Write that a message waits, for as long as the message has; durable on return.

        Cancelled or failed, it may be there or not: `end` it.

        Raises:
            JournalError: it could not be written, and is not accepted.
        """
        accepted = accepted_record(message, asked, options, baggage)
        await self.write(*others, accepted, patience=message.deadline)

    async def write(self, *records: Record, patience: float | None = None) -> None:
        """Write a step with these records behind what was noted; durable on return.

        Raises:
            JournalSlow: it takes longer than `patience` seconds. It is written later, or not at all.
            JournalError: it could not be written. What was noted goes with the next step, and these records do not.
        """
        noted, self._pending = self._pending, []
        try:
            await self._commit([*noted, *records], patience)
        except JournalSlow:
            raise
        except Exception:
            self._pending = noted + self._pending
            raise

    def finish(self, result: ToolResult) -> None:
        """One of several tool calls has its result."""
        self.keep((result,))
        self.flush_soon()

    def keep(self, results: Iterable[ToolResult]) -> None:
        """Some of several tool calls have their results, of which each is written once."""
        for result in results:
            if result.call_id not in self._finished:
                self.note(Finished(result=result))
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
        self.note(said)

    def end(self, *message_ids: str, failed: str | None, closes: bool = False) -> None:
        """Messages were dealt with, all in one turn; with `closes` the session ends with them."""
        self.note(*[Ended(message_id=message_id, failed=failed) for message_id in message_ids])
        if closes:
            self.note_closed()
        self.flush_soon()

    def note_refused(self, message_id: str) -> None:
        """A message that may be written as accepted never got in."""
        self.note(Ended(message_id=message_id, failed=REFUSED))

    def note_closed(self) -> None:
        """The session is over; saying it again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self.note(Closed(unused=self.is_unused, erase=self.is_temporary))

    async def flush(self) -> None:
        """Write what was noted; that, and all that was written before, is durable on return.

        Raises:
            JournalError: it could not be written; it goes with the next step.
            Fenced: another process owns the journal by now.
        """
        if not self._pending and self._durable == self._steps:
            return
        step, self._pending = self._pending, []
        try:
            await self._commit(step)
        except Exception:
            self._pending = step + self._pending
            raise

    def flush_soon(self) -> None:
        """Write what was noted, without waiting: durable with the next step, or shortly."""
        if self._pending and not self._is_paused:
            step, self._pending = self._pending, []
            if not self._is_over:
                self._steps += 1
                self._journal.write_soon(self._entry(step), epoch=self._epoch)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was noted that is to go with the next step."""
        return not self._pending

    def pause(self) -> None:
        """Keep what is noted until `go_on`: the session is perhaps about to be erased."""
        self._is_paused = True

    def go_on(self) -> None:
        """Write again, first what was noted meanwhile."""
        self._is_paused = False
        self.flush_soon()

    def close(self) -> None:
        """Write nothing any more: the session is about to be erased."""
        self._is_over = True

    def withdraw(self) -> bool:
        """Nobody got the session, so its id is free; returns whether the journal may have something of it."""
        if self._steps:
            self.is_unused = True
            self.note_closed()
            self.flush_soon()
        self._is_over = True
        return bool(self._steps)

    def change(self, record: StateRecord) -> None:
        """Write what happened to the state, without waiting, after what was noted.

        Raises:
            NotSerializable: it holds what is no plain data. Nothing of it is written, and all else is.
        """
        if self._is_paused:
            self.note(record)
            return
        self.flush_soon()
        self._steps += 1
        self._journal.write_soon(self._entry([record]), epoch=self._epoch)

    async def _commit(self, records: Sequence[Record], patience: float | None = None) -> None:
        self._steps = step = self._steps + 1
        await self._journal.commit(self._entry(records, patience), epoch=self._epoch)
        self._durable = max(self._durable, step)  # and all before it: a session's steps stay in order

    def _entry(self, step: Sequence[Record], patience: float | None = None) -> Entry:
        return Entry(session_id=self.session_id, agent=self.agent, records=tuple(step), patience=patience)


def accepted_record(
    message: Message,
    asked: Asked | None,
    options: TurnOptions | None = None,
    baggage: Mapping[str, Any] = NO_BAGGAGE,
) -> Accepted:
    """How a session's records tell of a message that waits."""
    if asked is None:
        return Accepted(message=message, options=options, baggage=baggage)
    return Accepted(
        message=message,
        limits=asked.limits or NO_LIMITS,
        within=tuple(account.key for account in asked.accounts),
        depth=asked.depth,
        deepest=asked.deepest,
        options=options,
        baggage=baggage,
    )


@attrs.frozen
class Restored:
    """What a journal knows of a session."""

    opened: Opened
    owner: Sender
    parent_id: str | None
    waiting: tuple[Message, ...]
    """Accepted and not ended, in the order in which they are to go on; the first may be half done."""
    is_closed: bool
    due: float
    """What the journal has for the earliest date; see `SessionLog.due`."""
    spent: Amounts
    """From the budget of the session as a whole."""
    bounded: tuple[Accepted, ...]
    """Those of the waiting messages whose turns draw on more than their agent says."""


def is_unused(records: Sequence[Record]) -> bool:
    """Whether nobody ever got this session, and it is over."""
    return any(isinstance(record, Closed) and record.unused for record in reversed(records))


def owner_of(records: Sequence[Record]) -> Opened | None:
    """How a session began; None where nothing is known of it."""
    return next((record for record in records if isinstance(record, Opened)), None)


async def restore(records: Sequence[Record], context: SessionContext) -> Restored:
    """Fill a fresh context with what happened, as it was when the last record was written."""
    opened = owner_of(records)
    if opened is None:
        raise ValueError("these are no records of a session: they do not begin with Opened")
    reader = _Reader(context)
    for number, record in enumerate(records):
        reader.read(record)
        if number % 1000 == 999:  # noqa: PLR2004 - let others run while a long session is read
            await trio.lowlevel.checkpoint()
    return reader.result(opened)


class _Reader:
    """Goes through records and does to a context what they say."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._waiting: dict[str, Message] = {}
        self._turn: Resume | None = None
        self._unkept: Resume | None = None
        """The last turn, if the journal failed for it."""
        self._asking: Message | None = None
        """The answer whose calls have no results yet."""
        self._is_closed = False
        self._due = 0.0
        self._spent = NOTHING
        self._bounded: dict[str, Accepted] = {}

    def read(self, record: Record) -> None:
        match record:
            case Accepted():
                self._accept(record)
            case Appended(message_id=message_id, again=True):
                self._turn = self._unkept or Resume(message_id)
                self._unkept = None
            case Appended(message_id=message_id, joins=joins):
                self._unkept = None
                joined = self._joined() if joins else ()
                self._turn = Resume(message_id, joined, limits=record.limits)
                self._context.append(self._waiting[message_id], answered=True)
            case Said():
                self._say(record)
            case Changed() | ActionFailed() | RolledBack():
                self._context.state.restore(record)
            case Ended(message_id=message_id, failed=failed):
                self._end(message_id, failed)
            case Spent() | Led():
                self._pay(record)
            case Started() | Finished() | Delivered() if self._turn is not None:
                self._turn.take(record)
            case _:
                self._read_aside(record)

    def _read_aside(self, record: Record) -> None:
        """What concerns the session as a whole."""
        match record:
            case PersonAsked() | Decided() | Suspended() | Resumed():
                self._read_approval(record)
            case Prompted(system=system):
                self._context.system = system
            case Due(at=at):
                self._due = at
            case Scheduled() | Fired() | Unscheduled():
                restore_schedule(self._context, record)
            case Closed():
                self._is_closed = True

    def _read_approval(self, record: PersonAsked | Decided | Suspended | Resumed) -> None:
        self._context.ledger().take(record)
        if isinstance(record, PersonAsked) and self._turn is not None:
            self._turn.take(record)

    def _joined(self) -> tuple[Message, ...]:
        """What is answered together with the message that is just appended."""
        if self._turn is None:
            return ()
        return (*self._turn.joined, self._waiting[self._turn.message_id])

    def _accept(self, record: Accepted) -> None:
        message = record.message
        self._waiting[message.id] = message
        self._context.remember_accepted(message.id)
        if record.limits or record.within or record.depth:
            self._bounded[message.id] = record
        acceptance = Acceptance(message, Context())
        acceptance.options, acceptance.baggage, acceptance.is_in = record.options, record.baggage, True
        self._context.bring_back(acceptance)

    def _end(self, message_id: str, failed: str | None) -> None:
        if self._waiting.pop(message_id, None) is not None:
            self._context.forget_message(message_id, is_refused=failed in (REFUSED, NOT_KEPT))
        self._bounded.pop(message_id, None)
        if self._turn is not None and self._turn.message_id == message_id:
            self._close_calls(self._turn)
            goes_on = failed == NOT_KEPT and can_go_on(self._context.last_said)
            self._unkept = self._turn if goes_on else None
            self._turn = None

    def _close_calls(self, turn: Resume) -> None:
        """A turn is over: each call of its last answer has a result from now on."""
        if self._asking is not None:
            results = close_calls(self._asking, self._asking.tool_calls, turn)
            self._asking = None
            turn.stop = ""
            self._take(results)

    def _pay(self, record: Spent | Led) -> None:
        if isinstance(record, Spent) and not record.turn:
            self._spent += Amounts.of(record)
        elif self._turn is not None and self._turn.message_id == record.turn:
            self._turn.pay(record)

    def _say(self, said: Said) -> None:
        message = said.message
        if not message.is_note:
            self._asking = message if message.tool_calls and not message.cut else None
        self._take(message)
        self._context.usage += said.usage
        if self._turn is not None:
            self._turn.say(said, state_number=self._context.state_number)

    def _take(self, message: Message) -> None:
        """Put a message of the agent's into the conversation."""
        self._context.append(message)
        # Calls that stood in text are known by their results alone; those of an open answer are read again.
        self._context.know_calls(call.id for call in message.tool_calls)
        self._context.know_calls(result.call_id for result in message.tool_results)
        if self._context.approvals is not None:
            self._context.approvals.close(result.call_id for result in message.tool_results)

    def result(self, opened: Opened) -> Restored:
        if self._context.approvals is not None:
            self._context.watch_deadline()
        turn, self._context.unkept = self._turn, self._unkept
        order = list(self._waiting.values())
        if turn is not None and turn.message_id in self._waiting:
            first = self._waiting[turn.message_id]
            begun = {first.id, *(message.id for message in turn.joined)}
            order = [first, *(message for message in order if message.id not in begun)]
            self._context.resume = turn
        return Restored(
            opened,
            opened.owner,
            opened.parent_id,
            tuple(order),
            is_closed=self._is_closed,
            due=self._due,
            spent=self._spent,
            bounded=tuple(self._bounded.values()),
        )
