"""A cluster node: a process that owns partitions of a pool, and runs the turns of their sessions.

The state machine in `partition_ownership.py` decides on commands; this module executes them.

    NodeMembership ─view─► Ownership.compare_owners ──► acquire ──► recover: count deaths, deliver pending messages, serve
    journal ─on_lost─► Ownership.note_lost ──► evict
    operator, signal ► Ownership.drain_all, compare_owners ──► drain ──► give back
"""

import hashlib
import importlib.metadata
import os
import platform
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial

import trio

from actgent.errors import Fenced, JournalError
from actgent.errors.text_escaping import counted
from actgent.journal.cluster_interface import LEAVE_GRACE_SECONDS, ClusterStatistics
from actgent.journal.postgres.node_table import NodeRow
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.session_partitioning import AcquiredPartition
from actgent.runtime.runtime import Runtime
from actgent.support.batch_queue import Batches
from actgent.support.plain_nursery import plain_nursery
from actgent.support.safe_logging import LogVariable, logger_of

from .crashing_session_quarantine import Quarantine
from .failure_detection import ClusterView, NodeMembership
from .node_and_partition_cache import PoolDirectory
from .node_metrics import NodeMetrics
from .partition_ownership import Ownership, PartitionCommand

RELEASE = importlib.metadata.version("actgent")
BATCH_WINDOW_SECONDS = 0.003
"""Batch window in seconds: partitions that are acquired within it share one SQL statement."""
RETRY_SECONDS = 0.5
"""Retry interval in seconds while the database does not answer."""
MOVE_GRACE_SECONDS = 2.0
"""Seconds for which running turns may finish when their partition moves to another node."""
Deliver = Callable[[Collection[int]], Awaitable[None]]
"""Function that delivers the pending messages of partitions that this node owns."""
_log = logger_of(__name__)


def node_name(name: str | None) -> str:
    """Return a unique node name. Its prefix is `name`, or the machine's host name if `name` is None."""
    given = platform.node().partition(".")[0] or "node" if name is None else name
    return f"{given}-{os.getpid()}-{secrets.token_hex(4)}"


class Node:
    """One process of a cluster: acquires partitions, serves their sessions, and gives the partitions back."""

    def __init__(self, name: str, *, pool: str, journal: PartitionedJournal, address: str) -> None:
        """Create a node that owns no partition yet.

        Args:
            name: Unique name, see `node_name`.
            pool: Name of the pool.
            journal: Journal in which this process owns no partition yet.
            address: Base URL at which other nodes reach this one.
        """
        self.name, self.pool, self.journal, self.address = name, pool, journal, address
        self.key = b""
        """Cluster key, which signs requests between nodes; empty until the node runs."""
        self.quarantine = Quarantine(journal, on_released=self._note_released)
        self.metrics = NodeMetrics()
        self.nursery: trio.Nursery | None = None
        """Runs the node's background tasks; None while the node does not run."""
        self._membership = NodeMembership(
            journal.nodes, self._describe, self._note_view, self._note_pending, self._correct_clock
        )
        self._runs_member = False
        self._grace = MOVE_GRACE_SECONDS
        self._taken: dict[int, AcquiredPartition] = {}
        """Acquired partitions for which no deaths are counted yet, by partition number."""
        self._acquisitions = Batches[PartitionCommand]()
        self._recoveries = Batches[PartitionCommand]()

    def __repr__(self) -> str:
        return f"<Node {self.name}, {counted(len(self.journal.owned), 'partition')}>"

    # The journal knows the number of partitions once the runtime has acquired it, which is after `__init__`.

    @cached_property
    def directory(self) -> PoolDirectory:
        """Cached nodes of the pool and owners of its partitions."""
        return PoolDirectory(self.name, self.journal.count, self._refresh)

    @cached_property
    def ownership(self) -> Ownership:
        """State of each partition on this node; see `PartitionState`."""
        return Ownership(self.name, self.journal.count)

    @property
    def serving(self) -> tuple[int, ...]:
        """Numbers of the partitions that this node serves."""
        return tuple(self.ownership.serving())

    @property
    def is_leaving(self) -> bool:
        """True if this node releases its partitions and acquires no more partitions."""
        return self.ownership.is_leaving

    def statistics(self) -> ClusterStatistics:
        """Return the current state of this node, and its counters since the node started."""
        return ClusterStatistics(
            node=self.name,
            partitions=len(self.serving),
            fenced=self.journal.fenced,
            connections=self.journal.nodes.connections,
            resumed=self._runtime.agents.resumed,
            **self.metrics.as_counters(),
        )

    def now(self) -> float:
        """Return the Unix time in seconds. If this machine's clock differs by more than 2 s, return the time of the database."""
        return self._membership.now()

    # --- lifecycle -----------------------------------------------------------------------

    async def run(
        self,
        runtime: Runtime,
        deliver: Deliver,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Join the pool, and serve partitions, until cancelled.

        Args:
            runtime: Runtime whose agents run the sessions. The node joins the pool once the first agents have started.
            deliver: Called with acquired partitions before their requests are served, and with each served partition for
                which another process has stored a message.
            task_status: Reports `started` once `key` is known.

        Raises:
            JournalError: The cluster key cannot be read.
        """
        self._runtime, self._deliver = runtime, deliver
        self.key = await self.journal.nodes.cluster_key()
        try:
            async with plain_nursery() as nursery:
                self.nursery = nursery
                nursery.start_soon(
                    partial(self._acquisitions.run, self._acquire, window_seconds=BATCH_WINDOW_SECONDS)
                )
                nursery.start_soon(self._recoveries.run, self._recover)
                nursery.start_soon(self.quarantine.run, runtime)
                task_status.started()
                while not len(runtime.agents) or runtime.agents.start_phase.blocks:  # noqa: ASYNC110 - no event exists
                    await trio.sleep(0.01)
                self._runs_member = True
                await self._membership.run()
        finally:
            self.nursery = None

    async def leave(self, grace: float) -> None:
        """Release all partitions. Each partition is released when its turns have ended, or after `grace` seconds.

        Turns that run longer are interrupted, and resumed by the next owner. This does not count as a death.
        """
        self._grace = grace
        self._execute(self.ownership.drain_all())
        self._note_serving()
        self._membership.wake()
        with trio.move_on_after(grace + MOVE_GRACE_SECONDS):
            while not self.ownership.has_left:  # noqa: ASYNC110 - no event exists
                await trio.sleep(0.02)
        self.journal.left.set()

    async def end(self) -> None:
        """Remove this node from its pool after `run` has ended.

        Database errors are ignored: other nodes then detect its death.
        """
        with suppress(JournalError), trio.CancelScope(shield=True):
            if self._runs_member:
                await self._membership.leave()

    async def _refresh(self) -> None:
        await self._membership.refresh()

    def _describe(self) -> NodeRow:
        """Return this node's current row for the node table."""
        return NodeRow(
            name=self.name,
            address=self.address,
            agents=tuple(sorted(self._runtime.agents)),
            release=RELEASE,
            reads=self.journal.reads,
            is_leaving=self.is_leaving,
        )

    # --- events of the database ------------------------------------------------------------

    def _note_view(self, view: ClusterView) -> None:
        """Update the directory and the ownership from a new view of the pool.

        Drain this node if an operator requested it, or if the layout changed.
        """
        self.journal.drop_lost(view.partitions)
        self.directory.update(view.nodes, view.partitions)
        staying = {each.name: each.agents for each in view.nodes if not each.is_leaving}
        places = assign_partitions(self.journal.count, find_eligible_nodes(staying))
        live = {each.name for each in view.nodes}
        now = trio.current_time()
        self._execute(self.ownership.compare_owners(places, view.partitions, live, now, self._list_busy))
        self._note_serving()
        is_asked = any(each.name == self.name and each.is_leaving for each in view.nodes)
        if not self.is_leaving and (is_asked or not self._can_stay(view)):
            self._start(self.leave, LEAVE_GRACE_SECONDS)

    def _can_stay(self, view: ClusterView) -> bool:
        """Return True if this process can stay in the pool, because the layout of the pool has not changed."""
        now, reads = view.layout, self.journal.reads
        if now is not None:
            self.journal.latest = now
            if now.generation == self.journal.layout.generation and now.writes <= reads:
                return True
        _log.error("the layout of the pool was changed, so this node leaves; start it again")
        return False

    def _note_pending(self, partition: int) -> None:
        """If this node serves a partition, start to deliver the pending messages of the partition."""
        if partition in self.ownership.serving():
            self._start(self._deliver_pending, [partition])

    def _correct_clock(self, seconds: float) -> None:
        self._runtime.clock.correct(seconds)

    def _note_released(self, session_id: str) -> None:
        """Deliver the pending messages of a session that is no longer in quarantine (held back after repeated deaths of its nodes)."""
        self._note_pending(self.journal.partition_of(session_id))

    def note_lost(self, lost: Mapping[int, int]) -> None:
        """Record that other nodes have acquired partitions of this node, and evict their sessions.

        Args:
            lost: Epoch in which this node owned each partition, by partition number.
        """
        if self.nursery is None:
            return
        self.metrics.lost += len(lost)
        for partition, epoch in lost.items():
            self._execute(self.ownership.note_lost(partition, epoch))
        self._note_serving()

    def _note_serving(self) -> None:
        self.directory.set_serving(self.ownership.serving())

    # --- commands --------------------------------------------------------------------------

    def _start(self, fn: Callable[..., Awaitable[object]], *args: object) -> None:
        if self.nursery is not None:
            self.nursery.start_soon(fn, *args)

    def _execute(self, commands: Iterable[PartitionCommand]) -> None:
        """Execute ownership commands. Commands that take long run as background tasks."""
        drains = []
        for command in commands:
            match command.verb:
                case "acquire":
                    self.metrics.begin_takeover(command.partition, self._runtime.stream)
                    self._acquisitions.put(command)
                case "recover":
                    self._recoveries.put(command)
                case "evict":
                    self._start(self._evict, command)
                case "drain":
                    drains.append(command)
        if drains:
            self._start_drains(drains)

    async def _acquire(self, commands: Sequence[PartitionCommand]) -> None:
        """Acquire partitions with one SQL statement, and start their recovery.

        Partitions that were not acquired are reported to `ownership`.
        """
        wanted = {command.partition: command.epoch for command in commands}
        try:
            taken = await self.journal.acquire_partitions(wanted, seen=wanted)
        except (Fenced, JournalError) as error:
            _log.warning("%s cannot be taken: %s", counted(len(wanted), "partition"), LogVariable(str(error)))
            taken = []
            await trio.sleep(RETRY_SECONDS)
        for each in taken:
            del wanted[each.partition]
            self._taken[each.partition] = each
            self.metrics.note_taken(each)
            self._execute(self.ownership.note_acquired(each.partition, each.epoch))
        self.metrics.discard_takeovers(wanted)
        for partition in wanted:
            self.ownership.note_not_acquired(partition)
        if wanted:
            self._membership.wake()

    async def _recover(self, commands: Sequence[PartitionCommand]) -> None:
        """Count deaths in acquired partitions, start delivery of their pending messages, serve them, and resume their turns."""
        current = [command for command in commands if self.ownership.owns(command.partition, command.epoch)]
        taken = [self._taken.pop(command.partition) for command in current]
        dead = {each.before for each in taken if not each.was_clean} - {"", self.name}
        count = partial(self.quarantine.count_deaths, taken, self._runtime.agents, dead=dead)
        await self._retry("deaths cannot be counted yet", count)
        await self._deliver_pending([command.partition for command in current])
        for command in current:
            self._execute(self.ownership.note_recovered(command.partition, command.epoch))
        self._note_serving()
        self.metrics.end_takeovers(
            {command.partition for command in current}, self.name, self._runtime.stream
        )
        serving = {*self.ownership.serving()}
        self._start(
            self._resume_sessions, frozenset(serving.intersection(command.partition for command in current))
        )

    async def _deliver_pending(self, partitions: Collection[int]) -> None:
        """Deliver pending messages before newer requests of their sessions. Lost partitions are ignored."""
        with suppress(Fenced):
            await self._retry("pending messages are not delivered yet", partial(self._deliver, partitions))

    async def _resume_sessions(self, taken: frozenset[int]) -> None:
        """Resume the unfinished sessions of acquired partitions."""
        resume = partial(self._runtime.resume_acquired, self._is_in(taken), choose=self.quarantine.choose)
        await self._retry("unfinished sessions are not resumed yet", resume)

    async def _evict(self, command: PartitionCommand) -> None:
        """Evict the sessions of a partition that another node owns."""
        self.metrics.evicted += await self._runtime.evict(self._is_in({command.partition}))
        self.ownership.note_turns_ended(command.partition, command.epoch)
        self._membership.wake()

    def _start_drains(self, commands: Sequence[PartitionCommand]) -> None:
        """Drain (release) partitions: all partitions without a running turn together, and each other partition separately."""
        self._note_serving()
        busy = self._list_busy()
        if idle := [command for command in commands if command.partition not in busy]:
            self._start(self._drain, idle)
        for command in commands:
            if command.partition in busy:
                self._start(self._drain, [command])

    def _list_busy(self) -> set[int]:
        """Return the numbers of the partitions that have a running turn on this node."""
        return {self.journal.partition_of(each) for each in self._runtime.list_running()}

    async def _drain(self, commands: Sequence[PartitionCommand]) -> None:
        """Wait until the turns of partitions have ended, then give the partitions back.

        Turns that are still running after the grace time are interrupted.
        """
        async with self._runtime.drain(
            self._is_in({command.partition for command in commands}), grace=self._grace
        ):
            drained = [
                command
                for command in commands
                if self.ownership.note_turns_ended(command.partition, command.epoch)
            ]
            await self._give_back({command.partition: command.epoch for command in drained})
        self._membership.wake()

    async def _give_back(self, epochs: Mapping[int, int]) -> None:
        """Record in the database that drained partitions are free for other nodes."""

        async def give_back() -> None:
            while left := [each for each, epoch in epochs.items() if self.journal.owned.get(each) == epoch]:
                await self.journal.give_back(left)

        with suppress(Fenced):
            await self._retry("partitions cannot be given back yet", give_back)
        for partition, epoch in epochs.items():
            self.ownership.note_returned(partition, epoch)

    async def _retry(self, problem: str, fn: Callable[[], Awaitable[object]]) -> None:
        """Call `fn` until the database answers, and log `problem` with each error."""
        while True:
            try:
                await fn()
            except JournalError as error:
                _log.warning("%s: %s", problem, LogVariable(str(error)))
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    def _is_in(self, partitions: Collection[int]) -> Callable[[str], bool]:
        return lambda session_id: self.journal.partition_of(session_id) in partitions


# --- partition placement ---------------------------------------------------------------------


def find_eligible_nodes(agents: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names of the live nodes that may own partitions, sorted.

    A node may not own partitions if another node hosts all of its agents and more. So during a rolling upgrade that adds or
    removes an agent, partitions stay at the nodes that host all agents.

    Args:
        agents: Names of the agents that each live node hosts, by node name.
    """
    sets = {name: frozenset(hosted) for name, hosted in agents.items()}
    return sorted(name for name, ours in sets.items() if not any(ours < other for other in sets.values()))


def assign_partitions(count: int, nodes: Collection[str]) -> Sequence[str]:
    """Return the name of the owner of each partition, in the order of partition numbers; empty if there are no nodes.

    Each partition prefers nodes in an order computed from its number (rendezvous hashing), so few partitions move when a node
    joins or leaves. No node owns more than `count / nodes` partitions, rounded up.
    """
    known = sorted(set(nodes))
    share = -(-count // max(1, len(known)))
    owned = Counter[str]()
    owners = []
    for partition in range(count if known else 0):
        order = sorted(known, key=lambda node: _weight(node, partition))
        owner = next(each for each in order if owned[each] < share)
        owned[owner] += 1
        owners.append(owner)
    return owners


def _weight(node: str, partition: int) -> bytes:
    return hashlib.blake2b(f"{partition}/{node}".encode(), digest_size=8).digest()
