"""A thread for one storage, woken and heard of at little cost.

A hop into a thread by way of trio's queue costs three rounds of the loop and two system calls more than a pipe that
the waiting task itself reads: where one session writes alone, that is a third of what the step costs.

There are two of these pipes: one for `run`, and one for a task that listens before a piece of work is started. It is woken
in one round of the loop, and the thread works while the loop sleeps: whoever starts to listen afterwards takes turns with
it at the interpreter's lock.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
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
        self.is_clock_real = type(trio.lowlevel.current_clock()).__module__.startswith("trio._core._run")
        self._thread = threading.Thread(
            target=_work, args=(self._jobs, self._tell_done, self._tell_heard), name=name, daemon=True
        )
        self._thread.start()

    async def run(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run `fn(*args)` in the thread. Cancelled, it leaves the work to be done: what follows comes behind it."""
        job = self._last = Job(fn, args, self._tell_done)
        self._jobs.put(job)
        if not self.is_clock_real:
            await _hold_clock(job)
        while job.result is None:
            await trio.lowlevel.wait_readable(self._done)
            with contextlib.suppress(BlockingIOError):
                os.read(self._done, 64)
        value: T = job.result.unwrap()
        return value

    def start(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Have `fn(*args)` done; `listen` returns when it is, perhaps earlier."""
        job = self._last = Job(fn, args, self._tell_heard)
        self._jobs.put(job)
        return job

    async def listen(self) -> None:
        """Wait until something that was started is done, or somebody calls `ring`, or this ends."""
        with contextlib.suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(self._heard)
            with contextlib.suppress(BlockingIOError):
                os.read(self._heard, 64)

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
        trio.lowlevel.notify_closing(self._heard)
        os.close(self._done)
        os.close(self._heard)


async def _hold_clock(job: Job) -> None:
    """Keep a task that may run, so that no time passes but that of the work."""
    until = time.monotonic() + HELD
    while job.result is None and time.monotonic() < until:
        await trio.lowlevel.checkpoint()


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
