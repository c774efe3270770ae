"""actgent.tools.worker_threads: worker threads of sync functions."""

import contextvars
import functools
import threading
import time
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from actgent.errors import ThreadPoolExhausted, ThreadsStillRunning
from actgent.tools import Threads
from actgent.tools.worker_threads import MAX_ABANDONED, MAX_WAIT_SECONDS

who = contextvars.ContextVar("who", default="nobody")


async def test_result_and_error_come_back():
    """The caller gets the return value or the exception of the function."""
    threads = Threads()
    assert await threads.run_sync(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run_sync(divmod, 1, 0)
    assert threads.abandoned == ()


async def test_thread_has_the_context_variables_of_its_caller():
    who.set("ada")
    assert await Threads().run_sync(who.get) == "ada"


async def test_thread_calls_back_into_trio():
    """A sync function can use `trio.from_thread`."""

    async def double(n: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * n

    assert await Threads().run_sync(trio.from_thread.run, double, 4) == 8


async def test_capacity_bounds_the_threads():
    """The number of concurrent functions is at most the capacity."""
    threads, running, maximum = Threads(2), 0, 0
    lock, both = threading.Lock(), threading.Barrier(2)

    def work() -> None:
        nonlocal running, maximum
        with lock:
            running += 1
            maximum = max(maximum, running)
        both.wait(60)
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(threads.run_sync, work)
    assert maximum == 2


async def test_cancelled_call_returns_at_once_and_its_thread_is_named():
    """A thread that cannot be stopped is listed until it ends."""
    threads, started, go = Threads(), threading.Event(), threading.Event()

    def stubborn() -> None:
        started.set()
        go.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.to_thread.run_sync(started.wait, 60)
        assert threads.abandoned == ()
        nursery.cancel_scope.cancel()
    assert threads.abandoned == ("stubborn",)
    with pytest.raises(ThreadsStillRunning, match=r"1 thread still running 0.01 s .*: stubborn;") as caught:
        await threads.wait_abandoned(0.01)
    assert caught.value.names == ("stubborn",)
    go.set()
    await threads.wait_abandoned(5)
    assert threads.abandoned == ()


async def test_abandoned_threads_release_their_slots():
    """The slot of an abandoned thread is free again when the thread ends."""
    threads, started, go = Threads(1), threading.Event(), threading.Event()

    def stubborn() -> None:
        started.set()
        go.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.to_thread.run_sync(started.wait, 60)
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert threads.abandoned == ("stubborn",)
    go.set()
    with trio.fail_after(60):
        assert await threads.run_sync(int, "7") == 7


async def test_call_cancelled_before_its_start_never_begins():
    """A function does not run if its caller is cancelled before a thread is free."""
    threads, started, go, ran = Threads(1), threading.Event(), threading.Event(), []

    def stubborn() -> None:
        started.set()
        go.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.to_thread.run_sync(started.wait, 60)
        with trio.move_on_after(0.01):
            await threads.run_sync(ran.append, 1)
        go.set()
    assert await threads.run_sync(len, ran) == 0


async def test_wait_abandoned_without_threads():
    """Without abandoned threads the wait returns at once."""
    await Threads().wait_abandoned(0)


def test_thread_outlives_the_run():
    """A thread that ends after the trio run causes no error."""
    threads, started, go, done = Threads(), threading.Event(), threading.Event(), threading.Event()

    def stubborn() -> None:
        started.set()
        go.wait(60)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(threads.run_sync, stubborn, name="slow"))
            await trio.to_thread.run_sync(started.wait, 60)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert threads.abandoned == ("slow",)
    threading.Thread(target=lambda: (go.set(), done.set())).start()
    assert done.wait(60)
    while threads.abandoned:
        done.wait(0.001)


# --- several agents -------------------------------------------------------------------------


@attrs.define
class Hall:
    """Threads that hang until `go` is set, with the number of started threads."""

    go: threading.Event = attrs.field(factory=threading.Event)
    begun: int = 0
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def hang(self) -> None:
        with self._lock:
            self.begun += 1
        self.go.wait(20)

    async def begin(self, share, nursery, count: int, *, want: int | None = None) -> None:
        """Start `count` calls, and wait until `want` of them run."""
        before = self.begun
        for _ in range(count):
            nursery.start_soon(share.run_sync, self.hang)
        while self.begun < before + (count if want is None else want):
            await trio.to_thread.run_sync(time.sleep, 0.001)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def hall():
    """Yield a Hall. Its threads end with the test at the latest."""
    made = Hall()
    yield made
    made.go.set()


@pytest.mark.parametrize("capacity", [4, 40, 160])
async def test_hanging_functions_do_not_block_other_agents(hall, capacity):
    """An agent never uses all slots. The remaining slots are for agents with few threads."""
    threads = Threads(capacity)
    a, b = threads.share("a", 40), threads.share("b", 40)
    async with trio.open_nursery() as nursery:
        await hall.begin(a, nursery, 60, want=min(40, capacity * 3 // 4))
        with trio.fail_after(60):
            assert await b.run_sync(int, "7") == 7
        await hall.begin(b, nursery, 1)
        assert (a.slots_used, b.slots_used) == (min(40, capacity * 3 // 4), 1)
        hall.go.set()
    assert (a.slots_used, b.slots_used, hall.begun) == (0, 0, 61)


async def test_free_slots_go_to_the_agent_with_the_fewest(hall):
    """Within an agent, the call with the longest wait gets the slot."""
    threads, order = Threads(1), []
    a, b = threads.share("a", 1), threads.share("b", 1)
    async with trio.open_nursery() as nursery:
        await hall.begin(a, nursery, 1)
        for share, name in ((a, "a1"), (a, "a2"), (b, "b1"), (b, "b2")):
            nursery.start_soon(share.run_sync, order.append, name)
            await trio.testing.wait_all_tasks_blocked()
        hall.go.set()
    assert order == ["a1", "b1", "a2", "b2"]


async def test_abandoned_thread_releases_its_slot(hall):
    """The agent's next call starts before the abandoned function returns."""
    share = Threads().share("a", 1)
    async with trio.open_nursery() as nursery:
        await hall.begin(share, nursery, 1)
        nursery.cancel_scope.cancel()
    assert share.abandoned == ("hang",)
    with trio.fail_after(60):
        assert await share.run_sync(int, "7") == 7


async def test_agent_with_too_many_abandoned_threads_starts_none(hall):
    """New and waiting calls fail at once until an abandoned thread ends. Other agents are not affected."""
    threads = Threads(1000)
    a, b = threads.share("a", MAX_ABANDONED), threads.share("b", 1)
    refused = []

    async def wait():
        with pytest.raises(
            ThreadPoolExhausted, match=f"{MAX_ABANDONED} threads of its agent still run .*hang"
        ) as caught:
            await a.run_sync(int, "7")
        refused.append(caught.value)

    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            await hall.begin(a, nursery, MAX_ABANDONED)
            outer.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            a.capacity = 0  # the waiting call must not get the first free slot
            nursery.cancel_scope.cancel()
        a.capacity = MAX_ABANDONED
        await trio.testing.wait_all_tasks_blocked()
        assert len(refused) == 1
        await wait()
        assert await b.run_sync(int, "7") == 7
        hall.go.set()
        await threads.wait_abandoned(5)
        assert await a.run_sync(int, "7") == 7


async def test_wait_for_a_thread_times_out(hall, mock_clock):
    """The error names the wait time, the option to set, and that the call did not run."""
    threads = Threads(2)
    a, b = threads.share("a", 1), threads.share("b", 2)
    texts, never = [], []

    async def wait(share):
        with pytest.raises(ThreadPoolExhausted) as caught:
            await share.run_sync(int, "7", on_not_started=lambda: never.append(1))
        texts.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        await hall.begin(a, nursery, 1)
        await hall.begin(b, nursery, 1)
        nursery.start_soon(wait, a)
        nursery.start_soon(wait, b)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(MAX_WAIT_SECONDS)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(texts) == [
            "no thread was free within 60 s, so the call did not run: all 1 threads of its agent are busy (Agent(max_threads=...))",
            "no thread was free within 60 s, so the call did not run: all 2 threads of the runtime are busy (open_runtime(max_threads=...))",
        ]
        hall.go.set()
    assert never == []  # the error reports it
    assert (a.slots_used, b.slots_used) == (0, 0)


@pytest.mark.parametrize("together", [False, True])
async def test_call_cancelled_while_waiting_releases_its_slot(hall, together):
    """The slot is released, also if it becomes free at the same moment. `on_not_started` is called."""
    share = Threads().share("a", 1)
    never, ran = [], []
    async with trio.open_nursery() as nursery:
        await hall.begin(share, nursery, 1)
        async with trio.open_nursery() as waiting:
            for _ in range(3):
                waiting.start_soon(
                    partial(share.run_sync, ran.append, 1, on_not_started=lambda: never.append(1))
                )
            await trio.testing.wait_all_tasks_blocked()
            waiting.cancel_scope.cancel()
            if together:
                nursery.cancel_scope.cancel()
        assert len(never) == 3
        hall.go.set()
    assert (share.slots_used, ran) == (0, [])
    assert await share.run_sync(int, "7") == 7
