"""How processes come into a cluster: as nodes, which serve agents, and as clients."""

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager

import attrs
import trio

from actgent.client.connecting import Client, open_client
from actgent.client.hearing import ServerLink
from actgent.client.session import RemoteSession
from actgent.errors import ConfigurationError
from actgent.errors.printable import quoted
from actgent.journal.base import SessionSummary
from actgent.journal.listing import SessionKey
from actgent.journal.membership import ClusterStatistics
from actgent.journal.postgres import PartitionedJournal
from actgent.journal.records import Rated
from actgent.llm.governor import ShareLender
from actgent.runtime.delegation.pools import PoolTasks
from actgent.runtime.runtime import Runtime
from actgent.web.gateway import open_inside
from actgent.web.server.wired import LIMITS, wired_application
from actgent.web.tokens import Logins, TokenStore

from .amqp import parse_broker
from .link import BrokerLink
from .node import Node, node_name
from .operations.figures import OnSeconds
from .pools import PoolApplication, PoolLinks
from .queues import check_queue_part
from .transport import BrokerTransport, open_broker_transport

PARTITIONS = 64
"""Of a new cluster."""


class NodeClient(Client):
    """A node's own way to sessions that live at other nodes."""

    way: BrokerTransport
    """What hands on requests of a gateway."""

    def __init__(self, link: ServerLink, way: BrokerTransport) -> None:
        super().__init__(link)
        self.way = way

    def session(self, agent: str, session_id: str, *, owner: str) -> RemoteSession:
        """A session that is known to be there; its handlers hear what comes from now on."""
        return RemoteSession(self._link, agent=agent, session_id=session_id, owner=owner)

    async def fork_session(
        self, head: SessionSummary, *, to: int | None, session_id: str | None
    ) -> SessionSummary:
        """Write a session's copy where the new id lives; see `Runtime.fork`."""
        return await self._fork(head.session_id, head.agent, to, session_id, owner=head.owner)

    async def keep_rating(self, key: SessionKey, rated: Rated) -> bool:
        """Keep a judgement where its session lives; see `Runtime.rate`."""
        known = await self.ratings(key.session_id, rated.message_id, agent=key.agent)
        if any(attrs.evolve(each, at=rated.at) == rated for each in known):
            return False
        await self._keep_rating(key.session_id, key.agent, rated)
        return True

    def id_of(self, session: object) -> str | None:
        """The id of a session of this way or another one; None for what is none."""
        return session.id if isinstance(session, RemoteSession) else None


class Member:
    """A runtime's place in a cluster."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.journal = node.journal
        self.left = node.journal.left
        self.lender = ShareLender(node.journal.allowances.lend)

    async def serve(
        self, runtime: Runtime, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve partitions with the agents of a runtime until cancelled, from the moment in which they are started.

        Raises:
            BrokerLost, ConfigurationError: the broker cannot be reached at the beginning.
        """
        store = TokenStore([])
        node = self.node
        runtime.delegation.pools = PoolLinks(
            node.link.address, pool=node.pool, node=node.name, nursery=lambda: node.nursery
        )
        async with (
            open_inside(runtime, LIMITS, store, Logins(store), (), is_scraped=False) as inside,
            self.lender.running(),
            open_client(node.transport) as client,
        ):
            runtime.elsewhere = NodeClient(client.__actgent_link__(), node.transport)
            tasks = PoolTasks(runtime.agents, node.pool)
            application = wired_application(runtime, inside, kind=PoolApplication, tasks=tasks)
            await node.run(runtime, application, task_status=task_status)

    async def host(self, agents: Collection[str]) -> None:
        """Have agents hosted by our pool; see `Membership`."""
        taken = await self.journal.hosts.claim(agents)
        if taken:
            agent, pool = next(iter(taken.items()))
            raise ConfigurationError(
                f"agent {quoted(agent)} of this database is hosted by pool {quoted(pool)}, so the nodes of pool "
                f"{quoted(self.node.pool)} may not go on with its sessions: give each pool a schema of its own (?schema= in its address), "
                f"or call the agent otherwise; where it is to move here, `actgent cluster release {agent} --pool {pool}`"
            )

    def statistics(self) -> ClusterStatistics:
        """How the node is."""
        return self.node.statistics()

    def hear_seconds(self, on_seconds: OnSeconds | None) -> None:
        """Call something with what takes how long; None ends that."""
        self.node.figures.on_seconds = on_seconds

    async def leave(self, grace: float) -> None:
        """Hand over what is served here."""
        await self.node.leave(grace)


@asynccontextmanager
async def open_member(
    journal: str, broker: str, *, pool: str = "default", node: str | None = None
) -> AsyncGenerator[Member, None]:
    """A journal of which this process may own partitions, and what will own them.

    Raises:
        ConfigurationError: one of the addresses or names is none.
        JournalError: the journal cannot be opened.
    """
    address, name = parse_broker(broker), node_name(node)
    check_queue_part("pool", pool)
    members: list[Node] = []

    def note_lost(lost: Mapping[int, int]) -> None:
        for each in members:
            each.note_lost(lost)

    opened = PartitionedJournal(journal, node=name, pool=pool, partitions=PARTITIONS, on_lost=note_lost)
    async with opened.running():
        members.append(Node(name, pool=pool, journal=opened, link=BrokerLink(address, name=name)))
        yield Member(members[0])


@asynccontextmanager
async def open_broker_client(
    url: str, *, name: str, owner: str, pool: str, patience: float
) -> AsyncGenerator[Client, None]:
    """An `async with` block with a client of a cluster; see `actgent.connect`."""
    address = parse_broker(url)
    link = BrokerLink(address, name=name or "actgent client")
    async with (
        open_broker_transport(link, name=name, pool=pool, owner=owner) as transport,
        open_client(transport, patience=patience) as client,
    ):
        yield client
