"""`Database`: tables of an agent's own, for its tools, for the program, and, read-only, for its model."""

import hashlib
import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from actgent.errors import ConfigurationError, DatabaseFailed
from actgent.errors.printable import counted

from .connection import DataConnection, Values
from .migrations import read_migrations

IN_MEMORY = "memory:"
Work = Callable[[DataConnection], Any]
"""Gets what runs statements, `execute(sql, values)` and `query(sql, values)`, and returns what JSON can carry."""


class Database:
    """Tables that tools and the program read and write by plain SQL; `Agent(database=...)` keeps it open while it runs.

    By default it stands beside the agent's journal: a file of its own beside a journal in SQLite, a schema of its own beside one in
    PostgreSQL; without a journal it is gone when the agent ends. Several agents may share one whose address is given.

    A change is durable when its call returns. Tools find it as `context.database`, by which what a call changes is changed once,
    also where a crash has the call repeated: the key of the call's effect is written in the same transaction. It is not one
    transaction with the step of the journal, which writes the steps of many sessions together: until that were done, a tool's
    transaction would keep all others from writing. Give tools that change nothing else `effect="idempotent"`, so that they are
    repeated after a crash.

    Args:
        url: `sqlite:///FILE`, `postgres://HOST/DATABASE?schema=NAME` or `memory:`; None: beside the journal.
        migrations: The steps in which its tables come to be, in their order: SQL as text, files, or folders of `*.sql`. Each is
            applied once; one that was applied may not change any more.

    Raises:
        ConfigurationError: one of these is wrong; the text names it.
    """

    def __init__(self, url: str | None = None, *, migrations: Iterable[str | Path] = ()) -> None:
        self._url = None if url is None else _checked(url)
        self._migrations = read_migrations(migrations)
        self._place: str | None = None
        """Where it is open."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._connection: DataConnection | None = None
        self._users = 0
        self._turn = trio.Lock()

    def place_beside(self, place: str | None) -> None:
        """Say where it is to be if no address was given: that beside a journal, or None without one."""
        if self._url is None and self._users == 0:
            self._place = place or IN_MEMORY

    @property
    def address(self) -> str:
        """Where its tables are, for other programs; it may have a password in it.

        Raises:
            DatabaseFailed: it is not open.
        """
        self._opened()
        assert self._place is not None  # noqa: S101 - it is open
        return self._place

    async def __aenter__(self) -> Self:
        """Open it, and apply the migrations that are not applied yet.

        Raises:
            ConfigurationError: what was applied is not what is given.
            DatabaseFailed: it cannot be opened, or a migration fails; then none of them holds.
        """
        async with self._turn:
            if self._users == 0:
                connection = await trio.to_thread.run_sync(self._open)
                try:
                    await trio.to_thread.run_sync(connection.migrate, self._migrations)
                except BaseException:
                    connection.close()
                    self._forget()
                    raise
                self._connection = connection
            self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            async with self._turn:
                self._users -= 1
                if self._users == 0 and self._connection is not None:
                    connection, self._connection = self._connection, None
                    await trio.to_thread.run_sync(connection.close)
                    self._forget()

    async def execute(self, sql: str, values: Values = (), *, key: str = "") -> int:
        """Run a statement in a transaction of its own; returns how many rows it changed.

        With a `key` it is run once, and later calls with the key return what the first one did.

        Raises:
            DatabaseFailed: it is not open, the database refuses the statement, or under the key something else was done.
        """
        what = _digest("execute", sql, json.dumps(values, default=str))
        return int(await self._do(key, what, lambda connection: connection.execute(sql, values)))

    async def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        """Ask for rows, by the names of their columns; the statement can change nothing.

        Raises:
            DatabaseFailed: it is not open, or the database refuses the statement.
        """

        def ask(connection: DataConnection) -> list[dict[str, Any]]:
            with connection.transaction(read_only=True):
                return connection.query(sql, values)

        async with self._turn:
            return await trio.to_thread.run_sync(ask, self._opened())

    async def change(self, work: Work, *, key: str = "") -> Any:
        """Run a function with several statements in one transaction, in a thread; what it raises undoes all of it.

        With a `key` it is run once, and later calls with the key return what the first one did.

        Raises:
            DatabaseFailed: as `execute`.
            NotSerializable: there is a key, and JSON cannot carry what the function returns.
        """
        return await self._do(key, _digest("change", getattr(work, "__qualname__", "")), work)

    def of_call(self, key: str) -> "CallDatabase":
        """The same for one call of a tool, whose effect has this key; without one each change is made whenever it is asked for."""
        return CallDatabase(self, key)

    async def _do(self, key: str, what: str, work: Work) -> Any:
        async with self._turn:
            return await trio.to_thread.run_sync(self._opened().once, key, what, work)

    def _opened(self) -> DataConnection:
        if self._connection is None:
            raise DatabaseFailed(
                "the database is not open: use it while its agent runs, or in `async with database:`"
            )
        return self._connection

    def _open(self) -> DataConnection:
        self._place = place = self._url or self._place or IN_MEMORY
        if place == IN_MEMORY:
            self._folder = tempfile.TemporaryDirectory(prefix="actgent-")
            self._place = place = f"sqlite:///{Path(self._folder.name) / 'data.db'}"
        if place.startswith("sqlite:///"):
            from .sqlite import SQLiteConnection  # noqa: PLC0415 - where it is used

            return SQLiteConnection(Path(place.removeprefix("sqlite:///")))
        from .postgres import PostgresConnection  # noqa: PLC0415 - needs an extra

        return PostgresConnection(place)

    def _forget(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder, self._place = None, None

    def __repr__(self) -> str:
        place = self._url or self._place or "beside the journal"
        return (
            f"Database({place.rsplit('@', maxsplit=1)[-1]!r}, {counted(len(self._migrations), 'migration')})"
        )


class CallDatabase:
    """The database as one call of a tool has it: the changes of a call that is repeated after a crash are those of before.

    A repeated call has to make the same changes in the same order; one that does not is refused.
    """

    def __init__(self, database: Database, key: str) -> None:
        self._database = database
        self._key = key
        self._changes = 0

    async def execute(self, sql: str, values: Values = ()) -> int:
        """As `Database.execute`, once for this call."""
        return await self._database.execute(sql, values, key=self._next())

    async def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        """As `Database.query`."""
        return await self._database.query(sql, values)

    async def change(self, work: Work) -> Any:
        """As `Database.change`, once for this call."""
        return await self._database.change(work, key=self._next())

    def _next(self) -> str:
        self._changes += 1
        return f"{self._key}#{self._changes}" if self._key else ""


def _digest(*words: str) -> str:
    return hashlib.blake2s("\0".join(words).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _checked(url: object) -> str:
    is_known = isinstance(url, str) and (
        url == IN_MEMORY
        or (url.startswith("sqlite:///") and not url.endswith("/"))
        or url.startswith(("postgres://", "postgresql://"))
    )
    if not isinstance(url, str) or not is_known:
        raise ConfigurationError(
            f"the address of a database is sqlite:///FILE, postgres://HOST/DATABASE or memory:, not {str(url)[:40]!r}"
        )
    if url.startswith("postgres") and importlib.util.find_spec("psycopg") is None:
        raise ConfigurationError("a database in PostgreSQL needs the extra: pip install 'actgent[postgres]'")
    return url
