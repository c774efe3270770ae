"""`assert_no_leaks`: find tasks, file descriptors and threads that a block leaves open."""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import trio

from actgent.turns.event_loop_watchdog import THREAD_NAME

_FD = Path("/proc/self/fd")
_IDLE_WORKER = re.compile(rf"Trio thread \d+|{THREAD_NAME}")
"""Names of threads that end soon: idle trio workers, which trio keeps for 10 s, and the watchdog of actgent."""

_Found = dict[Hashable, Callable[[], str]]
"""Open resources by key, each with a function that describes it."""


@attrs.define
class assert_no_leaks:  # noqa: N801 - lower case, since it is used like an assertion function
    """Context manager that fails if the block leaves a new trio task, file descriptor or thread open.

    `async with` in trio checks all three. `with` outside trio, around `trio.run`, checks descriptors and threads.
    Descriptors are checked only on systems with /proc. Nothing is checked if the block raises.

    Raises:
        AssertionError: Something was left open; the message lists all of it.
    """

    grace: float = 0.5
    """Time in seconds in which open resources may close before they count as leaks."""
    _before: _Found = attrs.field(factory=dict, init=False, repr=False)

    def __enter__(self) -> Self:
        self._before = _everything()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            deadline = time.monotonic() + self.grace
            while (left := self._find_leaks()) and time.monotonic() < deadline:
                time.sleep(0.001)
            _raise_leaks(left)

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await trio.lowlevel.checkpoint()  # noqa: ASYNC102 - a cancelled block is not checked
        if error is None:
            deadline = time.monotonic() + self.grace
            while (left := self._find_leaks()) and time.monotonic() < deadline:
                await trio.lowlevel.checkpoint()  # noqa: ASYNC102 - as above; not sleep: a mock clock may not advance
            _raise_leaks(left)

    def _find_leaks(self) -> list[str]:
        now = _everything()
        return [describe() for key, describe in now.items() if key not in self._before]


def _raise_leaks(left: list[str]) -> None:
    if left:
        raise AssertionError(f"{len(left)} left open:\n  " + "\n  ".join(sorted(left)))


def _everything() -> _Found:
    return {**_tasks(), **_threads(), **_descriptors()}


def _tasks() -> _Found:
    """Return all tasks of the running trio loop, with functions that describe them; empty outside of trio."""
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        return {}
    return {task: partial("task {.name}".format, task) for task in _walk(root)} if root else {}


def _walk(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    waiting = [root]
    while waiting:
        task = waiting.pop()
        yield task
        waiting += (child for nursery in task.child_nurseries for child in nursery.child_tasks)


def _threads() -> _Found:
    threads = (thread for thread in threading.enumerate() if not _IDLE_WORKER.fullmatch(thread.name))
    return {thread: partial("thread {.name}".format, thread) for thread in threads}


def _descriptors() -> _Found:
    """Return the open file descriptors of this process with their targets.

    By its target, a new descriptor with a reused number is recognized.
    """
    found: _Found = {}
    for entry in _FD.iterdir() if _FD.exists() else ():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue  # the descriptor of the directory listing itself
        found[entry.name, target] = partial(_describe, int(entry.name), target)
    return found


def _describe(descriptor: int, target: str) -> str:
    """Describe a file descriptor by the two addresses of a socket, else by its target in /proc."""
    name = f"descriptor {descriptor}: {target}"
    if not target.startswith("socket:"):
        return name
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return f"{name} {_end(copy.getsockname)} -> {_end(copy.getpeername)}"
    except OSError:
        return name


def _end(address: Callable[[], object]) -> str:
    try:
        return str(address())
    except OSError:
        return "nobody"
