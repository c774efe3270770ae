"""`Turn`: all model calls and tool calls from one outside message to its outcome, with the turn's state machine."""

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
from actgent.protocols.partial_answers import PartialAnswer
from actgent.support.fast_init import fast_constructor
from actgent.tools.execution import Batch

from .pending.approval_ledger import PendingCalls
from .pending.turn_checkpoint import TurnCheckpoint, TurnProgress
from .pending.turn_future import CallOptions, TurnFuture


class TurnHost(typing.Protocol):
    """Interface of a running agent, as a turn uses it."""

    @property
    def has_failed(self) -> bool: ...
    @property
    def sessions(self) -> Mapping[str, object]: ...
    def lend_slot(self, turn: "Turn") -> bool: ...
    def reclaim_slot(self, turn: "Turn") -> None: ...
    async def wait_started(self, name: str) -> None: ...


# A turn is in one of five states, which seven events change. A state ignores events without a transition:
# an ending turn, for example, cannot become exposed.
#
#   running    executes a step that always completes: handlers, records, journal writes
#   exposed    a model call, tools or another agent run, which may be cancelled at any moment
#   suspended  waits for an approver; holds neither a task nor a slot
#   ending     has a request to stop (by a user, a timeout or a failure of the agent): it ends at its next step
#   over       the handlers have received its last outcome
TurnState = Literal["running", "exposed", "suspended", "ending", "over"]
"""States of a turn. `exposed` means running, and may be cancelled at once."""
TRANSITIONS: Mapping[str, Mapping[TurnState, TurnState]] = {
    "expose": {"running": "exposed"},
    "cover": {"exposed": "running"},
    "suspend": {"running": "suspended", "exposed": "suspended"},
    "resume": {"suspended": "running"},
    "stop": {"running": "ending", "exposed": "ending", "suspended": "ending"},
    "revoke": {"ending": "running"},
    "end": {"running": "over", "exposed": "over", "suspended": "over", "ending": "over"},
}
"""Allowed state changes of a turn, by event: from the current state to the next one."""


@attrs.define(eq=False, repr=False)
class Turn:
    """One turn of a session: all model calls and tool calls from one outside message to its outcome."""

    message: Message
    """Outside message that the turn answers."""
    options: CallOptions
    """Model options of the turn."""
    started: float
    """Start of the turn, as monotonic time in seconds."""
    variables: Context
    """Context variables of the sender of `message`."""
    host: TurnHost | None = None
    """The running agent of the session."""
    checkpoint: TurnCheckpoint | None = None
    """Progress of the turn before a restart; None for a new turn."""
    lent_slots: int = 0
    """Number of tools and handlers of the turn that wait for other turns. Each lends its concurrency slot to another
    turn.
    """
    batch: Batch | None = None
    """Running tool calls; None if there are none."""
    listeners: tuple[TurnFuture, ...] = ()
    """Futures of callers that wait for the outcome of the turn."""
    joined: tuple[Message, ...] = ()
    """Earlier messages that this turn answers together with `message`."""
    limits: Limits = DEFAULT_LIMITS
    """Limits of the turn."""
    budget: Budget | None = None
    """Budget accounts that the turn draws on; None if no shared limit applies."""
    depth: int = 0
    """Number of turns before this one in the chain of agents that ask agents."""
    deepest: int = 0
    """Maximum depth of that chain, by the limits of those turns; 0 means unlimited."""
    results: list[ToolResult] = attrs.field(factory=list)
    """Tool results that no handler has received yet."""
    reported: int = 0
    """Number of history messages that `on_message` handlers have received."""
    pending_approvals: PendingCalls | None = None
    """Tool calls that wait for approvals, after all other calls of the same answer are done; None if there are none."""
    progress: TurnProgress = attrs.field(factory=fast_constructor(TurnProgress))
    """Counters of the turn."""
    state: TurnState = "running"
    """State of the turn; see `TRANSITIONS`."""
    task: trio.lowlevel.Task | None = None
    """trio task that runs the turn; None if no task runs it."""
    scope: trio.CancelScope | None = None
    """Cancel scope of the turn's task; None if no task runs the turn."""
    stop: Exception | None = None
    """Error with which the turn must end, set by `stop_with`; None if the turn was not stopped."""
    on_stop: Callable[[], object] | None = None
    """Function that ends a suspended turn after `stop_with`; None if the turn is not suspended."""
    timer: TimerHandle | None = None
    """Timer that stops the turn at its time limit; None without a limit."""
    over: float = math.inf
    """End of the turn's time limit, on trio's clock; infinite without a limit."""
    is_cut: bool = False
    """True if the agent failed during the turn. The turn then only has to end."""
    ended: trio.Event | None = None
    """Event that is set at the end of the turn; None if no caller waits for it."""
    error: Exception | None = None
    """Exception that ended the turn; None if the turn has not failed."""
    failure: Failure | None = None
    """Failure that callers receive; None if the turn has not failed."""
    is_recorded: bool = False
    """True if the journal has the failure as the outcome of the turn's messages."""
    blame: str = "internal"
    """Failure kind for exceptions whose class does not determine the kind."""
    answer_id: str = ""
    """Id of the current answer in the history."""
    answer_metadata: Mapping[str, Any] = NO_METADATA
    """Metadata of the current answer: the stage of the protocol, if the protocol has stages."""
    is_paused: bool = False
    """True if the provider paused the last answer. The next request continues that answer."""
    token_failed: str = ""
    """Id of the answer whose token handler failed. The failure is reported once per answer."""
    first_at: float | None = None
    """Monotonic time in seconds at which the first piece of the answer arrived; None before that, or without streaming."""
    growth: PartialAnswer | None = None
    """Received part of the streamed answer, which is recorded if the turn is interrupted; None if no answer is being received."""
    gate: trio.Event | None = None
    """Event that is set when the running guards have accepted the turn. Until then no part of an answer is shown or recorded.

    None if no guard runs.
    """
    is_only_read: bool = False
    """True if only readers of the journal receive the answer, and no receiver in this process."""
    aside: str = ""
    """Text that query pre-processors add to the next model call."""
    fitting: Fitting | None = None
    """How the last request was shortened to fit the context window; None if the request was sent in full."""

    def __repr__(self) -> str:
        name = shown(f"{self.message.id} in {self.message.session_id}")
        return f"<Turn of {name}, {self._state}, {counted(self.progress.calls, 'model call')}>"

    @property
    def _state(self) -> str:
        if self.error is not None:
            return "ending"
        if self.task is None and self.state == "running":
            return "queued"
        return "running" if self.state == "exposed" else self.state

    def expose(self) -> None:
        """Allow immediate cancellation of the turn, from now until `cover`.

        Raises:
            Interrupted, ModelTimeout, ...: The turn was stopped before this call.
        """
        if self.stop is not None:
            raise self.stop
        if self.state == "running":
            self.state = "exposed"

    def cover(self) -> None:
        """Forbid immediate cancellation of the turn until `expose`, so that its next step completes."""
        if self.state == "exposed":
            self.state = "running"

    def suspend(self) -> None:
        """Suspend the turn: no task runs it until `resume`."""
        self.task = self.scope = None
        self._move("suspend")

    def resume(self) -> None:
        """Mark a suspended turn as running again."""
        self.on_stop = None
        self._move("resume")

    def stop_with(self, error: Exception) -> None:
        """Stop the turn with an error: at once if cancellation is allowed, otherwise after its current step."""
        if self.stop is None:
            self.stop = error
        was_exposed = self.state == "exposed"
        self._move("stop")
        if was_exposed and self.scope is not None:
            self.scope.cancel()
        elif self.on_stop is not None:
            self.on_stop()

    def revoke_stop(self) -> None:
        """Discard a stop request that arrived after the work was done."""
        if self.stop is not None:
            self.stop = None
            self._move("revoke")

    def cut(self, error: Exception) -> None:
        """End a turn whose task has ended unexpectedly: its next task only ends it, with `error` unless it was stopped before."""
        self.is_cut = True
        self.cover()
        self.stop_with(error)

    def end(self) -> None:
        """Mark the turn as over, and wake the callers that wait for its end."""
        self.state = "over"
        if self.ended is not None:
            self.ended.set()

    def _move(self, event: str) -> None:
        self.state = TRANSITIONS[event].get(self.state, self.state)

    def keep_results(self, results: Iterable[ToolResult], asking: Iterable[str]) -> None:
        """Keep the results of finished calls while the calls with the ids `asking` wait for approvals.

        Args:
            results: Results of the answer's calls.
            asking: Ids of calls that wait for an approval. They no longer count as started.
        """
        if self.checkpoint is None:
            self.checkpoint = TurnCheckpoint(self.message.id)
        self.checkpoint.finished.update({result.call_id: result for result in results})
        self.checkpoint.started.difference_update(asking)

    def has_stream_listener(self) -> bool:
        """Return True if a listener receives stream events (tokens, tool progress), not only the outcome."""
        return any(listener.wants_stream for listener in self.listeners)

    def deadline(self) -> float:
        """Return the latest time, on trio's clock, until which any caller waits for the outcome."""
        waits = max((listener.deadline() for listener in self.listeners), default=math.inf)
        return min(self.over, waits)

    def add_listener(self, listener: TurnFuture) -> None:
        """Add the future of a caller that waits for the outcome."""
        self.listeners = (*self.listeners, listener)
        listener.turn = self

    def remove_listener(self, listener: TurnFuture) -> None:
        """Remove the future of a caller. The turn continues."""
        self.listeners = tuple(each for each in self.listeners if each is not listener)
        listener.detach()

    def leave(self, listener: TurnFuture) -> None:
        """Remove the future of a caller that stops waiting. Stop the turn if no other caller waits.

        A caller that joined a suspended turn never stops the turn.
        """
        if listener not in self.listeners:
            return
        self.remove_listener(listener)
        is_suspended = self.on_stop is not None
        if listener.is_joined:
            return
        if not self.listeners and not (listener.is_guest and is_suspended):
            self.interrupt("the caller is gone")

    def interrupt(self, reason: str) -> None:
        """Stop the turn with the error `Interrupted`."""
        self.stop_with(Interrupted(reason))

    @property
    def is_ending(self) -> bool:
        """True if the turn will not resume: it was stopped, or its agent failed and restarts without it."""
        return self.stop is not None or (self.host is not None and self.host.has_failed)

    def check(self) -> None:
        """Raise the error of a requested stop, if there is one.

        Raises:
            Interrupted: The turn was interrupted.
            ModelTimeout: The time limit of the turn is over.
        """
        if self.stop is not None:
            raise self.stop


@attrs.define(eq=False)
class Suspension:
    """A suspended turn, which waits for approvals and has no task."""

    message: Message
    """Outside message of the turn."""
    turn: Turn | None = None
    """The turn; None if the turn was suspended by an earlier process and resumes from `SessionContext.checkpoint`."""
    joined_futures: tuple[TurnFuture, ...] = ()
    """Futures of callers that joined while `turn` was None."""
    messages: int = 1
    """Number of outside messages that the turn answers."""

    def add_joined_future(self, guest: TurnFuture) -> None:
        """Add the future of a caller that waits for the outcome of the suspended turn."""
        guest.is_guest = True
        if self.turn is None:
            self.joined_futures = (*self.joined_futures, guest)
        else:
            self.turn.add_listener(guest)

    def remove_joined_future(self, guest: TurnFuture) -> None:
        """Remove the future of a caller that stopped waiting."""
        self.joined_futures = tuple(each for each in self.joined_futures if each is not guest)
        if guest.turn is not None:
            guest.turn.remove_listener(guest)


running_turn: ContextVar[Turn | None] = ContextVar("running_turn", default=None)
"""Turn that the current task (or the worker thread that it waits for) works for; None outside of turns."""


def can_resume(messages: Sequence[Message], message_id: str) -> bool:
    """Return True if a failed turn can resume after its last recorded message. Otherwise the turn has to start again."""
    if not messages or messages[-1].cut or not messages[-1].tool_results:
        return bool(messages) and not messages[-1].cut
    its = itertools.takewhile(lambda message: message.id != message_id, reversed(messages))
    return any(result.status != "cancelled" for message in its for result in message.tool_results)


def checkpoint_of(turn: Turn, messages: Sequence[Message], *, state_number: int) -> TurnCheckpoint | None:
    """Return the checkpoint from which a failed turn resumes; None if the turn has to start again."""
    if not can_resume(messages, turn.message.id):
        return None
    last = messages[-1]
    is_answer = last.sender.kind == "assistant" and last.causation_id is not None
    return TurnCheckpoint(
        turn.message.id,
        progress=attrs.evolve(turn.progress, called=None, counted=""),
        stop="end" if is_answer else "",
        state_number=state_number,
        delivered={result.id for result in last.tool_results} - {result.id for result in turn.results},
    )


def is_inside(turn: Turn | None) -> bool:
    """Return True if the calling task works for this turn, or for a turn that waits for it."""
    if turn is None:
        return False
    try:
        task = top = trio.lowlevel.current_task()
    except RuntimeError:  # the worker thread of a tool has the context of its turn
        return running_turn.get() is turn
    while (nursery := task.parent_nursery) is not None:
        if task is turn.task:
            return True
        top, task = task, nursery.parent_task
    # Code that a thread calls through `trio.from_thread` runs in a system task with the context of the thread.
    return top.context.get(running_turn) is turn
