"""Worker threads for sync functions, shared fairly by the agents of a runtime.

Python cannot stop a thread. A cancelled call returns immediately and *abandons* its thread: the slot is released, and the
thread is counted and named until its function returns. An agent with `MAX_ABANDONED` abandoned threads starts no new ones.

A call without a free slot waits in its agent's queue. A free slot goes to the agent that uses the fewest slots. The last
quarter of the slots is reserved for agents below their fair share. So an agent with only hanging functions does not block the
others.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar
from weakref import WeakValueDictionary

import attrs
import trio

from actgent.errors import ThreadPoolExhausted, ThreadsStillRunning
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.number_field_validators import whole_number
from actgent.support.user_code_calls import Raised, call_user_code, unwrap_result

from .pausable_time_limits import time_limits
from .tool_call_start_order import StartGate, start_gate

T = TypeVar("T")
AGENT_THREADS = 40
"""Default number of concurrent threads of one agent."""
RUNTIME_THREADS = 160
"""Default number of concurrent threads of all agents of a runtime."""
MAX_ABANDONED = 40
"""Maximum number of abandoned threads of one agent that are still running."""
MAX_WAIT_SECONDS = 60.0
"""Maximum time that a call waits for a thread. Not counted towards the timeout of its function."""
_MAX_NAMES = 3
"""Maximum number of function names in an error text."""


@attrs.define(eq=False, repr=False)
class _Job(FieldRepr):
    """A function call that runs in a worker thread."""

    name: str
    """Name of the called function, for error texts."""
    share: "ThreadShare"
    """Thread share of the agent that made the call."""
    gate: StartGate | None = None
    """Blocks the next tool call of the same answer. It opens as soon as a thread runs this job's function."""
    has_started: bool = False
    """True if the thread has started to run the job."""
    is_calling: bool = False
    """True if the thread is about to call the function and holds the GIL."""
    abandoned: bool = False
    """True if the caller was cancelled, so that the result is discarded."""

    def open_gate(self, token: trio.lowlevel.TrioToken) -> None:
        """Let the next tool call start if this job's function runs, else try again later. Called in the event loop."""
        if self.gate is None:
            return
        if self.is_calling:
            self.gate.release()
        else:
            token.run_sync_soon(self.open_gate, token)


@attrs.define(eq=False, repr=False)
class _Waiter(FieldRepr):
    """A call that waits for a thread slot."""

    wake: trio.Event = attrs.field(factory=trio.Event)
    """Set when the slot is granted or the call must stop waiting."""
    _is_granted: bool = False

    def grant(self) -> None:
        """Grant a thread slot to the waiting call, and wake the call."""
        self._is_granted = True
        self.wake.set()

    def is_granted(self) -> bool:
        """Return True if the waiting call was granted a thread slot."""
        return self._is_granted


@attrs.define(eq=False, on_setattr=attrs.setters.NO_OP, repr=False)  # validation at each assignment is slow
class Threads(FieldRepr):
    """All worker threads of a runtime. At most `capacity` calls run concurrently, not counting abandoned threads."""

    capacity: int = attrs.field(default=AGENT_THREADS, validator=whole_number(1))
    """Maximum number of concurrent calls."""
    lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    """Lock for `running` and the abandoned counts, which worker threads change."""
    running: dict[_Job, None] = attrs.field(factory=dict, init=False, repr=False)
    """Jobs that run in a thread, including abandoned ones; guarded by `lock`."""
    _used: int = attrs.field(default=0, init=False)
    """Number of thread slots in use."""
    _reserve: int = attrs.field(init=False)
    """Number of slots reserved for agents that use less than their fair share."""
    _shares: WeakValueDictionary[str, "ThreadShare"] = attrs.field(
        factory=WeakValueDictionary, init=False, repr=False
    )
    """Thread shares of the agents, by name, as long as the agent or one of its calls exists."""
    _default_share: "ThreadShare" = attrs.field(init=False, repr=False)
    """Thread share for calls outside of agents."""
    _waiting_shares: dict["ThreadShare", None] = attrs.field(factory=dict, init=False, repr=False)
    """Thread shares with waiting calls, in the order in which they began to wait."""
    _limiter: trio.CapacityLimiter | None = attrs.field(default=None, init=False, repr=False)
    _returned: trio.Event = attrs.field(factory=trio.Event, init=False, repr=False)
    """Set when an abandoned thread returns; replaced by a new event each time."""

    def __attrs_post_init__(self) -> None:
        self._reserve = self.capacity // 4
        self._default_share = ThreadShare("", self.capacity, self)

    @property
    def limiter(self) -> trio.CapacityLimiter:
        """Limiter for trio without a limit, because this object itself counts the slots. It is created for the first call."""
        if self._limiter is None:
            self._limiter = trio.CapacityLimiter(math.inf)
        return self._limiter

    def share(self, name: str, capacity: int) -> "ThreadShare":
        """Return the thread share of the agent `name`, created on first use, and set its maximum number of concurrent calls."""
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = ThreadShare(name, capacity, self)
        share.capacity = capacity
        return share

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Names of the functions that are still running although their call was cancelled or timed out."""
        return self.abandoned_names(None)

    def abandoned_names(self, share: "ThreadShare | None") -> tuple[str, ...]:
        """Return the names of the abandoned functions of one agent's share; None as `share` means all shares."""
        with self.lock:
            return tuple(
                job.name for job in self.running if job.abandoned and (share is None or share is job.share)
            )

    async def run_sync(
        self,
        fn: Callable[..., T],
        *args: object,
        name: str = "",
        on_not_started: Callable[[], object] | None = None,
    ) -> T:
        """Run a function in a worker thread, for callers outside of agents. `ThreadShare.run_sync` describes arguments and errors."""
        return await self._default_share.run_sync(fn, *args, name=name, on_not_started=on_not_started)

    # --- slots -----------------------------------------------------------------------------

    def try_acquire_slot(self, share: "ThreadShare") -> bool:
        """Acquire a thread slot for the thread share of an agent without waiting.

        Return False if the share must wait or has too many abandoned threads.
        """
        if share.slots_used >= share.capacity or share.abandoned_count >= MAX_ABANDONED:
            return False
        free = self.capacity - self._used
        if free <= self._reserve and (free <= 0 or share.slots_used >= self._fair_share):
            return False
        self._used += 1
        share.slots_used += 1
        return True

    @property
    def _fair_share(self) -> int:
        """Maximum number of thread slots of an agent while only reserved slots are free.

        The reserve is for agents that run few calls. The number is the capacity divided by the number of agents, but
        at least half of the reserve.
        """
        return max(1, self.capacity // max(1, len(self._shares)), self._reserve // 2)

    def release_slot(self, share: "ThreadShare") -> None:
        """Release a slot of a share. If calls are waiting, give the slot to the waiting share that uses the fewest slots."""
        self._used -= 1
        share.slots_used -= 1
        if self._waiting_shares:
            self._grant_next()

    def _grant_next(self) -> None:
        """Grant the free slot to the waiting share that uses the fewest slots."""
        for share in sorted(self._waiting_shares, key=lambda each: each.slots_used):
            if self.try_acquire_slot(share):
                self._grant_first(share)
                return

    def _grant_first(self, share: "ThreadShare") -> None:
        """Wake the first call that waits for a thread slot of a share."""
        del self._waiting_shares[share]
        waiter = share.waiters.pop(0)
        if share.waiters:  # to the end, after the other shares with as many slots
            self._waiting_shares[share] = None
        waiter.grant()

    def enqueue(self, share: "ThreadShare", waiter: _Waiter) -> None:
        """Add a waiting call to the queue of a share. `release_slot` gives the call a slot later."""
        share.waiters.append(waiter)
        self._waiting_shares.setdefault(share)

    def dequeue(self, share: "ThreadShare", waiter: _Waiter) -> None:
        """Remove a call from the queue of a share, because the call no longer waits for a slot."""
        share.waiters.remove(waiter)
        if not share.waiters:
            del self._waiting_shares[share]

    # --- abandoned threads ------------------------------------------------------------------------

    def notify_returned(self) -> None:
        """Wake `wait_abandoned` after an abandoned thread has returned."""
        self._returned.set()
        self._returned = trio.Event()

    async def wait_abandoned(self, grace: float) -> None:
        """Wait until all abandoned threads have returned, at most `grace` seconds. Cancellation does not end the wait.

        Raises:
            ThreadsStillRunning: Some threads still run; the text names their functions.
        """
        if not self.running:  # the usual case
            return
        with trio.move_on_after(grace, shield=True):
            await trio.lowlevel.checkpoint()
            while self.abandoned:
                await self._returned.wait()
        if names := self.abandoned:
            raise ThreadsStillRunning(names, grace)


@attrs.define(eq=False, repr=False)
class ThreadShare(FieldRepr):
    """The worker threads of one agent."""

    name: str
    """Name of the agent; empty for the default share."""
    capacity: int
    """Maximum number of the agent's concurrent calls."""
    _threads: Threads = attrs.field(repr=False)
    slots_used: int = attrs.field(default=0, init=False)
    """Number of slots that the agent's calls use."""
    waiters: list[_Waiter] = attrs.field(
        factory=list, init=False, repr=False
    )  # an empty deque takes 700 bytes
    """Queue of the agent's calls that wait for a slot."""
    abandoned_count: int = attrs.field(default=0, init=False)
    """Number of abandoned threads that still run; guarded by `Threads.lock`."""

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Names of the agent's functions that are still running although their call was cancelled or timed out."""
        return self._threads.abandoned_names(self)

    async def run_sync(
        self,
        fn: Callable[..., T],
        *args: object,
        name: str = "",
        on_not_started: Callable[[], object] | None = None,
    ) -> T:
        """Run a function in a worker thread with the caller's context variables; it may use `trio.from_thread`.

        Waits up to `MAX_WAIT_SECONDS` for a slot; the time limits of the tool call are paused while it waits. If cancelled, the
        call returns immediately: a running function is abandoned. A function that has not started never runs, and
        `on_not_started` is called.

        Raises:
            ThreadPoolExhausted: No slot was free in time, or the agent has too many abandoned threads. The function did not run.
        """
        gate = start_gate.get()
        if gate is not None:
            gate.hold()
        try:
            return await self._run_sync(
                fn, args, name or getattr(fn, "__name__", repr(fn)), on_not_started, gate
            )
        finally:
            if gate is not None:
                gate.release()

    async def _run_sync(
        self,
        fn: Callable[..., T],
        args: tuple[object, ...],
        name: str,
        on_not_started: Callable[[], object] | None,
        gate: StartGate | None,
    ) -> T:
        job = _Job(name, self, gate)
        if self.waiters or not self._threads.try_acquire_slot(self):
            await self._wait_for_slot(on_not_started)
        work = functools.partial(self._work, job, trio.lowlevel.current_trio_token(), fn, args)
        try:
            ended = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads.limiter)
        except trio.Cancelled:
            self._abandon(job)
            if on_not_started is not None and not job.has_started:
                on_not_started()
            raise
        finally:
            self._threads.release_slot(self)
        return unwrap_result(ended)

    def _abandon(self, job: _Job) -> None:
        """Mark the job of a cancelled call as abandoned.

        If the agent now has too many abandoned threads, wake its waiting calls, which then fail.
        """
        with self._threads.lock:
            job.abandoned = True
            self.abandoned_count += job in self._threads.running
        if self.abandoned_count >= MAX_ABANDONED:
            for waiter in self.waiters:
                waiter.wake.set()

    async def _wait_for_slot(self, on_not_started: Callable[[], object] | None) -> None:
        """Wait until a slot is granted.

        Raises:
            ThreadPoolExhausted: No slot was granted within `MAX_WAIT_SECONDS`, or the agent has too many abandoned threads.
        """
        self._check_abandoned()
        waiter = _Waiter()
        self._threads.enqueue(self, waiter)
        try:
            with _paused_time_limits(), trio.move_on_after(MAX_WAIT_SECONDS):
                await waiter.wake.wait()
        except trio.Cancelled:
            if on_not_started is not None:
                on_not_started()
            if waiter.is_granted():
                self._threads.release_slot(self)
            raise
        finally:
            if waiter in self.waiters:
                self._threads.dequeue(self, waiter)
        if not waiter.is_granted():
            self._check_abandoned()
            raise ThreadPoolExhausted(
                f"no thread was free within {MAX_WAIT_SECONDS:g} s, so the call did not run: {self._busy()}"
            )

    def _check_abandoned(self) -> None:
        """Raise `ThreadPoolExhausted` if too many threads of the agent still run functions whose calls have ended."""
        if self.abandoned_count >= MAX_ABANDONED:
            raise ThreadPoolExhausted(
                f"the call did not run: {self.abandoned_count} threads of its agent still run functions of ended calls "
                f"({_most_frequent(self.abandoned)}); new calls run after one of them returns"
            )

    def _busy(self) -> str:
        """Return the part of an error text that names the exhausted thread limit: of the agent or of the runtime."""
        if self.slots_used >= self.capacity:
            return f"all {self.capacity} threads of its agent are busy (Agent(max_threads=...))"
        return f"all {self._threads.capacity} threads of the runtime are busy (open_runtime(max_threads=...))"

    def _work(
        self, job: _Job, token: trio.lowlevel.TrioToken, fn: Callable[..., T], args: tuple[object, ...]
    ) -> tuple[T] | Raised:
        """Call the function of a job in the worker thread.

        Return its value in a tuple, or its exception as `Raised`.
        """
        with self._threads.lock:
            if job.abandoned:
                raise RuntimeError(f"{job.name} was cancelled before it started")
            job.has_started = True
            self._threads.running[job] = None
        if job.gate is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(job.open_gate, token)
            job.is_calling = (
                True  # run_sync_soon has released the GIL, so the event loop may run before this line
            )
        try:
            return call_user_code(fn, *args)
        finally:
            self._finish(job, token)

    def _finish(self, job: _Job, token: trio.lowlevel.TrioToken) -> None:
        """Remove a job whose function has returned. If the job was abandoned, notify `wait_abandoned`."""
        with self._threads.lock:
            del self._threads.running[job]
            self.abandoned_count -= job.abandoned
        if job.abandoned:
            with contextlib.suppress(trio.RunFinishedError):  # the event loop has ended
                token.run_sync_soon(self._threads.notify_returned)


@contextlib.contextmanager
def _paused_time_limits() -> Iterator[None]:
    """Context manager: pause the time limits of the current tool call while its block waits for a thread."""
    limits = time_limits.get()
    for limit in limits:
        limit.hold()
    try:
        yield
    finally:
        for limit in limits:
            limit.release()


def _most_frequent(names: tuple[str, ...]) -> str:
    """Join the most frequent names (at most `_MAX_NAMES`, each once) to one text."""
    shown = sorted(set(names), key=names.count, reverse=True)
    return ", ".join(shown[:_MAX_NAMES]) + (", ..." if len(shown) > _MAX_NAMES else "")
