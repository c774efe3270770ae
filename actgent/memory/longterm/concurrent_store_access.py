"""Access to a memory store from many tasks: reads run concurrently with writes, and waiting writes share a transaction."""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs
import outcome
import trio

from actgent.errors import UsageError
from actgent.support.sql_connection_interface import ThreadedStore

from .memory_store import MemoryStore
from .memory_store_operations import Operation, Transaction, Use

T = TypeVar("T")

MAX_GROUP = 1_000
"""Maximum number of operations in one transaction."""
MAX_PENDING_USES = 2_000
"""Maximum number of recalled memories whose use counts are not written yet. They are written with the next operation.

A write takes 5 µs per memory, and later recalls read pages and word counts again, which takes 10 ms.
"""
CLOSE_SECONDS = 5.0
"""Maximum seconds for writing pending use counts when the store closes."""


@attrs.define(eq=False)
class _Job:
    """An operation that waits for the next transaction, and its outcome."""

    todo: Operation
    result: outcome.Outcome[Any] | None = None


class StoreAccess:
    """A reading and a writing connection to a store, open as long as it is acquired.

    Args:
        name: Name of the memories, for the error if they are closed.
        open_store: Opens the store, in the thread of a connection.
        is_alone: True if a second connection would see another store (a store in memory), so that one connection does both.
    """

    def __init__(self, name: str, open_store: Callable[[], MemoryStore], *, is_alone: bool) -> None:
        self._name = name
        self._open = open_store
        self._is_alone = is_alone
        self._uses: dict[int, tuple[int, float]] = {}
        """Recalls that are not written yet: number and time of the last one, by memory number."""
        self._jobs: list[_Job] = []
        self._lock = threading.Lock()
        """Protects `_jobs` and `_uses`, which the event loop and the writing thread change. Held for microseconds."""
        self._opening = trio.Lock()
        self._users = 0
        self._writer: ThreadedStore[MemoryStore] | None = None
        self._reader: ThreadedStore[MemoryStore] | None = None

    # --- opening and closing -------------------------------------------------------------

    async def acquire(self) -> None:
        """Count one more user of the memory store. The first user opens the reading and the writing connection."""
        async with self._opening:
            if not self._users:
                self._writer = await ThreadedStore.open("memories", self._open)
                try:
                    self._reader = (
                        self._writer if self._is_alone else await ThreadedStore.open("recall", self._open)
                    )
                except BaseException:
                    self._writer.end()
                    raise
            self._users += 1

    async def release(self) -> None:
        """Count one user of the memory store less. The last one writes the pending use counts and closes the connections."""
        self._users -= 1
        if self._users:
            return
        writer, reader = self._check_store(self._writer), self._check_store(self._reader)
        self._writer = self._reader = None
        try:
            if self._uses:
                with trio.move_on_after(CLOSE_SECONDS, shield=True):
                    await writer.thread.run(self._write_all, writer.store)
        finally:
            if reader is not writer:
                reader.end()
            writer.end()

    def _check_store(self, found: ThreadedStore[MemoryStore] | None) -> ThreadedStore[MemoryStore]:
        if found is None:
            raise UsageError(
                f"{self._name} is not open: use it inside `async with memories:`, or while an agent with these memories runs"
            )
        return found

    # --- reading and writing -------------------------------------------------------------

    async def read(self, fn: Callable[..., T], *args: Any) -> T:
        """Call `fn(store, *args)` in the thread of the reading connection, and return its result.

        Raises:
            UsageError: The store is not open.
        """
        reader = self._check_store(self._reader)
        try:  # the lock is usually free, and waiting for it takes a pass of the event loop (30 µs)
            reader.turn.acquire_nowait()
        except trio.WouldBlock:
            await reader.turn.acquire()
        try:
            return await reader.thread.run(fn, reader.store, *args)
        finally:
            reader.turn.release()

    async def write(self, todo: Operation | None) -> object:
        """Execute an operation on the memory store in a transaction, and return its result.

        The change is durable when the method returns. None as `todo` only writes the pending use counts. Operations of
        waiting tasks share one transaction. If the call is cancelled while it waits, the operation is not executed.

        Raises:
            UsageError: The store is not open.
        """
        writer = self._check_store(self._writer)
        job = _Job(todo or Transaction(()))
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
        assert job.result is not None  # noqa: S101 - written by this task, or by a task that held the lock before
        return job.result.unwrap()

    async def note_uses(self, numbers: Iterable[int], *, at: float) -> None:
        """Count one use of each of the memories `numbers`, at the Unix time `at`. Recent use slows the decay of importance.

        The counts are written with the next operation, or when more than `MAX_PENDING_USES` memories have one.
        """
        with self._lock:
            for number in numbers:
                times, _ = self._uses.get(number, (0, at))
                self._uses[number] = (times + 1, at)
        if len(self._uses) > MAX_PENDING_USES:
            await self.write(None)

    def _write_all(self, store: MemoryStore) -> None:
        """Write the waiting operations and use counts in one transaction."""
        with self._lock:
            jobs, self._jobs = self._jobs[:MAX_GROUP], self._jobs[MAX_GROUP:]
            uses, self._uses = self._uses, {}
        noted: list[Operation] = [Use(uses=uses)] if uses else []
        # Use counts come first, since evictions of the operations depend on them.
        written = outcome.capture(store.apply, [*noted, *(job.todo for job in jobs)])
        for place, job in enumerate(jobs, len(noted)):
            if isinstance(written, outcome.Error) and len(jobs) > 1:
                # The transaction failed: write each operation separately, so that only the faulty one fails.
                job.result = _outcome_at(outcome.capture(store.apply, [job.todo]), 0)
            else:
                job.result = _outcome_at(written, place)


def _outcome_at(written: outcome.Outcome[list[object]], index: int) -> outcome.Outcome[Any]:
    """Return the result or exception of one operation. `written` is the outcome of its transaction, `index` its position."""
    if not isinstance(written, outcome.Value):
        return written
    result = written.value[index]
    return outcome.Error(result) if isinstance(result, BaseException) else outcome.Value(result)
