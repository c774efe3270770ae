"""What records do to a session, one after the other.

Calls that a turn left without results in its records, when it ended: they get them where the session is made again.

Earlier versions wrote the end of a turn whose journal had failed without the results of its calls, and no provider takes
a conversation like that. The message is the same at each reading, so the journal stays as it is.
"""

from collections.abc import Iterable, Sequence
from contextvars import Context

import attrs

from actgent.control.budget import NOTHING, Amounts
from actgent.errors import JournalDamaged
from actgent.journal.records import (
    NOT_KEPT,
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
    Failed,
    Finished,
    Fired,
    Guarded,
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
    SuspendedRecord,
    Told,
    Unscheduled,
    Unwanted,
)
from actgent.messages import Message, Sender, ToolCall
from actgent.sessions.context import SessionContext
from actgent.sessions.mail import Acceptance
from actgent.sessions.turn import can_go_on
from actgent.sessions.waiting.schedules import restore_schedule
from actgent.sessions.waiting.turn_checkpoint import TurnCheckpoint
from actgent.tools.execution import Batch
from actgent.tools.registry import ToolRegistry

TOOLS = Sender("tools", "tool")


def close_calls(answer: Message, calls: Iterable[ToolCall], turn: TurnCheckpoint) -> Message:
    """The results that were left out: those that stand in the records, else whether the call may have run."""
    batch = Batch(tuple(calls), ToolRegistry())
    for place, call in enumerate(batch.calls):
        if call.id in turn.finished or call.id in turn.started:
            batch.set_result(place, turn.finished.get(call.id))
    return Message(
        id=f"{answer.id}/results",
        session_id=answer.session_id,
        sender=TOOLS,
        parts=batch.results(),
        priority=answer.priority,
        correlation_id=answer.correlation_id,
        causation_id=answer.causation_id,
        created_at=answer.created_at,
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
    """The earliest date in the journal; see `SessionLog.due`."""
    spent: Amounts
    """From the budget of the session as a whole."""
    bounded: tuple[Accepted, ...]
    """Waiting messages whose turns draw on more than their agent says."""


def is_unused(records: Sequence[Record]) -> bool:
    """Return True if the session was never handed out, and is over."""
    return any(isinstance(record, Closed) and record.unused for record in reversed(records))


def owner_of(records: Sequence[Record]) -> Opened | None:
    """Return a session's first record; None if it has none."""
    return next((record for record in records if isinstance(record, Opened)), None)


class Reader:
    """Goes through records and does to a context what they say."""

    def __init__(self, context: SessionContext) -> None:
        self.context = self._context = context
        self._waiting: dict[str, Accepted] = {}
        self._turn: TurnCheckpoint | None = None
        self._unkept: TurnCheckpoint | None = None
        """The last turn, if the journal failed for it."""
        self._asking: Message | None = None
        """The answer whose calls have no results yet."""
        self._is_closed = self._is_described = False
        self.due = 0.0
        self.number = 0
        """Of the record that is read, or was last."""
        self.spent = NOTHING
        self.failed: dict[str, Failed] = {}
        """Recorded failures of messages that have not ended, by their ids."""
        self._bounded: dict[str, Accepted] = {}

    @property
    def is_between_turns(self) -> bool:
        """True if nothing that was read so far belongs to a turn that goes on, and the session is open."""
        goes_on = self._turn is not None or self._unkept is not None or self._asking is not None
        if goes_on or self._is_closed:
            return False
        return self._context.approvals is None or self._context.approvals.is_settled

    @property
    def accepted(self) -> tuple[Accepted, ...]:
        """What waits."""
        return tuple(self._waiting.values())

    def read(self, record: Record) -> None:
        """Do to the context what the next record says.

        Raises:
            JournalDamaged: the records before it lack what it builds on.
        """
        self.number += 1
        match record:
            case Accepted():
                self._accept(record)
            case Appended(message_id=message_id, again=True):
                self._turn = self._unkept or TurnCheckpoint(message_id)
                self._unkept = None
            case Appended(message_id=message_id, joins=joins):
                self._unkept = None
                joined = self._joined() if joins else ()
                self._turn = TurnCheckpoint(message_id, joined, limits=record.limits)
                self._context.conversation.append(self._accepted(message_id), answered=True)
            case Said():
                self._say(record)
            case Changed() | ActionFailed() | RolledBack():
                self._context.state.restore(record)
            case Ended(message_id=message_id, failed=failed):
                self._end(message_id, failed)
            case Failed():
                self._fail(record)
            case Spent() | Led():
                self._pay(record)
            case Started() | Finished() | Told() | Delivered() | Guarded() if self._turn is not None:
                self._turn.apply(record)
            case _:
                self._read_aside(record)

    def _read_aside(self, record: Record) -> None:
        """Read a record that concerns the session as a whole."""
        match record:
            case PersonAsked() | Decided() | SuspendedRecord() | Resumed():
                self._read_approval(record)
            case Prompted(system=system):
                self._context.conversation.system = system
            case Due(at=at):
                self.due = at
            case Opened(is_described=is_described):
                self._is_described = is_described
            case Scheduled() | Fired() | Unscheduled():
                restore_schedule(self._context, record)
            case Unwanted(message_id=message_id, reason=reason):
                self._context.mail.stop_later(message_id, reason)
            case Closed():
                self._is_closed = True

    def _read_approval(self, record: PersonAsked | Decided | SuspendedRecord | Resumed) -> None:
        self._context.ledger().apply(record)
        if isinstance(record, PersonAsked) and self._turn is not None:
            self._turn.apply(record)

    def _joined(self) -> tuple[Message, ...]:
        """Return the messages that are answered together with the one just appended."""
        if self._turn is None:
            return ()
        return (*self._turn.joined, self._accepted(self._turn.message_id))

    def _accepted(self, message_id: str) -> Message:
        """The message of this id that waits."""
        if (accepted := self._waiting.get(message_id)) is None:
            reason = f"the message {message_id!r} begins its turn, and no record has it"
            raise JournalDamaged(reason, session_id=self._context.id, record=self.number)
        return accepted.message

    def _accept(self, record: Accepted) -> None:
        message = record.message
        self._waiting[message.id] = record
        if self._is_described:
            self._context.conversation.describe(message)
            self._is_described = False
        self._context.mail.remember_accepted(message.id)
        if record.limits or record.within or record.depth:
            self._bounded[message.id] = record
        acceptance = Acceptance(message, Context())
        acceptance.options, acceptance.baggage, acceptance.is_in = record.options, record.baggage, True
        self._context.mail.bring_back(acceptance)

    def _end(self, message_id: str, failed: str | None) -> None:
        self.failed.pop(message_id, None)
        if self._waiting.pop(message_id, None) is not None:
            self._context.mail.forget(message_id, is_refused=failed in (REFUSED, NOT_KEPT))
            if failed != REFUSED:
                self._context.mail.forget_unwanted(message_id)
        self._bounded.pop(message_id, None)
        if self._turn is not None and self._turn.message_id == message_id:
            self._close_calls(self._turn)
            if self._context.approvals is not None:
                self._context.approvals.close_guarded()
            goes_on = failed == NOT_KEPT and can_go_on(self._context.conversation.messages, message_id)
            self._unkept = self._turn if goes_on else None
            self._turn = None

    def _fail(self, record: Failed) -> None:
        """Keep the outcome of a message that has not ended: its handlers may not have the failure yet."""
        acceptance = self._context.mail.find(record.message_id)
        if acceptance is not None:
            acceptance.failed = record
            self.failed[record.message_id] = record

    def _close_calls(self, turn: TurnCheckpoint) -> None:
        """A turn is over: each call of its last answer has a result from now on."""
        if self._asking is not None:
            results = close_calls(self._asking, self._asking.tool_calls, turn)
            self._asking = None
            turn.stop = ""
            self._take(results)

    def _pay(self, record: Spent | Led) -> None:
        if isinstance(record, Spent) and not record.turn:
            self.spent += Amounts.of(record)
        elif self._turn is not None and self._turn.message_id == record.turn:
            self._turn.pay(record)

    def _say(self, said: Said) -> None:
        message = said.message if said.last_call is None else said.with_text_calls()
        if not message.is_note:
            self._asking = message if message.tool_calls and not message.cut else None
        if said.fitting is not None:  # the request before this answer was cut, and so are those after it
            for share in said.fitting.shares:
                self._context.conversation.view.shrink(share)
        if said.stop:
            self._context.conversation.last_answer = said
        self._take(message)
        self._context.conversation.usage += said.usage
        if self._turn is not None:
            self._turn.say(said, state_number=self._context.state_number)

    def _take(self, message: Message) -> None:
        """Put a message of the agent's into the conversation."""
        self._context.conversation.append(message)
        # Calls that stood in text are known by their results alone; those of an open answer are read again.
        self._context.conversation.reserve_call_ids(call.id for call in message.tool_calls)
        self._context.conversation.reserve_call_ids(result.call_id for result in message.tool_results)
        if self._context.approvals is not None:
            self._context.approvals.close(result.call_id for result in message.tool_results)

    def result(self, opened: Opened) -> Restored:
        if self._context.approvals is not None:
            self._context.watch_deadline()
        turn, self._context.mail.unkept = self._turn, self._unkept
        order = [accepted.message for accepted in self._waiting.values()]
        if turn is not None and turn.message_id in self._waiting:
            first = self._waiting[turn.message_id].message
            begun = {first.id, *(message.id for message in turn.joined)}
            order = [first, *(message for message in order if message.id not in begun)]
            self._context.checkpoint = turn
        return Restored(
            opened,
            opened.owner,
            opened.parent_id,
            tuple(order),
            is_closed=self._is_closed,
            due=self.due,
            spent=self.spent,
            bounded=tuple(self._bounded.values()),
        )
