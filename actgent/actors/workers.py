"""Tasks that are used again: starting a job costs a wake-up instead of a birth, and no cancel scope of its own.

A job has two halves. `run` gets a cancel scope that others may cancel to stop it; `finish` comes after it,
stopped or not, and is out of that scope's reach. Where the nursery is cancelled, `abandon` comes instead, for
jobs that may be finished already. A worker with nothing left to do parks, and the next job wakes
it; those that none needed for a second end. Each job runs with the context variables that it is started with, as in
a new task; nothing of one job is left for the next.
"""

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVarTuple

import trio

from .timer import Timer

Args = TypeVarTuple("Args")

IDLE = 4
"""How many idle workers are kept for good; a parked task takes about 2 KB."""
UNUSED = 1.0
"""Seconds after which others end that no job needed."""
_NOTHING = contextvars.Context()
"""The variables of workers that park."""
AT_ONCE = 1000
"""How many of them end at once, at most: each takes a few microseconds of the loop."""


class _Wake:
    """What a parked worker is woken with, the same each time: an `outcome.Value` would be made anew for each job."""

    __slots__ = ("job",)

    def __init__(self) -> None:
        self.job: object = None

    def unwrap(self) -> object:
        job, self.job = self.job, None  # a worker holds on to nothing
        return job


class Workers(Generic[*Args]):
    """Runs jobs of one kind side by side, each in a task of the nursery; what a job raises comes out of there."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        timer: Timer,
        run: Callable[[trio.CancelScope, *Args], Awaitable[object]],
        finish: Callable[[*Args], Awaitable[object]],
        abandon: Callable[[*Args], Awaitable[object]],
    ) -> None:
        self._nursery = nursery
        self._timer = timer
        self._run = run
        self._finish = finish
        self._abandon = abandon
        self._idle: dict[trio.lowlevel.Task, Any] = {}
        """Those that park, each with its `_Wake`, which trio's types know as an outcome."""
        self._unused = 0
        """How many of them none of the last jobs needed."""
        self._is_watched = False

    def start_soon(self, *args: *Args) -> None:
        """Run a job, soon, in a fresh copy of the caller's context variables."""
        self.start_with(contextvars.copy_context(), *args)

    @trio.lowlevel.enable_ki_protection
    def start_with(self, variables: contextvars.Context, *args: *Args) -> None:
        """Run a job, soon, with these context variables, which no other task may be using."""
        if self._idle:
            task, wake = self._idle.popitem()
            self._unused = min(self._unused, len(self._idle))
            task.context = variables
            wake.job = args
            trio.lowlevel.reschedule(task, wake)
        else:
            variables.run(self._nursery.start_soon, self._work, args)

    async def _work(self, job: tuple[*Args] | None) -> None:
        task, wake = trio.lowlevel.current_task(), _Wake()
        while job is not None:
            try:
                with trio.CancelScope() as scope:
                    while True:  # until it is cancelled one scope serves any number of jobs
                        await self._run(scope, *job)
                        if scope.cancel_called:
                            break
                        await self._finish(*job)
                        job = None  # a parked worker holds on to nothing
                        job = await self._wait_job(task, wake)
                        if job is None:
                            return
                if job is not None:  # it was stopped
                    await self._finish(*job)
            except BaseException as error:
                # The nursery's cancellation, which comes out of nurseries of the job as a group; an own scope that is
                # cancelled at the same moment lets it through.
                if job is not None and not isinstance(error, Exception):
                    await self._abandon(*job)  # noqa: ASYNC102 - it shields what it says, with a time limit
                raise
            job = None
            job = await self._wait_job(task, wake)

    @trio.lowlevel.enable_ki_protection  # cut behind its entry, a worker that has ended would get the next job
    async def _wait_job(self, task: trio.lowlevel.Task, wake: _Wake) -> tuple[*Args] | None:
        """Park until there is a job; None: no more of them are for this worker."""

        def leave(_: object) -> trio.lowlevel.Abort:
            del self._idle[task]
            return trio.lowlevel.Abort.SUCCEEDED

        task.context = _NOTHING  # with its next step, which is that of its next job
        self._idle[task] = wake
        if len(self._idle) > IDLE and not self._is_watched:
            self._watch()
        job: tuple[*Args] | None = await trio.lowlevel.wait_task_rescheduled(leave)
        return job

    def _watch(self) -> None:
        """See in a while how many were needed."""
        self._is_watched = True
        self._unused = len(self._idle)
        self._timer.call_at(trio.current_time() + UNUSED, self._end_unused)

    @trio.lowlevel.enable_ki_protection
    def _end_unused(self) -> None:
        count = max(0, min(self._unused - IDLE, AT_ONCE))
        for task in list(self._idle)[:count]:  # those that have parked for the longest time
            trio.lowlevel.reschedule(task, self._idle.pop(task))
        self._is_watched = False
        if len(self._idle) > IDLE:
            self._watch()
