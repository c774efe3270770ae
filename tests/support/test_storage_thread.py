"""The thread of a storage under an autojump clock."""

import contextlib
import signal
import threading
import time

import pytest
import trio
import trio.testing

from actgent.support.storage_thread import StorageThread


async def test_autojump_clock_waits_for_running_jobs(autojump_clock):
    """A time limit does not expire on an autojump clock while the thread works."""
    thread = StorageThread("slow")
    started = trio.current_time()
    with trio.fail_after(10):
        assert await thread.run(lambda: time.sleep(0.3) or "done") == "done"
    assert trio.current_time() - started < 1
    thread.end(lambda: None)


async def test_endless_job_holds_the_clock_for_a_limited_time(autojump_clock, monkeypatch):
    """If a job runs longer than the bound, time limits expire again."""
    monkeypatch.setattr("actgent.support.storage_thread.MAX_CLOCK_HOLD_SECONDS", 0.1)
    thread = StorageThread("stuck")
    with pytest.raises(trio.TooSlowError), trio.fail_after(1000):
        await thread.run(time.sleep, 2)
    thread.end(lambda: None)


@pytest.mark.parametrize("what", ["listen", "run"])
async def test_woken_task_does_not_read_a_closed_pipe(nursery, what):
    """The file descriptor of the closed pipe may already belong to another file."""
    thread, rung, is_over, ended = StorageThread("ends"), threading.Event(), [], trio.Event()

    class Ending(trio.abc.Instrument):
        def before_task_step(self, task):
            if task.name == "waits" and not is_over:
                is_over.append(True)
                thread.end(lambda: None)

    async def wait():
        with contextlib.suppress(trio.ClosedResourceError):
            await (thread.listen() if what == "listen" else thread.run(rung.wait, 10))
        ended.set()

    nursery.start_soon(wait, name="waits")
    await trio.testing.wait_all_tasks_blocked()
    trio.lowlevel.add_instrument(Ending())
    rung.set()
    thread.ring()
    with trio.fail_after(10):
        await ended.wait()


def test_ctrl_c_at_job_start_is_handled():
    """Ctrl-C must not end the task there, because the thread would later wake a missing task and break trio."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    class Pressing(StorageThread):
        is_pressed = False

        def _begin(self, job):
            super()._begin(job)
            if not self.is_pressed:
                self.is_pressed = True
                signal.raise_signal(signal.SIGINT)

    async def work():
        thread = Pressing("pressed")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(thread.run, time.sleep, 0.05)
        finally:
            with trio.CancelScope(shield=True):
                await thread.run(lambda: None)  # after the first job
            thread.end(lambda: None)

    try:
        with pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True):
            trio.run(work)
    finally:
        signal.signal(signal.SIGINT, before)
