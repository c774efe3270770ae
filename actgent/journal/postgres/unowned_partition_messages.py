"""Messages for sessions whose partition has no owner. The next owner accepts them.

A message is stored only if the partition still has the epoch that its sender saw. The statement locks the row of the
partition, so either a takeover sees the message, or the sender sees the takeover.
"""

from collections.abc import Collection, Iterable, Sequence

import attrs
import outcome
import trio

from actgent.journal.group_commit.read_batching import ReadBatcher

from .partition_ownership_table import OwnershipTable
from .session_partitioning import slot_of, slots_of

MAX_PENDING_AT_ONCE = 1000
"""Maximum number of messages in one read."""
_STORE = """
WITH new AS MATERIALIZED (
    SELECT * FROM unnest(%(partitions)s::int[], %(epochs)s::bigint[], %(slots)s::smallint[], %(session_ids)s::text[],
        %(message_ids)s::text[], %(requests)s::bytea[])
    WITH ORDINALITY AS new (p, epoch, slot, session_id, message_id, request, n)
), held AS MATERIALIZED (
    SELECT p, epoch FROM partitions WHERE pool = %(pool)s AND (p, epoch) IN (SELECT p, epoch FROM new) ORDER BY p FOR SHARE
), added AS (
    INSERT INTO pending_messages (pool, slot, session_id, message_id, request)
    SELECT %(pool)s, slot, session_id, message_id, request FROM new JOIN held USING (p, epoch) ORDER BY n
    ON CONFLICT (session_id, message_id) DO NOTHING RETURNING 1
)
SELECT p, epoch, pg_notify(%(channel)s, 'pending ' || p::text), (SELECT count(*) FROM added) FROM held
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
    """A message that waits until a node owns its session."""

    number: int
    """Number of the message; later messages have higher numbers."""
    session_id: str
    message_id: str
    request: bytes
    """The encoded request that sent the message."""
    deliveries: int = 0
    """Number of deliveries of the message that were started and have not ended.
    If no live node is delivering it, each of them ended with the death of its node.
    """


@attrs.frozen
class _NewMessage:
    """A message to be stored."""

    partition: int
    epoch: int
    """Epoch of the partition when the sender found that it had no owner."""
    session_id: str
    message_id: str
    request: bytes


@attrs.frozen
class PendingMessageTable:
    """The pending messages of one pool."""

    _table: OwnershipTable
    _stores: ReadBatcher = attrs.field(init=False, factory=lambda: ReadBatcher(trio.Semaphore(1)))
    """Batches concurrent stores into one statement. Single statements would delay a takeover of the partition."""

    async def store(
        self, partition: int, epoch: int, *, session_id: str, message_id: str, request: bytes
    ) -> bool:
        """Store a message for a partition without an owner, unless it is stored already.

        Return False if the epoch of the partition has changed, because a node has acquired it.

        Raises:
            JournalFailed: The database does not answer; the message may be stored or not.
        """
        message = _NewMessage(partition, epoch, session_id, message_id, request)
        return await self._stores.read(message, self._store_all)

    async def _store_all(self, messages: Sequence[_NewMessage]) -> list[outcome.Outcome[bool]]:
        values = {
            "partitions": [each.partition for each in messages],
            "epochs": [each.epoch for each in messages],
            "slots": [slot_of(each.session_id) for each in messages],
            "session_ids": [each.session_id for each in messages],
            "message_ids": [each.message_id for each in messages],
            "requests": [each.request for each in messages],
        }
        held = {(p, epoch) for p, epoch, *_ in await self._table.select(_STORE, values)}
        return [outcome.Value((each.partition, each.epoch) in held) for each in messages]

    async def select(
        self, partitions: Collection[int], partition_count: int, *, after: int = 0
    ) -> list[PendingMessage]:
        """Return up to `MAX_PENDING_AT_ONCE` messages of the partitions, oldest first.

        Their numbers are greater than `after`. `partition_count` is the total number of partitions.

        Raises:
            JournalFailed: The database does not answer.
        """
        values = {
            "slots": slots_of(partitions, partition_count),
            "after": after,
            "limit": MAX_PENDING_AT_ONCE,
        }
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
        """Add `by` to the stored number of running deliveries of a message: 1 at the start, -1 if it was not accepted.

        Raises:
            JournalFailed: The database does not answer.
        """
        values = {"session_id": message.session_id, "message_id": message.message_id, "by": by}
        await self._table.execute(_COUNT, values)

    async def delete(self, messages: Iterable[PendingMessage]) -> None:
        """Delete stored messages, because their session has accepted them.

        Raises:
            JournalFailed: The database does not answer; the messages may be delivered again.
        """
        for each in messages:
            values = {"session_id": each.session_id, "message_id": each.message_id}
            await self._table.execute(_DELETE, values)
