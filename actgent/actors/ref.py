"""An actor's address, and what travels to it."""

from functools import partial
from typing import Any

import attrs
import outcome
import trio

from actgent.errors import ActorFailed, DeadlineExceeded, InboxFull
from actgent.messages import Priority

from .inbox import PriorityInbox
from .timer import Timer


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
    """A payload on its way. All mail of an actor is one line of its inbox, so it takes one at a time."""

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


class ActorRef:
    """An actor's address. It stays good over restarts, and says so when the actor is gone."""

    def __init__(self, name: str, inbox: PriorityInbox[Envelope], timer: Timer) -> None:
        self.name = name
        self._inbox = inbox
        self._timer = timer
        self._scope = trio.CancelScope()
        self._gone: str | None = None

    async def tell(
        self, payload: Any, *, priority: Priority = Priority.NORMAL, deadline: float | None = None
    ) -> None:
        """Put a message into the actor's inbox, waiting for room until `deadline` seconds (default 30).

        Raises:
            InboxFull: there was no room.
            ActorFailed: the actor is gone.
        """
        self._check()
        await self._inbox.put(Envelope(payload=payload, priority=priority, deadline=deadline))

    def tell_nowait(self, payload: Any, *, priority: Priority = Priority.NORMAL) -> None:
        """`tell`, or `InboxFull` at once."""
        self._check()
        self._inbox.put_nowait(Envelope(payload=payload, priority=priority), now=trio.current_time())

    async def ask(self, payload: Any, *, priority: Priority = Priority.NORMAL, deadline: float = 30) -> Any:
        """Put a message into the inbox and wait for what the actor returns, `deadline` seconds in all.

        A cancelled ask does not stop the actor; the answer is dropped.

        Raises:
            DeadlineExceeded: no answer in time.
            ActorFailed: the actor is gone, or gave the message up after repeated failures.
        """
        self._check()
        promise = Promise()
        envelope = Envelope(payload=payload, priority=priority, deadline=deadline, promise=promise)
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
        self._scope.cancel()

    def _check(self) -> None:
        if self._gone is not None:
            raise ActorFailed(self.name, self._gone)
