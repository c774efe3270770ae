"""Interface of stores in SQL databases, whose statements are the same in SQLite and PostgreSQL."""

import abc
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Self, TypeVar

import attrs
import outcome
import trio

from .storage_thread import StorageThread

Row = tuple[Any, ...]


class SQLConnection(abc.ABC):
    """A database connection that is used by one thread. All methods block."""

    @abc.abstractmethod
    def run(self, sql: str, values: Iterable[object] = ()) -> list[Row]:
        """Execute a statement with `?` placeholders, and return its rows."""

    @abc.abstractmethod
    def run_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Execute a statement once for each row of values, in order. The statement returns no rows."""

    @abc.abstractmethod
    def script(self, sql: str) -> None:
        """Execute SQL text with several statements."""

    @abc.abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Run a block in a transaction. Its changes are durable when the block exits."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Create or check the tables. Called with a new connection, which is closed if this method raises."""


S = TypeVar("S", bound=SQLConnection)


@attrs.frozen(eq=False)
class ThreadedStore(Generic[S]):
    """An open store in an SQL database, with the worker thread in which its methods run."""

    thread: StorageThread
    store: S
    turn: trio.Lock = attrs.field(factory=trio.Lock)
    """Lock of the worker thread, held by the task that uses the thread."""

    @classmethod
    async def open(cls, name: str, open_store: Callable[[], S]) -> Self:
        """Start a worker thread named `name`, and open a store in it.

        If this call is cancelled, the thread closes the store later.
        """
        thread = StorageThread(name)
        job = thread.prepare(open_store)
        try:
            await thread.wait_for(job)
            return cls(thread, job.result.unwrap())  # type: ignore[union-attr]
        except BaseException:
            thread.end(lambda: _close(job.result))
            raise

    def end(self) -> None:
        """Close the store in its worker thread, and stop the thread."""
        self.thread.end(self.store.close)


def _close(opened: outcome.Outcome[SQLConnection] | None) -> None:
    if isinstance(opened, outcome.Value):
        opened.value.close()
