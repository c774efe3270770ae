"""An agent's database in a PostgreSQL schema. Requires the extra `postgres`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg.rows
import psycopg.sql

from actgent.errors import DatabaseFailed
from actgent.support.postgres_address import connection_failure, split_schema

from .connection import DataConnection, Values

CONNECT_TIMEOUT_SECONDS = 10
"""Timeout of a connection attempt in seconds."""
STATEMENT_TIMEOUT_MS = 30_000
"""Timeout of a statement in milliseconds."""


class PostgresConnection(DataConnection):
    """A connection to a schema, which other processes may use too; a lost connection is reopened for the next transaction.

    Raises:
        DatabaseFailed: The connection failed.
    """

    placeholder = "%s"

    def __init__(self, url: str) -> None:
        self._address, self._schema = split_schema(url, default="actgent_data", owner="the database")
        self._db = self._connect()

    def _connect(self) -> "psycopg.Connection[Any]":
        options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c client_min_messages=warning"
        schema = psycopg.sql.Identifier(self._schema)
        try:
            db = psycopg.connect(
                self._address,
                autocommit=True,
                connect_timeout=CONNECT_TIMEOUT_SECONDS,
                options=options,
                row_factory=psycopg.rows.dict_row,
            )
            with db.transaction():
                db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._lock,))
                db.execute(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            db.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        except psycopg.Error as error:
            raise _to_database_failed(error) from error
        return db

    @property
    def _lock(self) -> str:
        return f"actgent data {self._schema}"

    def execute(self, sql: str, values: Values = ()) -> int:
        try:
            return max(0, self._db.execute(sql.encode(), values or None).rowcount)
        except psycopg.Error as error:
            raise _to_database_failed(error) from error

    def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        try:
            cursor = self._db.execute(sql.encode(), values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise _to_database_failed(error) from error

    def script(self, sql: str) -> None:
        self.execute(sql)

    @contextlib.contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[None]:
        if self._db.broken or self._db.closed:
            self._db = self._connect()
        try:
            with self._db.transaction():
                if read_only:
                    self._db.execute("SET TRANSACTION READ ONLY")
                else:
                    self._db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._lock,))
                yield
                if self._db.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
                    raise DatabaseFailed(
                        "a statement ended the transaction: remove BEGIN, COMMIT and ROLLBACK, the block manages the transaction"
                    )
        except psycopg.Error as error:
            raise _to_database_failed(error) from error

    def close(self) -> None:
        self._db.close()


def _to_database_failed(error: psycopg.Error) -> DatabaseFailed:
    if (text := connection_failure(error)) is not None:
        return DatabaseFailed(text)
    return DatabaseFailed(f"{type(error).__name__}: {str(error).strip() or 'the server gave no reason'}")
