"""The interface between a runtime and a cluster of processes that host the same agents.

The package of the cluster is not imported here. It registers its opener as the entry point `cluster` of the group
`actgent.parts`, so that a runtime works without that package.
"""

import importlib.util
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from typing import Any, Protocol

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.support.attrs_class_repr import FieldRepr

from .journal_interface import Journal

PARTS = "actgent.parts"
"""Entry point group under which packages outside the core register."""
EXTRA = ("hypercorn", "psycopg", "starlette")
"""Names of the packages that the extra `cluster` installs."""
LEAVE_GRACE_SECONDS = 30.0
"""Seconds that running turns may take to finish when their process leaves the cluster.

Unfinished turns resume on other nodes.
"""

ACTIVE = "active"
"""State of the generation of a pool that its nodes serve."""


@attrs.frozen(kw_only=True, repr=False)
class ClusterStatistics(FieldRepr):
    """State and counters of a cluster node since its start."""

    node: str
    """Name of this node in the cluster."""
    partitions: int
    """Number of partitions that the node owns."""
    takeovers: Mapping[str, int]
    """Number of acquired partitions by reason: `new`, `given_back` (the owner released it) or `died` (the owner died)."""
    takeover_seconds: float
    """Total seconds from the decision to acquire a partition until its requests were served."""
    fenced: int
    """Number of rejected writes because ownership had moved to another node."""
    lost: int
    """Number of partitions that another node acquired while this node owned them."""
    evicted: int
    """Number of sessions with a turn that was stopped because their partition was lost."""
    resumed: int
    """Number of unfinished sessions that resumed on this node. Their last model call may have been repeated."""
    relayed: int
    """Number of requests that other nodes forwarded to this node."""
    connections: int
    """Number of connections of the membership to the database since the start; more than 1 after a reconnect."""


@attrs.frozen(kw_only=True, repr=False)
class PoolLayout(FieldRepr):
    """Layout of a pool's newest generation: its number of partitions and its record format."""

    generation: int
    partitions: int
    writes: int
    """Record format that all nodes of the pool write."""
    state: str = ACTIVE


@attrs.frozen(kw_only=True, repr=False)
class NodeStatus(FieldRepr):
    """Status of a live node of the cluster."""

    name: str
    address: str
    """Base URL at which the other nodes reach the node."""
    agents: tuple[str, ...]
    """Names of the agents that the node hosts."""
    release: str
    reads: int
    """Newest record format that the node reads."""
    is_leaving: bool
    """True if the node is handing over its partitions."""
    partitions: int
    """Number of partitions that the node owns."""


@attrs.frozen(kw_only=True, repr=False)
class PartitionStatus(FieldRepr):
    """Status of one partition: a share of the sessions, which one node at a time owns."""

    partition: int
    owner: str
    """Name of the node that last acquired the partition; empty if no node ever did."""
    epoch: int
    """Ownership epoch; it grows with each change of the owner."""
    since: datetime
    """Time at which a node last acquired the partition."""
    is_served: bool
    """True if the owner is alive and has not given the partition back."""
    pending: int
    """Number of messages that wait until a node owns the partition."""
    unfinished: int
    """Number of sessions of the partition with an unfinished turn or queued messages."""
    lag: float
    """Maximum seconds since the last record of an unfinished session; 0 if there are none."""


@attrs.frozen(kw_only=True, repr=False)
class ClusterStatus(FieldRepr):
    """Status of a pool of nodes: its nodes, its partitions and its unfinished sessions."""

    layout: PoolLayout
    nodes: Sequence[NodeStatus]
    partitions: Sequence[PartitionStatus]
    unhosted: dict[str, int]
    """Number of open sessions by agent, for the agents that no live node hosts."""
    suspects: int
    """Number of sessions that were unfinished when their process died and have not finished since."""
    dead: int
    """Number of dead-lettered messages and requests of the cluster."""

    @property
    def is_whole(self) -> bool:
        """True if a node is alive, every partition is served, and a live node hosts the agent of every open session."""
        return bool(self.nodes) and not self.unhosted and all(each.is_served for each in self.partitions)


class Membership(Protocol):
    """Interface through which a runtime uses its cluster node."""

    journal: Journal
    lender: Any
    """`LimitLeaser`: requests shares of the rate limits that all processes of the cluster have in common."""
    left: trio.Event
    """Event that is set when the node has transferred all its sessions to other nodes."""

    async def serve(self, runtime: Any, *, task_status: trio.TaskStatus[None]) -> None:
        """Resume and serve the sessions of this node's partitions until cancelled.

        `runtime` is the `Runtime` with the agents.
        """

    async def host(self, agents: Collection[str]) -> None:
        """Register agents as hosted by the pool of this node.

        Raises:
            ConfigurationError: Another pool of the same journal hosts one of the agents.
            JournalFailed: The database does not answer.
        """

    def statistics(self) -> ClusterStatistics:
        """Return the state and the counters of this node, for metrics and status pages."""

    async def read_status(self) -> ClusterStatus:
        """Read the status of the cluster: nodes, partitions, and agents without a node.

        Raises:
            JournalFailed: The database cannot be read.
        """

    def unready_reasons(self) -> Collection[str]:
        """Return reasons why a load balancer should use other nodes; empty if the node is ready."""

    def calm_seconds(self) -> float:
        """Return the seconds since this node started, or since it last noticed the death of a node."""

    def observe_takeovers(self, on_seconds: Callable[[str, float], object] | None) -> None:
        """Set the callback for takeovers, with the reason and the duration in seconds as arguments. None removes the callback."""

    async def leave(self, grace: float) -> None:
        """Transfer all owned sessions to other nodes within `grace` seconds."""


async def register_hosted_agents(membership: Membership | None, agents: Collection[str]) -> None:
    """Register the agents as hosted by this node. Do nothing if this process is not in a cluster (`membership` is None).

    Raises like `Membership.host`.
    """
    if membership is not None:
        await membership.host(agents)


def open_membership(
    journal: object, cluster: str | None, *, advertise: str | None, node: str | None
) -> AbstractAsyncContextManager[Membership | None]:
    """Return a context manager that makes this process a member of a cluster while its block runs.

    The block receives the membership; None if `cluster` is None.

    Raises:
        ConfigurationError: Several processes cannot share the journal, a name or URL has another form, or the extra is
            not installed.
    """
    if cluster is not None:
        return _join(journal, cluster, advertise=advertise, node=node)
    if advertise is not None or node is not None:
        raise ConfigurationError("advertise= and node= require cluster=: pass cluster=, or omit them")
    return nullcontext()


@asynccontextmanager
async def _join(
    journal: object, cluster: str, *, advertise: str | None, node: str | None
) -> AsyncGenerator[Membership, None]:
    if not isinstance(journal, str) or not journal.startswith(("postgres://", "postgresql://")):
        raise ConfigurationError(
            "a cluster node requires a journal in PostgreSQL: pass journal='postgres://HOST/DATABASE' or --journal, or "
            "set the variable ACTGENT_JOURNAL"
        )
    check_cluster_extra()
    import importlib.metadata  # noqa: PLC0415 - takes 10 ms and loads 23 modules, which only a cluster needs

    found = importlib.metadata.entry_points(group=PARTS, name="cluster")
    if not found:
        raise ConfigurationError(
            "this installation of actgent lacks the package actgent.cluster: install actgent again"
        )
    open_cluster_member = next(iter(found)).load()
    async with open_cluster_member(journal, pool=cluster, node=node, advertise=advertise) as member:
        yield member


def check_cluster_extra() -> None:
    """Raise if a package of the extra `cluster` is missing.

    Raises:
        ConfigurationError: A package is not installed.
    """
    if missing := [name for name in EXTRA if importlib.util.find_spec(name) is None]:
        raise ConfigurationError(f"a cluster needs {' and '.join(missing)}: pip install 'actgent[cluster]'")
