"""`SessionContext`: the internal data of one session, with its conversation, state, timers, relations and running turn."""

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
from actgent.journal.records import (
    ActionFailureRecord,
    AgentMessageRecord,
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    ResumptionRecord,
    StateChangeRecord,
    SuspensionRecord,
    SystemPromptRecord,
)
from actgent.journal.session_lists import SessionKey
from actgent.journal.state_patches import StatePatcher
from actgent.messages import Message, Sender
from actgent.state.reducers import Reducer
from actgent.state.store import StateCheck, StateRecord, Store
from actgent.tools.call_sources import running_call

from .conversation import SessionConversation
from .handlers import Handlers
from .mailbox import QueuedMessage, SessionMailbox
from .pending.approval_ledger import APPROVAL_TIMER, ApprovalDeadline, ApprovalLedger
from .pending.tasks import Task
from .pending.turn_checkpoint import TurnCheckpoint
from .pending.turn_future import TurnFuture
from .session_log import SessionLog
from .session_tree import Children, SessionTree
from .turn import Suspension, Turn

_NO_STATE: Mapping[str, Any] = MappingProxyType({})
Status = Literal["idle", "working", "suspended", "closed"]
"""Status of a session. `suspended`: the session's turn waits for approvals and for nothing else."""
_NO_TIMERS: Mapping[str, DurableTimer] = MappingProxyType({})


class SessionHost(typing.Protocol):
    """Interface of a running agent, as its sessions and other agents use it."""

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
    def dead_letter(self, letter: DeadLetter) -> None: ...
    async def close(self, context: "SessionContext") -> "list[SessionContext]": ...
    async def stop_closed(self, context: "SessionContext") -> None: ...
    def leave(self, context: "SessionContext") -> None: ...


@attrs.define(eq=False)
class SessionContext:
    """One session in memory. An idle session has no task, cancel scope, channel or lock."""

    id: str
    """Id of the session, unique for its agent."""
    owner: Sender
    """Owner of the session."""
    conversation: SessionConversation
    """Messages of the session."""
    agent: str = ""
    """Name of the agent."""
    is_former: bool = False
    """True for a session of an old journal format, in which session ids were unique across agents. Ids derived from
    such a session keep the old form.
    """
    handlers: Handlers = attrs.field(factory=Handlers)
    """Handlers of the session."""
    public_session: object = None
    """The public `Session` object, which handlers and tools receive; None while the session is not loaded.

    After the end of the session: a weak reference, see `release_public_session`.
    """
    host: SessionHost | None = None
    """The running agent of the session; None if the session is only read."""
    mailbox: SessionMailbox = attrs.field(factory=SessionMailbox)
    """Messages that were sent to the session and have no outcome yet."""
    turn: Turn | None = None
    """The running turn; None between turns."""
    closed: bool = False
    """True if the session accepts no more messages."""
    log: SessionLog | None = None
    """Log that writes the session's records; None without a journal."""
    checkpoint: TurnCheckpoint | None = None
    """Checkpoint of an unfinished turn from before a restart, which has to be resumed; None if there is none."""
    approvals: ApprovalLedger | None = None
    """Approvals of the session; None before the first one."""
    suspension: Suspension | None = None
    """The suspended turn; None if no turn waits for approvals."""
    reducers: Mapping[str, Reducer] | None = None
    """Reducers of the agent's state by key; None without reducers."""
    state_check: StateCheck | None = None
    """Function that can reject a state change; None accepts all changes."""
    due_index: DueIndex | None = None
    """Index of the agent's sessions by next timer; None while the session is not loaded."""
    _timers: SessionTimers | None = None
    tree: "SessionTree[SessionContext] | None" = None
    """Relations to other sessions; None until `open_tree` creates them."""
    _state: Store | None = None

    def __repr__(self) -> str:
        name = shown(f"{self.agent}/{self.id}")
        return f"<SessionContext {name} {self.status}, {counted(len(self.conversation.messages), 'message')}>"

    @property
    def status(self) -> Status:
        """Current status of the session."""
        if self.closed:
            return "closed"
        if self.suspension is not None:
            return "suspended"
        return "working" if self.mailbox.pending else "idle"

    @property
    def has_moved(self) -> bool:
        """True if another process owns the session, or is about to own it.

        In this process the session is closed then.
        """
        return self.mailbox.has_moved

    @property
    def refusal(self) -> SessionClosed | SessionMoved:
        """Error to raise for calls on the closed session."""
        return SessionMoved(self.agent, self.id) if self.has_moved else SessionClosed(self.id)

    @property
    def answered_ids(self) -> tuple[str, ...]:
        """Ids of the messages that the running or suspended turn answers. The first id is that of the turn."""
        turn = self.turn
        if turn is None:
            return () if self.suspension is None else (self.suspension.message.id,)
        return (turn.message.id, *(each.id for each in turn.joined))

    @property
    def open_turn_id(self) -> str | None:
        """Id of the unfinished turn: of the running or suspended turn, or of the turn to resume. None if there is none."""
        if answered := self.answered_ids:
            return answered[0]
        if self.checkpoint is not None:
            return self.checkpoint.message_id
        return None if self.host is not None else next((each.id for each in self.mailbox.waiting), None)

    @property
    def key(self) -> SessionKey:
        """Agent name and id of the session."""
        return SessionKey(self.agent, self.id)

    @property
    def scope(self) -> str:
        """Prefix for ids that are derived from this session. It is unique for the session."""
        return self.id if self.is_former else self.key.scope

    @property
    def description(self) -> str:
        """Text that the session was created with; empty if it was created without a message."""
        return self.conversation.description

    @property
    def seen_state(self) -> Mapping[str, Any]:
        """State of the session for reading. If the session has no state, it is empty, and no store is created."""
        return self._state if self._state is not None else _NO_STATE

    @property
    def state(self) -> Store:
        """State store of the session, created at the first access."""
        if self._state is None:
            self._state = Store(reducers=self.reducers, check=self.state_check, write=_writer_for(self))
        return self._state

    @property
    def has_state(self) -> bool:
        """True if the session has a store."""
        return self._state is not None

    @property
    def state_number(self) -> int:
        """Number of state changes so far."""
        return 0 if self._state is None else self._state.number

    def state_at(self, number: int) -> Mapping[str, Any]:
        """Return the state after `number` changes.

        If that version was rolled back or is no longer stored, return the newest state.
        """
        if self._state is None or number not in self._state.known:
            return self.seen_state
        return self._state.replay(number)

    def ledger(self) -> ApprovalLedger:
        """Return the approvals of the session, created at the first call."""
        if self.approvals is None:
            self.approvals = ApprovalLedger()
        return self.approvals

    def record_approval(
        self, record: ApprovalRequestRecord | ApprovalDecisionRecord | SuspensionRecord | ResumptionRecord
    ) -> None:
        """Apply an approval record to the session's ledger, and add it to the session's log."""
        self.ledger().apply(record)
        if type(record) is ApprovalRequestRecord:
            self.mark_approvals_open()
        self.update_approval_timer()
        if self.log is not None:
            self.log.add(record)
        elif (recent := self.conversation.recent) is not None:
            recent.add_record(record)

    def update_approval_timer(self) -> None:
        """Set the timer for the next approval that expires; cancel it if no approval is open."""
        at = math.inf if self.approvals is None else self.approvals.deadline
        if at == math.inf:
            self.drop_timer(APPROVAL_TIMER)
        elif (timer := self.timers.get(APPROVAL_TIMER)) is None or timer.at != at:
            self.set_timer(ApprovalDeadline(at))

    def is_from_user(self, message: Message) -> bool:
        """Return True if a user sent the message. Requests of other agents also have the sender kind user."""
        is_owners = message.sender.name == self.owner.name
        return message.sender.kind == "user" and not (is_owners and self.owner.kind == "agent")

    @property
    def has_outcome_handlers(self) -> bool:
        """True if the session has a reply, event, route or failure handler in this process."""
        return self.handlers.any_of("conversation", "event", "routing", "exception")

    @property
    def is_silent(self) -> bool:
        """True if the session is closed and its log has stopped writing, because the session is being erased."""
        return self.closed and self.log is None

    @property
    def is_quiescent(self) -> bool:
        """True if the session has no work, no timers and no unwritten records."""
        has_work = self.is_busy or self.mailbox.pending or self.turn is not None or self.timers or self.closed
        return not has_work and (self.log is None or self.log.is_idle)

    @property
    def is_busy(self) -> bool:
        """True if the session has work other than waiting for approvals."""
        suspended = 0 if self.suspension is None else self.suspension.messages
        return bool(self.mailbox.pins) or self.mailbox.pending > suspended

    # --- the conversation ----------------------------------------------------------------

    def append_unanswered(self, message: Message) -> None:
        """Append a message to the history that no turn answers."""
        self.conversation.append(message)
        if self.log is not None:
            self.log.add(AgentMessageRecord(message=message))
            self.log.flush_soon()

    def set_system(self, prompt: str) -> None:
        """Replace the system prompt, effective from the next model call on."""
        self.conversation.system = prompt
        if self.log is not None:
            self.log.add(SystemPromptRecord(system=prompt))
            self.log.flush_soon()

    def future_of(self, acceptance: QueuedMessage) -> TurnFuture | None:
        """Return the future of the caller that waits for the outcome of a queued message; None if no caller waits."""
        task = None if self.tree is None else self.tree.task
        if task is not None and acceptance.message.id == task.message_id:
            return task.future
        return acceptance.future

    # --- timers --------------------------------------------------------------------------

    @property
    def timers(self) -> Mapping[str, DurableTimer]:
        """Timers of the session that are set, by timer id."""
        return _NO_TIMERS if self._timers is None else self._timers.due

    @property
    def schedules(self) -> SessionTimers:
        """Timers and schedules of the session, created at the first access."""
        if self._timers is None:
            self._timers = SessionTimers()
        return self._timers

    @property
    def has_timers(self) -> bool:
        """True if the session ever had a timer or a schedule."""
        return self._timers is not None

    def set_timer(self, timer: DurableTimer) -> None:
        """Set a timer, replacing the timer with the same id. The time is written with the session's next records."""
        self.schedules.due[timer.id] = timer
        self.report_next_timer()

    def drop_timer(self, timer_id: str) -> None:
        """Cancel the timer with this id; an unknown id is ignored. The change is written with the session's next records."""
        if self._timers is not None and self._timers.due.pop(timer_id, None) is not None:
            self.report_next_timer()

    def report_next_timer(self) -> None:
        """Pass the time of the session's next timer to the session's log and to the agent's index."""
        if self.log is not None:
            self.log.set_timer(first_time(self.timers))
        if self.due_index is not None:
            self.due_index.set(self.id, first_steady_time(self.timers, self.due_index.clock))

    # --- the tree ------------------------------------------------------------------------

    def open_tree(self) -> "SessionTree[SessionContext]":
        """Return the session's relations to other sessions, created at the first call."""
        if self.tree is None:
            self.tree = SessionTree()
        return self.tree

    @property
    def parent(self) -> "SessionContext | None":
        """Parent session if it is in memory; None otherwise."""
        return None if self.tree is None else self.tree.parent

    @property
    def parent_key(self) -> SessionKey | None:
        """Key of the parent session, in memory or not; None without a parent."""
        return None if self.tree is None else self.tree.parent_key

    @property
    def children(self) -> "Children[SessionContext] | None":
        """Open child sessions; None if the session never had any."""
        return None if self.tree is None else self.tree.children

    @property
    def task(self) -> Task | None:
        """Task that the session works on for its parent; None without a task."""
        return None if self.tree is None else self.tree.task

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Budget accounts of the session's own limits and of its parents' limits."""
        return () if self.tree is None else self.tree.accounts

    @property
    def wait_node(self) -> WaitNode | None:
        """Node of the session in the wait graph; None if it neither waits nor is waited for."""
        return None if self.tree is None else self.tree.wait_node

    @property
    def quota_owner(self) -> str:
        """Name of the owner whose quota pays for the session: the owner of the topmost parent session."""
        if self.tree is None:
            return self.owner.name
        context = self
        while context.parent is not None:
            context = context.parent
        return (context.tree and context.tree.root_owner) or context.owner.name

    def add_child(self, child: "SessionContext") -> None:
        """Add a child session."""
        tree = self.open_tree()
        if tree.children is None:
            tree.children = Children()
        tree.children.add(child)
        if child.may_have_approvals:
            child.mark_approvals_open()

    def family(self) -> "list[SessionContext]":
        """Return this session and all open descendants, parents before children."""
        family = [self]
        for each in family:
            family += (each.children or {}).values()
        return family

    @property
    def reports_due(self) -> int:
        """Number of delegated tasks of this session that have not reported their outcome."""
        return len(self.children.reporting) if self.children else 0

    def remove_child(self, child: "SessionContext") -> None:
        """Remove a child session; an unknown child is ignored."""
        if self.children is not None:
            self.children.drop(child)

    def release_public_session(self) -> None:
        """Replace the reference to the public `Session` by a weak one, once this session and all its children have ended.

        Otherwise the two objects would stay in memory until the garbage collector runs.
        """
        has_ended = self.closed and self.due_index is None and not (self.mailbox.pending or self.mailbox.pins)
        let_go = getattr(self.public_session, "__actgent_let_go__", None)
        if has_ended and not self.children and let_go is not None:
            self.public_session = let_go()

    @property
    def may_have_approvals(self) -> bool:
        """True if this session has an open approval, or a descendant may have one."""
        waits = self.approvals is not None and self.approvals.has_open
        return waits or bool(self.children and self.children.asking)

    def mark_approvals_open(self) -> None:
        """Mark this session in all its parents, because it or a descendant may have open approvals."""
        child, parent = self, self.parent
        while parent is not None and parent.children is not None and parent.children.mark_asking(child):
            child, parent = parent, parent.parent

    # --- idleness ------------------------------------------------------------------------

    @property
    def _is_deciding(self) -> bool:
        """True if the suspended turn waits only for decisions that are being written."""
        return self.approvals is not None and self.approvals.is_deciding

    async def wait_idle(self) -> None:
        """Wait until no message is pending, or until the turn is suspended and no decision is being written.

        Raises:
            SessionMoved: Another process owns the session.
        """
        mailbox = self.mailbox
        if not mailbox.pending or (self.suspension is not None and not self._is_deciding):
            await trio.lowlevel.checkpoint()
        while mailbox.pending and (self.suspension is None or self._is_deciding):
            await mailbox.park()
        mailbox.drop_idle_waiters()
        if self.log is not None and mailbox.is_only_read:
            with suppress(
                JournalError, Fenced
            ):  # the records stay queued, or another process owns the session
                await self.log.flush()
        if mailbox.has_moved or mailbox.is_forwarded:
            raise SessionMoved(self.agent, self.id)


def _writer_for(context: SessionContext) -> Callable[[StateRecord], None]:
    """Return a function that records state changes of the session. The function refers to the session only weakly."""
    known, patcher = weakref.ref(context), StatePatcher()

    def write(record: StateRecord) -> None:
        found = known()
        if found is None:
            return
        running = running_call.get()
        if running is not None and running.owner is found and type(record) is StateChangeRecord:
            running.note_stored(record.changes)
        if found.log is not None:
            if type(record) is StateChangeRecord:
                record = patcher.patch(record, found.state.shared_values)
            found.log.change(record)
            if not isinstance(record, ActionFailureRecord):
                patcher.note(record)
        elif (recent := found.conversation.recent) is not None:
            recent.add_record(record)

    return write


def host_of(context: SessionContext) -> SessionHost:
    """Return the running agent of a session.

    Raises:
        NotRunning: The session is only read.
    """
    if context.host is None:
        raise NotRunning(context.agent)
    return context.host
