"""Membership of a runtime in a cluster, as a node."""

import hmac
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from actgent.client.agent_server_client import Client, open_client
from actgent.client.event_subscription import ServerLink
from actgent.client.remote_session import RemoteSession
from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted
from actgent.journal.cluster_interface import ClusterStatistics, ClusterStatus
from actgent.journal.journal_interface import SessionSummary
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.record_types import RatingRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_tags_and_metadata import AnnotationChange
from actgent.llm.rate_limiting import LimitLeaseClient
from actgent.runtime.delegation.tasks_between_cluster_pools import PoolTasks
from actgent.runtime.runtime import Runtime
from actgent.web.access_tokens import Logins, TokenStore
from actgent.web.gateway_setup import open_gateway_context
from actgent.web.problem_documents import Problem
from actgent.web.server.relayed_request_handler import LIMITS, EndpointFinder
from actgent.web.server.request_relay import HOLD_SECONDS, Relay

from .cluster_node import Node, node_name
from .cross_pool_delegation import PoolApplication, PoolLinks
from .node_metrics import OnSeconds
from .partition_ownership import PartitionState
from .pool_operations import read_cluster_status
from .relay_client import NodeTransport
from .relay_server import RelayServer, open_relay_listeners, serve_relays
from .unowned_partition_messages import PendingMessages

DEFAULT_PARTITIONS = 256
"""Number of partitions of a new cluster."""
END_SECONDS = 2.0
"""Seconds for removing the node's row on exit. If that fails, other nodes detect the missing heartbeat."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class NodeClient(Client):
    """Client of a node for sessions that other nodes own."""

    def __init__(self, link: ServerLink, relay: Relay) -> None:
        super().__init__(link)
        self.relay = relay
        """Relays the gateway's requests to the owners of sessions."""

    def session(self, agent: str, session_id: str, *, owner: str) -> RemoteSession:
        """Return a `RemoteSession` of an existing session, without a request.

        Its handlers start with the next record.
        """
        return RemoteSession(self._link, agent=agent, session_id=session_id, owner=owner)

    async def fork_session(
        self, head: SessionSummary, *, to: int | None, session_id: str | None
    ) -> SessionSummary:
        """Copy a session on the node that owns the id of the copy; see `Runtime.fork`."""
        return await self._fork(head.session_id, head.agent, to, session_id, owner=head.owner)

    async def record_rating(self, key: SessionKey, rated: RatingRecord) -> bool:
        """Record a rating on the node that owns the session. Return False if an equal rating exists; see `Runtime.rate`."""
        known = await self.ratings(key.session_id, rated.message_id, agent=key.agent)
        if any(attrs.evolve(each, at=rated.at) == rated for each in known):
            return False
        await self._record_rating(key.session_id, key.agent, rated)
        return True

    async def change_annotations(self, key: SessionKey, change: AnnotationChange) -> None:
        """Change the tags and metadata of a session on the node that owns the session; see `Runtime.annotate`."""
        await self._change_annotations(key.session_id, key.agent, change)

    def id_of(self, session: object) -> str | None:
        """Return the session id of a `RemoteSession`. None for any other object, such as a local session."""
        return session.id if isinstance(session, RemoteSession) else None


class ClusterMember:
    """Membership of a runtime in a cluster: serves partitions, and accepts relayed requests."""

    def __init__(self, node: Node, url: str, listeners: list[trio.SocketListener]) -> None:
        """Create the membership of a node.

        `url` is the journal's address; requests of other nodes arrive at `listeners`.
        """
        self.node = node
        self._url = url
        self.journal = node.journal
        self.left = node.journal.left
        self.lender = LimitLeaseClient(node.journal.allowances.lend)
        self._listeners = listeners
        self._status_lock = trio.Lock()

    async def serve(
        self, runtime: Runtime, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Own partitions, and serve their sessions with the agents of a runtime, until cancelled."""
        store, node, find = TokenStore([]), self.node, EndpointFinder()
        pending = PendingMessages(node.journal, node.journal.pending_messages)
        key = await node.journal.nodes.cluster_key()
        transport = NodeTransport(node.directory, key=key, now=node.now, pending=pending)

        async def wait_released(session_id: str, seconds: float = HOLD_SECONDS) -> None:
            with trio.move_on_after(seconds):
                await node.quarantine.wait(session_id)
                await pending.wait(session_id)
                return
            raise Problem(
                "unavailable",
                "the cluster does not run this session now, because nodes crashed while they ran it: retry the request later",
                is_quarantined=True,
            )

        def is_draining(session_id: str) -> bool:
            state = node.ownership.state(node.directory.partition_of(session_id))
            return state is PartitionState.DRAINING

        relay = Relay(
            owner_client=transport,
            is_ours=node.directory.is_ours,
            is_draining=is_draining,
            wait_released=wait_released,
            serving=find.serving,
            derive_key=lambda purpose: hmac.digest(key, purpose, "sha256"),
        )
        async with (
            open_gateway_context(runtime, LIMITS, store, Logins(store), (), is_scraped=False) as context,
            self.lender.running(),
            open_client(transport) as client,
            trio.open_nursery() as nursery,
        ):
            runtime.remote_sessions = NodeClient(client.__actgent_link__(), relay)
            runtime.delegation.pools = PoolLinks(
                journal=self._url, pool=node.pool, node=node.name, key=key, now=node.now, nursery=nursery
            )
            tasks = PoolTasks(runtime.agents, node.pool)
            application = PoolApplication(context=context, find=find, tasks=tasks)
            pending.begin(application, nursery, node.quarantine.wait)
            server = RelayServer(
                application=application,
                directory=node.directory,
                key=key,
                now=node.now,
                is_draining=is_draining,
                wait_released=wait_released,
                metrics=node.metrics,
            )
            nursery.start_soon(transport.run)
            await nursery.start(serve_relays, server, self._listeners)
            await node.run(runtime, pending.deliver, task_status=task_status)

    async def host(self, agents: Collection[str]) -> None:
        """Claim agents for this pool in the database, so that no other pool runs their sessions.

        Raises:
            ConfigurationError: Another pool of the database hosts one of the agents.
        """
        taken = await self.journal.hosts.claim(agents)
        if taken:
            agent, pool = next(iter(taken.items()))
            raise ConfigurationError(
                f"agent {quoted(agent)} of this database is hosted by pool {quoted(pool)}, so the nodes of pool "
                f"{quoted(self.node.pool)} may not resume its sessions: give each pool a schema (?schema= in its address), "
                f"or rename the agent; to move it here, run `actgent cluster release {agent} --cluster {pool}`"
            )

    def statistics(self) -> ClusterStatistics:
        """Return the statistics of this node."""
        return self.node.statistics()

    async def read_status(self) -> ClusterStatus:
        """Return the status of the cluster. Concurrent calls read one after another: each opens a database connection."""
        async with self._status_lock:
            return await read_cluster_status(self._url, self.node.pool)

    def unready_reasons(self) -> Collection[str]:
        """Return the reasons why a load balancer should send requests to other nodes; empty if this node can serve requests."""
        if self.node.is_leaving:
            return ("the node hands over its sessions",)
        return () if self.node.directory.nodes else ("the nodes of the cluster are not known yet",)

    def calm_seconds(self) -> float:
        """Return the seconds since this node started, or since it noticed the last death of another node."""
        return trio.current_time() - self.node.directory.calm_since

    def observe_takeovers(self, on_seconds: OnSeconds | None) -> None:
        """Set the function that is called with the duration of each takeover. None removes the function."""
        self.node.metrics.on_seconds = on_seconds

    async def leave(self, grace: float) -> None:
        """Give all partitions back to the pool; see `Node.leave`."""
        await self.node.leave(grace)


@asynccontextmanager
async def open_cluster_member(
    journal: str, *, pool: str, node: str | None = None, advertise: str | None = None
) -> AsyncGenerator[ClusterMember, None]:
    """Async context manager: open a cluster journal, and a node that will own partitions of the journal.

    Args:
        journal: `postgres://HOST/DATABASE`.
        pool: Name of the cluster.
        node: Prefix of the node's name; None uses the machine's host name.
        advertise: URL at which other nodes reach this one; None listens on a free port of 127.0.0.1.

    Raises:
        ConfigurationError: The address or a name is invalid, or the port is in use.
        JournalError: The journal cannot be opened.
    """
    if not _NAME.fullmatch(pool):
        raise ConfigurationError(
            f"cluster= (--cluster) must be a name of 1 to 64 letters, digits, '-' and '_', not {quoted(pool)}"
        )
    name = node_name(node)
    members: list[Node] = []

    def note_lost(lost: Mapping[int, int]) -> None:
        for each in members:
            each.note_lost(lost)

    opened = PartitionedJournal(
        journal, node=name, pool=pool, partitions=DEFAULT_PARTITIONS, on_lost=note_lost
    )
    async with open_relay_listeners(advertise) as (address, listeners), opened.running():
        members.append(made := Node(name, pool=pool, journal=opened, address=address))
        try:
            yield ClusterMember(made, journal, listeners)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + END_SECONDS):
                await made.end()
