"""An agent's database in an SQLite file."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import apsw

from actgent.errors import ConfigurationError, DatabaseFailed

from .connection import DataConnection, Values

BUSY_TIMEOUT_MS = 10_000
"""Milliseconds for which a connection waits while another process writes."""
P = ParamSpec("P")
R = TypeVar("R")


def _raise_database_failed(fn: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it raises `DatabaseFailed` instead of SQLite errors."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except apsw.Error as error:
            raise DatabaseFailed(f"{type(error).__name__}: {error}") from error

    return call


class SQLiteConnection(DataConnection):
    """A connection to a file, which other processes may use too.

    Raises:
        ConfigurationError: The file is a journal.
        DatabaseFailed: The file cannot be opened.
    """

    placeholder = "?"

    @_raise_database_failed
    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        try:
            self._db.set_busy_timeout(BUSY_TIMEOUT_MS)
            self._check_no_journal(path.name)
            for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                self._db.pragma(*setting.split("="))
        except BaseException:
            self._db.close()
            raise

    def _check_no_journal(self, name: str) -> None:
        if self.query("SELECT 1 FROM sqlite_schema WHERE name = 'places' AND tbl_name = 'steps'"):
            raise ConfigurationError(f"{name} is a journal: choose another file for the agent's database")

    @_raise_database_failed
    def execute(self, sql: str, values: Values = ()) -> int:
        before = self._db.total_changes()
        self._db.execute(sql, _parameters(values)).fetchall()
        return self._db.total_changes() - before

    @_raise_database_failed
    def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        cursor = self._db.execute(sql, _parameters(values))
        return [dict(zip((each[0] for each in cursor.get_description()), row, strict=True)) for row in cursor]

    @_raise_database_failed
    def script(self, sql: str) -> None:
        self._db.execute(sql).fetchall()

    @contextlib.contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[None]:
        self._set_query_only(is_on=read_only)
        self.script("BEGIN" if read_only else "BEGIN IMMEDIATE")
        try:
            yield
            if not self._db.in_transaction:
                raise DatabaseFailed(
                    "a statement ended the transaction: remove BEGIN, COMMIT and ROLLBACK, the block manages the transaction"
                )
            self.script("COMMIT")
        finally:
            if self._db.in_transaction:
                self.script("ROLLBACK")
            self._set_query_only(is_on=False)

    def _set_query_only(self, *, is_on: bool) -> None:
        self._db.pragma("query_only", is_on)

    def close(self) -> None:
        self._db.close()


def _parameters(values: Values) -> Any:
    return values if isinstance(values, dict) else dict(values) if hasattr(values, "keys") else tuple(values)
