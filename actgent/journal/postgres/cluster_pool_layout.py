"""Layout of a pool: number of partitions, generation, and the format that its nodes write.

A format is a version of the journal and of the requests between nodes. Nodes of two releases can run together while
both read the written format. The newer release writes the old format until an operator raises it. The number of
partitions changes only while no node runs. Each change starts a new generation.
"""

from collections.abc import Callable
from typing import TypeVar

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted, quoted
from actgent.journal.cluster_interface import ACTIVE, PoolLayout

from .cluster_tables_reader import run_connected
from .connections import Connection, in_transaction
from .session_partitioning import check_partitions, partition_of_slot, slots_of

READS = 2
"""Newest record format that this release reads, and the format of new pools. Format 1 was used with RabbitMQ."""
MOVING, PAST = "moving", "past"
"""States of a generation that no node serves. MOVING: its partitions are being created, and no node may run.
PAST: a later generation replaced it.
"""
T = TypeVar("T")
BEGIN_POOL = (
    f"INSERT INTO cluster (pool, generation, partitions, writes, state) SELECT %s, 1, %s, %s, '{ACTIVE}' "  # noqa: S608
    "WHERE NOT EXISTS (SELECT FROM cluster WHERE pool = %s) ON CONFLICT DO NOTHING"
)
SELECT_LAYOUTS = (
    "SELECT generation, partitions, writes, state FROM cluster WHERE pool = %s ORDER BY generation DESC"
)
IS_TAKEN_FROM = (
    "SELECT FROM cluster WHERE pool = %(pool)s AND generation = %(generation)s "  # noqa: S608 - as above
    f"AND state = '{ACTIVE}' AND writes <= %(reads)s AND EXISTS (SELECT FROM meta WHERE identity = %(identity)s) FOR SHARE"
)
"""SQL that returns a row if a node of this journal, generation and format may acquire partitions. It locks the
layout until the end of the transaction.
"""


def layout_of(columns: tuple[int, int, int, str]) -> PoolLayout:
    """Convert a row of `SELECT_LAYOUTS` to a `PoolLayout`."""
    generation, partitions, writes, state = columns
    return PoolLayout(generation=generation, partitions=partitions, writes=writes, state=state)


def check_layout(layout: PoolLayout, pool: str, *, reads: int) -> PoolLayout:
    """Return the layout unchanged if this release may work with the pool.

    `reads` is the newest record format that this release can read.

    Raises:
        ConfigurationError: A newer release is needed, or the partitions are being changed.
    """
    if layout.writes > reads:
        raise ConfigurationError(
            f"the pool {quoted(pool)} writes record format {layout.writes}, and this release of actgent reads formats up to {reads}: "
            "use a newer release"
        )
    if layout.state == MOVING:
        raise ConfigurationError(
            f"the pool {quoted(pool)} is being changed to {counted(layout.partitions, 'partition')}: no node can run until "
            f"`actgent cluster repartition --partitions {layout.partitions}` has ended"
        )
    return layout


async def read_layout(url: str, pool: str) -> PoolLayout:
    """Read the newest layout of a pool (number of partitions and record format) from the database.

    Raises:
        ConfigurationError: No node has run yet, or the URL is invalid.
        JournalFailed: The database cannot be read.
    """
    return (await _run(url, _read, pool))[0]


async def begin_repartitioning(url: str, pool: str, partitions: int) -> tuple[PoolLayout, PoolLayout]:
    """Start or resume a change of the number of partitions. Return the previous and the new layout.

    Both are equal if the number is unchanged. From then on no node acquires partitions, and late writes are rejected.

    Raises:
        ConfigurationError: The number is invalid, another change is in progress, or as `read_layout`.
        JournalFailed: The database cannot be written.
    """
    return await _run(url, _begin_repartitioning, pool, check_partitions(partitions))


async def end_repartitioning(url: str, pool: str, generation: int) -> None:
    """Activate a new generation of the partition layout, so that nodes may serve it.

    Raises like `begin_repartitioning`.
    """
    await _run(url, _set_state, pool, generation, ACTIVE)


async def raise_record_format(url: str, pool: str, record_format: int) -> None:
    """Set the record format that all nodes of a pool write. All nodes of the pool must be able to read this format."""
    await _run(url, _raise_record_format, pool, record_format)


async def release_agent_claim(url: str, pool: str, agent: str) -> bool:
    """Release an agent from its pool. The next pool that starts an agent of this name then hosts the agent.

    Return False if this pool did not host the agent.

    Late writes of this pool's nodes are rejected, and running nodes acquire all their partitions again.

    Raises:
        ConfigurationError: As `read_layout`.
        JournalFailed: Nothing has changed.
    """
    return await _run(url, _release_agent_claim, pool, agent)


async def _run(url: str, fn: Callable[..., T], *args: object) -> T:
    return await run_connected(url, in_transaction, fn, *args)


# --- in a thread -----------------------------------------------------------------------------


def _read(connection: Connection, pool: str, *, lock: str = "") -> list[PoolLayout]:
    rows = connection.execute(f"{SELECT_LAYOUTS}{lock}".encode(), (pool,)).fetchall()
    if not rows:
        raise ConfigurationError(
            f"the pool {quoted(pool)} of this journal has no partitions yet: start a node first"
        )
    return [layout_of(columns) for columns in rows]


def _begin_repartitioning(
    connection: Connection, pool: str, partitions: int
) -> tuple[PoolLayout, PoolLayout]:
    newest, *older = _read(connection, pool, lock=" FOR UPDATE")
    if newest.state == MOVING and newest.partitions == partitions:
        return older[0], newest
    check_layout(newest, pool, reads=READS)
    if newest.partitions == partitions:
        return newest, newest
    made = attrs.evolve(newest, generation=newest.generation + 1, partitions=partitions, state=MOVING)
    _set_state(connection, pool, newest.generation, PAST)
    connection.execute(
        "INSERT INTO cluster (pool, generation, partitions, writes, state) VALUES (%s, %s, %s, %s, %s)",
        (pool, made.generation, made.partitions, made.writes, made.state),
    )
    _advance_epochs(connection, pool, newest.partitions, partitions)
    return newest, made


def _release_agent_claim(connection: Connection, pool: str, agent: str) -> bool:
    newest = _read(connection, pool, lock=" FOR UPDATE")[0]
    if not connection.execute("DELETE FROM hosts WHERE agent = %s AND pool = %s", (agent, pool)).rowcount:
        return False
    _advance_epochs(connection, pool, newest.partitions, newest.partitions)
    return True


def _advance_epochs(connection: Connection, pool: str, before: int, count: int) -> None:
    """Give all partitions of a pool a new epoch, so that earlier owners cannot write to them.

    `before` and `count` are the old and the new number of partitions.
    """
    rows = connection.execute(
        "SELECT p, epoch, clean FROM partitions WHERE pool = %s ORDER BY p FOR UPDATE", (pool,)
    ).fetchall()
    epoch = max((epoch for _, epoch, _ in rows), default=0) + 1
    was_clean = {number: clean for number, _, clean in rows}
    clean = [
        all(was_clean.get(partition_of_slot(slot, before), True) for slot in slots_of([each], count))
        for each in range(count)
    ]
    connection.execute("DELETE FROM partitions WHERE pool = %s", (pool,))
    connection.execute(
        "INSERT INTO partitions (pool, p, epoch, owner, since, clean) "
        "SELECT %s, u.p, %s, '', now(), u.clean FROM unnest(%s::int[], %s::boolean[]) AS u (p, clean)",
        (pool, epoch, list(range(count)), clean),
    )


def _set_state(connection: Connection, pool: str, generation: int, state: str) -> None:
    connection.execute(
        "UPDATE cluster SET state = %s WHERE pool = %s AND generation = %s", (state, pool, generation)
    )


def _raise_record_format(connection: Connection, pool: str, record_format: int) -> None:
    connection.execute(
        "UPDATE cluster SET writes = greatest(writes, %s) WHERE pool = %s", (record_format, pool)
    )
