"""`TurnFuture`: the outcome of one message for a waiting caller, and the options of a turn's model calls."""

import math
import typing
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from actgent.errors import Suspended as SuspendedError
from actgent.journal.record_types import TurnOptions
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Event, Failure, Message, Reply, ToolCall, ToolSpec, message_failure
from actgent.protocols.protocol_interface import Protocol
from actgent.support.attrs_class_repr import FieldRepr
from actgent.tools.pausable_time_limits import TimeLimit, time_limits


@attrs.frozen(kw_only=True, repr=False)
class CallOptions(FieldRepr):
    """Options of one turn: protocol, model, prompt, limits, and tools of the caller."""

    protocol: Protocol
    """Protocol of the turn: writes the prompt and parses the model's answers."""
    model: str | None = None
    """Role of the model, such as `smart`, for all model calls of the turn. With None, the agent's protocol chooses the role of each call."""
    temperature: float | None = None
    """Sampling temperature; None is the default of the provider."""
    max_tokens: int | None = None
    """Maximum tokens of one answer; None is the default of the client."""
    system: str | None = None
    """System prompt of the turn; None uses the system prompt of the session."""
    tail: str = ""
    """Text at the end of each prompt of the turn. It is not added to the history."""
    limits: Limits | None = None
    """Limits of the turn; None uses the limits of the agent."""
    deps: Any = attrs.field(default=None, repr=False)
    """Dependencies of the tools in this turn; None uses those of the session."""
    tools: tuple[ToolSpec, ...] = ()
    """Tools that the caller of the turn runs itself."""
    journal_form: TurnOptions | None = None
    """Options that were set for this turn only, in the form that the journal stores; None if there are none."""


class AwaitedTurn(typing.Protocol):
    """Interface of a turn, as the callers that wait for it use it."""

    @property
    def message(self) -> Message: ...
    @property
    def answer_id(self) -> str: ...
    @property
    def listeners(self) -> "tuple[TurnFuture, ...]": ...
    @property
    def time_limit_at(self) -> float: ...
    def leave(self, listener: "TurnFuture") -> None: ...
    def remove_listener(self, listener: "TurnFuture") -> None: ...
    def stop_with(self, error: Exception) -> None: ...


class CallingSession(typing.Protocol):
    """Interface of a session whose turn waits for another turn."""

    @property
    def turn(self) -> AwaitedTurn | None: ...


class Stoppable(typing.Protocol):
    """Interface of an agent that may be stopping."""

    @property
    def is_stopping(self) -> bool: ...


@attrs.frozen(repr=False)
class Outcome(FieldRepr):
    """Outcome of an ended message, stored for callers that send a message with the same id again."""

    reply: Reply | None = None
    """Reply to the message; None if the message failed."""
    failure: Failure | None = None
    """Failure of the message; None if it was answered."""


def reply_of_event(event: Event | None) -> Reply:
    """Return a reply for a turn that gave none: made from the turn's last event, or empty if `event` is None."""
    if event is None:
        return Reply(text="")
    return Reply(
        id=event.id, text="", data=event.data, message_type=event.name, origin=event.origin, via=event.via
    )


class TurnFuture:
    """Future outcome of one sent message, for one caller that waits for the outcome."""

    def __init__(self, options: CallOptions, *, waits_for_approvals: bool = False) -> None:
        self.options = options
        self.waits_for_approvals = waits_for_approvals
        """True if the caller continues to wait while the turn waits for approvals. False raises `Suspended` in the caller."""
        self.done = trio.Event()
        self.reply: Reply | None = None
        self.event: Event | None = None
        self.failure: Failure | None = None
        self.turn: AwaitedTurn | None = None
        self.abandoned = False
        self.is_withdrawn = False
        """True if the message of the caller was withdrawn from the inbox."""
        self.joined_suspended_turn = False
        """True if the caller joined a turn that was waiting for approvals."""
        self.is_joined = False
        """True if the caller repeated the id of an earlier message. Its cancellation then does not stop the turn."""
        self.suspended: SuspendedError | None = None
        """Error with the ids of the pending approvals if the turn was suspended; None otherwise."""
        self._caller: CallingSession | None = None
        self._limits: tuple[TimeLimit, ...] = ()
        self._until = math.inf
        """Deadline of the caller's own cancel scope, in seconds of `trio.current_time()`; infinity without one."""
        self._holds = 0
        self._held: tuple[TurnFuture, ...] = ()
        """Futures of callers of the calling turn. Their time limits are paused while this caller waits."""

    def abandon(self) -> None:
        """Stop waiting for the outcome. If no other caller waits for the turn, stop the turn, or stop it when it starts."""
        self.abandoned = True
        self.detach()
        if self.turn is not None:
            self.turn.leave(self)

    async def leave(self, host: Stoppable) -> None:
        """Stop waiting after the waiting task was cancelled. If no other caller waits for the turn, stop the turn.

        If the agent `host` of the waiting code is stopping, do nothing: its next start resumes the waiting code.
        """
        await (
            trio.lowlevel.cancel_shielded_checkpoint()
        )  # so that `host.is_stopping` is set if the agent's shutdown caused the cancellation
        if not host.is_stopping:
            self.abandon()

    def set_reply(self, delivery: object) -> None:
        """Store a reply or an event of the turn as its answer. The last reply takes precedence over the last event."""
        if isinstance(delivery, Reply):
            self.reply = delivery
        elif isinstance(delivery, Event):
            self.event = delivery

    def answer(self) -> Reply:
        """Return the answer of the turn: the last reply, or a reply made from the last event, or an empty reply."""
        return self.reply or reply_of_event(self.event)

    @property
    def has_outcome(self) -> bool:
        """True if the turn has produced a reply, an event or a failure."""
        return self.reply is not None or self.event is not None or self.failure is not None

    def suspend(self, error: SuspendedError) -> None:
        """Finish the wait with `error`, because the turn is suspended and this caller does not wait for approvals."""
        self.suspended = error
        self.turn = None
        self.finish()

    def withdraw(self, message_id: str, error: SuspendedError) -> None:
        """Finish the wait with `error`, because the message was withdrawn from the inbox of a session with a suspended turn."""
        self.is_withdrawn = True
        self.failure = message_failure(message_id, "suspended", error, is_outcome=False)
        self.finish()

    def expire(self, error: Exception) -> None:
        """End the wait with `error`, because the timeout of the caller is over. Do nothing if the wait has ended.

        If no other caller waits for the turn, stop the turn with `error`. Otherwise only this caller receives the failure.
        """
        if self.done.is_set():
            return
        turn = self.turn
        if turn is not None and turn.listeners == (self,) and not self.is_joined:
            turn.stop_with(error)
            return
        message_id = "" if turn is None else turn.message.id
        self.failure = message_failure(message_id, "deadline", error, is_outcome=False)
        self.receive_delivery(self.failure)
        self.abandon()
        self.finish()

    def bind_time_limits(self, caller: CallingSession | None) -> None:
        """Store the time limits of the calling task, such as tool timeouts, so that they pause during suspensions for approvals.

        `caller` is the calling session; None outside of turns.
        """
        if self._holds:
            for each in self._resume_time_limits():
                each.release()
        self._caller = caller
        self._limits = time_limits.get()
        until = trio.current_effective_deadline()
        self._until = until if all(until < limit.deadline for limit in self._limits) else math.inf
        if self._holds:
            for each in self._stop_time():
                each.hold()

    def wait_until(self, deadline: float) -> None:
        """Set the latest end of the wait, in seconds of trio's clock. Suspensions for approvals do not extend this time."""
        self._until = min(self._until, deadline)

    def deadline(self) -> float:
        """Return the time until which a caller can use the outcome, in seconds of trio's clock.

        This is the earlier one of two times: the deadline of this caller, and the latest deadline of the callers that wait for the turn
        of this caller.
        """
        until, above = math.inf, [self]
        while len(above) == 1:  # callers of callers
            until, above = min(until, above[0].own_deadline), [*above[0].above()]
        return min(until, max((each.deadline() for each in above), default=math.inf))

    @property
    def own_deadline(self) -> float:
        """Time on trio's clock until which this caller waits. The deadlines of the callers of this caller's turn are ignored."""
        turn = self._caller.turn if self._caller is not None else None
        turn_deadline = math.inf if turn is None else turn.time_limit_at
        return min((self._until, turn_deadline, *(limit.deadline for limit in self._limits)))

    def hold(self) -> None:
        """Pause the time limits of this caller and of all direct and indirect callers that wait for its turn.

        Call this method when the awaited turn is suspended for an approval.
        """
        held = [self]
        while held:
            held += held.pop().pause_own_timeouts()

    def pause_own_timeouts(self) -> "tuple[TurnFuture, ...]":
        """Pause the time limits of this caller. Return the futures of the callers that wait for the turn of this caller.

        If the limits are already paused, only count this pause, and return no futures.
        """
        self._holds += 1
        return self._stop_time() if self._holds == 1 else ()

    def release(self) -> None:
        """Resume the time limits that `hold` paused, because the awaited turn resumes."""
        released = [self]
        while released:
            released += released.pop().resume_own_timeouts()

    def resume_own_timeouts(self) -> "tuple[TurnFuture, ...]":
        """Undo one pause of this caller's time limits. After the last pause, the limits continue.

        Return the futures of the callers that wait for the turn of this caller, if the limits continue; otherwise no futures.
        """
        if not self._holds:
            return ()
        self._holds -= 1
        return () if self._holds else self._resume_time_limits()

    def detach(self) -> None:
        """Stop waiting for the outcome, and resume all time limits that this future has paused."""
        if self._holds:
            self._holds = 0
            for each in self._resume_time_limits():
                each.release()

    def _stop_time(self) -> "tuple[TurnFuture, ...]":
        """Pause the time limits of this caller. Return the futures of the callers that wait for the turn of this caller."""
        for limit in self._limits:
            limit.hold()
        self._held = self.above()
        return self._held

    def _resume_time_limits(self) -> "tuple[TurnFuture, ...]":
        """Resume the time limits of this caller.

        Return the futures of the callers that waited for the turn of this caller when the limits were paused.
        """
        for limit in self._limits:
            limit.release()
        held, self._held = self._held, ()
        return held

    def above(self) -> "tuple[TurnFuture, ...]":
        """Return the futures of the callers that wait for the turn in which this caller runs; empty if it runs in no turn."""
        turn = self._caller.turn if self._caller is not None else None
        return turn.listeners if turn is not None else ()

    def outcome(self) -> Reply:
        """Return the reply of the turn, or raise its error.

        Raises:
            Suspended: The turn waits for approvals.
            ActgentError: The turn failed.
        """
        if self.failure is not None:
            raise self.failure.error
        if self.suspended is not None:
            raise self.suspended
        return self.answer()

    def finish(self) -> None:
        """Wake the waiting caller, because the turn has ended or is suspended."""
        self.done.set()

    @property
    def wants_stream(self) -> bool:
        """True if this caller also receives stream events (tokens, tool progress), not only the outcome."""
        return False

    def receive_delivery(self, delivery: object) -> None:
        """Receive an outcome, tool result or stream event of the turn. This class ignores them; `TurnStream` stores them."""

    async def wait_capacity(self) -> None:
        """Wait until the caller can receive another token. In this class, return at once; in `TurnStream`, wait for the reader."""

    async def receive_partial(self, text: str, attempt: int) -> None:
        """Receive a text delta of a streamed answer, if `wants_stream` is True. A new attempt discards the deltas of earlier ones."""

    def receive_answer(self, answer: ModelResponse) -> None:
        """Receive a complete answer of the model, after it was recorded and before it is processed."""

    def receive_calls(self, calls: Sequence[ToolCall]) -> None:
        """Receive the tool calls that are about to run. Their results have the same ids."""
