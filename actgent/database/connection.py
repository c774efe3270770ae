"""Base class of connections to an agent's database. It is sync, and used by one thread at a time.

It implements what SQLite and PostgreSQL have in common: migrations, and changes that are executed once.
"""

import abc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from actgent.errors import ConfigurationError, DatabaseFailed, NotSerializable
from actgent.errors.text_escaping import counted

from .migrations import Migration

Values = Sequence[Any] | Mapping[str, Any]
"""Parameter values of a statement, by position or by name."""
EFFECT_RETENTION_SECONDS = 90 * 86_400.0
"""Time in seconds for which idempotency keys are stored; no call is repeated later than that."""
_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS actgent_migrations (
        number INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS actgent_effects (
        key TEXT NOT NULL PRIMARY KEY, what TEXT NOT NULL, result TEXT NOT NULL, at DOUBLE PRECISION NOT NULL
    )
    """,
)


class DataConnection(abc.ABC):
    """Base class of a connection to an agent's database, which executes one change at a time."""

    placeholder: str
    """Placeholder for a parameter in SQL: `?` or `%s`."""

    @abc.abstractmethod
    def execute(self, sql: str, values: Values = ()) -> int:
        """Run a statement and return the number of changed rows."""

    @abc.abstractmethod
    def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        """Run a query and return its rows as dictionaries by column name."""

    @abc.abstractmethod
    def script(self, sql: str) -> None:
        """Run SQL text with several statements, such as a migration."""

    @abc.abstractmethod
    def transaction(self, *, read_only: bool = False) -> AbstractContextManager[None]:
        """Return a context manager that runs its block in a transaction. Writing processes wait for each other.

        Raises:
            DatabaseFailed: A statement ended the transaction, or the database failed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def migrate(self, migrations: Sequence[Migration]) -> None:
        """Apply the migrations that were not applied before, in one transaction.

        Raises:
            ConfigurationError: The migrations applied before differ from `migrations`.
        """
        with self.transaction():
            for table in _TABLES:
                self.execute(table)
            applied = self.query("SELECT name, digest FROM actgent_migrations ORDER BY number")
            _check_applied(applied, migrations)
            for number, step in enumerate(migrations[len(applied) :], len(applied) + 1):
                self.script(step.sql)
                self._insert("actgent_migrations", number, step.name, step.digest)
            cutoff = time.time() - EFFECT_RETENTION_SECONDS
            self.execute(f"DELETE FROM actgent_effects WHERE at < {self.placeholder}", (cutoff,))  # noqa: S608

    def once(self, key: str, digest: str, work: Callable[["DataConnection"], Any]) -> Any:
        """Run `work` in a transaction and return its result. If `key` was already used, return the stored result instead.

        Args:
            key: Idempotency key; empty always runs the function.
            digest: Digest of the operation, to detect a key that is used for another operation.
            work: The function, which gets this connection.

        Raises:
            DatabaseFailed: The key was used for another operation.
            NotSerializable: `key` is set, and the result cannot be encoded as JSON.
        """
        with self.transaction():
            if not key:
                return work(self)
            statement = f"SELECT what, result FROM actgent_effects WHERE key = {self.placeholder}"  # noqa: S608
            if done := self.query(statement, (key,)):
                return _stored_result(done[0], key, digest)
            result = work(self)
            self._insert("actgent_effects", key, digest, _encode_result(result), time.time())
            return result

    def _insert(self, table: str, *values: object) -> None:
        marks = ", ".join([self.placeholder] * len(values))
        self.execute(f"INSERT INTO {table} VALUES ({marks})", values)  # noqa: S608 - constant table names


def _check_applied(applied: Sequence[Mapping[str, Any]], migrations: Sequence[Migration]) -> None:
    if len(applied) > len(migrations):
        raise ConfigurationError(
            f"the database has {counted(len(applied), 'migration')}, but migrations= has {len(migrations)}: a newer program wrote it, "
            f"or {applied[len(migrations)]['name']!r} is missing from migrations="
        )
    for row, step in zip(applied, migrations, strict=False):
        if row["digest"] != step.digest:
            raise ConfigurationError(
                f"{step.name!r} differs from the applied migration {row['name']!r}: restore the applied migration, "
                "and add the change as a new migration"
            )


def _stored_result(done: Mapping[str, Any], key: str, digest: str) -> Any:
    if done["what"] != digest:
        raise DatabaseFailed(
            f"the key {key!r} was already used for another change: a repeated call must make the same "
            "changes in the same order"
        )
    return json.loads(done["result"])


def _encode_result(result: object) -> str:
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        reason = f"it is stored as JSON for repeated calls, but {error}"
        raise NotSerializable("the result of the database change", reason) from error
