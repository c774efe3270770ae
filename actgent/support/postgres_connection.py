"""PostgreSQL connections of memories, session indexes and agents' databases. Needs the extra `postgres`."""

import abc
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
import psycopg.sql

from .postgres_address import split_schema
from .sql_connection_interface import Row, SQLConnection

CONNECT_SECONDS = 10
"""Maximum seconds for connecting."""
STATEMENT_MS = 30_000
"""Maximum milliseconds of a statement."""
DIALECT = {
    "serial": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "integer": "bigint",
    "real": "double precision",
    "binary": 'COLLATE "C"',
    "without_rowid": "",
}
"""Texts for the placeholders in table definitions of all databases."""
_OPTIONS = f"-c statement_timeout={STATEMENT_MS} -c client_min_messages=warning"


class PostgresConnection(SQLConnection):
    """Base class of stores in a PostgreSQL schema, which other processes may use concurrently.

    The next transaction reopens a lost connection, and so does the next statement outside of a transaction.
    """

    _db: "psycopg.Connection[Any]"

    @staticmethod
    @abc.abstractmethod
    def _to_error(error: psycopg.Error) -> Exception:
        """Convert an error of psycopg to the error of the store."""

    def _open(self, url: str, *, kind: str, owner: str, options: str = "") -> None:
        """Connect to a schema, and prepare its tables.

        Args:
            url: The address, with the schema in `?schema=`.
            kind: Last part of the default schema `actgent_KIND`.
            owner: Name of the store in errors about the address, e.g. `the memories`.
            options: Additional server options, such as `-c jit=off`.
        """
        self._address, self._schema = split_schema(url, default=f"actgent_{kind}", owner=owner)
        self._lock_name = f"actgent {kind} {self._schema}"
        self._options = f"{_OPTIONS} {options}"
        self._is_in_transaction = False
        self._connect()

    def _connect(self) -> None:
        with self._errors_converted():
            self._db = psycopg.connect(
                self._address, autocommit=True, connect_timeout=CONNECT_SECONDS, options=self._options
            )
        try:
            with self._begun():
                schema = psycopg.sql.Identifier(self._schema)
                self._db.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _create_schema(self) -> None:
        """Create the schema if it does not exist. Other connections that call this method wait for the transaction."""
        self._lock()
        self._db.execute(
            psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(psycopg.sql.Identifier(self._schema))
        )

    def _lock(self) -> None:
        """Lock the schema until the transaction ends. Wait for other transactions that called this method for the schema."""
        self.run("SELECT pg_advisory_xact_lock(hashtext(?))", (self._lock_name,))

    @contextlib.contextmanager
    def _errors_converted(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._to_error(error) from error

    @contextlib.contextmanager
    def _begun(self) -> Iterator[None]:
        """Run a block in a transaction of the current connection."""
        self._is_in_transaction = True
        try:
            with self._errors_converted(), self._db.transaction():
                yield
        finally:
            self._is_in_transaction = False

    def run(self, sql: str, values: Iterable[object] = ()) -> list[Row]:
        if self._db.closed and not self._is_in_transaction:
            self._connect()
        with self._errors_converted():
            cursor = self._db.execute(sql.replace("?", "%s").encode(), list(values))
            return cursor.fetchall() if cursor.description else []

    def run_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        with self._errors_converted(), self._db.cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s").encode(), rows)

    def script(self, sql: str) -> None:
        with self._errors_converted():
            self._db.execute(sql.encode())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        if self._db.closed:
            self._connect()
        with self._begun():
            yield

    def close(self) -> None:
        self._db.close()
