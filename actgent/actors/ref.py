"""An actor's address, and what travels to it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import attrs
import outcome
import trio

from actgent.errors import ActorFailed, DeadlineExceeded, InboxFull
from actgent.messages import Priority
from actgent.support.quick_init import maker

from .dead_letters import DeadLetter
from .inbox import PriorityInbox
from .lines import MessageLines
from .timer import Timer
from .wait_graph import WaitNode, refuse_cycle, waiting


class Promise:
    """An answer that one task waits for."""

    __slots__ = ("_outcome", "_task")

    def __init__(self) -> None:
        self._outcome: outcome.Outcome[Any] | None = None
        self._task: trio.lowlevel.Task | None = None

    def settle(self, result: outcome.Outcome[Any]) -> None:
        """Give the answer; only the first one counts."""
        if self._outcome is None:
            self._outcome = result
            if self._task is not None:
                trio.lowlevel.reschedule(self._task)

    @trio.lowlevel.enable_ki_protection  # or a task would be woken that does not wait
    async def wait(self) -> Any:
        if self._outcome is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abandon)
        else:
            await trio.lowlevel.checkpoint()
        return self._outcome.unwrap()  # type: ignore[union-attr]

    def _abandon(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


@attrs.define(eq=False, kw_only=True)
class Envelope:
    """A payload on its way, in a line of its actor's inbox; see `lines.py`."""

    payload: Any
    priority: Priority = Priority.NORMAL
    deadline: float | None = None
    promise: Promise | None = None
    failures: int = 0
    session_id: str = ""

    def answer(self, value: object) -> None:
        if self.promise is not None:
            self.promise.settle(outcome.Value(value))

    def fail(self, error: Exception) -> None:
        if self.promise is not None:
            self.promise.settle(outcome.Error(error))


_make_envelope = maker(Envelope)


def payload_bytes(envelope: Envelope) -> int:
    """Return the size of a payload that is bytes or text, in bytes; 0 for other objects, whose size is unknown."""
    payload = envelope.payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return len(payload)
    if isinstance(payload, str):
        return len(payload) if payload.isascii() else len(payload.encode("utf-8", "surrogatepass"))
    return 0


class Address(ABC):
    """Where an actor or an agent takes messages: `tell` and `ask`."""

    name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @abstractmethod
    async def tell(self, payload: Any) -> None:
        """Put a message into its inbox, waiting for room."""

    @abstractmethod
    async def ask(self, payload: Any, *, deadline: float = 30) -> Any:
        """Put a message into its inbox and wait for the answer, `deadline` seconds in all."""

    @abstractmethod
    async def send_again(self, letter: DeadLetter) -> None:
        """Deliver a dead letter, with the priority that it had."""


class ActorRef(Address):
    """An actor's address. It stays good over restarts, and says so when the actor is gone."""

    def __init__(
        self,
        name: str,
        inbox: PriorityInbox[Envelope],
        timer: Timer,
        lines: MessageLines,
        *,
        stop: Callable[[], None],
        bury: Callable[[DeadLetter], None],
        find_waiter: Callable[[], WaitNode | None],
    ) -> None:
        self.name = name
        self._inbox = inbox
        self._timer = timer
        self._stop = stop
        self._bury = bury
        self._find_waiter = find_waiter
        self._lines = lines
        self._gone: str | None = None

    def __repr__(self) -> str:
        state = "gone" if self._gone is not None else f"{len(self._inbox)} waiting"
        return f"<ActorRef {self.name!r}, {state}>"

    @property
    def is_gone(self) -> bool:
        """True if the actor has ended."""
        return self._gone is not None

    async def tell(
        self, payload: Any, *, priority: Priority = Priority.NORMAL, deadline: float | None = None
    ) -> None:
        """Put a message into the actor's inbox, waiting for room until `deadline` seconds (default 30).

        Raises:
            MessageTooLarge: A payload of text or bytes is larger than the inbox.
            InboxFull: there was no room.
            ActorFailed: the actor is gone; the message is a dead letter.
        """
        if self._gone is not None:
            self._refuse(payload, priority)
        line = self._lines.of(payload)
        envelope = _make_envelope(payload=payload, priority=priority, deadline=deadline, session_id=line)
        self._inbox.check_size(envelope)
        await self._inbox.put(envelope)

    def tell_nowait(self, payload: Any, *, priority: Priority = Priority.NORMAL) -> None:
        """`tell`, or `InboxFull` at once."""
        if self._gone is not None:
            self._refuse(payload, priority)
        envelope = _make_envelope(payload=payload, priority=priority, session_id=self._lines.of(payload))
        self._inbox.check_size(envelope)
        self._inbox.put_nowait(envelope, now=trio.current_time())

    async def ask(self, payload: Any, *, priority: Priority = Priority.NORMAL, deadline: float = 30) -> Any:
        """Put a message into the inbox and wait for what the actor returns, `deadline` seconds in all.

        A cancelled ask does not stop the actor; the answer is dropped.

        Raises:
            DeadlineExceeded: no answer in time.
            WaitCycle: the actor waits for the one that asks, itself or through others, so it could never answer. One
                that takes messages side by side could not if they are of one line.
            ActorFailed: the actor is gone, or gave the message up after repeated failures.
        """
        if self._gone is not None:
            raise ActorFailed(self.name, self._gone)
        line = self._lines.of(payload)
        promise = Promise()
        envelope = _make_envelope(
            payload=payload, priority=priority, deadline=deadline, promise=promise, session_id=line
        )
        self._inbox.check_size(envelope)
        waiter = self._find_waiter()
        if waiter is None:
            return await self._ask(envelope, promise, deadline)
        target = self._lines.node(line, self._inbox)
        try:
            refuse_cycle(waiter, target)
            with waiting(waiter, target):
                return await self._ask(envelope, promise, deadline)
        finally:
            self._lines.forget(line)

    async def _ask(self, envelope: Envelope, promise: Promise, deadline: float) -> Any:
        now = trio.current_time()
        handle = self._timer.call_at(now + deadline, partial(self._give_up, promise, deadline))
        try:
            if not self._inbox.try_put(envelope, now=now):
                await self._inbox.put(envelope)
            return await promise.wait()
        except InboxFull as full:
            raise DeadlineExceeded(f"actor {self.name!r}", deadline) from full
        finally:
            handle.cancel()

    def _give_up(self, promise: Promise, deadline: float) -> None:
        promise.settle(outcome.Error(DeadlineExceeded(f"actor {self.name!r}", deadline)))

    async def wait_idle(self) -> None:
        """Wait until the actor has dealt with everything in its inbox, or is gone."""
        await self._inbox.wait_idle()

    @property
    def is_idle(self) -> bool:
        """True if nothing waits for the actor and it works on nothing."""
        return not self._inbox.sessions()

    def stop(self) -> None:
        """End the actor and its children where they are; what waits for it becomes dead letters."""
        self._stop()

    async def send_again(self, letter: DeadLetter) -> None:
        await self.tell(letter.payload, priority=letter.priority)

    def close(self, reason: str) -> None:
        """Take no more messages: the actor has ended."""
        self._gone = reason

    def _refuse(self, payload: Any, priority: Priority) -> NoReturn:
        """Keep a message that nobody will take, and tell its sender.

        Raises:
            ActorFailed: always.
        """
        reason = self._gone or "it is gone"
        self._bury(DeadLetter(self.name, payload, reason, priority=priority))
        raise ActorFailed(self.name, reason)
