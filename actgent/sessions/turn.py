"""A turn: all passes from an outside message to its last outcome, where it stands, and where it stood before a restart."""

import itertools
import math
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, ContextVar
from typing import Any, Literal

import attrs
import trio

from actgent.actors.timer import TimerHandle
from actgent.control.budget import Budget
from actgent.control.limits import DEFAULT_LIMITS, Limits
from actgent.errors import Interrupted
from actgent.errors.printable import counted, shown
from actgent.journal.records import Fitting
from actgent.messages import NO_METADATA, Failure, Message, ToolResult
from actgent.protocols.growing import Growth
from actgent.support.quick_init import maker
from actgent.tools.execution import Batch

from .waiting.approval_ledger import PendingCalls
from .waiting.turn_checkpoint import TurnCheckpoint, TurnProgress
from .waiting.turn_future import CallOptions, TurnFuture


class TurnHost(typing.Protocol):
    """The agent at work whose turn it is, as far as the turn and what runs in it know it."""

    @property
    def has_failed(self) -> bool: ...
    @property
    def sessions(self) -> Mapping[str, object]: ...
    def lend_slot(self, turn: "Turn") -> bool: ...
    def reclaim_slot(self, turn: "Turn") -> None: ...
    async def wait_started(self, name: str) -> None: ...


# A turn is in one of five states, and seven events lead from one to the next. An event that a state does not list
# leaves it as it is: an ending turn, for one, cannot be exposed any more.
#
#   running    takes a step that is finished before the turn ends: handlers, the record, the journal
#   exposed    a model call, tools or another agent run, which may be cancelled at any moment
#   suspended  waits for people; it holds neither task nor slot
#   ending     was asked to stop, by a person, its time or a failure of its agent: it ends at its next step
#   over       its last outcome is with the handlers
TurnState = Literal["running", "exposed", "suspended", "ending", "over"]
TRANSITIONS: Mapping[str, Mapping[TurnState, TurnState]] = {
    "expose": {"running": "exposed"},
    "cover": {"exposed": "running"},
    "suspend": {"running": "suspended", "exposed": "suspended"},
    "resume": {"suspended": "running"},
    "stop": {"running": "ending", "exposed": "ending", "suspended": "ending"},
    "revoke": {"ending": "running"},
    "end": {"running": "over", "exposed": "over", "suspended": "over", "ending": "over"},
}


@attrs.define(eq=False)
class TurnControl:
    """The state of a turn, and what it takes to stop it."""

    state: TurnState = "running"
    task: trio.lowlevel.Task | None = None
    """The task that it runs in, once it does."""
    scope: trio.CancelScope | None = None
    """Around the whole turn."""
    stop: Exception | None = None
    """Set when the turn has been asked to stop: the error it will fail with."""
    on_stop: Callable[[], object] | None = None
    """Called to let a suspended turn end."""
    timer: TimerHandle | None = None
    """Ends the turn when its seconds are over."""
    over: float = math.inf
    """The end of its seconds, by trio's clock."""
    is_cut: bool = False
    """True: its agent failed in the middle of it, so that it only has to end."""
    ended: trio.Event | None = None
    """Made once somebody waits for the turn's end."""
    error: Exception | None = None
    """The error that it failed with."""
    failure: Failure | None = None
    """The failure that its callers get."""
    is_recorded: bool = False
    """True: the journal has the failure as the outcome of the turn's messages, perhaps since before a restart."""
    blame: str = "internal"
    """The kind of a failure whose exception does not tell it."""

    def expose(self) -> None:
        """Let the turn be cancelled from now on.

        Raises:
            Interrupted, ModelTimeout, ...: it was asked to stop before.
        """
        if self.stop is not None:
            raise self.stop
        if self.state == "running":
            self.state = "exposed"

    def cover(self) -> None:
        """Let the next step of the turn come to its end before the turn does."""
        if self.state == "exposed":
            self.state = "running"

    def suspend(self) -> None:
        """Give up the turn's task until `resume`."""
        self.task = self.scope = None
        self._move("suspend")

    def resume(self) -> None:
        """Let a suspended turn run again."""
        self.on_stop = None
        self._move("resume")

    def stop_with(self, error: Exception) -> None:
        """End the turn with an error: at once while a model call or tools run, else at the next step."""
        if self.stop is None:
            self.stop = error
        was_exposed = self.state == "exposed"
        self._move("stop")
        if was_exposed and self.scope is not None:
            self.scope.cancel()
        elif self.on_stop is not None:
            self.on_stop()

    def revoke_stop(self) -> None:
        """Forget a stop that came too late: all is done."""
        if self.stop is not None:
            self.stop = None
            self._move("revoke")

    def cut(self, error: Exception) -> None:
        """End the turn, whose task is gone, with its next task, with this error unless it had one."""
        self.is_cut = True
        self.cover()
        self.stop_with(error)

    def end(self) -> None:
        """The turn is over."""
        self.state = "over"
        if self.ended is not None:
            self.ended.set()

    def _move(self, event: str) -> None:
        self.state = TRANSITIONS[event].get(self.state, self.state)


@attrs.define(eq=False)
class TurnAnswer:
    """The answer that a pass of the turn is getting."""

    id: str = ""
    """Its id in the record."""
    is_paused: bool = False
    """True: the provider paused the last answer, and goes on with it as it was."""
    token_failed: str = ""
    """The answer whose tokens a handler has failed at already; once is enough to hear of it."""
    first_at: float | None = None
    """When its first piece came, by the monotonic clock; None: none has come, or nobody reads along."""
    growth: Growth | None = None
    """The part that is there while it grows: kept for the record if the answer is cut."""
    gate: trio.Event | None = None
    """Set when guards have agreed; until then nothing of the answer is shown or kept. None: there is nothing to agree to."""
    is_only_read: bool = False
    """True: it is on its way to the journal, where others read it; nobody here hears it."""
    aside: str = ""
    """Additions of query pre-processors to the next model call."""
    fitting: Fitting | None = None
    """How its request was cut to fit into the model's window, if it was."""
    metadata: Mapping[str, Any] = NO_METADATA
    """The metadata of its message: the stage of the protocol, if the protocol has stages."""


@attrs.define(eq=False, repr=False)
class Turn:
    """All passes from one outside message to its last outcome."""

    message: Message
    options: CallOptions
    started: float
    """Monotonic time in seconds."""
    variables: Context
    """The context variables that it runs with: those of the sender of `message`."""
    host: TurnHost | None = None
    """The agent at work whose turn it is."""
    checkpoint: TurnCheckpoint | None = None
    """The part that was done already, if the turn goes on after a restart."""
    lent_slots: int = 0
    """The number of its tools and handlers that wait for other turns."""
    batch: Batch | None = None
    """Its calls, while they run."""
    listeners: tuple[TurnFuture, ...] = ()
    """The futures of those who want to know its outcome."""
    joined: tuple[Message, ...] = ()
    """Messages that came before `message`, and are answered together with it."""
    limits: Limits = DEFAULT_LIMITS
    budget: Budget | None = None
    """The accounts that it spends from; None if nothing that is shared bounds it."""
    depth: int = 0
    """The number of turns that led to it, one from the other."""
    deepest: int = 0
    """The depth to which it may lead on by the limits of those; 0 if there are none."""
    results: list[ToolResult] = attrs.field(factory=list)
    """Tool results that no handler has seen yet."""
    reported: int = 0
    """The number of messages of the history that handlers of `on_message` have got."""
    pending_approvals: PendingCalls | None = None
    """Calls that wait for people, once all else of their answer is done."""
    progress: TurnProgress = attrs.field(factory=maker(TurnProgress))
    control: TurnControl = attrs.field(factory=maker(TurnControl))
    answer: TurnAnswer = attrs.field(factory=maker(TurnAnswer))

    def __repr__(self) -> str:
        name = shown(f"{self.message.id} in {self.message.session_id}")
        return f"<Turn of {name}, {self._state}, {counted(self.progress.calls, 'model call')}>"

    @property
    def _state(self) -> str:
        control = self.control
        if control.error is not None:
            return "ending"
        if control.task is None and control.state == "running":
            return "queued"
        return "running" if control.state == "exposed" else control.state

    def keep_results(self, results: Iterable[ToolResult], asking: Iterable[str]) -> None:
        """Calls that ended while others wait; those that ask have not started, or ended by asking."""
        if self.checkpoint is None:
            self.checkpoint = TurnCheckpoint(self.message.id)
        self.checkpoint.finished.update({result.call_id: result for result in results})
        self.checkpoint.started.difference_update(asking)

    def is_heard(self) -> bool:
        """Return True if a listener wants everything that handlers hear, tokens too."""
        return any(listener.hears for listener in self.listeners)

    @property
    def over(self) -> float:
        """When its seconds are over, by trio's clock."""
        return self.control.over

    def deadline(self) -> float:
        """Until when what comes of it is of use to anyone, by trio's clock."""
        waits = max((listener.deadline() for listener in self.listeners), default=math.inf)
        return min(self.control.over, waits)

    def add_listener(self, listener: TurnFuture) -> None:
        self.listeners = (*self.listeners, listener)
        listener.turn = self

    def remove_listener(self, listener: TurnFuture) -> None:
        """One does not listen any more; the turn does not mind."""
        self.listeners = tuple(each for each in self.listeners if each is not listener)
        listener.let_go()

    def leave(self, listener: TurnFuture) -> None:
        """One does not wait any more: without another one the turn stops, but not where it waits for people whom a guest came to see."""
        if listener not in self.listeners:
            return
        self.remove_listener(listener)
        is_suspended = self.control.on_stop is not None
        if listener.is_joined:
            return
        if not self.listeners and not (listener.is_guest and is_suspended):
            self.interrupt("the caller is gone")

    def interrupt(self, reason: str) -> None:
        """Stop what runs; the turn ends at its next step."""
        self.control.stop_with(Interrupted(reason))

    def stop_with(self, error: Exception) -> None:
        """End the turn with an error: at once while a model call or tools run, else at its next step."""
        self.control.stop_with(error)

    @property
    def answer_id(self) -> str:
        """The id under which the answer of this pass stands in the record."""
        return self.answer.id

    @property
    def is_ending(self) -> bool:
        """True if the turn will not be resumed: it was stopped, or its agent failed and restarts without it."""
        return self.control.stop is not None or (self.host is not None and self.host.has_failed)

    def check(self) -> None:
        """End the turn here if someone wants it.

        Raises:
            Interrupted: someone does.
            ModelTimeout: its time is over.
        """
        if self.control.stop is not None:
            raise self.control.stop


@attrs.define(eq=False)
class Suspension:
    """A turn that waits for people: it has no task, and this is all that is needed to go on."""

    message: Message
    """The outside message of the turn."""
    turn: Turn | None = None
    """None: it began before a restart, and goes on by `SessionContext.checkpoint`."""
    guests: tuple[TurnFuture, ...] = ()
    """Futures of callers that came while there was no turn."""
    messages: int = 1
    """The number of outside messages that are answered in it."""

    def add_guest(self, guest: TurnFuture) -> None:
        """One comes to hear what comes of the turn, besides those that wait for it."""
        guest.is_guest = True
        if self.turn is None:
            self.guests = (*self.guests, guest)
        else:
            self.turn.add_listener(guest)

    def remove_guest(self, guest: TurnFuture) -> None:
        self.guests = tuple(each for each in self.guests if each is not guest)
        if guest.turn is not None:
            guest.turn.remove_listener(guest)


running_turn: ContextVar[Turn | None] = ContextVar("running_turn", default=None)
"""The turn that a task, or a thread that it waits for, works on."""


def can_go_on(said: Sequence[Message], message_id: str) -> bool:
    """Return True if the failed turn of a message can continue after what was said last; it begins anew if none of its calls ran."""
    if not said or said[-1].cut or not said[-1].tool_results:
        return bool(said) and not said[-1].cut
    its = itertools.takewhile(lambda message: message.id != message_id, reversed(said))
    return any(result.status != "cancelled" for message in its for result in message.tool_results)


def checkpoint_of(turn: Turn, said: Sequence[Message], *, state_number: int) -> TurnCheckpoint | None:
    """Keep what a turn that failed needs to go on behind what was said last; None if it has to begin anew."""
    if not can_go_on(said, turn.message.id):
        return None
    last = said[-1]
    is_answer = last.sender.kind == "assistant" and last.causation_id is not None
    return TurnCheckpoint(
        turn.message.id,
        progress=attrs.evolve(turn.progress, called=None, counted=""),
        stop="end" if is_answer else "",
        state_number=state_number,
        delivered={result.id for result in last.tool_results} - {result.id for result in turn.results},
    )


def is_inside(turn: Turn | None) -> bool:
    """Return True if the calling task is the turn's, or one that the turn itself waits for."""
    if turn is None:
        return False
    task = top = trio.lowlevel.current_task()
    while (nursery := task.parent_nursery) is not None:
        if task is turn.control.task:
            return True
        top, task = task, nursery.parent_task
    # What a thread does by `trio.from_thread` runs in a task of trio's own, with the thread's context.
    return top.context.get(running_turn) is turn
