import contextvars
import signal

import pytest
import trio
import trio.testing

from actgent.actors.deadline_timer import Timer
from actgent.runtime.turn_runner import IDLE_SECONDS, Workers

WHO = contextvars.ContextVar("WHO", default="nobody")


def noting(log):
    """Return the two functions of a job, `run` and `finish`, which record that they ran and in which task."""

    async def run(scope, name):
        log.append(("run", name, WHO.get()))
        WHO.set(name)
        await trio.lowlevel.checkpoint()

    async def finish(name):
        log.append(("finish", name, WHO.get()))

    return {"run": run, "finish": finish, "abandon": finish}


async def test_a_worker_serves_job_after_job(nursery):
    """Consecutive jobs run in one task."""
    tasks = []

    async def run(scope, number):
        tasks.append(trio.lowlevel.current_task())

    async def finish(number):
        pass

    workers = Workers(nursery, timer=Timer(), run=run, finish=finish, abandon=finish)
    for number in range(5):
        workers.start_with(contextvars.copy_context(), number)
        await trio.testing.wait_all_tasks_blocked()
    assert len(tasks) == 5
    assert len(set(tasks)) == 1
    nursery.cancel_scope.cancel()


async def test_jobs_have_separate_context_variables(nursery):
    """A context variable set by one job is not visible to the next job of the same worker, as in a new task."""
    log = []
    workers = Workers(nursery, timer=Timer(), **noting(log))
    for name in ("ada", "bob"):
        workers.start_with(contextvars.copy_context(), name)
        await trio.testing.wait_all_tasks_blocked()
    token = WHO.set("starter")
    workers.start_with(contextvars.copy_context(), "eve")
    WHO.reset(token)
    await trio.testing.wait_all_tasks_blocked()
    assert [entry for entry in log if entry[0] == "run"] == [
        ("run", "ada", "nobody"),
        ("run", "bob", "nobody"),
        ("run", "eve", "starter"),
    ]
    nursery.cancel_scope.cancel()


async def test_only_run_can_be_cancelled(nursery):
    """Cancelling the scope of a job stops its `run`; its `finish` and the next job of the worker are not cancelled."""
    scopes, log = {}, []

    async def run(scope, name):
        scopes[name] = scope
        if name == "endless":
            await trio.sleep_forever()
        log.append(f"{name} ran")

    async def finish(name):
        await trio.lowlevel.checkpoint()
        log.append(f"{name} finished")

    workers = Workers(nursery, timer=Timer(), run=run, finish=finish, abandon=finish)
    workers.start_with(contextvars.copy_context(), "endless")
    await trio.testing.wait_all_tasks_blocked()
    scopes["endless"].cancel()
    await trio.testing.wait_all_tasks_blocked()
    workers.start_with(contextvars.copy_context(), "next")
    await trio.testing.wait_all_tasks_blocked()
    assert log == ["endless finished", "next ran", "next finished"]
    assert scopes["next"] is not scopes["endless"]
    nursery.cancel_scope.cancel()


async def test_idle_workers_end(nursery, autojump_clock):
    """After a burst only the workers that are needed stay; they end with the nursery."""
    gate, timer = trio.Event(), Timer()

    async def run(scope, number):
        await gate.wait()

    async def finish(number):
        pass

    def count():
        return len(nursery.child_tasks) - before

    nursery.start_soon(timer.run)
    workers = Workers(nursery, timer=timer, run=run, finish=finish, abandon=finish)
    before = len(nursery.child_tasks)
    for number in range(50):
        workers.start_with(contextvars.copy_context(), number)
    assert count() == 50
    gate.set()
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(10):
        for number in range(20):
            workers.start_with(contextvars.copy_context(), number)
        await trio.sleep(IDLE_SECONDS / 3)
    assert count() == 20
    await trio.sleep(3 * IDLE_SECONDS)
    assert count() == 0
    nursery.cancel_scope.cancel()


async def test_job_error_is_raised_by_the_nursery():
    """The nursery raises the error of a job, from `run` or from `finish`."""

    async def run(scope, half):
        if half == "run":
            raise ValueError(half)

    async def finish(half):
        if half == "finish":
            raise ValueError(half)

    for half in ("run", "finish"):
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match=half)):
            async with trio.open_nursery() as nursery:
                Workers(nursery, timer=Timer(), run=run, finish=finish, abandon=finish).start_with(
                    contextvars.copy_context(), half
                )


@pytest.mark.parametrize("where", ["side by side", "in the end of one that was stopped"])
async def test_job_cancelled_by_the_nursery_is_abandoned(where, nursery):
    """A job is abandoned if the nursery is cancelled during tasks that the job started, or during its shielded `finish`."""
    log = []

    async def run(scope, name):
        if where != "side by side":
            scope.cancel()
            await trio.sleep_forever()
        async with trio.open_nursery() as inner:
            for _ in range(2):
                inner.start_soon(trio.sleep_forever)

    async def finish(name):
        await trio.sleep_forever()

    async def abandon(name):
        log.append(name)

    workers = Workers(nursery, timer=Timer(), run=run, finish=finish, abandon=abandon)
    workers.start_with(contextvars.copy_context(), "ada")
    await trio.testing.wait_all_tasks_blocked()
    nursery.cancel_scope.cancel()
    with trio.CancelScope(shield=True):
        await trio.testing.wait_all_tasks_blocked()
    assert log == ["ada"]


async def test_job_runs_with_its_context_variables(nursery):
    """A job has its context variables in a new task and in a reused one; an idle worker keeps none of them."""
    log = []
    workers = Workers(nursery, timer=Timer(), **noting(log))
    for name in ("ada", "bob"):
        variables = contextvars.copy_context()
        variables.run(WHO.set, f"sender of {name}")
        workers.start_with(variables, name)
        await trio.testing.wait_all_tasks_blocked()
        assert all(WHO not in task.context for task in workers._idle)
    assert [entry for entry in log if entry[0] == "run"] == [
        ("run", "ada", "sender of ada"),
        ("run", "bob", "sender of bob"),
    ]


def test_ctrl_c_while_a_worker_parks_keeps_the_worker(monkeypatch):
    """Ctrl-C as a worker parks does not end it; waking an ended task would be an internal error of trio."""
    park, log = trio.lowlevel.wait_task_rescheduled, []

    async def live():
        async with trio.open_nursery() as nursery:
            workers = Workers(nursery, timer=Timer(), **noting(log))

            def press(leave):
                monkeypatch.setattr(trio.lowlevel, "wait_task_rescheduled", park)
                trio.lowlevel.current_trio_token().run_sync_soon(
                    workers.start_with, contextvars.copy_context(), "second"
                )
                signal.raise_signal(signal.SIGINT)
                return park(leave)

            monkeypatch.setattr(trio.lowlevel, "wait_task_rescheduled", press)
            workers.start_with(contextvars.copy_context(), "first")
            await trio.Event().wait()

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True):
        trio.run(live)
    assert [name for half, name, _ in log if half == "finish"] == ["first", "second"]


@pytest.mark.parametrize("jobs", [1, 5])
def test_ctrl_c_does_not_interrupt_waking_a_worker(monkeypatch, jobs, autojump_clock):
    """Ctrl-C does not interrupt the removal of a worker from the idle list and its wake-up: a removed, sleeping worker could not be cancelled."""
    wake, log, pressed = trio.lowlevel.reschedule, [], []

    def press(*given):
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)
        wake(*given)

    async def live():
        async with trio.open_nursery() as nursery:
            timer = Timer()
            nursery.start_soon(timer.run)
            workers = Workers(nursery, timer=timer, **noting(log))
            for number in range(jobs):
                workers.start_with(contextvars.copy_context(), number)
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr(trio.lowlevel, "reschedule", press)
            if jobs == 1:
                workers.start_with(contextvars.copy_context(), "next")
            await trio.sleep(2 * IDLE_SECONDS)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True):
        trio.run(live, clock=autojump_clock)
    assert pressed
