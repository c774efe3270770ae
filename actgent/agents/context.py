"""The agent's end of a session: its record, its state, and the turn that runs."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import attrs
import trio

from actgent.actors.timer import Alarm
from actgent.control.budget import NOTHING, Account, Amounts, Budget
from actgent.control.dues import Dated, earliest
from actgent.control.limits import DEFAULT_LIMITS, Limits
from actgent.control.waits import WaitNode
from actgent.errors import Interrupted, Suspended as SuspendedError
from actgent.journal.records import (
    NO_LIMITS,
    Decided,
    Delivered,
    Finished,
    PersonAsked,
    Prompted,
    Resumed,
    Said,
    Spent,
    Started,
    Suspended,
    TurnOptions,
)
from actgent.journal.reducers import Reducer
from actgent.journal.store import StateRecord, Store
from actgent.llm.base import Answer
from actgent.memory.base import ModelView
from actgent.messages import (
    NO_USAGE,
    Event,
    Failure,
    Message,
    OnBusy,
    Reply,
    Sender,
    ToolCall,
    ToolResult,
    Usage,
    new_id,
)
from actgent.protocols.base import Protocol
from actgent.tools.execution import call_scope

from .approval import ApprovalLedger, Deadline, Waiting
from .handlers import Handlers
from .reader import TurnReader

_NO_STATE: Mapping[str, Any] = MappingProxyType({})
ACCEPTED_IDS = 10_000
"""How many message ids given by callers a session remembers, the newest."""


@attrs.frozen(kw_only=True)
class CallOptions:
    """How a turn talks to the model."""

    protocol: Protocol
    temperature: float | None = None
    max_tokens: int | None = None
    system: str | None = None
    """The system prompt of this turn alone; None is the session's."""
    tail: str = ""
    """Said at the end of the prompt, in each call of this turn, and not remembered."""
    limits: Limits | None = None
    """Of this turn alone; None is the agent's."""
    told: TurnOptions | None = None
    """What of this was said for one turn alone, as a journal keeps it."""


class TurnWaiter:
    """Someone who waits for what comes of one outside message."""

    def __init__(self, options: CallOptions, *, is_patient: bool = False) -> None:
        self.options = options
        self.is_patient = is_patient
        """Whether it waits for people, too."""
        self.done = trio.Event()
        self.reply: Reply | None = None
        self.event: Event | None = None
        self.failure: Failure | None = None
        self.turn: Turn | None = None
        self.abandoned = False
        self.open_approvals: tuple[str, ...] = ()
        """The ids of what the turn waits for, where it was suspended."""
        self._asker: SessionContext | None = None
        self._limit: trio.CancelScope | None = None
        self._left = math.inf
        self._holds = 0

    def abandon(self) -> None:
        """Nobody waits any more: the turn stops, now or when it begins."""
        self.abandoned = True
        if self.turn is not None:
            self.turn.interrupt("nobody waits for the answer any more")

    def take(self, delivery: object) -> None:
        """The last reply counts; where there is none, the last event stands in for it."""
        if isinstance(delivery, Reply):
            self.reply = delivery
        elif isinstance(delivery, Event):
            self.event = delivery

    def answer(self) -> Reply:
        """What the turn came to."""
        if self.reply is not None or self.event is None:
            return self.reply or Reply(text="")
        return Reply(id=self.event.id, text="", data=self.event.data, message_type=self.event.name)

    def suspend(self, ids: Sequence[str]) -> None:
        """The turn waits for people, and this one does not wait for that."""
        self.open_approvals = tuple(ids)
        self.turn = None
        self.finish()

    def take_limit(self, asker: "SessionContext | None", *, is_held: bool = False) -> None:
        """The tool call that waits here, of this session: while the turn waits for people, its time does not pass."""
        self._asker = asker
        self._limit = call_scope.get()
        if is_held:
            self.hold()

    def hold(self) -> None:
        """The turn waits for people, and so do all that wait for it."""
        self._holds += 1
        if self._holds == 1 and self._limit is not None:
            self._left = self._limit.deadline - trio.current_time()
            self._limit.deadline = math.inf
        if (waiter := self._above()) is not None:
            waiter.hold()

    def release(self) -> None:
        """The turn goes on."""
        if not self._holds:
            return
        self._holds -= 1
        if not self._holds and self._limit is not None:
            self._limit.deadline = trio.current_time() + self._left
        if (waiter := self._above()) is not None:
            waiter.release()

    def _above(self) -> "TurnWaiter | None":
        """Who waits for the turn that waits here."""
        turn = self._asker.turn if self._asker is not None else None
        return turn.waiter if turn is not None else None

    def outcome(self) -> Reply:
        """What the turn came to.

        Raises:
            Suspended: it waits for people.
            ActgentError: it failed.
        """
        if self.failure is not None:
            raise self.failure.error
        if self.open_approvals:
            raise SuspendedError(self.open_approvals)
        return self.answer()

    def finish(self) -> None:
        """The turn has ended, or waits for people."""
        self.done.set()

    @property
    def hears(self) -> bool:
        """Whether it wants all that handlers hear, tokens too."""
        return False

    def hear(self, delivery: object) -> None:
        """Take something that handlers hear."""

    async def wait_room(self) -> None:
        """Wait until it can take another token."""

    async def grow(self, text: str, attempt: int) -> None:
        """Take a piece of the answer as the model gives it, if it `hears`; a new attempt voids the former ones."""

    def take_answer(self, answer: Answer) -> None:
        """Take a whole answer, which stands in the record, before anything is done with it."""

    def take_calls(self, calls: Sequence[ToolCall]) -> None:
        """Take the calls that are about to run, under the ids that their results have."""


class StreamWaiter(TurnWaiter):
    """Someone who reads along."""

    def __init__(self, options: CallOptions, *, reader: TurnReader[Any]) -> None:
        super().__init__(options)
        self._reader = reader

    @property
    def hears(self) -> bool:
        return True

    def hear(self, delivery: object) -> None:
        self._reader.put(delivery)

    async def wait_room(self) -> None:
        await self._reader.wait_room()

    def finish(self) -> None:
        super().finish()
        self._reader.end()


@attrs.frozen
class Asked:
    """What a message's turn draws on besides its session's accounts."""

    limits: Mapping[str, float] | None = None
    """Set by its sender; None is the agent's."""
    accounts: tuple[Account, ...] = ()
    """Of the turn that asks."""


_ON_ITS_OWN = Asked()


def is_same(call: ToolCall, last: ToolCall | None) -> bool:
    """Whether a call asks for what the last one asked for."""
    return last is not None and last.name == call.name and last.arguments == call.arguments


@attrs.define(eq=False)
class Resume:
    """How far a turn had come when its process ended, by its journal."""

    message_id: str
    joined: tuple[Message, ...] = ()
    """Messages that the same turn answers."""
    calls: int = 0
    repairs: int = 0
    usage: Usage = NO_USAGE
    stop: str = ""
    """Why the model stopped, where the last thing said was its answer; empty where an answer is due."""
    state_number: int = 0
    """Of the state when the last thing was said."""
    delivered: set[str] = attrs.field(factory=set)
    """Outcomes that handlers got."""
    started: set[str] = attrs.field(factory=set)
    """Calls of the last answer that may have run."""
    finished: dict[str, ToolResult] = attrs.field(factory=dict)
    """Those that have their result."""
    limits: Mapping[str, float] = NO_LIMITS
    """What bounded it."""
    spent: Amounts = NOTHING
    charged: set[str] = attrs.field(factory=set)
    """Answers whose tool calls are counted."""
    last_call: ToolCall | None = None
    """Of those that are done with; calls that stood in text are not known here, and count anew."""
    identical: int = 0
    _asked: tuple[ToolCall, ...] = ()
    """The calls of the last answer."""

    def say(self, said: Said, *, state_number: int) -> None:
        """The agent said something in this turn."""
        self.state_number = state_number
        self.stop = said.stop
        self.calls, self.repairs = said.calls, said.repairs
        self.usage += said.usage
        if said.stop:
            self._asked = said.message.tool_calls
        if said.message.tool_results:  # its calls are done with
            self.started.clear()
            self.finished.clear()
            for call in self._asked:
                self.identical = self.identical + 1 if is_same(call, self.last_call) else 1
                self.last_call = call

    def pay(self, record: Spent) -> None:
        """Something was taken from the turn's budget."""
        self.spent += Amounts.of(record)
        if record.of:
            self.charged.add(record.of)

    def take(self, record: Started | Finished | Delivered | PersonAsked) -> None:
        match record:
            case PersonAsked(approval=approval):  # it has not started, or ended by asking
                self.started.discard(approval.call_id)
            case Started(call_ids=call_ids):
                self.started.update(call_ids)
            case Finished(result=result):
                self.finished[result.call_id] = result
            case Delivered(ids=ids):
                self.delivered.update(ids)


@attrs.define(eq=False)
class Turn:
    """All passes from one outside message to its last outcome."""

    message: Message
    options: CallOptions
    started: float
    """Monotonic time in seconds."""
    task: trio.lowlevel.Task | None = None
    """The task that it runs in, once it does."""
    host: Any = None
    """The `RunningAgent` whose turn it is."""
    resume: Resume | None = None
    """What was done already, where the turn goes on after a restart."""
    waits: int = 0
    """How many of its tools and handlers wait for other turns."""
    waiter: TurnWaiter | None = None
    joined: tuple[Message, ...] = ()
    """Messages that came before `message`, and are answered together with it."""
    limits: Limits = DEFAULT_LIMITS
    budget: Budget | None = None
    """What it may spend; None where nothing that is shared bounds it."""
    alarm: Alarm | None = None
    """Ends it when its seconds are over."""
    calls: int = 0
    """Model calls so far."""
    repairs: int = 0
    """Bad answers in a row."""
    is_paused: bool = False
    """True: the provider paused the last answer, and goes on with it as it was."""
    last_call: ToolCall | None = None
    identical: int = 0
    """How often in a row `last_call` was asked for."""
    usage: Usage = NO_USAGE
    scope: trio.CancelScope | None = None
    """Around the whole turn."""
    exposed: bool = False
    """Whether a model call or tools run now: all that may be cancelled."""
    stop: Exception | None = None
    """Why the turn is to end, once someone or its timeout wants it."""
    results: list[ToolResult] = attrs.field(factory=list)
    """Tool results that no handler has seen yet."""
    aside: str = ""
    """What query pre-processors add to the next model call."""
    told: int = 0
    """How far into the record its listeners have heard."""
    answer_id: str = ""
    """Under which the answer of this pass stands in the record."""
    token_failed: str = ""
    """The answer whose tokens a handler has failed at already; once is enough to hear of it."""
    partial: str = ""
    """The text of the answer that is just growing, for the record if it is cut."""
    error: Exception | None = None
    """What it failed with."""
    blame: str = "internal"
    """The kind of a failure whose exception does not tell it."""
    ended: trio.Event | None = None
    """Made where someone waits for the turn's end."""
    waiting: Waiting | None = None
    """Calls that wait for people, once all else of their answer is done."""
    on_stop: Callable[[], object] | None = None
    """What lets it end while it is suspended."""
    counted: str = ""
    """The answer whose calls were counted last."""

    def keep_results(self, results: Iterable[ToolResult], asking: Iterable[str]) -> None:
        """Calls that ended while others wait; those that ask have not started, or ended by asking."""
        if self.resume is None:
            self.resume = Resume(self.message.id)
        self.resume.finished.update({result.call_id: result for result in results})
        self.resume.started.difference_update(asking)

    def interrupt(self, reason: str) -> None:
        """Stop what runs; the turn ends at its next step."""
        self.stop_with(Interrupted(reason))

    def stop_with(self, error: Exception) -> None:
        """End the turn with an error: at once where a model call or tools run, else at the next step."""
        if self.stop is None:
            self.stop = error
        if self.exposed and self.scope is not None:
            self.scope.cancel()
        elif self.on_stop is not None:
            self.on_stop()

    def check(self) -> None:
        """End the turn here if someone wants it.

        Raises:
            Interrupted: someone does.
            ModelTimeout: its time is over.
        """
        if self.stop is not None:
            raise self.stop


@attrs.define(eq=False)
class Suspension:
    """A turn that waits for people: it has no task, and this is all that is needed to go on."""

    message: Message
    """The outside message of the turn."""
    turn: Turn | None = None
    """None: it began before a restart, and goes on by `SessionContext.resume`."""
    waiter: TurnWaiter | None = None
    """Who wants to know what comes of it, when it goes on."""
    messages: int = 1
    """How many outside messages are answered in it."""


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

    @property
    def is_busy(self) -> bool:
        """Whether it has more to do than to wait for people."""
        return self.pending > (0 if self.suspension is None else self.suspension.messages)

    # --- the record ----------------------------------------------------------------------

    def append(self, message: Message, *, answered: bool = False) -> None:
        """Write the record's next message."""
        self.record.append(message)
        self.view.add(message, answered=answered)
        if message.sender.kind == "system" and is_note(message):
            self._told = {**(self._told or {}), message.sender.name: message.causation_id or ""}

    @property
    def last_said(self) -> Message | None:
        """The record's last message that is no note."""
        for message in reversed(self.record):
            if message.sender.kind != "system" or not is_note(message):
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
        return self._asked.pop(message_id, _ON_ITS_OWN) if self._asked else _ON_ITS_OWN

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


def is_note(message: Message) -> bool:
    """Whether a message of the record tells what happened beside the conversation: caused by that, and by no turn."""
    return (
        message.sender.kind == "system"
        and message.correlation_id is None
        and message.causation_id is not None
    )


running_turn: ContextVar[Turn | None] = ContextVar("running_turn", default=None)
"""The turn that a task, or a thread that it waits for, works on."""


def is_inside(turn: Turn | None) -> bool:
    """Whether the calling task is the turn's, or one that the turn itself waits for."""
    if turn is None:
        return False
    task = top = trio.lowlevel.current_task()
    while (nursery := task.parent_nursery) is not None:
        if task is turn.task:
            return True
        top, task = task, nursery.parent_task
    # What a thread does by `trio.from_thread` runs in a task of trio's own, with the thread's context.
    return top.context.get(running_turn) is turn
