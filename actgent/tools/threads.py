"""Worker threads for sync functions: shared fairly by the agents of a runtime, with an account of those that are left.

Python cannot stop a thread. A cancelled call returns at once, and its thread is *left*: it gives its place to others, and is
counted and named until the function returns. Who has left too many begins no more, until some of them return.

A call that finds no place waits, in the line of its agent. Places go to the agent that holds the fewest; the last quarter of all
places only to agents that hold no more than their part, so that one whose functions all hang does not stop the others.
"""

import contextlib
import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import attrs
import trio

from actgent.errors import NoThread, ThreadsLeft
from actgent.support.foreign import Raised, call_foreign, unwrap_foreign

from .start_order import StartGate, start_gate
from .time_limits import time_limits

T = TypeVar("T")
DEFAULT_THREADS = 40
"""How many threads of one agent run at a time."""
ALL_THREADS = 160
"""The same for all agents of a runtime together."""
MOST_LEFT = 40
"""How many threads an agent may have left behind that have not returned."""
MAX_WAIT = 60.0
"""Seconds that a call waits for a thread; they do not count into the time that its function has."""
_NAMED = 3


@attrs.define(eq=False)
class _Job:
    """One function on its way through a thread."""

    name: str
    share: "ThreadShare"
    gate: StartGate | None = None
    """Opened for the next tool call of the answer as soon as a thread runs the function."""
    begun: bool = False
    is_entered: bool = False
    """True if the thread is about to call the function, and has the GIL."""
    abandoned: bool = False
    """Nobody waits for it any more."""

    def open_gate(self, token: trio.lowlevel.TrioToken) -> None:
        """Let the next call start, once the function has started. Runs in the event loop."""
        if self.gate is None:
            return
        if self.is_entered:
            self.gate.release()
        else:
            token.run_sync_soon(self.open_gate, token)


@attrs.define(eq=False)
class _Caller:
    """A call that waits for a place."""

    told: trio.Event = attrs.field(factory=trio.Event)
    _has_place: bool = False

    def grant(self) -> None:
        """It has a place."""
        self._has_place = True
        self.told.set()

    def has_place(self) -> bool:
        return self._has_place


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP)  # to validate at each change is dear
class Threads:
    """All threads of a runtime, at most `capacity` at a time that somebody waits for."""

    capacity: int = attrs.field(default=DEFAULT_THREADS, validator=attrs.validators.ge(1))
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    running: dict[_Job, None] = attrs.field(factory=dict, init=False, repr=False)
    """In a thread by now; `lock` guards it."""
    _held: int = attrs.field(default=0, init=False)
    """Places that are taken."""
    _reserve: int = attrs.field(init=False)
    """The last places, which are not for those that hold many."""
    _shares: dict[str, "ThreadShare"] = attrs.field(factory=dict, init=False, repr=False)
    _own: "ThreadShare" = attrs.field(init=False, repr=False)
    """For calls of nobody in particular."""
    _waiting: dict["ThreadShare", None] = attrs.field(factory=dict, init=False, repr=False)
    """Those with calls that wait, the first to have come first."""
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._reserve = self.capacity // 4
        self._own = ThreadShare("", self.capacity, self)

    def share(self, name: str, capacity: int) -> "ThreadShare":
        """The part of one agent, which runs at most `capacity` of them."""
        share = self._shares.setdefault(name, ThreadShare(name, capacity, self))
        share.capacity = capacity
        return share

    @property
    def left(self) -> tuple[str, ...]:
        """The names of functions that still run although their call was cancelled or timed out."""
        return self.names_left(None)

    def names_left(self, share: "ThreadShare | None") -> tuple[str, ...]:
        """The same of one agent; None is all."""
        with self.lock:
            return tuple(
                job.name for job in self.running if job.abandoned and (share is None or share is job.share)
            )

    async def run_sync(
        self,
        fn: Callable[..., T],
        *args: object,
        name: str = "",
        never_began: Callable[[], object] | None = None,
    ) -> T:
        """See `ThreadShare.run_sync`; for callers that are no agent's."""
        return await self._own.run_sync(fn, *args, name=name, never_began=never_began)

    # --- places ----------------------------------------------------------------------------

    def take_place(self, share: "ThreadShare") -> bool:
        """Give an agent a place; False: it has to wait, or has left too many."""
        if share.held >= share.capacity or share.count_left >= MOST_LEFT:
            return False
        free = self.capacity - self._held
        if free <= self._reserve and (free <= 0 or share.held >= self._part):
            return False
        self._held += 1
        share.held += 1
        return True

    @property
    def _part(self) -> int:
        """Return how many an agent may hold while few places are free."""
        return max(1, self.capacity // max(1, len(self._shares)), self._reserve // 2)

    def give_back(self, share: "ThreadShare") -> None:
        """A place is free again, for whoever waits."""
        self._held -= 1
        share.held -= 1
        if self._waiting:
            self._admit_next()

    def _admit_next(self) -> None:
        """Give places to those that wait, the agent with the fewest first."""
        for share in sorted(self._waiting, key=lambda each: each.held):
            if self.take_place(share):
                self._admit(share)
                return

    def _admit(self, share: "ThreadShare") -> None:
        del self._waiting[share]
        caller = share.line.popleft()
        if share.line:  # behind the others that hold as many
            self._waiting[share] = None
        caller.grant()

    def queue(self, share: "ThreadShare", caller: _Caller) -> None:
        share.line.append(caller)
        self._waiting.setdefault(share)

    def unqueue(self, share: "ThreadShare", caller: _Caller) -> None:
        share.line.remove(caller)
        if not share.line:
            del self._waiting[share]

    # --- those that are left -----------------------------------------------------------------

    def tell_ended(self) -> None:
        """A thread that was left has returned."""
        self._ended.set()
        self._ended = trio.Event()

    async def wait_left(self, grace: float) -> None:
        """Wait up to `grace` seconds until no thread is left.

        Raises:
            ThreadsLeft: some still run; the text names them.
        """
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(grace):
            while self.left:
                await self._ended.wait()
        if names := self.left:
            raise ThreadsLeft(names, grace)


@attrs.define(eq=False)
class ThreadShare:
    """The threads of one agent."""

    name: str
    capacity: int
    _whole: Threads = attrs.field(repr=False)
    held: int = attrs.field(default=0, init=False)
    """Places that its calls have."""
    line: deque[_Caller] = attrs.field(factory=deque, init=False, repr=False)
    """Its calls that wait for one."""
    count_left: int = attrs.field(default=0, init=False)
    """Threads that are left; the lock guards it."""
    _limiter: trio.CapacityLimiter = attrs.field(init=False, repr=False)
    """Without a limit: places are counted here."""

    def __attrs_post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(math.inf)

    @property
    def left(self) -> tuple[str, ...]:
        """The names of its functions that still run although their call was cancelled or timed out."""
        return self._whole.names_left(self)

    async def run_sync(
        self,
        fn: Callable[..., T],
        *args: object,
        name: str = "",
        never_began: Callable[[], object] | None = None,
    ) -> T:
        """Call a function in a thread, with the caller's context variables; it may use `trio.from_thread`.

        Waits for a free thread, up to `MAX_WAIT`; meanwhile the time limits of the tool call stand still. Cancelled, it
        returns at once: a function that runs is left, another one never begins, and `never_began` is called.

        Raises:
            NoThread: no thread was free in time, or too many of this agent are left. The function never began.
        """
        gate = start_gate.get()
        if gate is not None:
            gate.hold()
        try:
            return await self._run_sync(
                fn, args, name or getattr(fn, "__name__", repr(fn)), never_began, gate
            )
        finally:
            if gate is not None:
                gate.release()

    async def _run_sync(
        self,
        fn: Callable[..., T],
        args: tuple[object, ...],
        name: str,
        never_began: Callable[[], object] | None,
        gate: StartGate | None,
    ) -> T:
        job = _Job(name, self, gate)
        if self.line or not self._whole.take_place(self):
            await self._wait_place(never_began)
        work = functools.partial(self._work, job, trio.lowlevel.current_trio_token(), fn, args)
        try:
            ended = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            self._leave(job)
            if never_began is not None and not job.begun:
                never_began()
            raise
        finally:
            self._whole.give_back(self)
        return unwrap_foreign(ended)

    def _leave(self, job: _Job) -> None:
        """Nobody waits for a function any more; where too many are left, nobody waits for a place either."""
        with self._whole.lock:
            job.abandoned = True
            self.count_left += job in self._whole.running
        if self.count_left >= MOST_LEFT:
            for caller in self.line:
                caller.told.set()

    async def _wait_place(self, never_began: Callable[[], object] | None) -> None:
        self._check_left()
        caller = _Caller()
        self._whole.queue(self, caller)
        try:
            with _standing_still(), trio.move_on_after(MAX_WAIT):
                await caller.told.wait()
        except trio.Cancelled:
            if never_began is not None:
                never_began()
            if caller.has_place():
                self._whole.give_back(self)
            raise
        finally:
            if caller in self.line:
                self._whole.unqueue(self, caller)
        if not caller.has_place():
            self._check_left()
            raise NoThread(f"it waited {MAX_WAIT:g} s for a thread and never began: {self._busy()}")

    def _check_left(self) -> None:
        if self.count_left >= MOST_LEFT:
            raise NoThread(
                f"it never began: {self.count_left} threads of its agent still run functions whose calls are over "
                f"({_few(self.left)}), and none begins before one of them returns"
            )

    def _busy(self) -> str:
        if self.held >= self.capacity:
            return f"all {self.capacity} of its agent are busy (Agent(threads=...))"
        return f"the {self._whole.capacity} of all agents are busy (open_runtime(threads=...))"

    def _work(
        self, job: _Job, token: trio.lowlevel.TrioToken, fn: Callable[..., T], args: tuple[object, ...]
    ) -> tuple[T] | Raised:
        with self._whole.lock:
            if job.abandoned:
                raise RuntimeError(f"{job.name} was cancelled before it began")
            job.begun = True
            self._whole.running[job] = None
        if job.gate is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(job.open_gate, token)
            job.is_entered = (
                True  # run_sync_soon has released the GIL, so the event loop may run before this line
            )
        try:
            return call_foreign(fn, *args)
        finally:
            self._end(job, token)

    def _end(self, job: _Job, token: trio.lowlevel.TrioToken) -> None:
        with self._whole.lock:
            del self._whole.running[job]
            self.count_left -= job.abandoned
        if job.abandoned:
            with contextlib.suppress(trio.RunFinishedError):  # nobody is left to be told
                token.run_sync_soon(self._whole.tell_ended)


@contextlib.contextmanager
def _standing_still() -> Iterator[None]:
    """Have the time of the tool call stand still that we are in."""
    limits = time_limits.get()
    for limit in limits:
        limit.hold()
    try:
        yield
    finally:
        for limit in limits:
            limit.release()


def _few(names: tuple[str, ...]) -> str:
    """The most frequent names, each once."""
    shown = sorted(set(names), key=names.count, reverse=True)
    return ", ".join(shown[:_NAMED]) + (", ..." if len(shown) > _NAMED else "")
