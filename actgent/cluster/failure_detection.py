"""Membership of one node in its pool: its heartbeat, and detection of dead nodes.

A killed node is detected by the released lock of its connection, a hanging node by its missing heartbeat. A node whose own
heartbeats were irregular does not remove others: the database may have been unreachable for all of them.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from actgent.errors import JournalError
from actgent.journal.cluster_interface import PoolLayout
from actgent.journal.postgres.node_table import NodeRow, NodeTable, PartitionOwner, SeenNode
from actgent.support.safe_logging import LogVariable, logger_of

HEARTBEAT_SECONDS = 1.0
"""Heartbeat interval in seconds, and poll interval of the partitions if no notification arrives."""
NODE_POLL_SECONDS = 0.1
"""Poll interval in seconds of the other nodes."""
SUSPICION_POLL_SECONDS = 0.03
"""Poll interval in seconds while a node is suspicious: it may just be reconnecting."""
MAX_REGULAR_HEARTBEAT_SECONDS = 2.0
"""Maximum seconds between two heartbeats that count as regular."""
SETTLE_SECONDS = 2.0
"""Seconds after an irregular heartbeat or a reconnect during which this node does not remove others."""
CLOCK_TOLERANCE_SECONDS = 2.0
"""Seconds by which a node's clock may differ from the database's clock without correction."""
_log = logger_of(__name__)


@attrs.frozen(kw_only=True)
class ClusterView:
    """Nodes, partition owners and layout of a pool, as read from the database."""

    nodes: Sequence[NodeRow]
    """Live nodes of the pool, including this node."""
    partitions: Mapping[int, PartitionOwner]
    """Owners of the partitions, by partition number."""
    layout: PoolLayout | None
    """Layout of the pool (number of partitions and record format); None if the pool was removed."""


@attrs.define(eq=False)
class DeathJudge:
    """Failure detector: decides which nodes are dead, from the observations of one node. A state machine without I/O.

    All times are monotonic, in seconds.
    """

    may_judge_from: float = float("-inf")
    """Monotonic time in seconds from which this node may declare other nodes dead."""
    last_beat: float | None = None
    """Monotonic time of this node's last heartbeat in seconds; None before the first heartbeat."""
    _suspicious: frozenset[str] = frozenset()

    def note_connected(self, now: float, *, is_first: bool, is_server_new: bool) -> None:
        """Record that this node has a new connection to the database, at the monotonic time `now` in seconds.

        A reconnect delays the next removal of dead nodes by `SETTLE_SECONDS`, because other nodes reconnect
        as well.
        """
        if not is_first or is_server_new:
            self.may_judge_from = now + SETTLE_SECONDS

    def note_beat(self, now: float) -> None:
        """Record a heartbeat of this node.

        After a late heartbeat, removal of dead nodes waits `SETTLE_SECONDS`: other nodes may be late too.
        """
        if self.last_beat is not None and now - self.last_beat > MAX_REGULAR_HEARTBEAT_SECONDS:
            self.may_judge_from = now + SETTLE_SECONDS
        self.last_beat = now

    def judge(self, seen: Sequence[SeenNode], now: float, own: str) -> frozenset[str]:
        """Return the names of the nodes that are dead: nodes that were suspicious at this poll and at the previous poll.

        Args:
            seen: All nodes with their current observations.
            now: Current monotonic time in seconds.
            own: Name of this node.
        """
        suspicious = frozenset(each.row.name for each in seen if each.is_suspicious and each.row.name != own)
        before, self._suspicious = self._suspicious, suspicious
        return before & suspicious if now >= self.may_judge_from else frozenset()

    @property
    def is_in_doubt(self) -> bool:
        """True if at least one node looked dead at the last poll of the database."""
        return bool(self._suspicious)


class NodeMembership:
    """Keeps a node's row and heartbeat in its pool, and reports changes of the pool."""

    def __init__(
        self,
        table: NodeTable,
        describe: Callable[[], NodeRow],
        on_view: Callable[[ClusterView], object],
        on_pending: Callable[[int], object],
        on_clock: Callable[[float], object] = lambda _: None,
    ) -> None:
        """Create the membership of this node without joining the pool. `run` joins the pool.

        Args:
            table: Node table of the database.
            describe: Returns the current row of this node.
            on_view: Called with each view of the pool that may differ from the last one.
            on_pending: Called with each partition for which another process stored a message.
            on_clock: Called with the seconds to add to this machine's clock, when they change.
        """
        self._table, self._describe, self._on_view, self._on_pending = table, describe, on_view, on_pending
        self._on_clock = on_clock
        self._judge = DeathJudge()
        self._wake = trio.Event()
        self._row: NodeRow | None = None
        """Row of this node as it was last written to the database."""
        self._nodes: tuple[NodeRow, ...] = ()
        self._partitions_at = float("-inf")
        self._connections = 0
        self._refreshes: list[trio.Event] = []
        self.correction = 0.0
        """Seconds to add to this machine's clock; 0 if it differs by at most 2 s from the database's clock."""

    def now(self) -> float:
        """Return the Unix time in seconds. If this machine's clock differs by more than 2 s, return the time of the database."""
        return time.time() + self.correction

    def wake(self) -> None:
        """Start the next poll of the database at once, without its usual pause.

        The poll reads the tables of nodes and partitions, and writes this node's row if the row has changed.
        """
        self._partitions_at = float("-inf")
        self._wake.set()

    async def refresh(self) -> None:
        """Read the tables of nodes and partitions from the database again.

        Wait until that has succeeded, even if the database does not answer for a while.
        """
        done = trio.Event()
        self._refreshes.append(done)
        self.wake()
        await done.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Join the pool, and stay a member until cancelled. Reports `started` after the first successful poll."""
        has_begun, is_away = False, False
        while True:
            self._wake = trio.Event()
            try:
                await self._poll()
            except JournalError as error:
                if not is_away:
                    _log.warning("the database of the cluster is away: %s", LogVariable(str(error)))
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
        """Remove the row of this node, so that other nodes need not detect its end.

        Call it after `run` has ended.
        """
        await self._table.remove_ours()

    async def _sleep(self) -> None:
        """Wait until the poll interval has passed, a notification arrives, or `wake` is called."""
        with trio.move_on_after(SUSPICION_POLL_SECONDS if self._judge.is_in_doubt else NODE_POLL_SECONDS):
            async with trio.open_nursery() as nursery:
                if (socket := self._table.fileno()) is not None:
                    nursery.start_soon(self._wait_notification, socket, nursery.cancel_scope)
                await self._wake.wait()
                nursery.cancel_scope.cancel()

    async def _wait_notification(self, socket: int, scope: trio.CancelScope) -> None:
        await trio.lowlevel.wait_readable(socket)
        scope.cancel()

    async def _poll(self) -> None:
        """Poll the database once, and complete the `refresh` calls that waited for the poll.

        They stay pending if the poll fails.
        """
        refreshes, self._refreshes = self._refreshes, []
        try:
            await self._poll_once()
        except BaseException:
            self._refreshes += refreshes
            raise
        for each in refreshes:
            each.set()

    async def _poll_once(self) -> None:
        """Write the heartbeat if it is due, read the nodes, remove dead nodes, and report changes."""
        now, judge = trio.current_time(), self._judge
        row = self._describe()
        if judge.last_beat is None or now - judge.last_beat >= HEARTBEAT_SECONDS or row != self._row:
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
            _log.warning("node %s is dead, or has lost the database", LogVariable(name))
        nodes = tuple(each.row for each in seen if each.row.name not in removed)
        payloads = self._table.take_payloads()
        is_changed = nodes != self._nodes or "ownership" in payloads
        self._nodes = nodes
        if is_changed or trio.current_time() - self._partitions_at >= HEARTBEAT_SECONDS:
            await self._read_partitions(nodes)
        for payload in dict.fromkeys(payloads):
            kind, _, number = payload.partition(" ")
            if kind == "pending" and number.isdecimal():
                self._on_pending(int(number))

    async def _read_partitions(self, nodes: Sequence[NodeRow]) -> None:
        """Read the layout of the pool and the partition owners, and pass the new view to `on_view`."""
        at = trio.current_time()
        layout, partitions = await self._table.layout_and_partitions()
        self._partitions_at = at
        self._on_view(ClusterView(nodes=nodes, partitions=partitions, layout=layout))

    def _note_connection(self) -> None:
        """Report a new database connection to the failure detector."""
        if (count := self._table.connections) != self._connections:
            self._judge.note_connected(
                trio.current_time(), is_first=not self._connections, is_server_new=self._table.is_server_new
            )
            self._connections = count

    def _note_clock(self, server_time: float, started_at: float, ended_at: float) -> None:
        """Compare this machine's clock with the database's time, and report a new clock correction.

        The query for `server_time` ran from `started_at` to `ended_at` on this machine's clock. Differences that
        are smaller than its duration are ignored.
        """
        if not server_time:
            return
        offset = server_time - (started_at + ended_at) / 2
        if abs(offset - self.correction) <= max(CLOCK_TOLERANCE_SECONDS, ended_at - started_at):
            return
        self.correction = offset if abs(offset) > CLOCK_TOLERANCE_SECONDS else 0.0
        _log.error(
            "the clock of this machine is %.1f s ahead of the database's, whose time is used for schedules and deadlines",
            -offset,
        )
        self._on_clock(self.correction)
