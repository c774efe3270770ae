"""A pool of reusable tasks: starting a job wakes a parked task instead of creating a task and a cancel scope.

A job has two parts. `run` receives a cancel scope that other tasks may cancel to stop the job. `finish` follows, also after a
stop, outside that scope. If the nursery is cancelled, `abandon` is called instead of `finish`, also for jobs that have
finished. An idle worker parks until the next job; workers that no job has needed for a second end. Each job runs with the
context variables that it is started with, as in a new task. A worker keeps no reference to a finished job.
"""

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from .deadline_timer import Timer

JobT = TypeVar("JobT")

KEPT_IDLE_WORKERS = 4
"""Number of idle workers that never end. A parked task takes about 2 KB."""
IDLE_SECONDS = 1.0
"""Seconds after which other idle workers end."""
_NOTHING = contextvars.Context()
"""Empty context that replaces the context variables of parked workers."""
MAX_ENDED_AT_ONCE = 1000
"""Maximum number of workers that end in one step. Each takes a few microseconds of the event loop."""


class _Wake:
    """Reusable outcome that wakes a parked worker. It saves an `outcome.Value` per job."""

    __slots__ = ("job",)

    def __init__(self) -> None:
        self.job: object = None

    def unwrap(self) -> object:
        job, self.job = self.job, None  # a worker keeps no reference to a job
        return job


class Workers(Generic[JobT]):
    """Runs jobs of one kind concurrently, each in a task of the nursery. Exceptions of a job are raised in the nursery."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        timer: Timer,
        run: Callable[[trio.CancelScope, JobT], Awaitable[object]],
        finish: Callable[[JobT], Awaitable[object]],
        abandon: Callable[[JobT], Awaitable[object]],
    ) -> None:
        self._nursery = nursery
        self._timer = timer
        self._run = run
        self._finish = finish
        self._abandon = abandon
        self._idle: dict[trio.lowlevel.Task, Any] = {}
        """Parked workers with their `_Wake` objects, which replace trio outcomes."""
        self._unused = 0
        """Minimum number of parked workers since the last check. These workers were not needed by any job."""
        self._is_watched = False

    def start_soon(self, job: JobT) -> None:
        """Start a job with a copy of the caller's context variables."""
        self.start_with(contextvars.copy_context(), job)

    @trio.lowlevel.enable_ki_protection
    def start_with(self, variables: contextvars.Context, job: JobT) -> None:
        """Start a job with the given context variables. No other task may use this context object."""
        if self._idle:
            task, wake = self._idle.popitem()
            self._unused = min(self._unused, len(self._idle))
            task.context = variables
            wake.job = job
            trio.lowlevel.reschedule(task, wake)
        else:
            variables.run(self._nursery.start_soon, self._work, job)

    async def _work(self, job: JobT | None) -> None:
        task, wake = trio.lowlevel.current_task(), _Wake()

        def leave(_: object) -> trio.lowlevel.Abort:
            del self._idle[task]
            return trio.lowlevel.Abort.SUCCEEDED

        while job is not None:
            try:
                with trio.CancelScope() as scope:
                    while True:  # one scope serves many jobs until it is cancelled
                        await self._run(scope, job)
                        if scope.cancel_called:
                            break
                        await self._finish(job)
                        job = None  # a parked worker keeps no reference to a job
                        job = await self._wait_job(task, wake, leave)
                        if job is None:
                            return
                if job is not None:  # None: the worker was stopped
                    await self._finish(job)
            except BaseException as error:
                # The cancellation of the nursery. Nurseries inside the job raise it as a group, and the scope above lets it
                # pass if both are cancelled at the same moment.
                if job is not None and not isinstance(error, Exception):
                    await self._abandon(job)  # noqa: ASYNC102 - it shields itself, with a time limit
                raise
            job = None
            job = await self._wait_job(task, wake, leave)

    @trio.lowlevel.enable_ki_protection  # an interrupt after the entry would give the next job to an ended worker
    async def _wait_job(
        self, task: trio.lowlevel.Task, wake: _Wake, leave: Callable[[object], trio.lowlevel.Abort]
    ) -> JobT | None:
        """Park until a job arrives and return it; None ends the worker. trio calls `leave` if the worker is cancelled."""
        task.context = _NOTHING  # takes effect with the next step of the task, which belongs to its next job
        self._idle[task] = wake
        if len(self._idle) > KEPT_IDLE_WORKERS and not self._is_watched:
            self._watch()
        job: JobT | None = await trio.lowlevel.wait_task_rescheduled(leave)
        return job

    def _watch(self) -> None:
        """Schedule a check of how many parked workers were needed."""
        self._is_watched = True
        self._unused = len(self._idle)
        self._timer.call_at(trio.current_time() + IDLE_SECONDS, self._end_unused)

    @trio.lowlevel.enable_ki_protection
    def _end_unused(self) -> None:
        """End parked workers that no job has needed since `_watch`; a number of idle workers is always kept.

        If more workers than this number remain, schedule the next check.
        """
        count = max(0, min(self._unused - KEPT_IDLE_WORKERS, MAX_ENDED_AT_ONCE))
        for task in list(self._idle)[:count]:  # the longest parked workers first
            trio.lowlevel.reschedule(task, self._idle.pop(task))
        self._is_watched = False
        if len(self._idle) > KEPT_IDLE_WORKERS:
            self._watch()
