"""`Database`: an SQL database for an agent's tools, for the program, and read-only for its model."""

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
from actgent.errors.text_escaping import counted
from actgent.support.unknown_name_hints import lists_arguments

from .connection import DataConnection, Values
from .migrations import read_migrations

IN_MEMORY = "memory:"
Work = Callable[[DataConnection], Any]
"""Function that gets a connection with `execute(sql, values)` and `query(sql, values)`, and returns JSON data."""


@lists_arguments
class Database:
    """A database that tools and the program read and write with plain SQL; `Agent(database=...)` opens it while it runs.

    By default the database is next to the agent's journal: a separate file for a journal in SQLite, a separate schema for one
    in PostgreSQL. Without a journal it is deleted when the agent stops. Agents can share a database with an explicit address.

    A change is durable when its call returns. Tools use `context.database`. It makes each change of a tool call once, even if the
    call is repeated after a crash, because the same transaction writes the idempotency key of the call. This transaction is
    separate from the transactions of the journal: the journal commits records of many sessions together, and would block all
    other writers. Give tools without other effects `effect="idempotent"`, so that they are repeated after a crash.

    Args:
        url: `sqlite:///FILE`, `postgres://HOST/DATABASE?schema=NAME` or `memory:`; None is next to the journal.
        migrations: Migrations in order: SQL texts, files, or folders of `*.sql` files. Each is applied once, and must not
            be changed afterwards.

    Raises:
        ConfigurationError: An argument is invalid; the text names it.
    """

    def __init__(self, url: str | None = None, *, migrations: Iterable[str | Path] = ()) -> None:
        self._url = None if url is None else _validate_url(url)
        self._migrations = read_migrations(migrations)
        self._current_url: str | None = None
        """Address of the open database; None before it is opened."""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._connection: DataConnection | None = None
        self._users = 0
        self._turn = trio.Lock()

    def set_default_url(self, url: str | None) -> None:
        """Set the URL for a database that was created without `url=`. None means a database in memory.

        The call is ignored if the database has its own URL, or while it is open.
        """
        if self._url is None and self._users == 0:
            self._current_url = url or IN_MEMORY

    @property
    def address(self) -> str:
        """Address of the database for other programs; may contain a password.

        Raises:
            DatabaseFailed: The database is not open.
        """
        self._require_connection()
        assert self._current_url is not None  # noqa: S101 - it is open
        return self._current_url

    async def __aenter__(self) -> Self:
        """Open the database and apply all pending migrations.

        Raises:
            ConfigurationError: The applied migrations differ from `migrations=`.
            DatabaseFailed: The database cannot be opened, or a migration failed and all were rolled back.
        """
        async with self._turn:
            if self._users == 0:
                connection = await trio.to_thread.run_sync(self._open)
                try:
                    await trio.to_thread.run_sync(connection.migrate, self._migrations)
                except BaseException:
                    connection.close()
                    self._delete_temporary_folder()
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
                    self._delete_temporary_folder()

    async def execute(self, sql: str, values: Values = (), *, key: str = "") -> int:
        """Run a statement in a transaction and return the number of changed rows.

        With a `key` the statement runs once, and later calls with the key return the first result.

        Raises:
            DatabaseFailed: The database is not open or rejects the statement, or the key was used for another change.
        """
        digest = _digest("execute", sql, json.dumps(values, default=str))
        return int(await self._run(key, digest, lambda connection: connection.execute(sql, values)))

    async def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        """Run a read-only statement and return its rows as dictionaries by column name.

        Raises:
            DatabaseFailed: The database is not open or rejects the statement.
        """

        def read(connection: DataConnection) -> list[dict[str, Any]]:
            with connection.transaction(read_only=True):
                return connection.query(sql, values)

        async with self._turn:
            return await trio.to_thread.run_sync(read, self._require_connection())

    async def change(self, work: Work, *, key: str = "") -> Any:
        """Run a function with several statements in one transaction, in a thread; an exception rolls it back.

        With a `key` the function runs once, and later calls with the key return the first result.

        Raises:
            DatabaseFailed: The database is not open or rejects a statement, or the key was used for another change.
            NotSerializable: `key` is set, and the function's result cannot be encoded as JSON.
        """
        return await self._run(key, _digest("change", getattr(work, "__qualname__", "")), work)

    def for_call(self, key: str) -> "CallDatabase":
        """Return an object for the changes of one tool call, whose idempotency key is `key`.

        If the call is repeated with the same key, its changes are not made again. An empty key disables this.
        """
        return CallDatabase(self, key)

    async def _run(self, key: str, digest: str, work: Work) -> Any:
        async with self._turn:
            return await trio.to_thread.run_sync(self._require_connection().once, key, digest, work)

    def _require_connection(self) -> DataConnection:
        if self._connection is None:
            raise DatabaseFailed(
                "the database is not open: use it while its agent runs, or in `async with database:`"
            )
        return self._connection

    def _open(self) -> DataConnection:
        self._current_url = url = self._url or self._current_url or IN_MEMORY
        if url == IN_MEMORY:
            self._folder = tempfile.TemporaryDirectory(prefix="actgent-")
            self._current_url = url = f"sqlite:///{Path(self._folder.name) / 'data.db'}"
        if url.startswith("sqlite:///"):
            from .sqlite import SQLiteDataConnection  # noqa: PLC0415 - where it is used

            return SQLiteDataConnection(Path(url.removeprefix("sqlite:///")))
        from .postgres import PostgresDataConnection  # noqa: PLC0415 - needs an extra

        return PostgresDataConnection(url)

    def _delete_temporary_folder(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder, self._current_url = None, None

    def __repr__(self) -> str:
        url = self._url or self._current_url or "next to the journal"
        return f"Database({url.rsplit('@', maxsplit=1)[-1]!r}, {counted(len(self._migrations), 'migration')})"


class CallDatabase:
    """The database for one tool call: if the call is repeated after a crash, its earlier changes are not made again.

    A repeated call must make the same changes in the same order; otherwise it fails.
    """

    def __init__(self, database: Database, key: str) -> None:
        self._database = database
        self._key = key
        self._changes = 0

    async def execute(self, sql: str, values: Values = ()) -> int:
        """Run `Database.execute` with an idempotency key of this tool call.

        A repeated tool call returns the first result.
        """
        return await self._database.execute(sql, values, key=self._next_change_key())

    async def query(self, sql: str, values: Values = ()) -> list[dict[str, Any]]:
        """Run a read-only statement as `Database.query` does. The result is not stored for repetitions of the tool call."""
        return await self._database.query(sql, values)

    async def change(self, work: Work) -> Any:
        """Run `Database.change` with an idempotency key of this tool call.

        A repeated tool call returns the first result.
        """
        return await self._database.change(work, key=self._next_change_key())

    def _next_change_key(self) -> str:
        self._changes += 1
        return f"{self._key}#{self._changes}" if self._key else ""


def _digest(*texts: str) -> str:
    return hashlib.blake2s("\0".join(texts).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _validate_url(url: object) -> str:
    is_known = isinstance(url, str) and (
        url == IN_MEMORY
        or (url.startswith("sqlite:///") and not url.endswith("/"))
        or url.startswith(("postgres://", "postgresql://"))
    )
    if not isinstance(url, str) or not is_known:
        raise ConfigurationError(
            f"the address of a database must be sqlite:///FILE, postgres://HOST/DATABASE or memory:, not {str(url)[:40]!r}"
        )
    if url.startswith("postgres") and importlib.util.find_spec("psycopg") is None:
        raise ConfigurationError(
            "a database in PostgreSQL requires an extra package: pip install 'actgent[postgres]'"
        )
    return url
