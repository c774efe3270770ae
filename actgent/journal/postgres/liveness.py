"""What shows that a node lives: heartbeats, and two advisory locks that its connections hold."""

LEASE = 5.0
"""Seconds without a heartbeat after which a node counts as dead, by the database's clock."""
LOCK_OF_NODE = "SELECT pg_try_advisory_lock(hashtextextended('actgent node ' || %(node)s, 0))"
"""Takes the lock of a node's connection for ownership."""
IS_UNLOCKED = (
    "pg_try_advisory_xact_lock_shared(lock_key) "
    "AND pg_try_advisory_xact_lock_shared(hashtextextended('actgent node ' || name, 0))"
)
"""True for the row of a node whose connections have ended. The locks are tried until the end of the statement."""
