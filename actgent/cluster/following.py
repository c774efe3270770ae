"""The directory of another pool, for processes that are not its nodes."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager

import trio

from actgent.errors import JournalError
from actgent.journal.postgres import NodeRow, NodeTable, PartitionOwner
from actgent.journal.postgres.layout import read_layout
from actgent.support.logs import Each, logger_of
from actgent.support.postgres_address import split_schema

from .directory import NodeInfo, PoolDirectory

POLL = 1.0
"""Seconds between two reads without a notification."""
LOOK = 0.25
"""Seconds between two looks for a notification."""
_log = logger_of(__name__)


@asynccontextmanager
async def follow_pool(journal: str, pool: str) -> AsyncGenerator[PoolDirectory, None]:
    """An `async with` block with the directory of a pool, kept current without being a node of it.

    Args:
        journal: address of the database, `postgresql://...`.
        pool: name of the pool.

    Raises:
        ConfigurationError: the pool has no partitions yet, or the address is none.
        JournalFailed: the database cannot be read.
    """
    layout = await read_layout(journal, pool)
    address, schema = split_schema(journal, default="actgent", owner="the journal")
    table = NodeTable(address, schema, pool=pool, node="")
    turn = trio.Lock()

    async def refresh() -> None:
        async with turn:
            seen, _ = await table.nodes()
            partitions = await table.partitions()
        update_directory(directory, [each.row for each in seen if not each.is_suspicious], partitions)

    async def follow() -> None:
        while True:
            try:
                await refresh()
            except JournalError as error:
                _log.warning("the nodes of pool %s cannot be read: %s", Each(pool), Each(str(error)))
            with trio.move_on_after(POLL):
                await _wait_notification(table)

    directory = PoolDirectory("", layout.partitions, refresh)
    try:
        await refresh()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            yield directory
            nursery.cancel_scope.cancel()
    finally:
        table.close()


async def _wait_notification(table: NodeTable) -> None:
    if (socket := table.fileno()) is None:
        await trio.sleep(LOOK)
    else:
        await trio.lowlevel.wait_readable(socket)


def update_directory(
    directory: PoolDirectory, nodes: Iterable[NodeRow], partitions: Mapping[int, PartitionOwner]
) -> None:
    """Replace what a directory knows by rows of the database."""
    directory.update(
        [
            NodeInfo(
                name=each.name,
                address=each.address,
                agents=frozenset(each.agents),
                release=each.release,
                is_leaving=each.is_leaving,
            )
            for each in nodes
        ],
        {
            number: ("" if each.is_given_back else each.owner, each.epoch)
            for number, each in partitions.items()
        },
    )
