"""An agent's database in a PostgreSQL schema. Requires the extra `postgres`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg.rows

from actgent.errors import DatabaseFailed
from actgent.support.postgres_address import connection_failure
from actgent.support.postgres_connection import PostgresConnection

from .connection import DataConnection, Values


class PostgresDataConnection(PostgresConnection, DataConnection):
    """A connection to a schema, which other processes may use too.

    Raises:
        DatabaseFailed: The connection failed.
    """

    placeholder = "%s"

    def __init__(self, url: str) -> None:
        self._open(url, kind="data", owner="the database")

    @staticmethod
    def _to_error(error: psycopg.Error) -> DatabaseFailed:
        if (text := connection_failure(error)) is not None:
            return DatabaseFailed(text)
        return DatabaseFailed(f"{type(error).__name__}: {str(error).strip() or 'the server gave no reason'}")

    def _prepare(self) -> None:
        self._create_schema()

    def execute(self, sql: str, values: Values = ()) -> int:
        with self._errors_converted():
            return max(0, self._db.execute(sql.encode(), values or None).rowcount)

    def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        with self._errors_converted(), self._db.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            cursor.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[None]:
        with super().transaction():
            if read_only:
                self.run("SET TRANSACTION READ ONLY")
            else:
                self._lock()
            yield
            if self._db.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
                raise DatabaseFailed(
                    "a statement ended the transaction, which only the database object may do: remove BEGIN, COMMIT and ROLLBACK"
                )
