"""Read-only access to a journal in PostgreSQL while another process owns it."""

import psycopg.sql

from actgent.errors import ConfigurationError, JournalVersion
from actgent.journal.read_only_journal import ReadOnlyJournal
from actgent.journal.schema_version import schema_version
from actgent.support.storage_thread import StorageThread

from .connections import OPTIONS, Connection, connection_to, one_row
from .journal import PostgresJournal
from .schema import MIGRATIONS

_READ_ONLY = {"default_transaction_read_only": "on", "default_transaction_isolation": "repeatable read"}
"""SQL setting for transactions. Each transaction reads a consistent snapshot, however many statements it has."""


class PostgresReader(ReadOnlyJournal, PostgresJournal):
    """Read-only journal in a database that another process may own. Each call is one read-only transaction."""

    async def _acquire_storage(self) -> int:
        self._thread = StorageThread(f"look at {self._schema}")
        self.identity = await self._run(self._read_identity)
        return 1

    def _connect(self) -> Connection:
        self._connection = connection = connection_to(self._address, {**OPTIONS, **_READ_ONLY})
        schema = psycopg.sql.Identifier(self._schema)
        connection.execute(psycopg.sql.SQL("SET search_path TO {}").format(schema))
        return connection

    def _read_identity(self, connection: Connection) -> bytes:
        """Return the identity of the journal in the database schema.

        Raises:
            ConfigurationError: The schema has no journal.
            JournalVersion: Another version of actgent wrote the journal.
        """
        meta = psycopg.sql.Identifier(self._schema, "meta").as_string(connection)
        if one_row(connection, "SELECT to_regclass(%s)", meta)[0] is None:
            raise ConfigurationError(
                f"the database has no journal in its schema {self._schema!r}: the first runtime with this URL "
                "creates it; ?schema=NAME selects another schema"
            )
        version, identity = one_row(connection, "SELECT version, identity FROM meta")
        if version != (supported := schema_version(MIGRATIONS)):
            raise JournalVersion(version, supported)
        return bytes(identity)
