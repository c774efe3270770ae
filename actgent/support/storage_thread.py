"""A dedicated thread for one storage, with less overhead than `trio.to_thread`.

Compared to `trio.to_thread`, a pipe that the waiting task reads itself saves three event loop iterations and two system
calls for each job. If a single session writes, this is a third of the cost of a write.

The thread signals completion through two pipes: one for the task in `run` or `wait_for`, and one for the task that calls
`listen`. Both tasks wait for their pipe before the thread gets the job, so the thread runs while the event loop sleeps. A
task that started to wait afterwards would compete with the thread for the interpreter lock.
"""

import contextlib
import os
import queue
import threading
import time
import types
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar, TypeVarTuple

import attrs
import outcome
import trio

T = TypeVar("T")
Args = TypeVarTuple("Args")

MAX_CLOCK_HOLD_SECONDS = 5.0
"""Maximum time in seconds for which a job delays the autojump clock of a test."""
JOIN_TIMEOUT_SECONDS = 1.0
"""Maximum time in seconds that `end` waits for an idle thread to exit. It usually takes microseconds."""


@attrs.define(eq=False)
class Job:
    """A function call for the thread, and its result."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    done: int
    """File descriptor of the pipe to which a byte is written when the job has finished."""
    is_begun: bool = False
    """True if the job was passed to the thread."""
    is_dismissed: bool = False
    """True if the task in `wait_for` should return without the result."""
    result: outcome.Outcome[Any] | None = None
    """Value or exception of the call; None until it has finished."""


class StorageThread:
    """Runs jobs one at a time in submission order, even after their waiting task was cancelled.

    At most one task may wait in `run` or `wait_for`, and one in `listen`.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done, self._signal_done = _open_pipe()
        self._listener, self._signal_listener = _open_pipe()
        self._last: Job | None = None
        self._has_ended = False
        self.is_clock_real = type(trio.lowlevel.current_clock()).__module__.startswith("trio._core._run")
        self._thread = threading.Thread(
            target=_work, args=(self._jobs, self._signal_done, self._signal_listener), name=name, daemon=True
        )
        self._thread.start()

    async def run(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run `fn(*args)` in the thread and return its result.

        If the caller is cancelled, the job still runs, also if it had not started: before all later jobs.
        """
        job = self.prepare(fn, *args)
        await self.wait_for(job)
        value: T = job.result.unwrap()  # type: ignore[union-attr]
        return value

    def prepare(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Create a job for `wait_for`, without starting it."""
        return Job(fn, args, self._signal_done)

    async def wait_for(self, job: Job) -> None:
        """Start a job if necessary and wait until it has finished; `job.result` holds its value or exception.

        If this call is cancelled or dismissed, the job still runs, and another task may wait for it.
        """
        if not self.is_clock_real:
            self._begin(job)
            await _hold_clock(job)
        while job.result is None and not job.is_dismissed:
            if job.is_begun:
                await trio.lowlevel.wait_readable(self._done)
            else:
                await _wait_and(self._done, self._begin, job)
            self._empty(self._done)
        job.is_dismissed = False

    def dismiss(self, job: Job) -> None:
        """Make the task in `wait_for(job)` return before the job has finished. The job itself still runs."""
        job.is_dismissed = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._signal_done, b"\0")

    def _begin(self, job: Job) -> None:
        if not job.is_begun:
            job.is_begun = True
            self._last = job
            self._jobs.put(job)

    def run_now(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run `fn(*args)` in the thread, and block the calling thread until it has finished."""
        done: Future[T] = Future()
        self.start(_fulfil, done, fn, *args)
        return done.result()

    def start(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Start `fn(*args)` in the thread without waiting; `listen` returns when it has finished, or earlier."""
        job = Job(fn, args, self._signal_listener)
        self._begin(job)
        return job

    async def listen(self) -> None:
        """Wait until a job of `start` has finished, `ring` is called, or the thread ends."""
        with contextlib.suppress(trio.ClosedResourceError):  # the job has ended
            await trio.lowlevel.wait_readable(self._listener)
            self._empty(self._listener)

    def _empty(self, pipe: int) -> None:
        if self._has_ended:  # after the caller was woken, the file descriptor may be reused for another file
            raise trio.ClosedResourceError
        try:  # noqa: SIM105 - hot path: suppress() is slower
            os.read(pipe, 64)
        except BlockingIOError:  # another task has read the signal
            pass

    def ring(self) -> None:
        """Make the task in `listen` return early."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full of signals
            os.write(self._signal_listener, b"\0")

    def end(self, fn: Callable[[], object]) -> None:
        """Run a last function in the thread, and stop the thread.

        If the thread is still busy, return without waiting; the thread stops later.
        """
        is_free = self._last is None or self._last.result is not None
        self._jobs.put(Job(fn, (), self._signal_done))
        self._jobs.put(None)
        if is_free:
            self._thread.join(JOIN_TIMEOUT_SECONDS)
        self._has_ended = True
        for pipe in (self._done, self._listener):
            trio.lowlevel.notify_closing(pipe)
            os.close(pipe)


@trio.lowlevel.enable_ki_protection  # an interrupt between the two would leave a wake-up for a finished task
@types.coroutine
def _wait_and(pipe: int, fn: Callable[..., object], *args: Any) -> Generator[Any, Any, None]:
    """Wait until a pipe, given by its file descriptor, is readable.

    `fn(*args)` is called just before this task suspends, when the event loop goes to sleep.
    """
    waiting = trio.lowlevel.wait_readable(pipe).__await__()  # noqa: ASYNC105 - it is driven below, step by step
    trap = next(waiting)
    fn(*args)
    while True:
        sent = yield trap
        try:
            trap = waiting.send(sent)
        except StopIteration:
            return


async def _hold_clock(job: Job) -> None:
    """Keep this task runnable until a job has finished, so that an autojump clock does not advance.

    Gives up after `MAX_CLOCK_HOLD_SECONDS`.
    """
    until = time.monotonic() + MAX_CLOCK_HOLD_SECONDS
    while job.result is None and time.monotonic() < until:
        await trio.lowlevel.checkpoint()


def _fulfil(done: "Future[Any]", fn: Callable[..., Any], *args: Any) -> None:
    found = outcome.capture(fn, *args)
    if isinstance(found, outcome.Value):
        done.set_result(found.value)
    else:
        done.set_exception(found.error)


def _open_pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _work(jobs: "queue.SimpleQueue[Job | None]", *pipe_ends: int) -> None:
    while (job := jobs.get()) is not None:
        job.result, done = outcome.capture(job.fn, *job.args), job.done
        job = None  # an idle thread keeps no reference to the last job
        with contextlib.suppress(OSError):  # the pipe is closed
            os.write(done, b"\0")
    for end in pipe_ends:
        os.close(end)
