"""Futures for the outcome of one message, and how its turn talks to the model."""

import math
import typing
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from actgent.control.limits import Limits
from actgent.errors import Suspended as SuspendedError
from actgent.journal.records import TurnOptions
from actgent.llm.base import Answer
from actgent.messages import Event, Failure, Message, Reply, ToolCall, message_failure
from actgent.protocols.base import Protocol
from actgent.tools.time_limits import TimeLimit, time_limits


@attrs.frozen(kw_only=True)
class CallOptions:
    """How a turn talks to the model."""

    protocol: Protocol
    model: str | None = None
    """The role of the model that all calls of this turn ask; None is what the protocol asks for."""
    temperature: float | None = None
    max_tokens: int | None = None
    system: str | None = None
    """The system prompt of this turn alone; None is the session's."""
    tail: str = ""
    """Said at the end of the prompt, in each call of this turn, and not remembered."""
    limits: Limits | None = None
    """Limits of this turn alone; None is the agent's."""
    deps: Any = attrs.field(default=None, repr=False)
    """Deps that tools of this turn alone are given."""
    journal_form: TurnOptions | None = None
    """The per-turn overrides in this object, in the form that a journal stores."""


class AwaitedTurn(typing.Protocol):
    """A turn, as far as those who wait for it know it."""

    @property
    def message(self) -> Message: ...
    @property
    def answer_id(self) -> str: ...
    @property
    def listeners(self) -> "tuple[TurnFuture, ...]": ...
    @property
    def over(self) -> float: ...
    def leave(self, listener: "TurnFuture") -> None: ...
    def remove_listener(self, listener: "TurnFuture") -> None: ...
    def stop_with(self, error: Exception) -> None: ...


class AskingSession(typing.Protocol):
    """A session whose turn waits, as far as those who wait for it know it."""

    @property
    def turn(self) -> AwaitedTurn | None: ...


class Stoppable(typing.Protocol):
    """Something that may be ending together with those who wait in it."""

    @property
    def is_stopping(self) -> bool: ...


@attrs.frozen
class Outcome:
    """What a message came to that was said under an id of its caller's."""

    reply: Reply | None = None
    failure: Failure | None = None


class TurnFuture:
    """The outcome of one outside message, for someone who waits for it."""

    def __init__(self, options: CallOptions, *, is_patient: bool = False) -> None:
        self.options = options
        self.is_patient = is_patient
        """True if it waits for people, too."""
        self.done = trio.Event()
        self.reply: Reply | None = None
        self.event: Event | None = None
        self.failure: Failure | None = None
        self.turn: AwaitedTurn | None = None
        self.abandoned = False
        self.is_sent_away = False
        """True if its message was taken out of the inbox again."""
        self.is_guest = False
        """True if it came when the turn waited for people already."""
        self.is_joined = False
        """True if it repeated a message that others said before, so that it stops nothing by leaving."""
        self.suspended: SuspendedError | None = None
        """Names what the turn waits for, where it was suspended."""
        self._asker: AskingSession | None = None
        self._limits: tuple[TimeLimit, ...] = ()
        self._until = math.inf
        """The deadline of who waits, where a scope of its own sets it."""
        self._holds = 0
        self._held: tuple[TurnFuture, ...] = ()
        """Futures of the turn that waits here, held by this one."""

    def abandon(self) -> None:
        """Wait no more: if nobody else does, the turn stops, now or when it begins."""
        self.abandoned = True
        self.let_go()
        if self.turn is not None:
            self.turn.leave(self)

    async def leave(self, host: Stoppable) -> None:
        """Stop waiting because we are cancelled, and let the turn stop.

        Where `host`, the agent in which we wait, is being stopped with us, the turn is left as it is, for the next start.
        """
        await trio.lowlevel.cancel_shielded_checkpoint()  # until it is known who is cancelled
        if not host.is_stopping:
            self.abandon()

    def set_reply(self, delivery: object) -> None:
        """The last reply counts; where there is none, the last event stands in for it."""
        if isinstance(delivery, Reply):
            self.reply = delivery
        elif isinstance(delivery, Event):
            self.event = delivery

    def answer(self) -> Reply:
        """Return the reply of the turn."""
        if self.reply is not None or self.event is None:
            return self.reply or Reply(text="")
        return Reply(id=self.event.id, text="", data=self.event.data, message_type=self.event.name)

    @property
    def has_heard(self) -> bool:
        """True if the turn has an outcome so far."""
        return self.reply is not None or self.event is not None or self.failure is not None

    def suspend(self, error: SuspendedError) -> None:
        """The turn waits for people, and this one does not wait for that."""
        self.suspended = error
        self.turn = None
        self.finish()

    def send_away(self, message_id: str, error: SuspendedError) -> None:
        """The message stood behind a turn that waits for people by now, and was taken out again."""
        self.is_sent_away = True
        self.failure = message_failure(message_id, "suspended", error, is_outcome=False)
        self.finish()

    def expire(self, error: Exception) -> None:
        """Its time is over: so is the turn, if nobody else waits for it."""
        if self.done.is_set():
            return
        turn = self.turn
        if turn is not None and turn.listeners == (self,) and not self.is_joined:
            turn.stop_with(error)
            return
        message_id = "" if turn is None else turn.message.id
        self.failure = message_failure(message_id, "deadline", error, is_outcome=False)
        self.hear(self.failure)
        self.abandon()
        self.finish()

    def take_limit(self, asker: AskingSession | None) -> None:
        """Pause the caller's tool timeout while this turn is suspended for an approval."""
        if self._holds:
            for each in self._let_time_pass():
                each.release()
        self._asker = asker
        self._limits = time_limits.get()
        until = trio.current_effective_deadline()
        self._until = until if all(until < limit.deadline for limit in self._limits) else math.inf
        if self._holds:
            for each in self._stop_time():
                each.hold()

    def wait_until(self, deadline: float) -> None:
        """Have model calls know until when it waits at most, by trio's clock; that does not stand still for people."""
        self._until = min(self._until, deadline)

    def deadline(self) -> float:
        """Until when it waits, by trio's clock, as things are now: those count, too, that wait for its asker."""
        until, above = math.inf, [self]
        while len(above) == 1:  # a chain of any length
            until, above = min(until, above[0].own_deadline), [*above[0].above()]
        return min(until, max((each.deadline() for each in above), default=math.inf))

    @property
    def own_deadline(self) -> float:
        """The same without those that wait for its asker."""
        turn = self._asker.turn if self._asker is not None else None
        over = math.inf if turn is None else turn.over
        return min((self._until, over, *(limit.deadline for limit in self._limits)))

    def hold(self) -> None:
        """The turn waits for people, and so do all that wait for it."""
        held = [self]
        while held:
            held += held.pop().hold_alone()

    def hold_alone(self) -> "tuple[TurnFuture, ...]":
        """It waits for people; returns who is held by that."""
        self._holds += 1
        return self._stop_time() if self._holds == 1 else ()

    def release(self) -> None:
        """The turn goes on."""
        released = [self]
        while released:
            released += released.pop().release_alone()

    def release_alone(self) -> "tuple[TurnFuture, ...]":
        """It goes on; returns who was held by it."""
        if not self._holds:
            return ()
        self._holds -= 1
        return () if self._holds else self._let_time_pass()

    def let_go(self) -> None:
        """It waits no more, and holds nobody's time."""
        if self._holds:
            self._holds = 0
            for each in self._let_time_pass():
                each.release()

    def _stop_time(self) -> "tuple[TurnFuture, ...]":
        """Returns who is held by that."""
        for limit in self._limits:
            limit.hold()
        self._held = self.above()
        return self._held

    def _let_time_pass(self) -> "tuple[TurnFuture, ...]":
        """Returns who was held by it."""
        for limit in self._limits:
            limit.release()
        held, self._held = self._held, ()
        return held

    def above(self) -> "tuple[TurnFuture, ...]":
        """Return the futures that wait for the turn in which this one waits."""
        turn = self._asker.turn if self._asker is not None else None
        return turn.listeners if turn is not None else ()

    def outcome(self) -> Reply:
        """Return the reply of the turn, or raise its error.

        Raises:
            Suspended: it waits for people.
            ActgentError: it failed.
        """
        if self.failure is not None:
            raise self.failure.error
        if self.suspended is not None:
            raise self.suspended
        return self.answer()

    def finish(self) -> None:
        """The turn has ended, or waits for people."""
        self.done.set()

    @property
    def hears(self) -> bool:
        """True if it wants everything that handlers hear, tokens too."""
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
