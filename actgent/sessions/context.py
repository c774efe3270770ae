"""The agent's end of a session: its record, its state, and the turn that runs."""

import math
import typing
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from types import MappingProxyType
from typing import Any, Literal

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.wait_graph import WaitNode
from actgent.control.budget import Account
from actgent.control.durable_timer import DueIndex, DurableTimer, SessionTimers, first_steady_time, first_time
from actgent.errors import Fenced, JournalError, NotRunning, SessionClosed, SessionMoved
from actgent.errors.printable import counted, shown
from actgent.journal.listing import SessionKey
from actgent.journal.records import (
    ActionFailed,
    Changed,
    Decided,
    PersonAsked,
    Prompted,
    Resumed,
    Said,
    SuspendedRecord,
)
from actgent.journal.state_patches import StatePatcher
from actgent.messages import Message, Sender
from actgent.state.reducers import Reducer
from actgent.state.store import StateCheck, StateRecord, Store

from .conversation import SessionConversation
from .handlers import Handlers
from .mail import Acceptance, SessionMail
from .session_log import SessionLog
from .tree import Children, SessionTree
from .turn import Suspension, Turn
from .waiting.approval_ledger import APPROVAL_TIMER, ApprovalDeadline, ApprovalLedger
from .waiting.tasks import Task
from .waiting.turn_checkpoint import TurnCheckpoint
from .waiting.turn_future import TurnFuture

_NO_STATE: Mapping[str, Any] = MappingProxyType({})
Status = Literal["idle", "working", "suspended", "closed"]
"""Suspended: it waits for people and for nothing else."""
_NO_TIMERS: Mapping[str, DurableTimer] = MappingProxyType({})


class SessionHost(typing.Protocol):
    """The agent at work whose session it is, as far as its sessions and those of other agents know it."""

    @property
    def is_stopping(self) -> bool: ...
    @property
    def has_ended(self) -> bool: ...
    @property
    def is_durable(self) -> bool: ...
    def kept(self, context: "SessionContext") -> "AbstractContextManager[SessionContext]": ...
    def note_closed(self, context: "SessionContext") -> None: ...
    def remove(self, context: "SessionContext") -> "list[SessionContext]": ...
    def discard(self, context: "SessionContext") -> None: ...
    def resume_if_superseded(self, context: "SessionContext") -> None: ...
    def bury(self, letter: DeadLetter) -> None: ...
    async def close(self, context: "SessionContext") -> "list[SessionContext]": ...
    async def stop_for_good(self, context: "SessionContext") -> None: ...
    def leave(self, context: "SessionContext") -> None: ...


@attrs.define(eq=False)
class SessionContext:
    """One session as the core sees it. Idle, it owns no task, scope, channel or lock."""

    id: str
    owner: Sender
    conversation: SessionConversation
    agent: str = ""
    """The agent's name: the id is unique for this agent."""
    is_former: bool = False
    """True: it is of a journal in which ids were unique without an agent; what it gives to others is named as it was."""
    handlers: Handlers = attrs.field(factory=Handlers)
    face: object = None
    """The user's end, handed to handlers and tools; None while the session is unloaded, or if it has none.

    Of a session that has ended here something that does not hold it, see `let_face_go`.
    """
    host: SessionHost | None = None
    """The agent at work; None while the session is only looked at."""
    mail: SessionMail = attrs.field(factory=SessionMail)
    turn: Turn | None = None
    closed: bool = False
    """True: nothing can be said to it any more."""
    log: SessionLog | None = None
    """Writes this session's records; None if the runtime has no journal."""
    checkpoint: TurnCheckpoint | None = None
    """A turn that is to go on where it was."""
    approvals: ApprovalLedger | None = None
    """Its questions to people, once it had any."""
    suspension: Suspension | None = None
    """The turn that waits for people, if one does."""
    reducers: Mapping[str, Reducer] | None = None
    """The agent's, for the state."""
    state_check: StateCheck | None = None
    """The check of each change of the state; None: any change is taken."""
    due_index: DueIndex | None = None
    """The index in which its agent finds sessions that are due, while the session is in memory."""
    _timers: SessionTimers | None = None
    _tree: "SessionTree[SessionContext] | None" = None
    _state: Store | None = None

    def __repr__(self) -> str:
        name = shown(f"{self.agent}/{self.id}")
        return f"<SessionContext {name} {self.status}, {counted(len(self.conversation.messages), 'message')}>"

    @property
    def status(self) -> Status:
        """The state of the session: see `Status`."""
        if self.closed:
            return "closed"
        if self.suspension is not None:
            return "suspended"
        return "working" if self.mail.pending else "idle"

    @property
    def has_moved(self) -> bool:
        """True if another process goes on with it, or is about to; it is closed here."""
        return self.mail.has_moved

    @property
    def refusal(self) -> SessionClosed | SessionMoved:
        """The error for who wants something of it when it is closed."""
        return SessionMoved(self.agent, self.id) if self.has_moved else SessionClosed(self.id)

    @property
    def answered_ids(self) -> tuple[str, ...]:
        """The ids of the messages that the turn answers which runs, or waits for people; that by which it is known first."""
        turn = self.turn
        if turn is None:
            return () if self.suspension is None else (self.suspension.message.id,)
        return (turn.message.id, *(each.id for each in turn.joined))

    @property
    def open_turn_id(self) -> str | None:
        """Id of the message whose turn is open. For a session rebuilt from its journal, the first turn to be resumed; None if none."""
        if answered := self.answered_ids:
            return answered[0]
        if self.checkpoint is not None:
            return self.checkpoint.message_id
        return None if self.host is not None else next((each.id for each in self.mail.waiting), None)

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.agent, self.id)

    @property
    def scope(self) -> str:
        """The prefix of the ids that it gives to others; no other session's ids begin with it."""
        return self.id if self.is_former else self.key.scope

    @property
    def description(self) -> str:
        """What the session was opened with; empty where nothing was said then."""
        return self.conversation.description

    @property
    def seen_state(self) -> Mapping[str, Any]:
        """The state, for those who only look: makes no store where nothing was stored."""
        return self._state if self._state is not None else _NO_STATE

    @property
    def state(self) -> Store:
        if self._state is None:
            self._state = Store(reducers=self.reducers, check=self.state_check, write=_writer_for(self))
        return self._state

    @property
    def has_state(self) -> bool:
        """True if anything was ever stored in the state."""
        return self._state is not None

    @property
    def state_number(self) -> int:
        """The number of changes that the state has seen."""
        return 0 if self._state is None else self._state.number

    def state_at(self, number: int) -> Mapping[str, Any]:
        """The state after so many changes; the newest one where it was rolled back meanwhile, or is too long ago."""
        if self._state is None or number not in self._state.known:
            return self.seen_state
        return self._state.replay(number)

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
            self.log.add(record)
        elif (recent := self.conversation.open_recent()) is not None:
            recent.add_record(record)

    def watch_deadline(self) -> None:
        """Have what nobody decides expire in time."""
        at = math.inf if self.approvals is None else self.approvals.deadline
        if at == math.inf:
            self.drop_timer(APPROVAL_TIMER)
        elif (timer := self.timers.get(APPROVAL_TIMER)) is None or timer.at != at:
            self.set_timer(ApprovalDeadline(at))

    def is_from_person(self, message: Message) -> bool:
        """Return True if a person says it: to the model, an agent's requests are a user's messages, too."""
        is_owners = message.sender.name == self.owner.name
        return message.sender.kind == "user" and not (is_owners and self.owner.kind == "agent")

    @property
    def is_heard(self) -> bool:
        """True if a handler here hears what is answered, or that nothing is."""
        return self.handlers.any_of("conversation", "event", "routing", "exception")

    @property
    def is_silent(self) -> bool:
        """True if it was closed, and nothing of it is written any more: it is erased, or about to be."""
        return self.closed and self.log is None

    @property
    def is_at_rest(self) -> bool:
        """True if it has nothing left to do, or to write."""
        has_work = self.is_busy or self.mail.pending or self.turn is not None or self.timers or self.closed
        return not has_work and (self.log is None or self.log.is_idle)

    @property
    def is_busy(self) -> bool:
        """True if it has more to do than to wait for approvals."""
        suspended = 0 if self.suspension is None else self.suspension.messages
        return bool(self.mail.pins) or self.mail.pending > suspended

    # --- the conversation ----------------------------------------------------------------

    def append_unanswered(self, message: Message) -> None:
        """Write a message into the record that is not to be answered, between turns."""
        self.conversation.append(message)
        if self.log is not None:
            self.log.add(Said(message=message))
            self.log.flush_soon()

    def set_system(self, prompt: str) -> None:
        """Another system prompt from the next model call on."""
        self.conversation.system = prompt
        if self.log is not None:
            self.log.add(Prompted(system=prompt))
            self.log.flush_soon()

    def future_of(self, acceptance: Acceptance) -> TurnFuture | None:
        """Return the future of the caller that waits for what comes of a message."""
        task = None if self._tree is None else self._tree.task
        if task is not None and acceptance.message.id == task.message_id:
            return task.future
        return acceptance.future

    # --- timers --------------------------------------------------------------------------

    @property
    def timers(self) -> Mapping[str, DurableTimer]:
        """The timers that are set, by their ids; see `set_timer`."""
        return _NO_TIMERS if self._timers is None else self._timers.due

    @property
    def schedules(self) -> SessionTimers:
        """The schedules that were set, and those that are just being written."""
        if self._timers is None:
            self._timers = SessionTimers()
        return self._timers

    @property
    def has_timers(self) -> bool:
        """True if it ever had a timer or a schedule."""
        return self._timers is not None

    def set_timer(self, timer: DurableTimer) -> None:
        """Set a timer, replacing the one with the same id. Written to the journal with the session's next step."""
        self.schedules.due[timer.id] = timer
        self.report_next_timer()

    def drop_timer(self, timer_id: str) -> None:
        """Cancel a timer, if it is set. Written to the journal with the session's next step."""
        if self._timers is not None and self._timers.due.pop(timer_id, None) is not None:
            self.report_next_timer()

    def report_next_timer(self) -> None:
        """Tell the journal and the agent when the first timer is due."""
        if self.log is not None:
            self.log.set_timer(first_time(self.timers))
        if self.due_index is not None:
            self.due_index.set(self.id, first_steady_time(self.timers, self.due_index.clock))

    # --- the tree ------------------------------------------------------------------------

    @property
    def tree(self) -> "SessionTree[SessionContext]":
        """Its relations to other sessions, to be written to."""
        if self._tree is None:
            self._tree = SessionTree()
        return self._tree

    @property
    def parent(self) -> "SessionContext | None":
        return None if self._tree is None else self._tree.parent

    @property
    def parent_key(self) -> SessionKey | None:
        return None if self._tree is None else self._tree.parent_key

    @property
    def children(self) -> "Children[SessionContext] | None":
        return None if self._tree is None else self._tree.children

    @property
    def task(self) -> Task | None:
        """The task that another session opened it for, if one did."""
        return None if self._tree is None else self._tree.task

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Its own, if it is bounded as a whole, and those of the sessions above it that are."""
        return () if self._tree is None else self._tree.accounts

    @property
    def wait_node(self) -> WaitNode | None:
        """Its place in the graph of waits, while it waits for a session or a session waits for it."""
        return None if self._tree is None else self._tree.wait_node

    @property
    def works_for(self) -> str:
        """The name of the owner of the session at the top of the tree, on whose account this session works."""
        if self._tree is None:
            return self.owner.name
        context = self
        while context.parent is not None:
            context = context.parent
        return context.tree.root_owner or context.owner.name

    def add_child(self, child: "SessionContext") -> None:
        tree = self.tree
        if tree.children is None:
            tree.children = Children()
        tree.children.add(child)
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
        """The number of tasks it has delegated whose results are still to come."""
        return len(self.children.reporting) if self.children else 0

    def remove_child(self, child: "SessionContext") -> None:
        if self.children is not None:
            self.children.drop(child)

    def let_face_go(self) -> None:
        """Hold the user's end no longer, once the session has ended here with all below it.

        The two would hold each other until the garbage collector runs.
        """
        has_ended = self.closed and self.due_index is None and not (self.mail.pending or self.mail.pins)
        let_go = getattr(self.face, "__actgent_let_go__", None)
        if has_ended and not self.children and let_go is not None:
            self.face = let_go()

    @property
    def may_ask(self) -> bool:
        """True if an approval is open here, or may be in sessions below."""
        waits = self.approvals is not None and self.approvals.has_open
        return waits or bool(self.children and self.children.asking)

    def tell_asking(self) -> None:
        """Let the sessions above find what waits for people here; those that know already have told theirs."""
        child, parent = self, self.parent
        while parent is not None and parent.children is not None and parent.children.mark_asking(child):
            child, parent = parent, parent.parent

    # --- idleness ------------------------------------------------------------------------

    @property
    def _is_deciding(self) -> bool:
        """True if the turn waits for nothing but decisions of people that are being written."""
        return self.approvals is not None and self.approvals.is_deciding

    async def wait_idle(self) -> None:
        """Wait until no outside message is left, or the turn waits for people. A decision that is being written is waited for.

        Raises:
            SessionMoved: another process goes on with it.
        """
        mail = self.mail
        if not mail.pending or (self.suspension is not None and not self._is_deciding):
            await trio.lowlevel.checkpoint()
        while mail.pending and (self.suspension is None or self._is_deciding):
            await mail.park()
        mail.forget_idle()
        if self.log is not None and mail.is_only_read:
            with suppress(JournalError, Fenced):  # it is kept, or another process answers
                await self.log.flush()
        if mail.has_moved or mail.is_sent_on:
            raise SessionMoved(self.agent, self.id)


def _writer_for(context: SessionContext) -> Callable[[StateRecord], None]:
    """Return what notes the changes of a session's state, and does not hold the session as the session holds it."""
    known, patcher = weakref.ref(context), StatePatcher()

    def write(record: StateRecord) -> None:
        found = known()
        if found is None:
            return
        if found.log is not None:
            if type(record) is Changed:
                record = patcher.patch(record, found.state.shared_values)
            found.log.change(record)
            if not isinstance(record, ActionFailed):
                patcher.note(record)
        elif (recent := found.conversation.open_recent()) is not None:
            recent.add_record(record)

    return write


def host_of(context: SessionContext) -> SessionHost:
    """The agent at work whose session it is.

    Raises:
        NotRunning: the session is only looked at.
    """
    if context.host is None:
        raise NotRunning(context.agent)
    return context.host
