"""Liveness of nodes: heartbeats, and two advisory locks that the connections of a node hold."""

NODE_TIMEOUT_SECONDS = 5.0
"""Seconds without a heartbeat after which a node counts as dead, on the database's clock."""
LOCK_OF_NODE = "SELECT pg_try_advisory_lock(hashtextextended('actgent node ' || %(node)s, 0))"
"""SQL that acquires the lock of a node's ownership connection."""
IS_UNLOCKED = (
    "pg_try_advisory_xact_lock_shared(lock_key) "
    "AND pg_try_advisory_xact_lock_shared(hashtextextended('actgent node ' || name, 0))"
)
"""SQL condition that is true for the row of a node whose connections have ended. It tries both locks for the
duration of the statement.
"""
