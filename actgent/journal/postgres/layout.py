"""How a pool is laid out: how many partitions it has, in which generation of queues, and in which form its nodes write.

A form is how a release writes what others read: the journal, and the messages at the broker. Nodes of two releases run side
by side while both read what the pool writes; the newer release writes the old form until a person raises it.
The number of partitions changes only while no node runs: the generation after has queues of its own.
"""

from collections.abc import Callable
from typing import TypeVar

import attrs

from actgent.errors import ConfigurationError
from actgent.errors.printable import counted, quoted

from .cluster_tables import run_connected
from .connecting import Connection, in_transaction
from .partitions import check_partitions, partition_of_slot, slots_of

READS = 1
"""The highest form that this release reads, and what a new pool writes. It reads all lower ones."""
ACTIVE, MOVING, PAST = "active", "moving", "past"
"""States of a generation: nodes serve it; its queues are being filled, and no node may run; its queues are gone."""
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
"""For whoever takes partitions: a row if a node of this journal and generation that reads so much may; until the end it stays so."""


@attrs.frozen(kw_only=True)
class PoolLayout:
    """The newest generation of a pool."""

    generation: int
    partitions: int
    writes: int
    """The form in which all nodes write."""
    state: str = ACTIVE


def layout_of(columns: tuple[int, int, int, str]) -> PoolLayout:
    """A row of `SELECT_LAYOUTS`."""
    generation, partitions, writes, state = columns
    return PoolLayout(generation=generation, partitions=partitions, writes=writes, state=state)


def check_layout(layout: PoolLayout, pool: str, *, reads: int) -> PoolLayout:
    """The layout, if a node or a person with this release may work with it.

    Raises:
        ConfigurationError: a newer release has to, or its partitions are being changed.
    """
    if layout.writes > reads:
        raise ConfigurationError(
            f"the pool {quoted(pool)} writes the form {layout.writes}, and this release of actgent reads forms up to {reads}: "
            "use a newer release"
        )
    if layout.state == MOVING:
        raise ConfigurationError(
            f"the pool {quoted(pool)} is on its way to {counted(layout.partitions, 'partition')}: no node runs until "
            f"`actgent cluster repartition --partitions {layout.partitions}` has ended"
        )
    return layout


async def read_layout(url: str, pool: str) -> PoolLayout:
    """The newest generation of a pool.

    Raises:
        ConfigurationError: no node has been there yet, or the address is none.
        JournalFailed: it cannot be read.
    """
    return (await _run(url, _read, pool))[0]


async def begin_move(url: str, pool: str, partitions: int) -> tuple[PoolLayout, PoolLayout]:
    """Begin, or go on with, a change of the number of partitions; returns the generation before and the new one.

    They are the same if there are so many. From now on no node takes anything, and what a hung one writes is refused.

    Raises:
        ConfigurationError: there cannot be so many, another change has begun, or as `read_layout`.
        JournalFailed: it cannot be written.
    """
    return await _run(url, _begin_move, pool, check_partitions(partitions))


async def end_move(url: str, pool: str, generation: int) -> None:
    """Let nodes serve a new generation; raises as `begin_move`."""
    await _run(url, _set_state, pool, generation, ACTIVE)


async def raise_form(url: str, pool: str, form: int) -> None:
    """Have all nodes write another form from now on; raises `JournalFailed`."""
    await _run(url, _raise_form, pool, form)


async def forget_host(url: str, pool: str, agent: str) -> bool:
    """Let whichever pool starts an agent next host it; False where this one did not.

    What a node of this one that hung meanwhile writes is refused, and those that run take all of their partitions again.

    Raises:
        ConfigurationError: as `read_layout`.
        JournalFailed: nothing has changed.
    """
    return await _run(url, _forget_host, pool, agent)


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


def _begin_move(connection: Connection, pool: str, partitions: int) -> tuple[PoolLayout, PoolLayout]:
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
    _renumber(connection, pool, newest.partitions, partitions)
    return newest, made


def _forget_host(connection: Connection, pool: str, agent: str) -> bool:
    newest = _read(connection, pool, lock=" FOR UPDATE")[0]
    if not connection.execute("DELETE FROM hosts WHERE agent = %s AND pool = %s", (agent, pool)).rowcount:
        return False
    _renumber(connection, pool, newest.partitions, newest.partitions)
    return True


def _renumber(connection: Connection, pool: str, before: int, count: int) -> None:
    """Give all partitions an epoch that none ever had: whoever had one of those before writes nothing more."""
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


def _raise_form(connection: Connection, pool: str, form: int) -> None:
    connection.execute("UPDATE cluster SET writes = greatest(writes, %s) WHERE pool = %s", (form, pool))
