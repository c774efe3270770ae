"""`assert_no_leaks` names leaked tasks, sockets, files and threads, and reports no false leaks."""

import os
import socket
import threading

import pytest
import trio

from actgent.testing import assert_no_leaks


async def test_a_clean_block_passes():
    """Tasks, sockets and worker threads that have ended are no leaks."""
    async with assert_no_leaks(), trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.lowlevel.checkpoint)
        await trio.to_thread.run_sync(int)
        await listeners[0].aclose()


async def test_a_task_left_is_named():
    """A task in a nursery outside of the block still runs after the block."""

    async def forgotten():
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        with pytest.raises(AssertionError, match=r"task .*forgotten"):
            async with assert_no_leaks(grace=0):
                nursery.start_soon(forgotten)
        nursery.cancel_scope.cancel()


async def test_ending_task_is_awaited():
    """A task that ends within the grace is not a leak, also under a clock that does not advance."""

    async def ends_soon():
        for _ in range(5):
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, assert_no_leaks():
        nursery.start_soon(ends_soon)


async def test_a_system_task_left_is_named():
    """The check also finds system tasks, which belong to no nursery of the program."""

    async def hidden():
        await done.wait()

    done = trio.Event()
    with pytest.raises(AssertionError, match=r"task .*hidden"):
        async with assert_no_leaks(grace=0):
            trio.lowlevel.spawn_system_task(hidden)
    done.set()


def test_a_socket_left_is_named_by_its_ends():
    """The message of a leaked connection names its two addresses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            pytest.raises(AssertionError, match=f"descriptor .*socket.*-> .*{port}"),
            assert_no_leaks(grace=0),
        ):
            left = socket.create_connection(("127.0.0.1", port))
        left.close()


def test_a_file_left_is_named_by_its_path(tmp_path):
    """The message of a leaked descriptor names the path of its file."""
    with pytest.raises(AssertionError, match=r"notes\.txt"), assert_no_leaks(grace=0):
        left = os.open(tmp_path / "notes.txt", os.O_CREAT)
    os.close(left)


def test_a_thread_left_is_named():
    """A thread of any kind that still runs is a leak."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="busybody")
    with pytest.raises(AssertionError, match="thread busybody"), assert_no_leaks(grace=0):
        thread.start()
    done.set()
    thread.join()


async def test_a_worker_at_work_is_a_leak_and_an_idle_one_is_not():
    """Trio keeps idle worker threads for ten seconds. Only a thread that runs a function is a leak."""
    done, started = threading.Event(), threading.Event()

    def work():
        started.set()
        done.wait()

    check = assert_no_leaks(grace=0)
    async with trio.open_nursery() as nursery:
        await check.__aenter__()
        nursery.start_soon(trio.to_thread.run_sync, work)
        while not started.is_set():
            await trio.lowlevel.checkpoint()
        with pytest.raises(AssertionError, match=r"thread .*work"):
            await check.__aexit__(None, None, None)
        done.set()
    await check.__aexit__(None, None, None)


def test_leak_check_works_outside_of_trio():
    """Outside of trio, the check is a plain `with` block."""

    async def main():
        await trio.to_thread.run_sync(int)

    with assert_no_leaks():
        trio.run(main)


async def test_block_exception_precedes_leaks():
    """If the block raises, its exception is raised without a leak check."""
    left = []
    with pytest.raises(KeyError):
        async with assert_no_leaks():
            raise KeyError(left.append(os.dup(0)))
    os.close(left[0])
