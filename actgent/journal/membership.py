"""A runtime's place among other processes with the same agents; the cluster is an extra, and loaded where one is named."""

import importlib
import importlib.util
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import trio

from actgent.errors import ConfigurationError

from .base import Journal

EXTRA = ("pamqp", "psycopg", "starlette")
LEAVING_GRACE = 30.0
"""Seconds that turns have to end when their process leaves a cluster; the others go on elsewhere."""


class Membership(Protocol):
    """What a runtime needs of a cluster."""

    journal: Journal
    lender: Any
    """A `Lender`: lends out of what all processes may ask of providers together."""

    async def serve(self, runtime: Any, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve sessions with the agents of a `Runtime`, as long as it is not cancelled."""

    async def leave(self, grace: float) -> None:
        """Hand over what is served here, within so many seconds."""


@asynccontextmanager
async def open_membership(
    journal: object, broker: str | None, *, pool: str, node: str | None
) -> AsyncGenerator[Membership | None, None]:
    """Return the place in the cluster of a broker; None if none is named.

    Raises:
        ConfigurationError: the journal is none that several processes can share, or the extra is not installed.
    """
    if broker is None:
        yield None
        return
    if not isinstance(journal, str) or not journal.startswith(("postgres://", "postgresql://")):
        raise ConfigurationError(
            "broker= takes a journal that several machines share: journal='postgresql://HOST/DATABASE'"
        )
    check_cluster_extra()
    opening = importlib.import_module("actgent.cluster.opening")
    async with opening.open_member(journal, broker, pool=pool, node=node) as member:
        yield member


def check_cluster_extra() -> None:
    """Refuse to begin without the libraries of a cluster.

    Raises:
        ConfigurationError: they are not installed.
    """
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ConfigurationError(f"a cluster needs {' and '.join(missing)}: pip install 'actgent[cluster]'")
