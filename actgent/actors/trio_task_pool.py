"""A pool of reusable tasks: starting a job wakes a parked task instead of creating a task and a cancel scope.

A job has two parts. `run` receives a cancel scope that other tasks may cancel to stop the job. `finish` follows, also after a
stop, outside that scope. If the nursery is cancelled, `abandon` is called instead of `finish`, also for jobs that have
finished. An idle worker parks until the next job. Idle workers that no job has needed for a second end. If no worker is left,
the creator of the pool may cancel the nursery. Each job runs with the context variables with which it is started, as in a new
task. A worker keeps no reference to a finished job.
"""

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from .deadline_timer import Timer, TimerHandle

JobT = TypeVar("JobT")

IDLE_SECONDS = 1.0
"""Seconds after which an idle worker ends. A parked task takes about 2 KB."""
_NOTHING = contextvars.Context()
"""Empty context that replaces the context variables of parked workers."""
MAX_ENDED_AT_ONCE = 1000
"""Maximum number of workers that end in one step. Each takes a few microseconds of the event loop."""


class _Wake:
    """Reusable object that passes the next job to an idle worker, in place of a new `outcome.Value` for each job."""

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
        on_unneeded: Callable[[int], bool] | None = None,
    ) -> None:
        """Create a pool whose workers are tasks of `nursery`.

        Args:
            nursery: Nursery of the worker tasks.
            timer: Timer for the checks of idle workers.
            run: First part of a job; other tasks may cancel its scope to stop the job.
            finish: Second part of a job, also after a stop.
            abandon: Called in place of `finish` if the nursery is cancelled.
            on_unneeded: Called with the number of idle workers that no job needed for `IDLE_SECONDS`. It returns True if it
                has cancelled the nursery.
        """
        self._nursery = nursery
        self._timer = timer
        self._run = run
        self._finish = finish
        self._abandon = abandon
        self._on_unneeded = on_unneeded
        self._idle: dict[trio.lowlevel.Task, Any] = {}
        """Parked workers with their `_Wake` objects, which replace trio outcomes."""
        self._unused = 0
        """Minimum number of parked workers since the last check. These workers were not needed by any job."""
        self._check: TimerHandle | None = None
        """Scheduled check of how many parked workers were needed; None if none is scheduled."""

    def start_soon(self, job: JobT) -> None:
        """Start a job with a copy of the caller's context variables."""
        self.start_with(contextvars.copy_context(), job)

    @trio.lowlevel.enable_ki_protection
    def start_with(self, variables: contextvars.Context, job: JobT) -> None:
        """Start a job with the context variables `variables`. No other task may use this context object."""
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
        """Sleep until a job arrives, and return it; None ends the worker. trio calls `leave` if the worker is cancelled."""
        task.context = _NOTHING  # takes effect with the next step of the task, which belongs to its next job
        self._idle[task] = wake
        if self._check is None:
            self.watch()
        job: JobT | None = await trio.lowlevel.wait_task_rescheduled(leave)
        return job

    def watch(self) -> None:
        """Schedule a check of how many idle workers were needed, unless a check is scheduled already."""
        if self._check is None:
            self._unused = len(self._idle)
            self._check = self._timer.call_at(trio.current_time() + IDLE_SECONDS, self._end_unused)

    @property
    def idle_count(self) -> int:
        """Number of idle workers, which sleep until the next job."""
        return len(self._idle)

    @trio.lowlevel.enable_ki_protection
    def end_idle(self) -> None:
        """End all idle workers, and cancel the scheduled check, which would keep this object in memory."""
        for task, wake in self._idle.items():
            trio.lowlevel.reschedule(task, wake)
        self._idle.clear()
        self.close()

    def close(self) -> None:
        """Cancel the scheduled check after the nursery has ended, because the check would keep this object in memory."""
        if self._check is not None:
            self._check.cancel()

    @trio.lowlevel.enable_ki_protection
    def _end_unused(self) -> None:
        """End idle workers that no job has needed since `watch`. If other idle workers remain, schedule the next check."""
        self._check = None
        on_unneeded = self._on_unneeded
        if on_unneeded is not None and self._unused == len(self._idle) and on_unneeded(self._unused):
            return
        for task in list(self._idle)[
            : min(self._unused, MAX_ENDED_AT_ONCE)
        ]:  # the longest parked workers first
            trio.lowlevel.reschedule(task, self._idle.pop(task))
        if self._idle:
            self.watch()
