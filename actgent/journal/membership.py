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

EXTRA = ("hypercorn", "psycopg", "starlette")
LEAVING_GRACE = 30.0
"""Seconds that turns have to end when their process leaves a cluster; the others go on elsewhere."""


@attrs.frozen(kw_only=True)
class ClusterStatistics:
    """How a node of a cluster is, and what happened at it since it began."""

    node: str
    """Its name."""
    partitions: int
    """Whose sessions live here."""
    takeovers: Mapping[str, int]
    """Partitions that were taken over: `new` ones, those that were `given_back`, and those whose owner `died` or was cut off."""
    takeover_seconds: float
    """Seconds from the decision to take a partition until its requests were served, in total."""
    fenced: int
    """Writes that were refused, as another node had the partition by then."""
    lost: int
    """Partitions that another node took while this one had them: it was epochs behind."""
    evicted: int
    """Turns that were stopped here for that."""
    resumed: int
    """Sessions that went on here in the middle of something; their models may have been asked twice."""
    relayed: int
    """Requests that other nodes relayed to this one."""
    connections: int
    """Connections of the membership to the database; more than one if it was lost."""


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

    def unready_reasons(self) -> Collection[str]:
        """Return why a load balancer should send requests to other nodes; empty if it need not."""

    def hear_seconds(self, on_seconds: Callable[[str, str, float], object] | None) -> None:
        """Call something with each `takeover`, its reason and seconds; None ends that."""

    async def leave(self, grace: float) -> None:
        """Hand over what is served here, within so many seconds."""


async def hosted(membership: Membership | None, agents: Collection[str]) -> None:
    """Have our pool host agents, where there are pools; raises as `Membership.host`."""
    if membership is not None:
        await membership.host(agents)


@asynccontextmanager
async def open_membership(
    journal: object, cluster: str | None, *, advertise: str | None, node: str | None
) -> AsyncGenerator[Membership | None, None]:
    """Return the place in the cluster of this name; None without a name.

    Raises:
        ConfigurationError: Several processes cannot share the journal, a name or URL has another form, or the extra is not
            installed.
    """
    if cluster is None:
        if advertise is not None or node is not None:
            raise ConfigurationError("advertise= and node= are those of a node: they need cluster=")
        yield None
        return
    if not isinstance(journal, str) or not journal.startswith(("postgres://", "postgresql://")):
        raise ConfigurationError(
            "a node needs a journal that several machines share, postgres://HOST/DATABASE: set journal=, --journal "
            "or the variable ACTGENT_JOURNAL"
        )
    check_cluster_extra()
    opening = importlib.import_module("actgent.cluster.opening")
    async with opening.open_member(journal, pool=cluster, node=node, advertise=advertise) as member:
        yield member


def check_cluster_extra() -> None:
    """Refuse to begin without the libraries of a cluster.

    Raises:
        ConfigurationError: they are not installed.
    """
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ConfigurationError(f"a cluster needs {' and '.join(missing)}: pip install 'actgent[cluster]'")
