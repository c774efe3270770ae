"""`ActorRef`, the address of an actor, with the envelopes and promises that carry messages and answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import attrs
import outcome
import trio

from actgent.errors import ActorFailed, DeadlineExceeded, InboxFull
from actgent.messages import Priority
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor

from .dead_letters import DeadLetter
from .deadline_timer import Timer
from .inbox import PriorityInbox
from .message_groups import MessageGroups
from .wait_graph import WaitNode, reject_cycle, waiting


class Promise:
    """A one-shot result that one task waits for."""

    __slots__ = ("_outcome", "_task")

    def __init__(self) -> None:
        self._outcome: outcome.Outcome[Any] | None = None
        self._task: trio.lowlevel.Task | None = None

    def settle(self, result: outcome.Outcome[Any]) -> None:
        """Set the result and wake the waiting task. Later calls are ignored."""
        if self._outcome is None:
            self._outcome = result
            if self._task is not None:
                trio.lowlevel.reschedule(self._task)

    @trio.lowlevel.enable_ki_protection  # an interrupt in between would wake a task that does not wait
    async def wait(self) -> Any:
        """Wait until the actor has processed the message. Return the value that the actor returned, or raise its error."""
        if self._outcome is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abandon)
        else:
            await trio.lowlevel.checkpoint()
        return self._outcome.unwrap()  # type: ignore[union-attr]

    def _abandon(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


@attrs.define(eq=False, kw_only=True, repr=False)
class Envelope(FieldRepr):
    """A payload in the inbox of an actor. `session_id` is the message group, whose messages are processed in order."""

    payload: Any
    priority: Priority = Priority.NORMAL
    deadline: float | None = None
    promise: Promise | None = None
    failures: int = 0
    session_id: str = ""
    size: int = 0
    """Size of the payload in bytes; 0 if it is unknown."""

    def answer(self, value: object) -> None:
        """Send the actor's answer to the caller that waits in `ask`. Do nothing if the message was sent without waiting."""
        if self.promise is not None:
            self.promise.settle(outcome.Value(value))

    def fail(self, error: Exception) -> None:
        """Send an error to the caller that waits in `ask`, which raises it. Do nothing if the message was sent without waiting."""
        if self.promise is not None:
            self.promise.settle(outcome.Error(error))


_make_envelope = fast_constructor(Envelope)


def payload_bytes(payload: object) -> int:
    """Return the size of a payload that is bytes or text, in bytes; 0 for other objects, whose size is unknown."""
    if isinstance(payload, str):
        return len(payload) if payload.isascii() else len(payload.encode("utf-8", "surrogatepass"))
    return len(payload) if isinstance(payload, (bytes, bytearray, memoryview)) else 0


class Address(ABC):
    """Address of an actor or an agent: `tell` sends a message, `ask` also waits for the answer."""

    name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @abstractmethod
    async def tell(self, payload: Any) -> None:
        """Enqueue a message, waiting for room in the inbox."""

    @abstractmethod
    async def ask(self, payload: Any, *, deadline: float = 30) -> Any:
        """Enqueue a message and wait for the answer, at most `deadline` seconds in total."""

    @abstractmethod
    async def send_again(self, letter: DeadLetter) -> None:
        """Enqueue the payload of a dead letter again, with its priority."""


class ActorRef(Address):
    """Address of an actor. It stays valid across restarts. Calls raise `ActorFailed` after the actor has ended."""

    def __init__(
        self,
        name: str,
        inbox: PriorityInbox[Envelope],
        timer: Timer,
        groups: MessageGroups,
        *,
        stop: Callable[[], None],
        dead_letter: Callable[[DeadLetter], None],
        find_waiter: Callable[[], WaitNode | None],
    ) -> None:
        self.name = name
        self._inbox = inbox
        self._timer = timer
        self._stop = stop
        self._dead_letter = dead_letter
        self._find_waiter = find_waiter
        self._groups = groups
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
        """Enqueue a message, waiting at most `deadline` seconds (default 30) for room in the inbox.

        Raises:
            MessageTooLarge: A payload of text or bytes is larger than the inbox.
            InboxFull: The inbox stayed full.
            ActorFailed: The actor has ended. The message is kept as a dead letter.
        """
        if self._gone is not None:
            self._reject(payload, priority)
        group = self._groups.group_of(payload)
        envelope = _make_envelope(
            payload=payload,
            priority=priority,
            deadline=deadline,
            session_id=group,
            size=payload_bytes(payload),
        )
        if envelope.size:
            self._inbox.check_size(envelope)
        await self._inbox.put(envelope)

    def tell_nowait(self, payload: Any, *, priority: Priority = Priority.NORMAL) -> None:
        """Enqueue a message without waiting; raise `InboxFull` if there is no room. Other errors are those of `tell`."""
        if self._gone is not None:
            self._reject(payload, priority)
        envelope = _make_envelope(
            payload=payload,
            priority=priority,
            session_id=self._groups.group_of(payload),
            size=payload_bytes(payload),
        )
        if envelope.size:
            self._inbox.check_size(envelope)
        self._inbox.put_nowait(envelope, now=trio.current_time())

    async def ask(self, payload: Any, *, priority: Priority = Priority.NORMAL, deadline: float = 30) -> Any:
        """Enqueue a message and return the actor's answer, waiting at most `deadline` seconds in total.

        A cancelled call does not stop the actor. The answer is then discarded.

        Raises:
            DeadlineExceeded: The actor did not answer in time.
            DeadlockDetected: The actor waits for the caller, directly or through other actors, so it could never answer. With
                `concurrency=` above 1 this applies per message group.
            ActorFailed: The actor has ended, or the message failed too often.
        """
        if self._gone is not None:
            raise ActorFailed(self.name, self._gone)
        group = self._groups.group_of(payload)
        promise = Promise()
        envelope = _make_envelope(
            payload=payload,
            priority=priority,
            deadline=deadline,
            promise=promise,
            session_id=group,
            size=payload_bytes(payload),
        )
        if envelope.size:
            self._inbox.check_size(envelope)
        waiter = self._find_waiter()
        if waiter is None:
            return await self._ask(envelope, promise, deadline)
        target = self._groups.node(group, self._inbox)
        try:
            reject_cycle(waiter, target)
            with waiting(waiter, target):
                return await self._ask(envelope, promise, deadline)
        finally:
            self._groups.forget(group)

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
        """Wait until the inbox is empty and no message is being processed, or the actor has ended."""
        await self._inbox.wait_idle()

    @property
    def is_idle(self) -> bool:
        """True if the inbox is empty and no message is being processed."""
        return not self._inbox.sessions()

    def stop(self) -> None:
        """Cancel the actor and its children. Queued messages become dead letters."""
        self._stop()

    async def send_again(self, letter: DeadLetter) -> None:
        await self.tell(letter.payload, priority=letter.priority)

    def close(self, reason: str) -> None:
        """Reject further messages, because the actor has ended. `reason` is the text of their errors."""
        self._gone = reason

    def _reject(self, payload: Any, priority: Priority) -> NoReturn:
        """Store the message as a dead letter, and raise because the actor has ended.

        Raises:
            ActorFailed: Always.
        """
        reason = self._gone or "it is gone"
        self._dead_letter(DeadLetter(self.name, payload, reason, priority=priority))
        raise ActorFailed(self.name, reason)
