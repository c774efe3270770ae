"""An agent's database in an SQLite file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from actgent.errors import ConfigurationError, DatabaseFailed
from actgent.support.sqlite_connection import SQLiteConnection

from .connection import DataConnection, Values


class SQLiteDataConnection(SQLiteConnection, DataConnection):
    """A connection to a file, which other processes may use too.

    Raises:
        ConfigurationError: The file is a journal.
        DatabaseFailed: The file cannot be opened.
    """

    placeholder = "?"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open(str(path))

    @staticmethod
    def _to_error(error: apsw.Error) -> DatabaseFailed:
        return DatabaseFailed(f"{type(error).__name__}: {error}")

    def _prepare(self) -> None:
        if self.run("SELECT 1 FROM sqlite_schema WHERE name = 'places' AND tbl_name = 'steps'"):
            raise ConfigurationError(
                f"{self._path.name} is the file of a journal: pass another file for the agent's database"
            )
        self._enable_log("synchronous=FULL", "foreign_keys=ON")

    def execute(self, sql: str, values: Values = ()) -> int:
        before = self._db.total_changes()
        with self._errors_converted():
            self._db.execute(sql, _parameters(values)).fetchall()
        return self._db.total_changes() - before

    def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        with self._errors_converted():
            cursor = self._db.execute(sql, _parameters(values))
            return [
                dict(zip((each[0] for each in cursor.get_description()), row, strict=True)) for row in cursor
            ]

    @contextlib.contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[None]:
        self._db.pragma("query_only", read_only)
        try:
            with super().transaction(read_only=read_only):
                yield
                if not self._db.in_transaction:
                    raise DatabaseFailed(
                        "a statement ended the transaction, which only the database object may do: remove BEGIN, COMMIT and ROLLBACK"
                    )
        finally:
            self._db.pragma("query_only", 0)


def _parameters(values: Values) -> Any:
    return values if isinstance(values, dict) else dict(values) if hasattr(values, "keys") else tuple(values)
