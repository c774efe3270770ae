"""Those who wait for what comes of a message, and how its turn is to talk to the model."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio

from actgent.control.limits import Limits
from actgent.errors import Suspended as SuspendedError
from actgent.journal.records import (
    TurnOptions,
)
from actgent.llm.base import Answer
from actgent.messages import (
    Event,
    Failure,
    Reply,
    ToolCall,
)
from actgent.protocols.base import Protocol
from actgent.tools.execution import time_limits

from .reader import TurnReader

if TYPE_CHECKING:
    from .context import SessionContext
    from .session import Session
    from .turn import Turn


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
        self._limits: tuple[trio.CancelScope, ...] = ()
        self._left: tuple[float, ...] = ()
        self._holds = 0
        self._held: TurnWaiter | None = None
        """Who waits for the turn that waits here, and is held by this one."""

    def abandon(self) -> None:
        """Nobody waits any more: the turn stops, now or when it begins."""
        self.abandoned = True
        if self.turn is not None:
            self.turn.interrupt("nobody waits for the answer any more")

    async def leave(self, session: "Session") -> None:
        """Stop waiting because we are cancelled, and let the turn stop.

        Where the session's agent is being stopped with us, the turn is left as it is, for the next start.
        """
        await trio.lowlevel.cancel_shielded_checkpoint()  # until it is known who is cancelled
        if not session.is_stopping:
            self.abandon()

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

    def take_limit(self, asker: "SessionContext | None") -> None:
        """Who waits here, in a tool call of this session: while the turn waits for people, its time does not pass."""
        if self._holds:
            self._let_time_pass()
        self._asker = asker
        self._limits = time_limits.get()
        if self._holds:
            self._stop_time()

    def hold(self) -> None:
        """The turn waits for people, and so do all that wait for it."""
        self._holds += 1
        if self._holds == 1:
            self._stop_time()

    def release(self) -> None:
        """The turn goes on."""
        if not self._holds:
            return
        self._holds -= 1
        if not self._holds:
            self._let_time_pass()

    def _stop_time(self) -> None:
        now = trio.current_time()
        self._left = tuple(limit.deadline - now for limit in self._limits)
        for limit in self._limits:
            limit.deadline = math.inf
        self._held = self._above()
        if self._held is not None:
            self._held.hold()

    def _let_time_pass(self) -> None:
        now = trio.current_time()
        for limit, left in zip(self._limits, self._left, strict=True):
            limit.deadline = now + left
        held, self._held = self._held, None
        if held is not None:
            held.release()

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
