"""The store of some memories, for many tasks: reads go beside writes, and operations that wait are written together."""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs
import outcome
import trio

from actgent.errors import UsageError
from actgent.support.storage_thread import StorageThread

from .operations import Operation, Together, Use
from .store import MemoryStore

T = TypeVar("T")

GROUP = 1_000
"""How many operations are written together at most."""
USES = 500
"""How many recalled memories are noted together, beside the next write or by one of their own."""
CLOSING = 5.0
"""Seconds that closing takes at most to note what was recalled."""


@attrs.define(eq=False)
class _Job:
    """An operation that waits to be written with others, and what came of it."""

    todo: Operation
    result: outcome.Outcome[Any] | None = None


@attrs.frozen(eq=False)
class _Connection:
    """A connection to the store, and its thread."""

    thread: StorageThread
    store: MemoryStore
    turn: trio.Lock = attrs.field(factory=trio.Lock)
    """Held by the task that waits for the thread."""

    @classmethod
    async def opened(cls, name: str, fn: Callable[[], MemoryStore]) -> "_Connection":
        thread = StorageThread(name)
        job = thread.prepare(fn)
        try:
            await thread.see_through(job)
            return cls(thread, job.result.unwrap())  # type: ignore[union-attr]
        except BaseException:
            thread.end(lambda: _close(job.result))
            raise

    def end(self) -> None:
        self.thread.end(self.store.close)


def _close(opened: outcome.Outcome[MemoryStore] | None) -> None:
    """Close a store whose opening nobody waited for."""
    if isinstance(opened, outcome.Value):
        opened.value.close()


class StoreAccess:
    """A connection that reads and one that writes, open while it has users.

    Args:
        name: What is said to be closed, where it is.
        open_store: Opens the store, in the thread of a connection.
        is_alone: True: the store is its connection's alone, which has to read, too.
    """

    def __init__(self, name: str, open_store: Callable[[], MemoryStore], *, is_alone: bool) -> None:
        self._name = name
        self._open = open_store
        self._is_alone = is_alone
        self._uses: dict[int, tuple[int, float]] = {}
        """How often memories were recalled, and when last, since that was written last."""
        self._jobs: list[_Job] = []
        self._lock = threading.Lock()
        """Held for some µs, by the loop or the thread that writes, round what both of them change."""
        self._opening = trio.Lock()
        self._users = 0
        self._writer: _Connection | None = None
        self._reader: _Connection | None = None

    # --- its life ------------------------------------------------------------------------

    async def acquire(self) -> None:
        """Have one more user, for whom it is open."""
        async with self._opening:
            if not self._users:
                self._writer = await _Connection.opened("memories", self._open)
                try:
                    self._reader = (
                        self._writer if self._is_alone else await _Connection.opened("recall", self._open)
                    )
                except BaseException:
                    self._writer.end()
                    raise
            self._users += 1

    async def release(self) -> None:
        """Have one user less; it is closed without any, once uses are written that were noted."""
        self._users -= 1
        if self._users:
            return
        writer, reader = self._checked(self._writer), self._checked(self._reader)
        self._writer = self._reader = None
        try:
            if self._uses:
                with trio.move_on_after(CLOSING, shield=True):
                    await writer.thread.run(self._write_all, writer.store)
        finally:
            if reader is not writer:
                reader.end()
            writer.end()

    def _checked(self, found: _Connection | None) -> _Connection:
        if found is None:
            raise UsageError(
                f"{self._name} is not open: use it inside `async with memories:`, or while an agent that has it runs"
            )
        return found

    # --- reading and writing -------------------------------------------------------------

    async def read(self, fn: Callable[..., T], *args: Any) -> T:
        """Call a function with the store, in the thread that reads.

        Raises:
            UsageError: it is not open.
        """
        reader = self._checked(self._reader)
        async with reader.turn:
            return await reader.thread.run(fn, reader.store, *args)

    async def write(self, todo: Operation | None) -> object:
        """Write an operation with those of others that wait: whoever comes first writes for all of them.

        Raises:
            UsageError: it is not open.
        """
        writer = self._checked(self._writer)
        job = _Job(todo or Together(()))
        with self._lock:
            self._jobs.append(job)
        try:
            async with writer.turn:
                if job.result is None:
                    await writer.thread.run(self._write_all, writer.store)
        except trio.Cancelled:
            with self._lock:
                if job in self._jobs:
                    self._jobs.remove(job)
            raise
        assert job.result is not None  # noqa: S101 - it was written by now, by this task or one before it
        return job.result.unwrap()

    async def note_uses(self, numbers: Iterable[int], *, at: float) -> None:
        """Note that memories were recalled; written with what is written next, or where many are noted."""
        with self._lock:
            for number in numbers:
                times, _ = self._uses.get(number, (0, at))
                self._uses[number] = (times + 1, at)
        if len(self._uses) > USES:
            await self.write(None)

    def _write_all(self, store: MemoryStore) -> None:
        """Write what waits, in the thread of the connection."""
        with self._lock:
            jobs, self._jobs = self._jobs[:GROUP], self._jobs[GROUP:]
            uses, self._uses = self._uses, {}
        noted: list[Operation] = [Use(uses=uses)] if uses else []
        # What was used first: it counts for what is evicted.
        written = outcome.capture(store.apply, [*noted, *(job.todo for job in jobs)])
        for place, job in enumerate(jobs, len(noted)):
            if isinstance(written, outcome.Error) and len(jobs) > 1:
                # What is wrong with one of them is not the others'.
                job.result = _one_of(outcome.capture(store.apply, [job.todo]), 0)
            else:
                job.result = _one_of(written, place)


def _one_of(written: outcome.Outcome[list[object]], place: int) -> outcome.Outcome[Any]:
    """The outcome of one operation of several."""
    if not isinstance(written, outcome.Value):
        return written
    result = written.value[place]
    return outcome.Error(result) if isinstance(result, BaseException) else outcome.Value(result)
