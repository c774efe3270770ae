"""Wait for a PostgreSQL server that is not reachable yet, for services that start before their database."""

from collections.abc import Callable

import psycopg
import trio

from actgent.errors import JournalFailed
from actgent.support.postgres_address import split_schema

from .connections import OPTIONS, connection_to, is_server_not_ready, translate_server_errors

PAUSE_SECONDS = 2.0
"""Pause between two attempts to connect."""
_UNREACHABLE = (
    "refused",
    "resolve",
    "name or service not known",
    "temporary failure",
    "timeout",
    "timed out",
    "no such file",
    "unreachable",
    "no route",
    "closed the connection",
    "connection reset",
    "connection slots",
    "too many",
    "session is read-only",
    "hot standby",
)
"""Lower-case fragments of libpq's error texts for failures that pass without a change of the address."""


async def wait_until_reachable(url: str, *, seconds: float, report: Callable[[str], None]) -> None:
    """Try to connect to a journal's database until one attempt succeeds.

    Args:
        url: Address of the journal.
        seconds: How long to try; 0 makes one attempt.
        report: Called with one line after each failed attempt that will be repeated.

    Raises:
        ConfigurationError: The address is wrong, or that of a pooler in transaction mode.
        JournalFailed: The server refuses the user or the database, or could not be reached in time.
    """
    address, _ = split_schema(url, default="actgent", owner="the journal")
    until = trio.current_time() + seconds
    while True:
        try:
            await trio.to_thread.run_sync(_connect_once, address, abandon_on_cancel=True)
        except JournalFailed as error:
            left = until - trio.current_time()
            if left <= 0 or not _is_unreachable(error):
                raise
            report(f"{error}; trying again for {left:.0f} s")
        else:
            return
        await trio.sleep(min(PAUSE_SECONDS, left))


def _connect_once(address: str) -> None:
    with translate_server_errors():
        connection_to(address, OPTIONS).close()


def _is_unreachable(error: JournalFailed) -> bool:
    """Return True if a connection to the same address may succeed later.

    The server is then down, starting or out of connections.
    """
    cause = error.__cause__
    if is_server_not_ready(error):
        return True
    text = str(cause).lower()
    return isinstance(cause, psycopg.OperationalError) and any(each in text for each in _UNREACHABLE)
