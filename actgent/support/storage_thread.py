"""A thread for one storage, woken and heard of at little cost.

A hop into a thread by way of trio's queue costs three rounds of the loop and two system calls more than a pipe that
the waiting task itself reads: where one session writes alone, that is a third of what the step costs.

There are two of these pipes: one for whoever waits in `run` or `see_through`, and one for a task that listens all the time.
Both listen before the thread is given its work, which it does while the loop sleeps: a task that starts to listen
afterwards takes turns with it at the interpreter's lock.
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

HELD = 5.0
"""Seconds for which a clock that jumps where all tasks wait, as tests have, is kept from running ahead of a piece of work."""
ENDING = 1.0
"""Seconds that ending waits for a thread without work; it takes some µs."""


@attrs.define(eq=False)
class Job:
    """A piece of work, and what came of it."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    done: int
    """The end of the pipe that tells of it."""
    is_begun: bool = False
    """True if the thread has been given it."""
    is_left: bool = False
    """True if who waits for it is to wait no more."""
    result: outcome.Outcome[Any] | None = None


class StorageThread:
    """Does one piece of work after the other, in the order in which they came, also those that nobody waits for any more.

    At most one task waits in `run`, and one in `listen`, at a time.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done, self._tell_done = _open_pipe()
        self._heard, self._tell_heard = _open_pipe()
        self._last: Job | None = None
        self._has_ended = False
        self.is_clock_real = type(trio.lowlevel.current_clock()).__module__.startswith("trio._core._run")
        self._thread = threading.Thread(
            target=_work, args=(self._jobs, self._tell_done, self._tell_heard), name=name, daemon=True
        )
        self._thread.start()

    async def run(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run `fn(*args)` in the thread. Cancelled, it leaves the work to be done: what follows comes behind it."""
        job = self.prepare(fn, *args)
        await self.see_through(job)
        value: T = job.result.unwrap()  # type: ignore[union-attr]
        return value

    def prepare(self, fn: Callable[..., Any], *args: Any) -> Job:
        """A piece of work for `see_through`."""
        return Job(fn, args, self._tell_done)

    async def see_through(self, job: Job) -> None:
        """Have a piece of work done, if it is not yet begun, and wait for it; whatever it comes to, nothing is raised.

        Cancelled or dismissed, it is done all the same, and somebody else may see it through.
        """
        if not self.is_clock_real:
            self._begin(job)
            await _hold_clock(job)
        while job.result is None and not job.is_left:
            if job.is_begun:
                await trio.lowlevel.wait_readable(self._done)
            else:
                await _wait_and(self._done, self._begin, job)
            self._empty(self._done)
        job.is_left = False

    def dismiss(self, job: Job) -> None:
        """Have the one in `see_through` wait no more."""
        job.is_left = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._tell_done, b"\0")

    def _begin(self, job: Job) -> None:
        if not job.is_begun:
            job.is_begun = True
            self._last = job
            self._jobs.put(job)

    def run_now(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run `fn(*args)` in the thread, and hold the one that calls until it is done."""
        done: Future[T] = Future()
        self.start(_fulfil, done, fn, *args)
        return done.result()

    def start(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Have `fn(*args)` done; `listen` returns when it is, perhaps earlier."""
        job = Job(fn, args, self._tell_heard)
        self._begin(job)
        return job

    async def listen(self) -> None:
        """Wait until something that was started is done, or somebody calls `ring`, or this ends."""
        with contextlib.suppress(trio.ClosedResourceError):  # it has ended
            await trio.lowlevel.wait_readable(self._heard)
            self._empty(self._heard)

    def _empty(self, pipe: int) -> None:
        if self._has_ended:  # since the one that calls was woken: its number may be another file's by now
            raise trio.ClosedResourceError
        try:  # noqa: SIM105 - each step comes by here
            os.read(pipe, 64)
        except BlockingIOError:  # somebody else was told the same
            pass

    def ring(self) -> None:
        """Have the one who listens go on."""
        with contextlib.suppress(BlockingIOError):  # it is full of such calls
            os.write(self._tell_heard, b"\0")

    def end(self, fn: Callable[[], object]) -> None:
        """Do this at last, and end. It is not waited for where something else is still being done."""
        is_free = self._last is None or self._last.result is not None
        self._jobs.put(Job(fn, (), self._tell_done))
        self._jobs.put(None)
        if is_free:
            self._thread.join(ENDING)
        self._has_ended = True
        for heard in (self._done, self._heard):
            trio.lowlevel.notify_closing(heard)
            os.close(heard)


@trio.lowlevel.enable_ki_protection  # cut between the two, the task is woken when it has ended
@types.coroutine
def _wait_and(pipe: int, fn: Callable[..., object], *args: Any) -> Generator[Any, Any, None]:
    """Wait until a pipe is readable, and call `fn(*args)` as soon as this task waits: a thread that it wakes finds the loop asleep."""
    waiting = trio.lowlevel.wait_readable(pipe).__await__()  # noqa: ASYNC105 - it is awaited below, step by step
    trap = next(waiting)
    fn(*args)
    while True:
        sent = yield trap
        try:
            trap = waiting.send(sent)
        except StopIteration:
            return


async def _hold_clock(job: Job) -> None:
    """Keep a task that may run, so that no time passes but that of the work."""
    until = time.monotonic() + HELD
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


def _work(jobs: "queue.SimpleQueue[Job | None]", *told: int) -> None:
    while (job := jobs.get()) is not None:
        job.result, done = outcome.capture(job.fn, *job.args), job.done
        job = None  # a thread without work holds on to nothing
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(done, b"\0")
    for end in told:
        os.close(end)
