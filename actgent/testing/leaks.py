"""What a block of code leaves behind: tasks, file descriptors, threads."""

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

_FD = Path("/proc/self/fd")
_IDLE_WORKER = re.compile(r"Trio thread \d+")
"""trio keeps a finished worker thread for 10 s and gives it its own name back; one at work bears its function's."""

_Found = dict[Hashable, Callable[[], str]]
"""What there is, each with a way to name it."""


@attrs.define
class assert_no_leaks:  # noqa: N801 - reads like the assertion that it is
    """Fail when the block leaves a trio task, a file descriptor or a thread that was not there before.

    `async with` inside of trio looks at all three, and gives what is just closing up to `grace` seconds;
    `with` outside of trio, around `trio.run`, looks at descriptors and threads. Descriptors are
    known only where /proc is. A block that raises is not looked at, its exception comes first.

    Raises:
        AssertionError: names everything that is left.
    """

    grace: float = 0.5
    _before: _Found = attrs.field(factory=dict, init=False, repr=False)

    def __enter__(self) -> Self:
        self._before = _everything()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            deadline = time.monotonic() + self.grace
            while (left := self._left()) and time.monotonic() < deadline:
                time.sleep(0.001)
            _complain(left)

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await trio.lowlevel.checkpoint()  # noqa: ASYNC102 - whoever is cancelled checks nothing
        if error is None:
            deadline = time.monotonic() + self.grace
            while (left := self._left()) and time.monotonic() < deadline:
                await trio.lowlevel.checkpoint()  # noqa: ASYNC102 - as above; not sleep: a mock clock may stand still
            _complain(left)

    def _left(self) -> list[str]:
        now = _everything()
        return [describe() for key, describe in now.items() if key not in self._before]


def _complain(left: list[str]) -> None:
    if left:
        raise AssertionError(f"{len(left)} left behind:\n  " + "\n  ".join(sorted(left)))


def _everything() -> _Found:
    return {**_tasks(), **_threads(), **_descriptors()}


def _tasks() -> _Found:
    """Every task of the running trio loop, by the object; none outside of trio."""
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
    """Open descriptors by number and target, so that a number used again counts as new."""
    found: _Found = {}
    for entry in _FD.iterdir() if _FD.exists() else ():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        found[entry.name, target] = partial(_describe, int(entry.name), target)
    return found


def _describe(descriptor: int, target: str) -> str:
    """A socket by its ends; everything else by what /proc says."""
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
