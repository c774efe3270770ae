"""Tables of a journal file and their migrations, and helpers for SQLite statements."""

import secrets
from collections.abc import Sequence
from typing import Any

import apsw

from actgent.journal.schema_version import count_applied_migrations, schema_version

MIGRATIONS: Sequence[str] = (
    """
    CREATE TABLE meta (key TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID, STRICT;
    CREATE TABLE sessions (
        session_id TEXT NOT NULL PRIMARY KEY, agent TEXT NOT NULL, owner TEXT NOT NULL, parent_id TEXT,
        created_at REAL NOT NULL, updated_at REAL NOT NULL, records INTEGER NOT NULL,
        pending BLOB NOT NULL, closed INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0;
    CREATE TABLE steps (
        session_id TEXT NOT NULL, first INTEGER NOT NULL, count INTEGER NOT NULL,
        body BLOB NOT NULL, checksum INTEGER NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX places ON steps (session_id, first);
    """,
    """
    ALTER TABLE sessions ADD COLUMN due REAL NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
    DROP INDEX unfinished;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0 AND NOT suspended;
    CREATE INDEX due ON sessions (agent, due, session_id) WHERE due > 0 AND NOT closed;
    """,
    "CREATE INDEX suspended ON sessions (agent, session_id) WHERE suspended AND NOT closed",
    # Ids become unique for their agent, and session summaries store their root, which was found by ids alone before.
    """
    DROP INDEX unfinished;
    DROP INDEX due;
    DROP INDEX suspended;
    ALTER TABLE sessions RENAME TO former;
    ALTER TABLE steps RENAME COLUMN session_id TO series;
    CREATE TABLE sessions (
        session_id TEXT NOT NULL, agent TEXT NOT NULL, owner TEXT NOT NULL, parent_id TEXT,
        created_at REAL NOT NULL, updated_at REAL NOT NULL, records INTEGER NOT NULL,
        pending BLOB NOT NULL, closed INTEGER NOT NULL, due REAL NOT NULL, suspended INTEGER NOT NULL,
        parent_agent TEXT, root_agent TEXT NOT NULL, root_id TEXT NOT NULL, series TEXT NOT NULL,
        checksum INTEGER NOT NULL, PRIMARY KEY (session_id, agent)
    ) STRICT;
    CREATE INDEX kin ON former (parent_id);
    WITH RECURSIVE tree (session_id, root_id) AS (
        SELECT session_id, session_id FROM former AS top
        WHERE NOT EXISTS (SELECT 1 FROM former AS above WHERE above.session_id = top.parent_id)
        UNION SELECT below.session_id, tree.root_id FROM tree JOIN former AS below ON below.parent_id = tree.session_id
    )
    INSERT INTO sessions SELECT
        each.session_id, each.agent, each.owner, each.parent_id, each.created_at, each.updated_at, each.records,
        each.pending, each.closed, each.due, each.suspended, above.agent, coalesce(root.agent, each.agent),
        coalesce(root.session_id, each.session_id), each.session_id, each.checksum
    FROM former AS each
        LEFT JOIN former AS above ON above.session_id = each.parent_id
        LEFT JOIN tree ON tree.session_id = each.session_id
        LEFT JOIN former AS root ON root.session_id = tree.root_id
    ORDER BY each.rowid;
    DROP TABLE former;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0 AND NOT suspended;
    CREATE INDEX due ON sessions (agent, due, session_id) WHERE due > 0 AND NOT closed;
    CREATE INDEX suspended ON sessions (agent, session_id) WHERE suspended AND NOT closed;
    CREATE INDEX children ON sessions (parent_id, parent_agent) WHERE parent_id IS NOT NULL;
    CREATE INDEX trees ON sessions (root_id, root_agent) WHERE parent_id IS NOT NULL;
    CREATE TABLE listing (
        session_id TEXT NOT NULL, agent TEXT NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL,
        changed_at REAL NOT NULL, PRIMARY KEY (session_id, agent)
    ) WITHOUT ROWID, STRICT;
    CREATE INDEX by_change ON listing (changed_at, agent, session_id);
    CREATE INDEX by_agent ON listing (agent, changed_at, session_id);
    CREATE INDEX by_owner ON listing (owner, changed_at, agent, session_id);
    CREATE INDEX by_state ON listing (state, changed_at, agent, session_id);
    """,
    "CREATE INDEX erasable ON sessions (agent, session_id) WHERE due < 0",
    """
    CREATE TABLE snapshots (
        series TEXT NOT NULL PRIMARY KEY, records INTEGER NOT NULL, last INTEGER NOT NULL, version INTEGER NOT NULL,
        body BLOB NOT NULL, checksum INTEGER NOT NULL
    ) WITHOUT ROWID, STRICT;
    """,
    "ALTER TABLE steps ADD COLUMN at REAL",
    # The records of messages and outcomes have further fields. The tables stay as they are.
    "SELECT 1",
    # Records of started turns have a time, results name exceptions of user code, schedules have the request that set
    # them, and failures of messages have a record.
    "SELECT 1",
    # The record of a change of the state has a further field, `patches`.
    "SELECT 1",
    # Results of tools, outcomes of tasks and schedules have a further field, `via`.
    "SELECT 1",
    # Sessions have tags and metadata, as JSON.
    """
    ALTER TABLE sessions ADD COLUMN annotations TEXT;
    CREATE INDEX annotated ON sessions (agent, session_id) WHERE annotations IS NOT NULL;
    """,
    # Outcomes of answers, changes of the state, system prompts and new sessions have a further field, `via`.
    "SELECT 1",
    # A new record removes an untrusted source from the label of its session. Results of tools omit a derived `mark`.
    "SELECT 1",
    # Results of tools have the times at which the tool started and ended, answers the number of failed attempts.
    "SELECT 1",
)
"""Scripts that create and change the tables, in order. An entry never changes after its release.

The entries `SELECT 1` stand for former changes of the record classes, which `RECORDS_VERSION` counts now.
"""


def version_of(db: apsw.Connection) -> int:
    """Return the schema version of a SQLite file; 0 if it has no tables.

    Raises:
        JournalVersion: A later release wrote the file.
    """
    version = int(pragma(db, "user_version"))
    count_applied_migrations(version, MIGRATIONS)
    return version


def migrate(db: apsw.Connection, version: int) -> None:
    """Create the tables, or migrate them from an older version, in one transaction."""
    pragma(db, "journal_mode=WAL")
    if version == schema_version(MIGRATIONS):
        return
    with transaction(db):
        for script in MIGRATIONS[count_applied_migrations(version, MIGRATIONS) :]:
            db.execute(script)
        if not version:
            identity = secrets.randbits(31) | 1
            db.execute(f"PRAGMA application_id={identity}")
            rows = [("identity", identity), ("epoch", 0), ("open", 0), ("commits", 0)]
            db.executemany("INSERT INTO meta VALUES (?, ?)", rows)
        db.execute(f"PRAGMA user_version={schema_version(MIGRATIONS)}")


def pragma(db: apsw.Connection, text: str) -> Any:
    """Run a SQLite PRAGMA, such as `journal_mode=WAL`, and return its value."""
    return db.execute(f"PRAGMA {text}").get


def read_fact(db: apsw.Connection, key: str) -> Any:
    """Return a value of the table `meta` by its key: identity, epoch, open or commits."""
    return db.execute("SELECT value FROM meta WHERE key = ?", (key,)).get


class transaction:  # noqa: N801 - used like a function; a generator would be several times slower
    """Context manager of a transaction: commit at the end of the block, roll back after an error."""

    __slots__ = ("_db",)

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
