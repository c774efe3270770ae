"""Tables in a file of SQLite."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import apsw

from actgent.errors import ConfigurationError, DatabaseFailed

from .connection import DataConnection, Values

BUSY = 10_000
"""Milliseconds to wait for another process that writes."""
P = ParamSpec("P")
R = TypeVar("R")


def _translated(fn: Callable[P, R]) -> Callable[P, R]:
    """The same, with SQLite's errors as ours."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except apsw.Error as error:
            raise DatabaseFailed(f"{type(error).__name__}: {error}") from error

    return call


class SQLiteConnection(DataConnection):
    """A file, which other processes may use as well.

    Raises:
        ConfigurationError: it is a journal.
        DatabaseFailed: it cannot be opened.
    """

    mark = "?"

    @_translated
    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        try:
            self._db.set_busy_timeout(BUSY)
            self._check_alone(path.name)
            for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                self._db.pragma(*setting.split("="))
        except BaseException:
            self._db.close()
            raise

    def _check_alone(self, name: str) -> None:
        if self.query("SELECT 1 FROM sqlite_schema WHERE name = 'places' AND tbl_name = 'steps'"):
            raise ConfigurationError(f"{name} is a journal: name another file for tables of an agent")

    @_translated
    def execute(self, sql: str, values: Values = ()) -> int:
        before = self._db.total_changes()
        self._db.execute(sql, _bound(values)).fetchall()
        return self._db.total_changes() - before

    @_translated
    def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        cursor = self._db.execute(sql, _bound(values))
        return [dict(zip((each[0] for each in cursor.get_description()), row, strict=True)) for row in cursor]

    @_translated
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
                    "a statement ended the transaction: leave BEGIN, COMMIT and ROLLBACK out, the block has its own"
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


def _bound(values: Values) -> Any:
    return values if isinstance(values, dict) else dict(values) if hasattr(values, "keys") else tuple(values)
