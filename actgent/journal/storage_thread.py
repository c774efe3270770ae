"""A thread for one storage, woken and heard of at little cost.

A hop into a thread by way of trio's queue costs three rounds of the loop and two system calls more than a pipe that
the waiting task itself reads: where one session writes alone, that is a third of what the step costs.
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
class _Job:
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    result: outcome.Outcome[Any] | None = None


class StorageThread:
    """Does one piece of work after the other, in the order in which they came, also those that nobody waits for any more.

    At most one task waits at a time.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done, done = os.pipe()
        os.set_blocking(self._done, False)
        os.set_blocking(done, False)
        self._last: _Job | None = None
        self._is_clock_real = type(trio.lowlevel.current_clock()).__module__.startswith("trio._core._run")
        self._thread = threading.Thread(target=_work, args=(self._jobs, done), name=name, daemon=True)
        self._thread.start()

    async def run(self, fn: Callable[[*Args], T], *args: *Args) -> T:
        """Run `fn(*args)` in the thread. Cancelled, it leaves the work to be done: what follows comes behind it."""
        job = self._last = _Job(fn, args)
        self._jobs.put(job)
        if not self._is_clock_real:
            await _hold_clock(job)
        while job.result is None:
            await trio.lowlevel.wait_readable(self._done)
            with contextlib.suppress(BlockingIOError):
                os.read(self._done, 64)
        value: T = job.result.unwrap()
        return value

    def end(self, fn: Callable[[], object]) -> None:
        """Do this at last, and end. It is not waited for where something else is still being done."""
        is_free = self._last is None or self._last.result is not None
        self._jobs.put(_Job(fn, ()))
        self._jobs.put(None)
        if is_free:
            self._thread.join(ENDING)
        os.close(self._done)


async def _hold_clock(job: _Job) -> None:
    """Keep a task that may run, so that no time passes but that of the work."""
    until = time.monotonic() + HELD
    while job.result is None and time.monotonic() < until:
        await trio.lowlevel.checkpoint()


def _work(jobs: "queue.SimpleQueue[_Job | None]", done: int) -> None:
    while (job := jobs.get()) is not None:
        job.result = outcome.capture(job.fn, *job.args)
        job = None  # a thread without work holds on to nothing
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(done, b"\0")
    os.close(done)
