"""SQL statements of journals in PostgreSQL."""

from collections.abc import Sequence

from actgent.journal.group_commit.row_format import CHANGING, HEAD_FIELDS
from actgent.journal.group_commit.snapshot_rows import SNAPSHOT_FIELDS
from actgent.journal.session_list_queries import STATE_SQL, UNFINISHED_SQL, SessionKey

from .session_list_pages import MINUTE_OF

ROW_TYPES = {
    "series": "text",
    "first": "bigint",
    "count": "integer",
    "body": "bytea",
    "checksum": "bigint",
    "at": "float8",
}
FIELD_TYPES = dict(
    zip(
        HEAD_FIELDS,
        (
            *("text", "text", "text", "text", "float8", "float8", "bigint", "bytea", "boolean"),
            *("float8", "boolean", "text", "text", "text", "text", "text"),
        ),
        strict=True,
    )
)
HEAD_TYPES = {**FIELD_TYPES, "checksum": "bigint"}
SELECT_HEADS = f"SELECT {', '.join(HEAD_TYPES)} FROM sessions"  # noqa: S608 - names of our own
THESE = "(SELECT * FROM unnest(%s::text[], %s::text[]))"
HEADS_OF = f"{SELECT_HEADS} WHERE (agent, session_id) IN {THESE}"
SELECT_AGENTS = "SELECT session_id, agent FROM sessions WHERE session_id = ANY(%s::text[])"
SELECT_SOME_ROWS = (
    f"SELECT {', '.join(ROW_TYPES)} FROM steps WHERE series = %(series)s AND first <= %(up_to)s AND first >= "  # noqa: S608
    "(SELECT coalesce(max(first), 1) FROM steps WHERE series = %(series)s AND first <= %(begin)s) ORDER BY first"
)
SELECT_CHECKSUM = (
    "SELECT checksum FROM steps WHERE series = %(series)s AND first <= %(record)s AND first + count > %(record)s "
    "ORDER BY first DESC LIMIT 1"
)
PUT_SNAPSHOT = (
    f"INSERT INTO snapshots VALUES ({', '.join(['%s'] * len(SNAPSHOT_FIELDS))}) ON CONFLICT (series) DO UPDATE SET "  # noqa: S608
    f"{', '.join(f'{name} = excluded.{name}' for name in SNAPSHOT_FIELDS[1:])}"
)
SNAPSHOT_COLUMNS = {
    **{f"snapshot_{name}": f"c.{name}" for name in SNAPSHOT_FIELDS},
    "snapshot_row_checksum": "(SELECT t.checksum FROM steps AS t WHERE t.series = h.series AND t.first <= c.records "
    "AND t.first + t.count > c.records ORDER BY t.first DESC LIMIT 1)",
}
"""Columns of a session's snapshot in `READ_SESSIONS`, and the checksum of the row that has its last record."""
READ_TYPES = {"session_ids": "text", "agents": "text", "after": "bigint", "up_to": "bigint"}
"""SQL types of the parameters of `READ_SESSIONS`, each an array."""


def _read_sessions(
    snapshots: dict[str, str], join: str = "", after: str = "k.after", weight: str = ""
) -> str:
    names = [f"head_{name}" for name in HEAD_TYPES] + [*snapshots]
    heads = ", ".join(f"h.{name} AS head_{name}" for name in HEAD_TYPES)
    more = "".join(f", {value} AS {name}" for name, value in snapshots.items())
    rows = ", ".join(f"NULL::{kind} AS {name}" for name, kind in ROW_TYPES.items())
    return f"""
WITH read AS MATERIALIZED (
    SELECT k.n, {after} AS after, k.up_to, greatest(0, least(k.up_to, h.records) - {after}){weight} AS weight, {heads}{more}
    FROM unnest({", ".join(f"%s::{kind}[]" for kind in READ_TYPES.values())})
        WITH ORDINALITY AS k (session_id, agent, after, up_to, n)
    JOIN sessions AS h ON h.session_id = k.session_id AND h.agent = k.agent {join}
),
weighed AS (SELECT n, after, up_to, head_series, sum(weight) OVER (ORDER BY n) - weight AS before FROM read)
SELECT n, weight, {", ".join(names)}, {rows} FROM read
UNION ALL
SELECT w.n, {", ".join(["NULL"] * (len(names) + 1))}, {", ".join(f"r.{name}" for name in ROW_TYPES)}
FROM weighed AS w JOIN steps AS r ON r.series = w.head_series AND r.first <= w.up_to
    AND r.first >= (SELECT coalesce(max(t.first), 1) FROM steps AS t WHERE t.series = w.head_series AND t.first <= w.after + 1)
WHERE w.before < %s
ORDER BY n, first NULLS FIRST
"""  # noqa: S608 - names of our own


READ_SESSIONS = _read_sessions({})
"""Reads sessions in one round trip: the summary of each session, then its rows with the records `after + 1` to `up_to`.

Sessions above the record limit come without rows.
"""
READ_TAILS = _read_sessions(
    SNAPSHOT_COLUMNS,
    "LEFT JOIN snapshots AS c ON c.series = h.series",
    "coalesce(c.records, k.after)",
    " + coalesce(length(c.body), 0) / 1000",
)
"""Reads sessions with their snapshots, and the rows from the one with the first record after the snapshot.

A snapshot counts as one record per KB.
"""
ALL = 1 << 62
"""Number above all record numbers."""
SELECT_CHILDREN = (
    f"{SELECT_HEADS} WHERE (parent_agent, parent_id) IN {THESE} ORDER BY created_at, session_id, agent"
)
COUNT_STATES = f"SELECT agent, {STATE_SQL}, count(*) FROM sessions GROUP BY 1, 2"  # noqa: S608
OF_KEY = " WHERE agent = %s AND session_id = %s"
DELETE_ROWS = f"DELETE FROM steps WHERE series = (SELECT series FROM sessions{OF_KEY})"  # noqa: S608
DELETE_SNAPSHOT = f"DELETE FROM snapshots WHERE series = (SELECT series FROM sessions{OF_KEY})"  # noqa: S608
DELETE_HEAD = f"DELETE FROM sessions{OF_KEY}"  # noqa: S608
OLDEST = ' ORDER BY created_at, session_id COLLATE "C"'
IS_UNFINISHED = "active AND length(pending) > 0 AND NOT suspended"
"""SQL condition of a session with an open turn or queued messages. Only `active` is in an index."""
SELECT_UNFINISHED = (
    f"SELECT agent, session_id FROM sessions WHERE agent = ANY(%s::text[]) AND {IS_UNFINISHED}{OLDEST}"  # noqa: S608
)
SELECT_NEWEST = (
    "SELECT body FROM steps WHERE series = (SELECT series FROM sessions ORDER BY updated_at DESC LIMIT 1) "
    "ORDER BY first DESC LIMIT 1"
)
TREE = (
    'WITH RECURSIVE tree (agent, session_id) AS (VALUES (%s::text COLLATE "C", %s::text COLLATE "C") UNION SELECT below.agent, below.session_id FROM tree '
    "JOIN sessions AS below ON below.parent_id = tree.session_id AND below.parent_agent = tree.agent)"
)
IS_KEPT = f"{UNFINISHED_SQL} OR updated_at >= %s"
SELECT_TREE = f"{TREE} SELECT agent, session_id, {IS_KEPT} FROM tree JOIN sessions USING (agent, session_id)"  # noqa: S608
SELECT_TO_ERASE = "SELECT agent, session_id FROM sessions WHERE due < 0 LIMIT %s"
COUNT_WAITING = f"SELECT agent, count(*) FROM sessions WHERE {IS_UNFINISHED} GROUP BY agent"  # noqa: S608
ACTIVE_SECONDS = 3600
"""Seconds after its last change in which an idle session stays `active`."""
CLEAR_BATCH = 1000
CLEAR_ACTIVE = (
    "UPDATE sessions SET active = false WHERE active AND length(pending) = 0 AND (session_id, agent) IN "  # noqa: S608
    "(SELECT session_id, agent FROM sessions WHERE active AND NOT suspended AND length(pending) = 0 "
    f"AND updated_at < %s - {ACTIVE_SECONDS} LIMIT {CLEAR_BATCH} FOR UPDATE SKIP LOCKED)"
)
"""SQL that clears `active` of sessions that have been idle for a while. A session with pending messages keeps the
flag, also during a concurrent write.
"""
SELECT_DUE = (
    "SELECT agent, session_id, due FROM sessions WHERE agent = ANY(%s::text[]) AND due > 0 AND NOT closed "
    'ORDER BY due, session_id COLLATE "C"'
)
SELECT_SUSPENDED = (
    "SELECT session_id FROM sessions WHERE agent = %s AND suspended AND NOT closed "
    'AND session_id COLLATE "C" > %s ORDER BY session_id COLLATE "C" LIMIT %s'
)


SELECT_UNFINISHED_HERE = f"SELECT agent, session_id FROM sessions WHERE agent = ANY(%s::text[]) AND slot >= 0 AND slot = ANY(%s) AND {IS_UNFINISHED}{OLDEST}"  # noqa: S608
SELECT_DUE_HERE = (
    "SELECT agent, session_id, due FROM sessions WHERE agent = ANY(%s::text[]) AND slot >= 0 AND slot = ANY(%s) AND due > 0 AND NOT closed "
    'ORDER BY due, session_id COLLATE "C"'
)
SELECT_TO_ERASE_HERE = (
    "SELECT agent, session_id FROM sessions WHERE due < 0 AND slot >= 0 AND slot = ANY(%s) LIMIT %s"
)


def _put_rows(held: str = "") -> str:
    return f"INSERT INTO steps ({', '.join(ROW_TYPES)}) SELECT u.* FROM {held}{_arrays(ROW_TYPES)} AS u"  # noqa: S608


def _put_heads(held: str = "", types: dict[str, str] = HEAD_TYPES) -> str:
    changing = (*CHANGING, *(name for name in types if name not in HEAD_FIELDS))
    return (
        f"INSERT INTO sessions ({', '.join(types)}, active) SELECT u.*, length(u.pending) > 0 "  # noqa: S608
        f"FROM {held}{_arrays(types)} AS u ({', '.join(types)}) ON CONFLICT (session_id, agent) DO UPDATE SET "
        f"{', '.join(f'{name} = excluded.{name}' for name in changing)}, active = length(excluded.pending) > 0 "
        f"OR (sessions.active AND sessions.updated_minute = {MINUTE_OF.format('excluded.updated_at')})"
    )


def _arrays(types: dict[str, str]) -> str:
    return f"unnest({', '.join(f'%s::{kind}[]' for kind in types.values())})"


TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
PUT_HEADS = _put_heads()
WRITE_GROUP = (
    "WITH held AS MATERIALIZED (SELECT epoch FROM meta WHERE epoch = %s AND identity = %s AND tableoid = %s::oid FOR SHARE), "  # noqa: S608
    f"put AS ({_put_rows('held, ')}), heads AS ({_put_heads('held, ')}) SELECT epoch FROM held"
)
"""Writes a whole group.

If the epoch is over, or the tables were replaced, nothing is written and no row is returned. The row lock
delays an epoch change until the end of the transaction.
"""


BEGIN_EPOCH = "UPDATE meta SET epoch = epoch + 1, owner = %s RETURNING epoch, identity, tableoid"
END_PARTITIONS = "UPDATE partitions SET epoch = epoch + 1, owner = '', clean = true"
"""SQL that ends the epochs of all partitions when a process acquires the whole journal, so that cluster processes
drop their caches.
"""
LOCK_SETTING_UP = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
TRY_SHARED_LOCK = "SELECT pg_try_advisory_lock_shared(hashtextextended(%s, 0))"
SELECT_WITHOUT_SLOT = "SELECT DISTINCT session_id FROM sessions WHERE slot < 0 LIMIT %s"
FILL_SLOTS = (
    "UPDATE sessions SET slot = u.slot FROM unnest(%s::text[], %s::smallint[]) AS u (id, slot) "
    "WHERE session_id = u.id AND sessions.slot < 0"
)
SELECT_BACKEND = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
END_BACKEND = (
    "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"
)
HOLD_PARTITIONS = (
    "SELECT p FROM partitions WHERE pool = %s AND owner = %s "
    "AND (p, epoch) IN (SELECT * FROM unnest(%s::integer[], %s::bigint[])) ORDER BY p FOR SHARE"
)
"""SQL that locks partitions by owner and epoch. The owner is compared too, because after a restore an epoch may be
reused.
"""
WRITE_PARTITIONS = (
    f"WITH fence AS MATERIALIZED ({HOLD_PARTITIONS}), held AS MATERIALIZED (SELECT FROM fence HAVING count(*) = %s), "  # noqa: S608
    f"put AS ({_put_rows('held, ')}), heads AS ({_put_heads('held, ', {**HEAD_TYPES, 'slot': 'smallint'})}) "
    "SELECT p FROM fence"
)
"""SQL that writes a whole group if all its partitions are owned. It returns the owned partitions."""


def columns_of(keys: Sequence[SessionKey]) -> tuple[list[str], list[str]]:
    """Return the agents and the ids of session keys as two lists, for the parameters of the SQL fragment `THESE`."""
    return [key.agent for key in keys], [key.session_id for key in keys]
