"""Messages that clients have sent while no node owned the partition of their session; the next owner accepts them.

A message is stored only if the owner of the partition is still the one that its sender saw. The statement locks the row of the
partition, so a takeover sees either the message or its sender sees the takeover.
"""

from collections.abc import Collection, Iterable

import attrs

from .ownership_table import OwnershipTable
from .partitions import slot_of, slots_of

MAX_PENDING_AT_ONCE = 1000
"""Messages that are read at once."""
_STORE = """
WITH held AS MATERIALIZED (
    SELECT FROM partitions WHERE pool = %(pool)s AND p = %(p)s AND epoch = %(epoch)s FOR SHARE
), added AS (
    INSERT INTO pending_messages (pool, slot, session_id, message_id, request)
    SELECT %(pool)s, %(slot)s, %(session_id)s, %(message_id)s, %(request)s FROM held
    ON CONFLICT (session_id, message_id) DO NOTHING RETURNING 1
)
SELECT pg_notify(%(channel)s, 'pending ' || %(p)s::text), (SELECT count(*) FROM added) FROM held
"""
_SELECT = """
SELECT number, session_id, message_id, request, deliveries FROM pending_messages
WHERE pool = %(pool)s AND slot = ANY(%(slots)s) AND number > %(after)s ORDER BY number LIMIT %(limit)s
"""
_DELETE = "DELETE FROM pending_messages WHERE session_id = %(session_id)s AND message_id = %(message_id)s"
_COUNT = """
UPDATE pending_messages SET deliveries = deliveries + %(by)s WHERE session_id = %(session_id)s AND message_id = %(message_id)s
"""


@attrs.frozen(kw_only=True)
class PendingMessage:
    """A message that waits for an owner of its session."""

    number: int
    """Grows with each message."""
    session_id: str
    message_id: str
    request: bytes
    """The request with which it was sent."""
    deliveries: int = 0
    """Deliveries that have begun and not ended: if none is under way, their nodes have died meanwhile."""


@attrs.frozen
class PendingMessageTable:
    """The pending messages of one pool."""

    _table: OwnershipTable

    async def store(
        self, partition: int, epoch: int, *, session_id: str, message_id: str, request: bytes
    ) -> bool:
        """Store a message, unless it is stored; return False if the partition has had another owner since this epoch.

        Raises:
            JournalFailed: The database does not answer; the message may be stored or not.
        """
        values = {
            "p": partition,
            "epoch": epoch,
            "slot": slot_of(session_id),
            "session_id": session_id,
            "message_id": message_id,
        }
        return bool(await self._table.select(_STORE, {**values, "request": request}))

    async def select(self, partitions: Collection[int], of: int, *, after: int = 0) -> list[PendingMessage]:
        """Return the messages of some of so many partitions after a number, the oldest first, at most `MAX_PENDING_AT_ONCE`.

        Raises:
            JournalFailed: The database does not answer.
        """
        values = {"slots": slots_of(partitions, of), "after": after, "limit": MAX_PENDING_AT_ONCE}
        return [
            PendingMessage(
                number=number,
                session_id=session_id,
                message_id=message_id,
                request=bytes(request),
                deliveries=deliveries,
            )
            for number, session_id, message_id, request, deliveries in await self._table.select(
                _SELECT, values
            )
        ]

    async def count_delivery(self, message: PendingMessage, by: int) -> None:
        """Note that a delivery of a message begins (1), or has ended without its acceptance (-1).

        Raises:
            JournalFailed: The database does not answer.
        """
        values = {"session_id": message.session_id, "message_id": message.message_id, "by": by}
        await self._table.execute(_COUNT, values)

    async def delete(self, messages: Iterable[PendingMessage]) -> None:
        """Delete messages that a session has accepted.

        Raises:
            JournalFailed: The database does not answer; they may be delivered again.
        """
        for each in messages:
            values = {"session_id": each.session_id, "message_id": each.message_id}
            await self._table.execute(_DELETE, values)
