"""The agent's end of a session: its record, its state, and the turn that runs."""

import math
import typing
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Literal

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.wait_graph import WaitNode
from actgent.control.budget import Account
from actgent.control.durable_timer import DueIndex, DurableTimer, first_steady_time, first_time
from actgent.control.schedule import Schedule
from actgent.errors import NotRunning
from actgent.journal.listing import SessionKey
from actgent.journal.records import (
    Decided,
    PersonAsked,
    Prompted,
    Resumed,
    Said,
    SuspendedRecord,
)
from actgent.memory.base import ModelView
from actgent.messages import (
    NO_USAGE,
    Message,
    OnBusy,
    Sender,
    ToolCall,
    Usage,
    new_id,
)
from actgent.printable import counted, shown
from actgent.state.reducers import Reducer
from actgent.state.store import StateRecord, Store

from .acceptance import Acceptance
from .approval_ledger import APPROVAL_TIMER, ApprovalDeadline, ApprovalLedger
from .children import Children
from .handlers import Handlers
from .scopes import scope_of
from .session_log import SessionLog
from .tasks import Task
from .turn import Suspension, Turn, TurnCheckpoint
from .turn_future import Outcome, TurnWaiter

_NO_STATE: Mapping[str, Any] = MappingProxyType({})
Status = Literal["idle", "working", "suspended", "closed"]
"""Suspended: it waits for people and for nothing else."""
ACCEPTED_IDS = 10_000
"""How many message ids given by callers a session remembers, the newest."""


class SessionHost(typing.Protocol):
    """The agent at work whose session it is, as far as its sessions and those of other agents know it."""

    @property
    def is_stopping(self) -> bool: ...
    @property
    def is_durable(self) -> bool: ...
    def kept(self, context: "SessionContext") -> "AbstractContextManager[SessionContext]": ...
    def note_closed(self, context: "SessionContext") -> None: ...
    def remove(self, context: "SessionContext") -> "list[SessionContext]": ...
    def take_up_if_outdated(self, context: "SessionContext") -> None: ...
    def bury(self, letter: DeadLetter) -> None: ...
    async def close(self, context: "SessionContext") -> None: ...
    async def stop_for_good(self, context: "SessionContext") -> None: ...


@attrs.define(eq=False)
class SessionContext:
    """One session as the core sees it. Idle, it owns no task, scope, channel or lock."""

    id: str
    owner: Sender
    view: ModelView
    agent: str = ""
    """Whose session it is: its id is unique for this agent."""
    is_former: bool = False
    """True: it is of a journal in which ids were unique without an agent; what it gives to others is named as it was."""
    parent: "SessionContext | None" = None
    parent_key: SessionKey | None = None
    """Whose parent that is, also while that is not in memory."""
    record: list[Message] = attrs.field(factory=list)
    handlers: Handlers = attrs.field(factory=Handlers)
    face: object = None
    """The user's end, handed to handlers and tools; None while the session sleeps, or where it has none."""
    host: SessionHost | None = None
    """The agent at work; None where the session is only looked at."""
    usage: Usage = NO_USAGE
    pending: int = 0
    """Outside messages that are on their way in, queued or being dealt with."""
    turn: Turn | None = None
    closed: bool = False
    system: str | None = None
    """The session's system prompt; None is the agent's."""
    transient: bool = False
    """True: the session ends with its last message."""
    on_busy: OnBusy = "queue"
    """What messages do that say nothing themselves."""
    log: SessionLog | None = None
    """The session's end of the journal; None without one."""
    acceptances: dict[str, Acceptance] | None = None
    """Of the messages that were sent and have not had their turn, by their ids."""
    pins: int = 0
    """How many callers hold it awake."""
    unkept: TurnCheckpoint | None = None
    """Its last turn, if the journal failed for it: who sends its message again has it go on."""
    resume: TurnCheckpoint | None = None
    """A turn that is to go on where it was."""
    open_calls: tuple[ToolCall, ...] = ()
    """Calls of the record's last answer that have no result yet."""
    approvals: ApprovalLedger | None = None
    """What it asks of people, where it ever did."""
    suspension: Suspension | None = None
    """The turn that waits for people, where one does."""
    children: "Children[SessionContext] | None" = None
    accounts: tuple[Account, ...] = ()
    """Its own, where it is bounded as a whole, and those of the sessions above it that are."""
    task: Task | None = None
    """What it was opened for by another session, if it was."""
    wait_node: WaitNode | None = None
    """Its place in the graph of waits, while it waits for a session or a session waits for it."""
    reducers: Mapping[str, Reducer] | None = None
    """The agent's, for the state."""
    timers: dict[str, DurableTimer] | None = None
    """By their ids; see `set_timer`."""
    due_index: DueIndex | None = None
    """Where its agent looks for sessions that are due, while the session is in memory."""
    scheduled: dict[str, Schedule] | None = None
    """Schedules that were set, by their ids, also those that have fired."""
    scheduling: dict[str, trio.Event] | None = None
    """Schedules that are just being written, by their ids."""
    _state: Store | None = None
    _call_ids: set[str] | None = None
    _accepted: dict[str, None] | None = None
    _told: dict[str, str] | None = None
    """The marks of the last notes in the record, by their sources."""
    _idle: trio.lowlevel.ParkingLot | None = None
    _scope: str = ""
    outcomes: dict[str, Outcome] | None = None
    """What messages came to that may be repeated; see `repetitions`."""
    _history: tuple[Message, ...] = ()
    """The record when it was last asked for as a whole."""

    def __repr__(self) -> str:
        name = shown(f"{self.agent}/{self.id}")
        return f"<SessionContext {name} {self.status}, {counted(len(self.record), 'message')}>"

    @property
    def status(self) -> Status:
        """What the session does: see `Status`."""
        if self.closed:
            return "closed"
        if self.suspension is not None:
            return "suspended"
        return "working" if self.pending else "idle"

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.id)

    @property
    def scope(self) -> str:
        """What the ids begin with that it gives to others; no other session's do."""
        if not self._scope:
            self._scope = self.id if self.is_former else scope_of(self.agent, self.id)
        return self._scope

    @property
    def seen_state(self) -> Mapping[str, Any]:
        """The state, for those who only look: makes no store where nothing was stored."""
        return self._state if self._state is not None else _NO_STATE

    @property
    def state(self) -> Store:
        if self._state is None:
            self._state = Store(reducers=self.reducers, write=self._write_state)
        return self._state

    @property
    def state_number(self) -> int:
        """How many changes the state has seen."""
        return 0 if self._state is None else self._state.number

    def state_at(self, number: int) -> Mapping[str, Any]:
        """The state after so many changes; the newest one where it was rolled back meanwhile, or is too long ago."""
        if self._state is None or number not in self._state.known:
            return self.seen_state
        return self._state.replay(number)

    def _write_state(self, record: StateRecord) -> None:
        if self.log is not None:
            self.log.change(record)

    def ledger(self) -> ApprovalLedger:
        if self.approvals is None:
            self.approvals = ApprovalLedger()
        return self.approvals

    def record_approval(self, record: PersonAsked | Decided | SuspendedRecord | Resumed) -> None:
        """Record a step of an approval: asked, decided, suspended or resumed."""
        self.ledger().apply(record)
        if type(record) is PersonAsked:
            self.tell_asking()
        self.watch_deadline()
        if self.log is not None:
            self.log.note(record)

    def watch_deadline(self) -> None:
        """Have what nobody decides expire in time."""
        at = math.inf if self.approvals is None else self.approvals.deadline
        if at == math.inf:
            self.drop_timer(APPROVAL_TIMER)
        elif (timer := (self.timers or {}).get(APPROVAL_TIMER)) is None or timer.at != at:
            self.set_timer(ApprovalDeadline(at))

    def is_persons(self, message: Message) -> bool:
        """Whether a person says it: what an agent asks in a session of its own goes to the model as a user's words, too."""
        is_owners = message.sender.name == self.owner.name
        return message.sender.kind == "user" and not (is_owners and self.owner.kind == "agent")

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of it is still to come, or to be written."""
        has_work = self.is_busy or self.pending or self.turn is not None or self.timers or self.closed
        return not has_work and (self.log is None or self.log.is_idle)

    @property
    def is_busy(self) -> bool:
        """Whether it has more to do than to wait for people."""
        return bool(self.pins) or self.pending > (0 if self.suspension is None else self.suspension.messages)

    # --- the record ----------------------------------------------------------------------

    def append(self, message: Message, *, answered: bool = False) -> None:
        """Write the record's next message."""
        self.record.append(message)
        self.view.add(message, answered=answered)
        if not answered and message.is_note:
            self._told = {**(self._told or {}), message.sender.name: message.causation_id or ""}

    @property
    def history(self) -> tuple[Message, ...]:
        """The record as a whole; copied once for all who ask before it grows."""
        if len(self._history) != len(self.record):
            self._history = tuple(self.record)
        return self._history

    @property
    def last_said(self) -> Message | None:
        """The record's last message that is no note."""
        for message in reversed(self.record):
            if not message.is_note:
                return message
        return None

    def told(self, source: str) -> str | None:
        """The mark of the last note of a source; None where there is none."""
        return None if self._told is None else self._told.get(source)

    def add_aside(self, message: Message) -> None:
        """Write a message into the record that is not to be answered, between turns."""
        self.append(message)
        if self.log is not None:
            self.log.note(Said(message=message))
            self.log.flush_soon()

    def set_system(self, prompt: str) -> None:
        """Another system prompt from the next model call on."""
        self.system = prompt
        if self.log is not None:
            self.log.note(Prompted(system=prompt))
            self.log.flush_soon()

    def know_calls(self, ids: Iterable[str]) -> None:
        """These ids of calls are taken."""
        for call_id in ids:
            if self._call_ids is None:
                self._call_ids = set()
            self._call_ids.add(call_id)

    def adopt(self, call: ToolCall, otherwise: str = "") -> ToolCall:
        """Give a call an id that no other call of the session has: its own if it is one, or else `otherwise`."""
        if self._call_ids is None:
            self._call_ids = set()
        theirs = call.provider_id if call.provider_id is not None else call.id
        ours = theirs if theirs and theirs not in self._call_ids else otherwise or new_id()
        self._call_ids.add(ours)
        if ours == call.id:
            return call
        return ToolCall(
            call.name,
            call.arguments,
            ours,
            provider_id=call.provider_id,
            native=call.native,
            mapped=call.mapped,
        )

    # --- what comes in -------------------------------------------------------------------

    def has_accepted(self, message_id: str) -> bool:
        """Whether a message id given by a caller came before."""
        return self._accepted is not None and message_id in self._accepted

    def remember_accepted(self, message_id: str) -> None:
        """A message id given by a caller is not to come again."""
        if self._accepted is None:
            self._accepted = {}
        self._accepted[message_id] = None
        if len(self._accepted) > ACCEPTED_IDS:
            del self._accepted[next(iter(self._accepted))]

    def forget_accepted(self, message_id: str) -> None:
        """The message was sent away again, or the journal failed for it, so its id may come again."""
        if self._accepted is not None:
            self._accepted.pop(message_id, None)

    def expect(self, acceptance: Acceptance) -> None:
        """A message is on its way in."""
        self.pending += 1
        self.bring_back(acceptance)

    def bring_back(self, acceptance: Acceptance) -> None:
        """A message waits for its turn, perhaps since before a restart."""
        if self.acceptances is None:
            self.acceptances = {}
        self.acceptances[acceptance.message.id] = acceptance

    def forget_message(self, message_id: str, *, is_refused: bool) -> None:
        """A message ended before a restart; the id of one that was refused may come again."""
        if self.acceptances is not None:
            self.acceptances.pop(message_id, None)
        if is_refused:
            self.forget_accepted(message_id)

    def acceptance(self, message_id: str) -> Acceptance | None:
        """That of a message that has not had its turn."""
        return None if self.acceptances is None else self.acceptances.get(message_id)

    def refuse(self, acceptance: Acceptance) -> None:
        """The message did not get in after all, so its id may come again."""
        self.take_acceptance(acceptance.message)
        self.settle()
        acceptance.settle()

    def take_acceptance(self, message: Message) -> Acceptance:
        """The message's turn begins, or it ends without one."""
        assert self.acceptances is not None  # noqa: S101 - each message in the inbox has one
        acceptance = self.acceptances.pop(message.id)
        if not self.acceptances:
            self.acceptances = None
        return acceptance

    def waiter_of(self, acceptance: Acceptance) -> TurnWaiter | None:
        """The caller that waits for what comes of a message."""
        if self.task is not None and acceptance.message.id == self.task.message_id:
            return self.task.waiter
        return acceptance.waiter

    # --- timers --------------------------------------------------------------------------

    def set_timer(self, timer: DurableTimer) -> None:
        """Set a timer, replacing the one with the same id. Written to the journal with the session's next step."""
        if self.timers is None:
            self.timers = {}
        self.timers[timer.id] = timer
        self.report_next_timer()

    def drop_timer(self, timer_id: str) -> None:
        """Cancel a timer, if it is set. Written to the journal with the session's next step."""
        if self.timers is not None and self.timers.pop(timer_id, None) is not None:
            self.report_next_timer()

    def report_next_timer(self) -> None:
        """Tell the journal and the agent when the first timer is due."""
        if self.log is not None:
            self.log.set_due(first_time(self.timers))
        if self.due_index is not None:
            self.due_index.set(self.id, first_steady_time(self.timers, self.due_index.clock))

    # --- the tree ------------------------------------------------------------------------

    @property
    def works_for(self) -> str:
        """The name of the owner of the session above all: where places are rare, owners take turns."""
        context = self
        while context.parent is not None:
            context = context.parent
        return context.owner.name

    def add_child(self, child: "SessionContext") -> None:
        if self.children is None:
            self.children = Children()
        self.children.add(child)
        if child.may_ask:
            child.tell_asking()

    def family(self) -> "list[SessionContext]":
        """This session and all that are open below it, each behind the one that it belongs to."""
        family = [self]
        for each in family:
            family += (each.children or {}).values()
        return family

    @property
    def reports_due(self) -> int:
        """How many tasks it has given away whose results are still to come."""
        return len(self.children.reporting) if self.children else 0

    def remove_child(self, child: "SessionContext") -> None:
        if self.children is not None:
            self.children.drop(child)

    @property
    def may_ask(self) -> bool:
        """Whether something waits for people here, or may in sessions below."""
        waits = self.approvals is not None and self.approvals.has_open
        return waits or bool(self.children and self.children.asking)

    def tell_asking(self) -> None:
        """Let the sessions above find what waits for people here; those that know already have told theirs."""
        child, parent = self, self.parent
        while parent is not None and parent.children is not None and parent.children.mark_asking(child):
            child, parent = parent, parent.parent

    # --- idleness ------------------------------------------------------------------------

    def settle(self, count: int = 1) -> None:
        """So many outside messages are dealt with."""
        self.pending -= count
        if not self.pending:
            self.tell_idle()

    def tell_idle(self) -> None:
        """Nothing can go on, or nothing is left."""
        if self._idle is not None:
            self._idle.unpark_all()

    async def wait_idle(self) -> None:
        """Wait until no outside message is left, or people are waited for."""
        if not self.pending or self.suspension is not None:
            await trio.lowlevel.checkpoint()
        while self.pending and self.suspension is None:
            if self._idle is None:
                self._idle = trio.lowlevel.ParkingLot()
            await self._idle.park()
        self._idle = None


def host_of(context: SessionContext) -> SessionHost:
    """The agent at work whose session it is.

    Raises:
        NotRunning: the session is only looked at.
    """
    if context.host is None:
        raise NotRunning(context.agent)
    return context.host
