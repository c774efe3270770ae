"""A connection to the tables of an agent. All of this is sync, and runs in one thread at a time.

What databases do alike is written here once: the steps in which tables come to be, and changes that are made once.
"""

import abc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from actgent.errors import ConfigurationError, DatabaseFailed, NotSerializable
from actgent.errors.printable import counted

from .migrations import Migration

Values = Sequence[Any] | Mapping[str, Any]
"""For the places of a statement: in their order, or by their names."""
KEPT = 90 * 86_400.0
"""Seconds for which it is known that a change was made; no call is repeated that late."""
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
    """One connection, which makes one change after the other."""

    mark: str
    """What stands in a statement for a value."""

    @abc.abstractmethod
    def execute(self, sql: str, values: Values = ()) -> int:
        """Run a statement; returns how many rows it changed."""

    @abc.abstractmethod
    def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        """Run a statement; returns its rows by the names of their columns."""

    @abc.abstractmethod
    def script(self, sql: str) -> None:
        """Run several statements."""

    @abc.abstractmethod
    def transaction(self, *, read_only: bool = False) -> AbstractContextManager[None]:
        """A block of which all holds, or nothing; only one runs at a time in all processes, but for those that only read.

        Raises:
            DatabaseFailed: a statement ended the block's transaction, or the database failed.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close it."""

    def migrate(self, migrations: Sequence[Migration]) -> None:
        """Apply the steps that were not applied yet, all of them or none.

        Raises:
            ConfigurationError: what was applied is not what is given.
        """
        with self.transaction():
            for table in _TABLES:
                self.execute(table)
            applied = self.query("SELECT name, digest FROM actgent_migrations ORDER BY number")
            _check_applied(applied, migrations)
            for number, step in enumerate(migrations[len(applied) :], len(applied) + 1):
                self.script(step.sql)
                self._insert("actgent_migrations", number, step.name, step.digest)
            self.execute(f"DELETE FROM actgent_effects WHERE at < {self.mark}", (time.time() - KEPT,))  # noqa: S608

    def once(self, key: str, what: str, work: Callable[["DataConnection"], Any]) -> Any:
        """Do some work in a transaction, and return what it returns; under a key that was used before only the latter.

        Raises:
            DatabaseFailed: something else was done under this key.
            NotSerializable: there is a key, and JSON cannot carry what the work returns.
        """
        with self.transaction():
            if not key:
                return work(self)
            question = f"SELECT what, result FROM actgent_effects WHERE key = {self.mark}"  # noqa: S608
            if done := self.query(question, (key,)):
                return _same(done[0], key, what)
            result = work(self)
            self._insert("actgent_effects", key, what, _written(result), time.time())
            return result

    def _insert(self, table: str, *values: object) -> None:
        marks = ", ".join([self.mark] * len(values))
        self.execute(f"INSERT INTO {table} VALUES ({marks})", values)  # noqa: S608 - names of our own


def _check_applied(applied: Sequence[Mapping[str, Any]], migrations: Sequence[Migration]) -> None:
    if len(applied) > len(migrations):
        raise ConfigurationError(
            f"the database has {counted(len(applied), 'migration')}, and {counted(len(migrations), 'is', 'are')} given: a newer program wrote it, "
            f"or {applied[len(migrations)]['name']!r} is missing from migrations="
        )
    for row, step in zip(applied, migrations, strict=False):
        if row["digest"] != step.digest:
            raise ConfigurationError(
                f"{step.name!r} is not what was applied as {row['name']!r}: leave what was applied as it was, "
                "and write what is to change as a further migration"
            )


def _same(done: Mapping[str, Any], key: str, what: str) -> Any:
    if done["what"] != what:
        raise DatabaseFailed(
            f"under the key {key!r} something else was done before: a call that is repeated has to make the same "
            "changes in the same order"
        )
    return json.loads(done["result"])


def _written(result: object) -> str:
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        reason = f"it is kept as JSON for a repetition of its call, and {error}"
        raise NotSerializable("what a change returns", reason) from error
