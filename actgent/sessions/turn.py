"""A turn: all passes from an outside message to its last outcome, where it stands, and where it stood before a restart."""

import math
import typing
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, ContextVar

import attrs
import trio

from actgent.actors.timer import TimerHandle
from actgent.control.budget import NOTHING, Amounts, Budget
from actgent.control.limits import DEFAULT_LIMITS, Limits
from actgent.errors import Interrupted
from actgent.journal.records import (
    NO_LIMITS,
    Delivered,
    Finished,
    Led,
    PersonAsked,
    Said,
    Spent,
    Started,
)
from actgent.messages import (
    NO_USAGE,
    Message,
    ToolCall,
    ToolResult,
    Usage,
)
from actgent.printable import counted, shown
from actgent.protocols.growing import Growth

from .approval_ledger import PendingCalls
from .call_cycles import is_same
from .turn_future import CallOptions, TurnWaiter


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
    tree_limits: Mapping[str, float] = NO_LIMITS
    """What bounded all that it led to, where it led to anything."""
    tree_spent: Amounts = NOTHING
    charged: set[str] = attrs.field(factory=set)
    """Answers whose tool calls are counted."""
    last_call: ToolCall | None = None
    """Of those that are done with."""
    identical: int = 0
    called: list[ToolCall] = attrs.field(factory=list)
    """All that are done with, in their order."""
    is_redacted: bool = False
    """Whether the last thing said stands in the journal with other words."""
    _asked: tuple[ToolCall, ...] = ()
    """The calls of the last answer."""

    def say(self, said: Said, *, state_number: int) -> None:
        """The agent said something in this turn."""
        self.state_number = state_number
        self.stop, self.is_redacted = said.stop, said.redacted
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
            self.called += self._asked
            if said.last_call is not None:
                self.last_call, self.identical = said.last_call, said.identical
                self.called += said.called or (said.last_call,)

    def pay(self, record: Spent | Led) -> None:
        """Something was taken from the turn's budget."""
        if record.of:
            self.charged.add(record.of)
        if isinstance(record, Led):
            self.tree_spent += Amounts.of(record)
            self.tree_limits = record.limits or self.tree_limits
        else:
            self.spent += Amounts.of(record)

    @property
    def unsettled(self) -> set[str]:
        """Calls that may have run, and left no result."""
        return self.started - self.finished.keys()

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


class TurnHost(typing.Protocol):
    """The agent at work whose turn it is, as far as the turn and what runs in it know it."""

    @property
    def has_failed(self) -> bool: ...
    @property
    def sessions(self) -> Mapping[str, object]: ...
    def lend_slot(self, turn: "Turn") -> bool: ...
    def reclaim_slot(self, turn: "Turn") -> None: ...
    async def wait_started(self, name: str) -> None: ...


@attrs.define(eq=False)
class Turn:
    """All passes from one outside message to its last outcome."""

    message: Message
    options: CallOptions
    started: float
    """Monotonic time in seconds."""
    variables: Context
    """The context variables that it runs with: those of the sender of `message`."""
    task: trio.lowlevel.Task | None = None
    """The task that it runs in, once it does."""
    host: TurnHost | None = None
    """The agent at work whose turn it is."""
    resume: Resume | None = None
    """What was done already, where the turn goes on after a restart."""
    lent_slots: int = 0
    """How many of its tools and handlers wait for other turns: while any does, another session runs in its slot."""
    listeners: tuple[TurnWaiter, ...] = ()
    """Who wants to know what comes of it."""
    joined: tuple[Message, ...] = ()
    """Messages that came before `message`, and are answered together with it."""
    limits: Limits = DEFAULT_LIMITS
    budget: Budget | None = None
    """What it may spend; None where nothing that is shared bounds it."""
    timer_handle: TimerHandle | None = None
    """Ends it when its seconds are over."""
    over: float = math.inf
    """When that is, by trio's clock."""
    calls: int = 0
    """Model calls so far."""
    repairs: int = 0
    """Bad answers in a row."""
    is_paused: bool = False
    """True: the provider paused the last answer, and goes on with it as it was."""
    last_call: ToolCall | None = None
    identical: int = 0
    """How often in a row `last_call` was asked for."""
    called: list[ToolCall] | None = None
    """The last calls, in their order."""
    depth: int = 0
    """How many turns led to it, one from the other."""
    deepest: int = 0
    """How deep it may lead on by the limits of those; 0 where there are none."""
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
    growth: Growth | None = None
    """The answer that is just growing; what it came to is for the record if it is cut."""
    error: Exception | None = None
    """What it failed with."""
    blame: str = "internal"
    """The kind of a failure whose exception does not tell it."""
    is_cut: bool = False
    """True: its agent failed in the middle of it, so that it only has to end."""
    ended: trio.Event | None = None
    """Made where someone waits for the turn's end."""
    pending_approvals: PendingCalls | None = None
    """Calls that wait for people, once all else of their answer is done."""
    on_stop: Callable[[], object] | None = None
    """What lets it end while it is suspended."""
    counted: str = ""
    """The answer whose calls were counted last."""

    def __repr__(self) -> str:
        name = shown(f"{self.message.id} in {self.message.session_id}")
        return f"<Turn of {name}, {self._state}, {counted(self.calls, 'model call')}>"

    @property
    def _state(self) -> str:
        if self.on_stop is not None:
            return "suspended"
        if self.stop is not None or self.error is not None:
            return "ending"
        return "queued" if self.task is None else "running"

    def keep_results(self, results: Iterable[ToolResult], asking: Iterable[str]) -> None:
        """Calls that ended while others wait; those that ask have not started, or ended by asking."""
        if self.resume is None:
            self.resume = Resume(self.message.id)
        self.resume.finished.update({result.call_id: result for result in results})
        self.resume.started.difference_update(asking)

    def is_heard(self) -> bool:
        """Whether a listener wants all that handlers hear, tokens too."""
        return any(listener.hears for listener in self.listeners)

    def deadline(self) -> float:
        """Until when what comes of it is of use to anyone, by trio's clock."""
        waits = max((listener.deadline() for listener in self.listeners), default=math.inf)
        return min(self.over, waits)

    def add_listener(self, listener: TurnWaiter) -> None:
        self.listeners = (*self.listeners, listener)
        listener.turn = self

    def remove_listener(self, listener: TurnWaiter) -> None:
        """One does not listen any more; the turn does not mind."""
        self.listeners = tuple(each for each in self.listeners if each is not listener)
        listener.let_go()

    def leave(self, listener: TurnWaiter) -> None:
        """One does not wait any more: without another one the turn stops, but not where it waits for people whom a guest came to see."""
        if listener not in self.listeners:
            return
        self.remove_listener(listener)
        is_suspended = self.on_stop is not None
        if listener.is_joined:
            return
        if not self.listeners and not (listener.is_guest and is_suspended):
            self.interrupt("nobody waits for the answer any more")

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

    def cut(self, error: Exception) -> None:
        """Its task is gone: with the next one it ends, with this error unless it had one."""
        self.is_cut = True
        self.exposed = False
        self.stop_with(error)

    @property
    def is_ending(self) -> bool:
        """Whether nothing goes on with it later: someone stopped it, or its agent failed, which starts again without it."""
        return self.stop is not None or (self.host is not None and self.host.has_failed)

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
    guests: tuple[TurnWaiter, ...] = ()
    """Who came to hear what comes of it, where there is no turn yet."""
    messages: int = 1
    """How many outside messages are answered in it."""

    def add_guest(self, guest: TurnWaiter) -> None:
        """One comes to hear what comes of the turn, besides those that wait for it."""
        guest.is_guest = True
        if self.turn is None:
            self.guests = (*self.guests, guest)
        else:
            self.turn.add_listener(guest)

    def remove_guest(self, guest: TurnWaiter) -> None:
        self.guests = tuple(each for each in self.guests if each is not guest)
        if guest.turn is not None:
            guest.turn.remove_listener(guest)


def can_go_on(last: Message | None) -> bool:
    """Whether a turn that failed can go on behind what was said last, and has not to begin anew: none of its calls ran."""
    if last is None or last.cut:
        return False
    results = last.tool_results
    return not results or any(result.status != "cancelled" for result in results)


def resume_of(turn: Turn, last: Message | None, *, state_number: int) -> Resume | None:
    """What a turn that failed needs to go on behind what was said last; None where it has to begin anew."""
    if last is None or not can_go_on(last):
        return None
    is_answer = last.sender.kind == "assistant" and last.causation_id is not None
    return Resume(
        turn.message.id,
        calls=turn.calls,
        repairs=turn.repairs,
        usage=turn.usage,
        stop="end" if is_answer else "",
        state_number=state_number,
        delivered={result.id for result in last.tool_results},
        last_call=turn.last_call,
        identical=turn.identical,
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
