"""Interface of stores in SQL databases, whose statements are the same in SQLite and PostgreSQL. All methods block."""

import abc
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

Row = tuple[Any, ...]


class SQLConnection(abc.ABC):
    """A connection that is used by one thread."""

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
