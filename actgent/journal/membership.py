"""A runtime's place among other processes with the same agents; the cluster is an extra, and loaded where one is named."""

import importlib
import importlib.util
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import attrs
import trio

from actgent.errors import ConfigurationError

from .base import Journal

EXTRA = ("hypercorn", "pamqp", "psycopg", "starlette")
LEAVING_GRACE = 30.0
"""Seconds that turns have to end when their process leaves a cluster; the others go on elsewhere."""


@attrs.frozen(kw_only=True)
class ClusterStatistics:
    """How a node of a cluster is, and what happened at it since it began."""

    node: str
    """Its name."""
    partitions: int
    """Whose sessions live here."""
    waiting: int
    """Requests that have come and are not answered; what the broker still has, `actgent cluster status` says."""
    takeovers: Mapping[str, int]
    """Partitions that were taken over: `new` ones, those that were `given_back`, and those whose owner `died` or was cut off."""
    takeover_seconds: float
    """For how long these were served by nobody since the broker had handed them over, together."""
    fenced: int
    """Writes that were refused, as another node had the partition by then."""
    lost: int
    """Partitions that another node took while this one had them: it was epochs behind."""
    evicted: int
    """Turns that were stopped here for that."""
    resumed: int
    """Sessions that went on here in the middle of something; their models may have been asked twice."""
    accepted: int
    """Requests with an effect that were answered."""
    accept_seconds: float
    """How long these took since they came, together."""
    told: int
    """Pieces of answers that were sent."""
    tell_seconds: float
    """How long the broker took to confirm these, together."""
    busy: int
    """Requests that were refused because too much waits: the status 429."""
    connections: int
    """Connections to the broker that were built: more than one, and it was lost."""


class Membership(Protocol):
    """What a runtime needs of a cluster."""

    journal: Journal
    lender: Any
    """A `Lender`: lends out of what all processes may ask of providers together."""
    left: trio.Event
    """Set when all that was served here was handed over."""

    async def serve(self, runtime: Any, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve sessions with the agents of a `Runtime`, as long as it is not cancelled."""

    async def host(self, agents: Collection[str]) -> None:
        """Have agents hosted by our pool.

        Raises:
            ConfigurationError: another pool of the same journal hosts one of them.
            JournalFailed: the database does not answer.
        """

    def statistics(self) -> ClusterStatistics:
        """How this process is as a node."""

    def hear_seconds(self, on_seconds: Callable[[str, str, float], object] | None) -> None:
        """Call something with each `takeover`, its reason and seconds, and with seconds of each `accept` and `told`; None ends that."""

    async def leave(self, grace: float) -> None:
        """Hand over what is served here, within so many seconds."""


async def hosted(membership: Membership | None, agents: Collection[str]) -> None:
    """Have our pool host agents, where there are pools; raises as `Membership.host`."""
    if membership is not None:
        await membership.host(agents)


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
            "a node takes a journal that several machines share, postgresql://HOST/DATABASE: say it by journal=, --journal "
            "or the variable ACTGENT_JOURNAL"
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
