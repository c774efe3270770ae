"""A node: a process that owns partitions of a pool, and runs the turns of their sessions.

`ownership.py` decides what is done about a partition; this carries it out.

    NodeMembership ─view─► Ownership.look ──► take ──► PartitionedJournal.take ──► recover: count deaths, deliver what is
                                                                                pending, serve
    journal ─on_lost─► Ownership.lost ──► evict
    operator, signal ► Ownership.leave_all, look ──► drain ──► give_back
"""

import importlib.metadata
import os
import platform
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import trio

from actgent.errors import Fenced, JournalError
from actgent.errors.printable import counted
from actgent.journal.membership import LEAVING_GRACE, ClusterStatistics
from actgent.journal.postgres import NodeRow, PartitionedJournal, Taken
from actgent.runtime.runtime import Runtime
from actgent.support.concurrency import Batches, plain_nursery
from actgent.support.logs import Each, logger_of

from .directory import PoolDirectory
from .following import update_directory
from .membership import ClusterView, NodeMembership
from .operations.figures import NodeFigures
from .ownership import Do, Ownership
from .placement import assign_partitions, fit_nodes
from .quarantine import Quarantine

RELEASE = importlib.metadata.version("actgent")
TOGETHER = 0.003
"""Seconds in which partitions are collected that are taken in one statement."""
AGAIN = 0.5
"""Seconds until a database that did not answer is asked again."""
MOVE_GRACE = 2.0
"""Seconds that turns have to end when their partition moves to another node."""
Deliver = Callable[[Collection[int]], Awaitable[None]]
"""Delivers what is pending for partitions that this node owns."""
_log = logger_of(__name__)


def node_name(name: str | None) -> str:
    """Return a name that no other node ever has; it begins with the given one, or with that of the machine."""
    given = platform.node().partition(".")[0] or "node" if name is None else name
    return f"{given}-{os.getpid()}-{secrets.token_hex(4)}"


class Node:
    """One process of a cluster."""

    def __init__(self, name: str, *, pool: str, journal: PartitionedJournal, address: str) -> None:
        """Prepare a node.

        Args:
            name: a name that no other node ever has, see `node_name`.
            pool: name of the pool.
            journal: its journal, of which this process owns nothing yet.
            address: base URL at which other nodes reach this one.
        """
        self.name, self.pool, self.journal, self.address = name, pool, journal, address
        self.key = b""
        """Signs requests between the nodes of the database; known once the node runs."""
        self.quarantine = Quarantine(journal, on_released=self._note_released)
        self.figures = NodeFigures()
        self.nursery: trio.Nursery | None = None
        """Of the node's own tasks, while it runs."""
        self._membership = NodeMembership(
            journal.nodes,
            self._describe,
            self._note_view,
            self._note_pending,
            self._correct_clock,
        )
        self._runs_member = False
        self._grace = MOVE_GRACE
        self._taken: dict[int, Taken] = {}
        """As the database gave them, until their deaths are counted."""
        self._to_take = Batches[Do]()
        self._to_recover = Batches[Do]()

    def __repr__(self) -> str:
        return f"<Node {self.name}, {counted(len(self.journal.owned), 'partition')}>"

    # The journal knows the number of partitions once the runtime has acquired it, which is after `__init__`.

    @cached_property
    def directory(self) -> PoolDirectory:
        """Nodes and owners of the pool."""
        return PoolDirectory(self.name, self.journal.count, self._refresh)

    @cached_property
    def ownership(self) -> Ownership:
        """What this node has of each partition."""
        return Ownership(self.name, self.journal.count)

    @property
    def serving(self) -> tuple[int, ...]:
        """The partitions whose requests are answered here."""
        return tuple(self.ownership.serving())

    @property
    def is_leaving(self) -> bool:
        """True if this node hands its partitions over and takes no further ones."""
        return self.ownership.is_leaving

    @property
    def connections(self) -> int:
        """Number of connections that the membership has needed so far; more than one if the database was away."""
        return self.journal.nodes.connections

    def statistics(self) -> ClusterStatistics:
        """Return the state of the node, and counts since it began."""
        return ClusterStatistics(
            node=self.name,
            partitions=len(self.serving),
            fenced=self.journal.fenced,
            connections=self.connections,
            resumed=self._runtime.agents.resumed,
            **self.figures.counted(),
        )

    def now(self) -> float:
        """Return the time in Unix seconds; by the database's clock if this machine's is off by more than 2 s."""
        return self._membership.now()

    # --- its life ------------------------------------------------------------------------

    async def run(
        self,
        runtime: Runtime,
        deliver: Deliver,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Be a node until cancelled.

        Args:
            runtime: whose agents answer. Partitions are taken once its first agents are started.
            deliver: called with partitions that were taken, before their requests are served; and again with each for
                which another node stored a message.
            task_status: started once `key` is known. The node joins its pool once its first agents are started.

        Raises:
            JournalError: the database cannot be read at the beginning.
        """
        self._runtime, self._deliver = runtime, deliver
        self.key = await self.journal.nodes.cluster_key()
        try:
            async with plain_nursery() as nursery:
                self.nursery = nursery
                self.figures.now = trio.lowlevel.current_clock().current_time
                nursery.start_soon(self._run_taking)
                nursery.start_soon(self._to_recover.run, self._recover)
                nursery.start_soon(self.quarantine.run, runtime)
                task_status.started()
                while not len(runtime.agents) or runtime.agents.starting.blocks:  # noqa: ASYNC110 - no event exists
                    await trio.sleep(0.01)
                self._runs_member = True
                await self._membership.run()
        finally:
            self.nursery = None

    async def leave(self, grace: float) -> None:
        """Hand all partitions over, each once its turns have ended, or after `grace` seconds; returns then.

        Turns that run longer are interrupted and continued by the next owner. That is not a death.
        """
        self._grace = grace
        self._act(self.ownership.leave_all())
        self._note_serving()
        self._membership.wake()
        with trio.move_on_after(grace + MOVE_GRACE):
            while not self.ownership.has_left:  # noqa: ASYNC110 - no event exists
                await trio.sleep(0.02)
        self.journal.left.set()

    async def end(self) -> None:
        """Remove this node from its pool, once `run` has ended; nothing happens if the database is away."""
        with suppress(JournalError), trio.CancelScope(shield=True):
            if self._runs_member:
                await self._membership.leave()

    async def notify_pending(self, partition: int) -> None:
        """Notify the owner of a partition that a message is stored for it.

        Raises:
            JournalFailed: the database does not answer.
        """
        await self.journal.notify(f"pending {partition}")

    async def _refresh(self) -> None:
        await self._membership.refresh()

    def _describe(self) -> NodeRow:
        return NodeRow(
            name=self.name,
            address=self.address,
            agents=tuple(sorted(self._runtime.agents)),
            release=RELEASE,
            reads=self.journal.reads,
            is_leaving=self.is_leaving,
        )

    # --- what the database says ------------------------------------------------------------

    def _note_view(self, view: ClusterView) -> None:
        owners = {number: (each.owner, each.epoch) for number, each in view.partitions.items()}
        self.journal.drop_lost(owners)
        update_directory(self.directory, view.nodes, view.partitions)
        staying = {each.name: each.agents for each in view.nodes if not each.is_leaving}
        places = assign_partitions(self.journal.count, fit_nodes(staying))
        live = {each.name for each in view.nodes}
        self._act(self.ownership.look(places, view.partitions, live, trio.current_time()))
        self._note_serving()
        is_asked = any(each.name == self.name and each.is_leaving for each in view.nodes)
        if not self.is_leaving and (is_asked or not self._fits(view)):
            self._start(self.leave, LEAVING_GRACE)

    def _fits(self, view: ClusterView) -> bool:
        """Return False if this process has no place in the pool any more."""
        now, reads = view.layout, self.journal.reads
        if now is not None:
            self.journal.latest = now
            if now.generation == self.journal.layout.generation and now.writes <= reads:
                return True
        _log.error("the layout of the pool was changed, so this node leaves; start it again")
        return False

    def _note_pending(self, partition: int) -> None:
        if partition in self.ownership.serving():
            self._start(self._deliver_pending, [partition])

    def _correct_clock(self, seconds: float) -> None:
        self._runtime.clock.correct(seconds)

    def _note_released(self, session_id: str) -> None:
        """Deliver what is pending for a session that was withheld."""
        self._note_pending(self.journal.partition_of(session_id))

    def note_lost(self, lost: Mapping[int, int]) -> None:
        """Note that other nodes own partitions of ours: by partition, the epoch that is over."""
        if self.nursery is None:
            return
        self.figures.lost += len(lost)
        for partition, epoch in lost.items():
            self._act(self.ownership.lost(partition, epoch))
        self._note_serving()

    def _note_serving(self) -> None:
        self.directory.set_serving(self.ownership.serving())

    # --- what is done ----------------------------------------------------------------------

    def _start(self, fn: Callable[..., Awaitable[object]], *args: object) -> None:
        if self.nursery is not None:
            self.nursery.start_soon(fn, *args)

    def _act(self, todo: Iterable[Do]) -> None:
        """Carry out what was decided; what takes long in tasks of its own."""
        drains = []
        for do in todo:
            match do.verb:
                case "take":
                    self.figures.begin_takeover(do.partition, self._runtime.stream)
                    self._to_take.put(do)
                case "recover":
                    self._to_recover.put(do)
                case "serve":
                    self._note_serving()
                case "evict":
                    self._start(self._evict, do)
                case "drain":
                    drains.append(do)
                case "give_back":
                    raise AssertionError("it is awaited where turns have ended")
        if drains:
            self._start_drains(drains)

    async def _run_taking(self) -> None:
        await self._to_take.run(self._take, together=TOGETHER)

    async def _take(self, todo: Sequence[Do]) -> None:
        """Take partitions, in one statement."""
        wanted = {do.partition: do.epoch for do in todo}
        try:
            taken = await self.journal.take(wanted, seen=wanted)
        except (Fenced, JournalError) as error:
            _log.warning("%s cannot be taken: %s", counted(len(wanted), "partition"), Each(str(error)))
            taken = []
            await trio.sleep(AGAIN)
        for each in taken:
            del wanted[each.partition]
            self._taken[each.partition] = each
            self.figures.note_taken(each)
            self._act(self.ownership.taken(each.partition, each.epoch))
        self.figures.forget_takeovers(wanted)
        for partition in wanted:
            self._act(self.ownership.not_taken(partition))
        if wanted:
            self._membership.wake()

    async def _recover(self, todo: Sequence[Do]) -> None:
        """Serve partitions that were taken, after their deaths are counted and their pending messages delivered."""
        current = [do for do in todo if self.ownership.owns(do.partition, do.epoch)]
        taken = [self._taken.pop(do.partition) for do in current]
        died = [each for each in taken if not each.was_clean and each.before not in ("", self.name)]
        others = [each for each in taken if each not in died]
        while True:
            try:
                dead = {each.before for each in died}
                await self.quarantine.count(died, self._runtime.agents, dead=dead)
                await self.quarantine.count(others, self._runtime.agents, dead=())
                break
            except JournalError as error:
                _log.warning("deaths cannot be counted yet: %s", Each(str(error)))
                await trio.sleep(AGAIN)
        await self._deliver_pending([do.partition for do in current])
        for do in current:
            self._act(self.ownership.recovered(do.partition, do.epoch))
        self._note_serving()
        self.figures.end_takeovers({do.partition for do in current}, self.name, self._runtime.stream)
        serving = {*self.ownership.serving()}
        self._start(self._take_up, frozenset(serving.intersection(do.partition for do in current)))

    async def _deliver_pending(self, partitions: Collection[int]) -> None:
        """Have pending messages delivered before anything newer of their sessions; waits for the database."""
        while True:
            try:
                await self._deliver(partitions)
            except Fenced:
                return
            except JournalError as error:
                _log.warning("pending messages are not delivered yet: %s", Each(str(error)))
                await trio.sleep(AGAIN)
            else:
                return

    async def _take_up(self, taken: frozenset[int]) -> None:
        """Continue what is unfinished in partitions that were taken."""
        while True:
            try:
                await self._runtime.take_up(
                    lambda session_id: self.journal.partition_of(session_id) in taken,
                    choose=self.quarantine.choose,
                )
            except JournalError as error:
                _log.warning("what is unfinished is not continued yet: %s", Each(str(error)))
                await trio.sleep(AGAIN)
            else:
                return

    async def _evict(self, do: Do) -> None:
        """Drop the sessions of a partition: another node owns them."""
        self.figures.evicted += await self._runtime.evict(self._is_in({do.partition}))
        self.ownership.turns_ended(do.partition, do.epoch)
        self._membership.wake()

    def _start_drains(self, todo: Sequence[Do]) -> None:
        """Drain partitions: together those without a running turn, by itself each of the others."""
        self._note_serving()
        busy = {self.journal.partition_of(each) for each in self._runtime.list_at_work()}
        if idle := [do for do in todo if do.partition not in busy]:
            self._start(self._drain, idle)
        for do in todo:
            if do.partition in busy:
                self._start(self._drain, [do])

    async def _drain(self, todo: Sequence[Do]) -> None:
        """Let the turns of partitions end, and give them back."""
        async with self._runtime.drain(self._is_in({do.partition for do in todo}), grace=self._grace):
            ended = [each for do in todo for each in self.ownership.turns_ended(do.partition, do.epoch)]
            await self._give_back({do.partition: do.epoch for do in ended})
        self._membership.wake()

    async def _give_back(self, epochs: Mapping[int, int]) -> None:
        """Let other nodes take partitions, as the database then knows that nothing was left in the middle."""
        while left := [each for each, epoch in epochs.items() if self.journal.owned.get(each) == epoch]:
            try:
                await self.journal.give_back(left)
            except Fenced:
                break
            except JournalError as error:
                _log.warning(
                    "%s cannot be given back yet: %s", counted(len(left), "partition"), Each(str(error))
                )
                await trio.sleep(AGAIN)
        for partition, epoch in epochs.items():
            self.ownership.given_back(partition, epoch)

    def _is_in(self, partitions: Collection[int]) -> Callable[[str], bool]:
        return lambda session_id: self.journal.partition_of(session_id) in partitions
