"""actgent.tools.threads: sync functions in worker threads."""

import contextvars
import functools
import threading

import pytest
import trio
import trio.testing

from actgent.errors import ThreadsLeft
from actgent.tools import Threads

who = contextvars.ContextVar("who", default="nobody")


async def test_result_and_error_come_back():
    """What the function returns or raises is what the caller gets."""
    threads = Threads()
    assert await threads.run_sync(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.run_sync(divmod, 1, 0)
    assert threads.left == ()


async def test_context_variables_follow():
    """The caller's context variables are seen in the thread."""
    who.set("ada")
    assert await Threads().run_sync(who.get) == "ada"


async def test_thread_calls_back_into_trio():
    """A sync function may use `trio.from_thread`."""

    async def double(n: int) -> int:
        await trio.lowlevel.checkpoint()
        return 2 * n

    assert await Threads().run_sync(trio.from_thread.run, double, 4) == 8


async def test_capacity_bounds_the_threads():
    """No more functions run at a time than there is capacity for."""
    threads, running, most = Threads(2), 0, 0
    lock, both = threading.Lock(), threading.Barrier(2)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(5)
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(threads.run_sync, work)
    assert most == 2


async def test_cancelled_call_returns_at_once_and_its_thread_is_named():
    """A thread that cannot be stopped is counted until it ends."""
    threads, begun, go = Threads(), threading.Event(), threading.Event()

    def stubborn() -> None:
        begun.set()
        go.wait(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.to_thread.run_sync(begun.wait, 5)
        assert threads.left == ()
        nursery.cancel_scope.cancel()
    assert threads.left == ("stubborn",)
    with pytest.raises(ThreadsLeft, match=r"1 thread\(s\) still ran 0.01 s .*: stubborn;") as caught:
        await threads.wait_left(0.01)
    assert caught.value.names == ("stubborn",)
    go.set()
    await threads.wait_left(5)
    assert threads.left == ()


async def test_cancelled_calls_leak_no_place():
    """Places of threads that were left are free again when these end."""
    threads, begun, go = Threads(1), threading.Event(), threading.Event()

    def stubborn() -> None:
        begun.set()
        go.wait(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.to_thread.run_sync(begun.wait, 5)
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert threads.left == ("stubborn",)
    go.set()
    with trio.fail_after(5):
        assert await threads.run_sync(int, "7") == 7


async def test_call_cancelled_before_it_began_never_begins():
    """A function whose caller is gone before a thread is free does not run."""
    threads, begun, go, ran = Threads(1), threading.Event(), threading.Event(), []

    def stubborn() -> None:
        begun.set()
        go.wait(5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run_sync, stubborn)
        await trio.to_thread.run_sync(begun.wait, 5)
        with trio.move_on_after(0.01):
            await threads.run_sync(ran.append, 1)
        go.set()
    assert await threads.run_sync(len, ran) == 0


async def test_wait_left_without_threads():
    """With nothing left there is nothing to wait for."""
    await Threads().wait_left(0)


def test_thread_outlives_the_run():
    """A thread that ends after trio itself disturbs nobody."""
    threads, begun, go, done = Threads(), threading.Event(), threading.Event(), threading.Event()

    def stubborn() -> None:
        begun.set()
        go.wait(5)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(threads.run_sync, stubborn, name="slow"))
            await trio.to_thread.run_sync(begun.wait, 5)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert threads.left == ("slow",)
    threading.Thread(target=lambda: (go.set(), done.set())).start()
    assert done.wait(5)
    while threads.left:
        done.wait(0.001)
