"""The thread of a storage, under a clock that jumps."""

import time

import pytest
import trio

from actgent.support.storage_thread import StorageThread


async def test_a_clock_that_jumps_does_not_run_ahead_of_the_work(autojump_clock):
    """Who waits for the thread with a limit by such a clock is not told that it is slow."""
    thread = StorageThread("slow")
    begun = trio.current_time()
    with trio.fail_after(10):
        assert await thread.run(lambda: time.sleep(0.3) or "done") == "done"
    assert trio.current_time() - begun < 1
    thread.end(lambda: None)


async def test_work_that_never_ends_does_not_hold_the_clock_for_ever(autojump_clock, monkeypatch):
    """After a while limits pass again."""
    monkeypatch.setattr("actgent.support.storage_thread.HELD", 0.1)
    thread = StorageThread("stuck")
    with pytest.raises(trio.TooSlowError), trio.fail_after(1000):
        await thread.run(time.sleep, 2)
    thread.end(lambda: None)
