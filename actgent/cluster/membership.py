"""NodeMembership of one node: its heartbeat, and what it sees of the other nodes.

A killed node is found by the lock that its connection held, a hanging one by its heartbeat. A node whose own heartbeats were
not regular lately removes no other: perhaps the database was away, and the others have not come back yet.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from actgent.errors import JournalError
from actgent.journal.postgres import NodeRow, NodeTable, PartitionOwner, SeenNode
from actgent.journal.postgres.layout import PoolLayout
from actgent.support.logs import Each, logger_of

BEAT = 1.0
"""Seconds between two heartbeats, and between two reads of the partitions without a notification."""
LOOK = 0.1
"""Seconds between two looks at the other nodes."""
LOOK_AGAIN = 0.03
"""Seconds until a node that lost its connection is looked at again: it may just be connecting anew."""
REGULAR = 2.0
"""Seconds between two heartbeats, at most, that count as regular."""
SETTLE = 2.0
"""Seconds of regular heartbeats after which a node that lost the database may remove others."""
CLOCK_TOLERANCE = 2.0
"""Seconds by which a node's clock may differ from the database's."""
_log = logger_of(__name__)


@attrs.frozen(kw_only=True)
class ClusterView:
    """What the database says of a pool."""

    nodes: Sequence[NodeRow]
    """Nodes that are not known to be dead, including this one."""
    partitions: Mapping[int, PartitionOwner]
    layout: PoolLayout | None
    """None: the pool was removed."""


@attrs.define(eq=False)
class DeathJudge:
    """Decides which nodes are dead, from what one node sees; a state machine without I/O.

    All times are those of one monotonic clock, in seconds.
    """

    may_judge_from: float = float("-inf")
    last_beat: float | None = None
    _suspicious: frozenset[str] = frozenset()

    def note_connected(self, now: float, *, is_first: bool, is_server_new: bool) -> None:
        """Note a new connection to the database."""
        if not is_first or is_server_new:
            self.may_judge_from = now + SETTLE

    def note_beat(self, now: float) -> None:
        """Note a heartbeat that was written."""
        if self.last_beat is not None and now - self.last_beat > REGULAR:
            self.may_judge_from = now + SETTLE
        self.last_beat = now

    def judge(self, seen: Sequence[SeenNode], now: float, own: str) -> frozenset[str]:
        """Return the nodes to remove: those that were suspicious at this look and at the one before."""
        suspicious = frozenset(each.row.name for each in seen if each.is_suspicious and each.row.name != own)
        before, self._suspicious = self._suspicious, suspicious
        return before & suspicious if now >= self.may_judge_from else frozenset()

    @property
    def is_in_doubt(self) -> bool:
        """True if a node was suspicious at the last look."""
        return bool(self._suspicious)


class NodeMembership:
    """Keeps a node in its pool, and reports what changes."""

    def __init__(
        self,
        table: NodeTable,
        describe: Callable[[], NodeRow],
        on_view: Callable[[ClusterView], object],
        on_pending: Callable[[int], object],
        on_clock: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Begin outside of the pool.

        Args:
            table: the nodes in the database.
            describe: returns the row of this node.
            on_view: called with each view of the pool that may differ from the last one.
            on_pending: called with each partition for which another process stored a message.
            on_clock: called with the seconds to add to this machine's clock, when they change.
        """
        self._table, self._describe, self._on_view, self._on_pending = table, describe, on_view, on_pending
        self._on_clock = on_clock
        self._judge = DeathJudge()
        self._wake = trio.Event()
        self._row: NodeRow | None = None
        """As this node wrote it last."""
        self._nodes: tuple[NodeRow, ...] = ()
        self._partitions_at = float("-inf")
        self._connections = 0
        self._refreshes: list[trio.Event] = []
        self.correction = 0.0
        """Seconds to add to this machine's clock, as it differs by more than 2 s from the database's."""

    def now(self) -> float:
        """Return the time in Unix seconds: by the database's clock if this machine's clock is off by more than 2 s."""
        return time.time() + self.correction

    def wake(self) -> None:
        """Read the tables again as soon as possible, and write the row of this node if it changed."""
        self._partitions_at = float("-inf")
        self._wake.set()

    async def refresh(self) -> None:
        """Wait until the tables were read again, as long as the database is away."""
        done = trio.Event()
        self._refreshes.append(done)
        self.wake()
        await done.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a member until cancelled; started as soon as this node and its pool were read once."""
        has_begun, is_away = False, False
        while True:
            self._wake = trio.Event()
            try:
                await self._look()
            except JournalError as error:
                if not is_away:
                    _log.warning("the database of the cluster is away: %s", Each(str(error)))
                is_away = True
            else:
                if is_away:
                    _log.info("the database of the cluster is back")
                is_away = False
                if not has_begun:
                    has_begun = True
                    task_status.started()
            await self._sleep()

    async def leave(self) -> None:
        """Remove the row of this node, once `run` has ended."""
        await self._table.remove_ours()

    async def _sleep(self) -> None:
        """Wait for the next look: for some time, for a notification, or until `wake` is called."""
        with trio.move_on_after(LOOK_AGAIN if self._judge.is_in_doubt else LOOK):
            async with trio.open_nursery() as nursery:
                if (socket := self._table.fileno()) is not None:
                    nursery.start_soon(self._wait_notification, socket, nursery.cancel_scope)
                await self._wake.wait()
                nursery.cancel_scope.cancel()

    async def _wait_notification(self, socket: int, scope: trio.CancelScope) -> None:
        await trio.lowlevel.wait_readable(socket)
        scope.cancel()

    async def _look(self) -> None:
        refreshes, self._refreshes = self._refreshes, []
        try:
            await self._look_once()
        except BaseException:
            self._refreshes += refreshes
            raise
        for each in refreshes:
            each.set()

    async def _look_once(self) -> None:
        now, judge = trio.current_time(), self._judge
        row = self._describe()
        if judge.last_beat is None or now - judge.last_beat >= BEAT or row != self._row:
            await self._table.beat(row)
            self._note_connection()
            judge.note_beat(trio.current_time())
            self._row = row
        begun = time.time()
        seen, server_time = await self._table.nodes()
        self._note_connection()
        self._note_clock(server_time, begun, time.time())
        dead = judge.judge(seen, trio.current_time(), row.name)
        removed = await self._table.remove_dead(dead) if dead else []
        for name in removed:
            _log.warning("node %s is dead, or has lost the database", Each(name))
        nodes = tuple(each.row for each in seen if each.row.name not in removed)
        payloads = self._table.take_payloads()
        is_changed = nodes != self._nodes or "ownership" in payloads
        self._nodes = nodes
        if is_changed or trio.current_time() - self._partitions_at >= BEAT:
            await self._read_partitions(nodes)
        for payload in dict.fromkeys(payloads):
            kind, _, number = payload.partition(" ")
            if kind == "pending" and number.isdecimal():
                self._on_pending(int(number))

    async def _read_partitions(self, nodes: Sequence[NodeRow]) -> None:
        at = trio.current_time()
        partitions = await self._table.partitions()
        layout = await self._table.layout()
        self._partitions_at = at
        self._on_view(ClusterView(nodes=nodes, partitions=partitions, layout=layout))

    def _note_connection(self) -> None:
        if (count := self._table.connections) != self._connections:
            self._judge.note_connected(
                trio.current_time(), is_first=not self._connections, is_server_new=self._table.is_server_new
            )
            self._connections = count

    def _note_clock(self, server_time: float, begun: float, ended: float) -> None:
        if not server_time or ended - begun > CLOCK_TOLERANCE / 2:  # too slow to say
            return
        offset = server_time - (begun + ended) / 2
        if abs(offset - self.correction) <= CLOCK_TOLERANCE:
            return
        self.correction = offset if abs(offset) > CLOCK_TOLERANCE else 0.0
        _log.error(
            "the clock of this machine is %.1f s ahead of the database's, whose time is used for schedules and deadlines",
            -offset,
        )
        self._on_clock(self.correction)
