"""The agent's end of a session: its record, its state, and the turn that runs."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import trio

from actgent.control.budget import Account
from actgent.control.dues import Dated, earliest
from actgent.control.waits import WaitNode
from actgent.journal.records import (
    Decided,
    PersonAsked,
    Prompted,
    Resumed,
    Said,
    Suspended,
    TurnOptions,
)
from actgent.journal.reducers import Reducer
from actgent.journal.store import StateRecord, Store
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

from .approval import ApprovalLedger, Deadline
from .handlers import Handlers
from .turn import ON_ITS_OWN, Asked, Resume, Suspension, Turn
from .waiters import TurnWaiter

_NO_STATE: Mapping[str, Any] = MappingProxyType({})
ACCEPTED_IDS = 10_000
"""How many message ids given by callers a session remembers, the newest."""


@attrs.define(eq=False)
class SessionContext:
    """One session as the core sees it. Idle, it owns no task, scope, channel or lock."""

    id: str
    owner: Sender
    view: ModelView
    parent: "SessionContext | None" = None
    record: list[Message] = attrs.field(factory=list)
    handlers: Handlers = attrs.field(factory=Handlers)
    session: Any = None
    """The user's end."""
    usage: Usage = NO_USAGE
    pending: int = 0
    """Outside messages that are on their way in, queued or being dealt with."""
    turn: Turn | None = None
    closed: bool = False
    is_arriving: bool = False
    """True: its first message waits for room in the inbox."""
    system: str | None = None
    """The session's system prompt; None is the agent's."""
    transient: bool = False
    """True: the session ends with its last message."""
    on_busy: OnBusy = "queue"
    """What messages do that say nothing themselves."""
    log: Any = None
    """The session's end of the journal, a `SessionLog`; None without one."""
    is_written: str = ""
    """The message that the journal took last."""
    resume: Resume | None = None
    """A turn that is to go on where it was."""
    open_calls: tuple[ToolCall, ...] = ()
    """Calls of the record's last answer that have no result yet."""
    approvals: ApprovalLedger | None = None
    """What it asks of people, where it ever did."""
    suspension: Suspension | None = None
    """The turn that waits for people, where one does."""
    children: "dict[str, SessionContext] | None" = None
    accounts: tuple[Account, ...] = ()
    """Its own, where it is bounded as a whole, and those of the sessions above it that are."""
    task: Any = None
    """The `Task` that it was opened for by another session, if it was."""
    waits: WaitNode | None = None
    """Who waits for it, and for whom it waits, while there is anyone."""
    reducers: Mapping[str, Reducer] | None = None
    """The agent's, for the state."""
    dues: dict[str, Dated] | None = None
    """What has a date; see `set_due`."""
    alarms: Any = None
    """The agent's `Alarms`, while it runs."""
    scheduled: dict[str, Any] | None = None
    """Schedules that were set, by their ids, also those that have fired."""
    _state: Store | None = None
    _call_ids: set[str] | None = None
    _accepted: dict[str, None] | None = None
    _told: dict[str, str] | None = None
    """The marks of the last notes in the record, by their sources."""
    _waiters: dict[str, TurnWaiter] | None = None
    _asked: dict[str, Asked] | None = None
    _told_options: dict[str, TurnOptions] | None = None
    _idle: trio.lowlevel.ParkingLot | None = None

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

    def note(self, record: PersonAsked | Decided | Suspended | Resumed) -> None:
        """Something happened between a call and a person."""
        self.ledger().take(record)
        self.watch_deadline()
        if self.log is not None:
            self.log.note(record)

    def watch_deadline(self) -> None:
        """Have what nobody decides expire in time."""
        at = math.inf if self.approvals is None else self.approvals.deadline
        if at == math.inf:
            self.drop_due(Deadline.id)
        elif self.dues is None or Deadline.id not in self.dues or self.dues[Deadline.id].at != at:
            self.set_due(Deadline(at))

    def is_persons(self, message: Message) -> bool:
        """Whether a person says it: what an agent asks in a session of its own goes to the model as a user's words, too."""
        is_owners = message.sender.name == self.owner.name
        return message.sender.kind == "user" and not (is_owners and self.owner.kind == "agent")

    @property
    def is_busy(self) -> bool:
        """Whether it has more to do than to wait for people."""
        return self.pending > (0 if self.suspension is None else self.suspension.messages)

    # --- the record ----------------------------------------------------------------------

    def append(self, message: Message, *, answered: bool = False) -> None:
        """Write the record's next message."""
        self.record.append(message)
        self.view.add(message, answered=answered)
        if not answered and message.is_note:
            self._told = {**(self._told or {}), message.sender.name: message.causation_id or ""}

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

    def forget_message(self, message_id: str) -> None:
        """The message did not get in after all, so its id may come again."""
        self.settle()
        if self._accepted is not None:
            self._accepted.pop(message_id, None)
        if self._waiters is not None:
            self._waiters.pop(message_id, None)
        if self._asked is not None:
            self._asked.pop(message_id, None)

    def wait_for(self, message_id: str, waiter: TurnWaiter) -> None:
        """Register for what comes of a message, before it is sent."""
        if self._waiters is None:
            self._waiters = {}
        self._waiters[message_id] = waiter

    def ask(self, message_id: str, asked: Asked) -> None:
        """Remember what the message's turn will draw on."""
        if self._asked is None:
            self._asked = {}
        self._asked[message_id] = asked

    def asked(self, message_id: str) -> Asked | None:
        """What the message's turn will draw on besides the session's accounts, if anything."""
        return self._asked.get(message_id) if self._asked else None

    def take_asked(self, message_id: str) -> Asked:
        """The same, as its turn begins."""
        return self._asked.pop(message_id, ON_ITS_OWN) if self._asked else ON_ITS_OWN

    @property
    def is_bounded(self) -> bool:
        """Whether more than its agent's limits may bound its turns."""
        return bool(self.accounts or self._asked)

    def tell_options(self, message_id: str, options: TurnOptions) -> None:
        """A message from before a restart came with options for its turn."""
        if self._told_options is None:
            self._told_options = {}
        self._told_options[message_id] = options

    def take_options(self, message_id: str) -> TurnOptions | None:
        """The same, as its turn begins."""
        return self._told_options.pop(message_id, None) if self._told_options else None

    def waiter_of(self, message: Message) -> TurnWaiter | None:
        if self.task is not None and message.id == self.task.message_id:
            return self.task.waiter  # type: ignore[no-any-return]
        return self._waiters.pop(message.id, None) if self._waiters else None

    # --- dates ---------------------------------------------------------------------------

    def set_due(self, dated: Dated) -> None:
        """Have something rung at its time, instead of what had its id before. The journal hears of it with the next step."""
        if self.dues is None:
            self.dues = {}
        self.dues[dated.id] = dated
        self.tell_due()

    def drop_due(self, due_id: str) -> None:
        """Have it not rung any more. The journal hears of it with the next step."""
        if self.dues is not None and self.dues.pop(due_id, None) is not None:
            self.tell_due()

    @property
    def next_due(self) -> float:
        """The Unix time at which the first is due; 0 where nothing is."""
        return earliest(self.dues)

    def tell_due(self) -> None:
        """Let the journal and the agent's alarms know when the first is due."""
        at = self.next_due
        if self.log is not None:
            self.log.set_due(at)
        if self.alarms is not None:
            self.alarms.set(self.id, at)

    # --- the tree ------------------------------------------------------------------------

    def add_child(self, child: "SessionContext") -> None:
        if self.children is None:
            self.children = {}
        self.children[child.id] = child

    def remove_child(self, child: "SessionContext") -> None:
        if self.children is not None:
            self.children.pop(child.id, None)

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
