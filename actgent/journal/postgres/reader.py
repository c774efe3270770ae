"""A journal in PostgreSQL that is looked at beside its owner."""

import psycopg.sql

from actgent.errors import ConfigurationError, JournalVersion
from actgent.journal.read_only import ReadOnlyJournal
from actgent.support.storage_thread import StorageThread

from .connecting import OPTIONS, Connection, connection_to, one_row
from .journal import PostgresJournal
from .schema import MIGRATIONS

_READ_ONLY = {"default_transaction_read_only": "on", "default_transaction_isolation": "repeatable read"}
"""Each transaction reads as of one moment, however many statements it has."""


class PostgresReader(ReadOnlyJournal, PostgresJournal):
    """A journal in a database, which another process may own; each call is one transaction that cannot write."""

    async def _take(self) -> int:
        self._thread = StorageThread(f"look at {self._schema}")
        self.identity = await self._run(self._describe)
        return 1

    def _connect(self) -> Connection:
        self._connection = connection = connection_to(self._address, {**OPTIONS, **_READ_ONLY})
        schema = psycopg.sql.Identifier(self._schema)
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        return connection

    def _describe(self, connection: Connection) -> bytes:
        """Return the journal's identity, where there is one of this version."""
        meta = psycopg.sql.Identifier(self._schema, "meta").as_string(connection)
        if one_row(connection, "SELECT to_regclass(%s)", meta)[0] is None:
            raise ConfigurationError(
                f"the database has no journal in its schema {self._schema!r}: the first runtime that is opened with its address "
                "makes it; another one is named by ?schema=NAME"
            )
        version, identity = one_row(connection, "SELECT version, identity FROM meta")
        if version != len(MIGRATIONS):
            raise JournalVersion(version, len(MIGRATIONS))
        return bytes(identity)
