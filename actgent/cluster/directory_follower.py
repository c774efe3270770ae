"""Directory of a pool for processes that are not nodes of that pool."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager

import trio

from actgent.errors import JournalError
from actgent.journal.postgres import NodeRow, NodeTable, PartitionOwner
from actgent.journal.postgres.pool_layout import read_layout
from actgent.support.postgres_address import split_schema
from actgent.support.safe_logging import LogVariable, logger_of

from .directory import NodeInfo, PoolDirectory

POLL_SECONDS = 1.0
"""Poll interval in seconds of the partition owners if no notification arrives."""
DISCONNECTED_POLL_SECONDS = 0.25
"""Poll interval in seconds while the database connection is lost, so that no notification can arrive."""
_log = logger_of(__name__)


@asynccontextmanager
async def follow_pool(journal: str, pool: str) -> AsyncGenerator[PoolDirectory, None]:
    """Open an `async with` block with the directory of a pool, and keep it current, without joining the pool.

    Args:
        journal: Address of the database, `postgresql://...`.
        pool: Name of the pool.

    Raises:
        ConfigurationError: The pool has no partitions yet, or the address is invalid.
        JournalFailed: The database cannot be read.
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
                _log.warning(
                    "the nodes of pool %s cannot be read: %s", LogVariable(pool), LogVariable(str(error))
                )
            with trio.move_on_after(POLL_SECONDS):
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
    """Wait until a database notification can be read.

    Without a connection, wait `DISCONNECTED_POLL_SECONDS` seconds instead.
    """
    if (socket := table.fileno()) is None:
        await trio.sleep(DISCONNECTED_POLL_SECONDS)
    else:
        await trio.lowlevel.wait_readable(socket)


def update_directory(
    directory: PoolDirectory, nodes: Iterable[NodeRow], partitions: Mapping[int, PartitionOwner]
) -> None:
    """Replace the nodes and owners of a directory by rows of the database.

    A partition that was given back gets no owner.
    """
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
