"""Directory of a pool for processes that are not nodes of that pool."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from actgent.errors import JournalError
from actgent.journal.postgres import NodeTable
from actgent.journal.postgres.pool_layout import read_layout
from actgent.support.postgres_address import split_schema
from actgent.support.safe_logging import LogVariable, logger_of

from .pool_directory import PoolDirectory

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
        directory.update([each.row for each in seen if not each.is_suspicious], partitions)

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
