"""Worker threads for sync functions, with an account of those that outlive their caller."""

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

import attrs
import trio

from actgent.errors import ThreadsLeft

T = TypeVar("T")
DEFAULT_THREADS = 40


@attrs.define(eq=False)
class _Job:
    """One function on its way through a thread."""

    name: str
    abandoned: bool = False
    """Nobody waits for it any more."""


@attrs.define(eq=False)
class Threads:
    """Runs sync functions in at most `capacity` threads at a time.

    Python cannot stop a thread. A cancelled call returns at once; its thread is *left*: it keeps its place,
    is counted and named, until the function returns. One that had not begun never begins.
    """

    capacity: int = attrs.field(default=DEFAULT_THREADS, validator=attrs.validators.ge(1))
    _limiter: trio.CapacityLimiter = attrs.field(init=False, repr=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False, repr=False)
    _running: dict[_Job, None] = attrs.field(factory=dict, init=False, repr=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(self.capacity)

    @property
    def left(self) -> tuple[str, ...]:
        """The names of functions that still run although their call was cancelled or timed out."""
        with self._lock:
            return tuple(job.name for job in self._running if job.abandoned)

    async def run_sync(self, fn: Callable[..., T], *args: object, name: str = "") -> T:
        """Call a function in a thread, with the caller's context variables; it may use `trio.from_thread`.

        Waits for a free thread. When cancelled it returns at once, and the thread is left.
        """
        job = _Job(name or getattr(fn, "__name__", repr(fn)))
        work = functools.partial(self._work, job, trio.lowlevel.current_trio_token(), fn, args)
        try:
            (value,) = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            with self._lock:
                job.abandoned = True
            raise
        return value

    def _work(
        self, job: _Job, token: trio.lowlevel.TrioToken, fn: Callable[..., T], args: tuple[object, ...]
    ) -> tuple[T]:
        with self._lock:
            if job.abandoned:
                raise RuntimeError(f"{job.name} was cancelled before it began")
            self._running[job] = None
        try:
            return (fn(*args),)  # in a tuple, for trio takes a coroutine as a mistake
        finally:
            self._end(job, token)

    def _end(self, job: _Job, token: trio.lowlevel.TrioToken) -> None:
        with self._lock:
            del self._running[job]
        if job.abandoned:
            with contextlib.suppress(trio.RunFinishedError):  # nobody is left to be told
                token.run_sync_soon(self._wake)

    def _wake(self) -> None:
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
