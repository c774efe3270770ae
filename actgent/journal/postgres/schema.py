"""Tables of a journal in PostgreSQL and their migrations."""

import secrets
from collections.abc import Sequence

from actgent.journal.schema_version import count_applied_migrations, schema_version

from .connections import Connection, one_row

MIGRATIONS: Sequence[str] = (
    """
    CREATE TABLE sessions (
        session_id text PRIMARY KEY, agent text NOT NULL, owner text NOT NULL, parent_id text,
        created_at double precision NOT NULL, updated_at double precision NOT NULL,
        records bigint NOT NULL, pending bytea NOT NULL, closed boolean NOT NULL, checksum bigint NOT NULL
    );
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0;
    CREATE TABLE steps (
        session_id text, first bigint, count integer NOT NULL, body bytea NOT NULL, checksum bigint NOT NULL,
        PRIMARY KEY (session_id, first)
    );
    """,
    """
    ALTER TABLE sessions ADD COLUMN due double precision NOT NULL DEFAULT 0,
        ADD COLUMN suspended boolean NOT NULL DEFAULT false;
    DROP INDEX unfinished;
    CREATE INDEX unfinished ON sessions (agent, created_at, session_id) WHERE length(pending) > 0 AND NOT suspended;
    CREATE INDEX due ON sessions (agent, due, session_id) WHERE due > 0 AND NOT closed;
    """,
    'CREATE INDEX suspended ON sessions (agent, session_id COLLATE "C") WHERE suspended AND NOT closed',
    # Ids become unique for their agent, and session summaries store their root, which was found by ids alone before.
    """
    ALTER TABLE steps RENAME COLUMN session_id TO series;
    ALTER TABLE sessions ADD COLUMN parent_agent text, ADD COLUMN root_agent text, ADD COLUMN root_id text,
        ADD COLUMN series text;
    CREATE INDEX kin ON sessions (parent_id);
    WITH RECURSIVE tree (session_id, root_agent, root_id) AS (
        SELECT session_id, agent, session_id FROM sessions AS top
        WHERE NOT EXISTS (SELECT FROM sessions AS above WHERE above.session_id = top.parent_id)
        UNION SELECT below.session_id, tree.root_agent, tree.root_id
        FROM tree JOIN sessions AS below ON below.parent_id = tree.session_id
    )
    UPDATE sessions SET root_agent = tree.root_agent, root_id = tree.root_id
    FROM tree WHERE tree.session_id = sessions.session_id;
    UPDATE sessions SET
        parent_agent = (SELECT above.agent FROM sessions AS above WHERE above.session_id = sessions.parent_id),
        root_agent = coalesce(root_agent, agent), root_id = coalesce(root_id, session_id), series = session_id;
    DROP INDEX kin;
    ALTER TABLE sessions DROP CONSTRAINT sessions_pkey,
        ALTER COLUMN session_id TYPE text COLLATE "C", ALTER COLUMN agent TYPE text COLLATE "C",
        ALTER COLUMN owner TYPE text COLLATE "C", ALTER COLUMN root_agent SET NOT NULL,
        ALTER COLUMN root_id SET NOT NULL, ALTER COLUMN series SET NOT NULL;
    ALTER TABLE sessions ADD PRIMARY KEY (session_id, agent);
    CREATE INDEX children ON sessions (parent_id, parent_agent) WHERE parent_id IS NOT NULL;
    CREATE INDEX trees ON sessions (root_id, root_agent) WHERE parent_id IS NOT NULL;
    CREATE TABLE listing (
        session_id text COLLATE "C", agent text COLLATE "C", owner text COLLATE "C" NOT NULL, state text NOT NULL,
        changed_at double precision NOT NULL, PRIMARY KEY (session_id, agent)
    );
    CREATE INDEX by_change ON listing (changed_at, agent, session_id);
    CREATE INDEX by_agent ON listing (agent, changed_at, session_id);
    CREATE INDEX by_owner ON listing (owner, changed_at, agent, session_id);
    CREATE INDEX by_state ON listing (state, changed_at, agent, session_id);
    """,
    "CREATE INDEX erasable ON sessions (agent, session_id) WHERE due < 0",
    """
    CREATE TABLE snapshots (
        series text PRIMARY KEY, records bigint NOT NULL, last bigint NOT NULL, version integer NOT NULL,
        body bytea NOT NULL, checksum bigint NOT NULL
    );
    """,
    "ALTER TABLE steps ADD COLUMN at double precision",
    # For clusters. A slot below 0 is unknown and in no index, so a single owner has no cost.
    """
    ALTER TABLE sessions ADD COLUMN slot smallint NOT NULL DEFAULT -1;
    CREATE INDEX unfinished_slot ON sessions (slot, agent, created_at)
        WHERE slot >= 0 AND length(pending) > 0 AND NOT suspended;
    CREATE INDEX due_slot ON sessions (slot, agent, due) WHERE slot >= 0 AND due > 0 AND NOT closed;
    CREATE TABLE cluster (
        pool text, generation integer, partitions integer NOT NULL, writes smallint NOT NULL, state text NOT NULL,
        PRIMARY KEY (pool, generation)
    );
    CREATE TABLE partitions (
        pool text, p integer, epoch bigint NOT NULL, owner text NOT NULL, since timestamptz NOT NULL,
        clean boolean NOT NULL, PRIMARY KEY (pool, p)
    );
    """,
    # For clusters: sessions that may crash their process, and dead-lettered messages.
    """
    CREATE TABLE suspects (
        session_id text COLLATE "C", agent text COLLATE "C", slot smallint NOT NULL, crashes integer NOT NULL,
        alone integer NOT NULL, is_alone boolean NOT NULL, PRIMARY KEY (session_id, agent)
    );
    CREATE TABLE dead (
        session_id text COLLATE "C", agent text COLLATE "C", message_id text COLLATE "C", reason text NOT NULL,
        at timestamptz NOT NULL, retried_as text, PRIMARY KEY (session_id, agent, message_id)
    );
    """,
    # For clusters: shared rate limits and their leases.
    """
    CREATE TABLE allowances (
        door text COLLATE "C", kind text, level double precision NOT NULL, at double precision NOT NULL,
        leases jsonb NOT NULL, lent double precision NOT NULL, held double precision NOT NULL, PRIMARY KEY (door, kind)
    );
    """,
    # For clusters: the pool that hosts each agent.
    'CREATE TABLE hosts (agent text COLLATE "C" PRIMARY KEY, pool text NOT NULL)',
    # For clusters: dead-lettered requests that no session accepted.
    "ALTER TABLE dead ADD COLUMN request bytea",
    # For clusters: the partition epoch in which a session was counted last, so that each death is counted once.
    "ALTER TABLE suspects ADD COLUMN epoch bigint NOT NULL DEFAULT 0",
    # The records of messages and outcomes have further fields. The tables stay as they are.
    "SELECT 1",
    # The record of a begun turn has its time; results name
    # foreign exceptions, schedules the request that set them, and failures of messages have a record.
    "SELECT 1",
    # No index has a column that changes with each batch, and pages have room, so that most updates of sessions are HOT: they
    # write no index. `active` is true for each unfinished session, and for others until it is cleared
    # (`sql_statements.CLEAR_ACTIVE`). Lists are read from `sessions` itself (`session_list_pages`). The table is rewritten once and
    # locked during that.
    """
    DROP INDEX unfinished, unfinished_slot;
    ALTER TABLE sessions SET (
        fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.05
    );
    ALTER TABLE sessions ADD COLUMN updated_minute double precision GENERATED ALWAYS AS (floor(updated_at / 60)) STORED,
        ADD COLUMN active boolean NOT NULL DEFAULT false;
    UPDATE sessions SET active = true WHERE length(pending) > 0;
    CREATE INDEX active ON sessions (agent, created_at, session_id) WHERE active AND NOT suspended;
    CREATE INDEX active_slot ON sessions (slot, agent, created_at) WHERE slot >= 0 AND active AND NOT suspended;
    CREATE INDEX by_minute ON sessions (updated_minute);
    CREATE INDEX by_owner_and_minute ON sessions (left(owner, 256), updated_minute);
    CREATE INDEX by_agent_and_minute ON sessions (agent, updated_minute);
    CREATE INDEX closed ON sessions (updated_minute) WHERE closed;
    DROP TABLE listing;
    """,
    # The record of a change of the state has a further field, `patches`.
    "SELECT 1",
    # Of a cluster: its nodes, the key that signs what they send to each other, and messages that wait for an owner.
    # A heartbeat changes no index, so half-full pages keep its updates in place. Nodes that use a broker read form 1 only.
    """
    UPDATE cluster SET writes = 2 WHERE writes < 2;
    CREATE TABLE nodes (
        pool text, name text, address text NOT NULL, agents text[] NOT NULL, release text NOT NULL,
        reads smallint NOT NULL, lock_key bigint NOT NULL, heartbeat timestamptz NOT NULL,
        is_leaving boolean NOT NULL, PRIMARY KEY (pool, name)
    ) WITH (fillfactor = 50);
    CREATE TABLE cluster_key (is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only), key bytea NOT NULL);
    CREATE TABLE pending_messages (
        number bigint GENERATED ALWAYS AS IDENTITY, pool text NOT NULL, slot smallint NOT NULL,
        session_id text NOT NULL, message_id text NOT NULL, request bytea NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(), deliveries smallint NOT NULL DEFAULT 0,
        PRIMARY KEY (session_id, message_id)
    );
    CREATE INDEX pending_messages_order ON pending_messages (pool, slot, number);
    ALTER TABLE suspects ADD COLUMN records bigint NOT NULL DEFAULT 0, ADD COLUMN is_open boolean NOT NULL DEFAULT true,
        ADD COLUMN alone_at text NOT NULL DEFAULT '', ADD COLUMN shared integer NOT NULL DEFAULT 0;
    """,
    # Results of tools, outcomes of tasks and schedules have a further field, `via`.
    "SELECT 1",
    # Sessions have tags and metadata, as JSON. Sessions without them are in no index.
    """
    ALTER TABLE sessions ADD COLUMN annotations text;
    CREATE INDEX annotated ON sessions USING gin ((annotations::jsonb) jsonb_path_ops) WHERE annotations IS NOT NULL;
    """,
    # Outcomes of answers, changes of the state, system prompts and new sessions have a further field, `via`.
    "SELECT 1",
    # A new record removes an untrusted source from the label of its session. Results of tools omit a derived `mark`.
    "SELECT 1",
    # Results of tools have the times at which the tool started and ended, answers the number of failed attempts.
    "SELECT 1",
)
"""SQL scripts that create and change the tables, in order. A released script never changes.

The scripts `SELECT 1` stand for former changes of the record classes, which `RECORDS_VERSION` counts now.

Nodes of the previous release keep running after a newer node has migrated the schema. So scripts from the tenth on
only add tables, columns with a default, and indexes.
"""


def migrate_schema(connection: Connection) -> None:
    """Create or migrate the tables in the schema of the connection's search path, within its open transaction.

    Raises:
        JournalVersion: A newer actgent wrote the schema.
    """
    connection.execute(
        "CREATE TABLE IF NOT EXISTS meta "
        "(version integer NOT NULL, epoch bigint NOT NULL, identity bytea NOT NULL, owner text NOT NULL)"
    )
    connection.execute(
        "INSERT INTO meta SELECT 0, 0, %s, '' WHERE NOT EXISTS (SELECT FROM meta)", (secrets.token_bytes(4),)
    )
    (version,) = one_row(connection, "SELECT version FROM meta")
    applied = count_applied_migrations(version, MIGRATIONS)
    if applied < len(MIGRATIONS):
        connection.execute("SET LOCAL statement_timeout = 0")  # many sessions take long, once
    for script in MIGRATIONS[applied:]:
        connection.execute(script)
    connection.execute("UPDATE meta SET version = %s", (schema_version(MIGRATIONS),))
