"""SQLite connections of memories, session indexes and agents' databases."""

import abc
import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import apsw

from .sql_connection_interface import Row, SQLConnection

BUSY_MS, CHECKPOINT_BUSY_MS = 10_000, 500
"""Milliseconds to wait for a lock: of another writer, and of a reader that blocks the truncation of the log."""
CACHED_STATEMENTS = 250
"""Maximum number of prepared statements of a connection. A recall executes statements with varying numbers of
placeholders; with the default of 100 it prepares one in three times.
"""
DIALECT = {
    "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "integer": "INTEGER",
    "real": "REAL",
    "binary": "",
    "without_rowid": " WITHOUT ROWID",
}
"""Texts for the placeholders in table definitions of all databases."""


class SQLiteConnection(SQLConnection):
    """Base class of stores in a SQLite file, which other processes may use concurrently."""

    _db: apsw.Connection

    @staticmethod
    @abc.abstractmethod
    def _to_error(error: apsw.Error) -> Exception:
        """Convert an error of SQLite to the error of the store."""

    def _open(self, path: str, *, read_only: bool = False) -> None:
        """Open a file, or a database in memory if the path is empty, and prepare its tables."""
        # One thread uses a connection: its mutex takes a tenth of the time of a query.
        flags = apsw.SQLITE_OPEN_NOMUTEX | (
            apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        )
        with self._errors_converted():
            self._db = apsw.Connection(path or ":memory:", flags=flags, statementcachesize=CACHED_STATEMENTS)
            try:
                self._db.set_busy_timeout(BUSY_MS)
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    @contextlib.contextmanager
    def _errors_converted(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise self._to_error(error) from error

    def _enable_log(self, *settings: str) -> None:
        """Enable the write-ahead log, then apply other settings, such as `synchronous=FULL`.

        SQLite does not wait if another process enables the log concurrently, so this method retries.
        """
        until = time.monotonic() + BUSY_MS / 1000
        while True:
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
            except apsw.BusyError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
            else:
                break
        for setting in settings:
            self._db.execute(f"PRAGMA {setting}")

    def _truncate_log(self) -> bool:
        """Truncate the write-ahead log, so that no file contains deleted data. Return False if a reader blocks it."""
        self._db.set_busy_timeout(CHECKPOINT_BUSY_MS)
        try:
            is_busy, *_ = self.run("PRAGMA wal_checkpoint(TRUNCATE)")[0]
        finally:
            self._db.set_busy_timeout(BUSY_MS)
        return not is_busy

    def run(self, sql: str, values: Iterable[object] = ()) -> list[Row]:
        bound: tuple[Any, ...] = tuple(values)
        try:  # hot path: the context manager takes longer than a short statement
            return self._db.execute(sql, bound).fetchall()
        except apsw.Error as error:
            raise self._to_error(error) from error

    def run_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        with self._errors_converted():
            self._db.executemany(sql, cast(Sequence[tuple[Any, ...]], rows))

    def script(self, sql: str) -> None:
        with self._errors_converted():
            self._db.execute(sql).fetchall()

    @contextlib.contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[None]:
        self.run("BEGIN" if read_only else "BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        finally:
            if self._db.in_transaction:
                self.run("ROLLBACK")

    def close(self) -> None:
        self._db.close()
