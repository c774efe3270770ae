"""A node: a process that serves partitions, which the broker hands to it and the database lets it write to.

What is to be done about a partition decides `ownership.py`; this carries it out.

    broker ──first delivery──► Ownership.delivered ──► take ──► PartitionedJournal.take ──► Ownership.taken ──► recover
    journal ─on_lost, look───► Ownership.fenced ─────► evict, close_channel
    beacons ─────────────────► Ownership.look ───────► subscribe, drain, close_channel
"""

import importlib.metadata
import os
import platform
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from actgent.actors.timer import Timer
from actgent.errors import Fenced, JournalError, WireError
from actgent.errors.printable import counted
from actgent.journal.listing import SessionKey
from actgent.journal.membership import LEAVING_GRACE, ClusterStatistics
from actgent.journal.postgres import PartitionedJournal, Taken
from actgent.runtime.runtime import Runtime
from actgent.support.concurrency import Batches, plain_nursery
from actgent.support.logs import Each, logger_of
from actgent.web.server.wired import WiredApplication

from .amqp import Channel, Connection, Delivery, NotConfirmed, Unroutable
from .link import BROKEN, BrokerLink
from .members import EVERY, Members
from .operations.figures import NodeFigures
from .ownership import Do, Ownership, PartitionState
from .placement import assign_partitions
from .quarantine import Quarantine
from .queues import (
    QueueForm,
    beacon_exchange,
    check_queue_part,
    dead_queue,
    owner_exchange,
    partition_queue,
    shared_queue,
)
from .requests import Requests, send_back, workers_of
from .tokens import Tokens
from .transport import BrokerTransport
from .wire import (
    USER,
    Beacon,
    Dropped,
    Greeting,
    Layout,
    Leave,
    Message,
    OwnerChanged,
    PartitionToken,
    WireRequest,
    decode_message,
    encode_message,
    form_of,
    properties,
)

RELEASE = importlib.metadata.version("actgent")
PREFETCH = 400
"""Requests of one partition that are not acknowledged, at most."""
LISTENING = 0.7
"""Seconds for which a new node hears of others before it takes anything."""
LOOK = 1.0
"""Seconds between two looks at who is there, and at what is still ours."""
TOGETHER = 0.003
"""Seconds in which partitions that are handed over are taken in one statement."""
AGAIN = 0.5
"""Seconds until a database that did not answer is asked again."""
MOVE_GRACE = 2.0
"""Seconds that turns have to end when their partition moves to a node that is there."""
Take = Callable[[Delivery, Message], None]
"""Deals with a message that came."""
_log = logger_of(__name__)


def node_name(name: str | None) -> str:
    """A name that no other node has, now or later."""
    given = platform.node().partition(".")[0] or "node" if name is None else check_queue_part("node", name)
    return f"{given}-{os.getpid()}-{secrets.token_hex(4)}"


class Node:
    """One process of a cluster; `open_runtime(broker=)` makes it."""

    def __init__(self, name: str, *, pool: str, journal: PartitionedJournal, link: BrokerLink) -> None:
        self.name = name
        self.journal = journal
        self.link = link
        self.members = Members()
        self.figures = NodeFigures()
        self.pool = pool
        self._grace = MOVE_GRACE
        self._is_leaving = False
        self._subscriptions: dict[int, trio.CancelScope] = {}
        self._tokens = Tokens(link, lambda partition: self._queue(partition).name)
        self._requests: dict[int, Requests] = {}
        self._quarantine = Quarantine(journal, link)
        self._to_take = Batches[int]()
        self._to_recover = Batches[Do]()
        self.transport = BrokerTransport(link, name="", pool=pool, owner="user")  # to sessions at other nodes

    def __repr__(self) -> str:
        return f"<Node {self.name}, {counted(len(self.journal.owned), 'partition')}>"

    @property
    def serving(self) -> tuple[int, ...]:
        """The partitions whose requests are answered here."""
        return tuple(each for each in range(self.journal.count) if self.ownership.serves(each))

    def statistics(self) -> ClusterStatistics:
        """How the node is, and what happened at it."""
        return ClusterStatistics(
            node=self.name,
            partitions=len(self.serving),
            waiting=sum(map(len, self._requests.values())),
            fenced=self.journal.fenced,
            connections=self.link.connections,
            resumed=self._runtime.agents.resumed,
            **self.figures.counted(),
        )

    # --- its life ------------------------------------------------------------------------

    async def run(
        self,
        runtime: Runtime,
        application: WiredApplication,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Be a node until cancelled.

        Raises:
            BrokerLost, ConfigurationError: the broker cannot be reached at the beginning.
        """
        self._runtime = runtime
        self.ownership = Ownership(self.name, self.journal.count)
        async with plain_nursery() as nursery:
            self.nursery = nursery
            start = nursery.start_soon
            timer = Timer()
            start(timer.run)
            self.figures.now = trio.lowlevel.current_clock().current_time
            given = (self.link, application, self._quarantine, start, self.figures)
            new = partial(Requests, *given, workers=workers_of(nursery, timer))
            self._shared = new(queue=shared_queue(self.pool).name, judge=self._wait_judged)
            queues = [self._queue(each, (3,)).name for each in range(self.journal.count)]
            self._requests = {each: new(queue=queue) for each, queue in enumerate(queues)}
            await nursery.start(self.link.run, self._build, self._connection_lost)
            start(partial(self._to_take.run, self._take, together=TOGETHER))
            start(self._to_recover.run, self._recover)
            start(self._quarantine.run, runtime)
            start(self._beat)
            start(self._look)
            task_status.started()

    async def leave(self, grace: float) -> None:
        """Hand all partitions over, each once its turns have ended or the grace is over; returns then."""
        self._is_leaving, self._grace = True, grace
        with suppress(*BROKEN, Unroutable, NotConfirmed):
            await self._tell_beacon()
        self._act(self.ownership.leave_all())
        away = (PartitionState.AWAY, PartitionState.DOUBTFUL)
        with trio.move_on_after(grace + MOVE_GRACE):
            while any(self.ownership.state(each) not in away for each in range(self.journal.count)):  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.02)
        self.journal.left.set()

    # --- its connection ------------------------------------------------------------------

    async def _build(self, connection: Connection) -> None:
        """Set up what all nodes need; declared again, a queue stays what it is."""
        self._connection = connection
        self.members.begin(trio.current_time())
        await self.transport.build(connection, self.nursery)
        await self._look_at_layout()
        channel = await connection.open_channel(prefetch=PREFETCH)
        beacons = await self._declare_all(channel)
        start, shared = self.nursery.start_soon, shared_queue(self.pool).name
        start(self._consume, connection, channel, beacons, self._hear)
        start(self._consume, connection, channel, shared, self._take_shared)
        self._shared.open()
        self._act(self.ownership.connected())

    async def _declare_all(self, channel: Channel) -> str:
        """Have the queues and exchanges of the pool; returns the queue of beacons, which is this node's."""
        for exchange in (beacon_exchange(self.pool), owner_exchange(self.pool)):
            await channel.declare_exchange(exchange, "fanout")
        partitions = () if self._is_leaving else range(self.journal.count)
        forms = (shared_queue(self.pool), dead_queue(), *map(self._queue, partitions))
        await channel.declare_durable_queues({form.name: form.arguments for form in forms})
        beacons = (await channel.declare_queue(exclusive=True, auto_delete=True)).queue or ""
        await channel.bind(beacons, beacon_exchange(self.pool))
        return beacons

    def _queue(self, partition: int, version: Sequence[int] = ()) -> QueueForm:
        broker = version or self._connection.agreed.version
        return partition_queue(self.pool, self.journal.layout.generation, partition, broker)

    async def _consume(self, connection: Connection, channel: Channel, queue: str, take: Take) -> None:
        with suppress(*BROKEN):
            async with await channel.consume(queue) as consumer:
                async for delivery in consumer:
                    self._read(delivery, take)
        connection.lose(f"the queue {queue} gives nothing more")

    def _read(self, delivery: Delivery, take: Take) -> None:
        try:
            message = decode_message(delivery.body, delivery.properties)
        except WireError as error:
            if form_of(delivery.properties) > self.journal.reads:  # another node is to have it
                _log.warning("a message is left to nodes of a newer release: %s", Each(str(error)))
                return
            _log.warning("a message cannot be read, and is dropped: %s", Each(str(error)))
            delivery.acknowledge()
            return
        take(delivery, message)

    def _connection_lost(self) -> None:
        for scope in self._subscriptions.values():
            scope.cancel()
        self._subscriptions.clear()
        self._tokens.forget_all()
        self.figures.forget_takeovers(range(self.journal.count))
        for requests in (self._shared, *self._requests.values()):
            requests.close()
        self._act(self.ownership.connection_lost())

    # --- what comes ----------------------------------------------------------------------

    def _take_shared(self, delivery: Delivery, message: Message) -> None:
        if isinstance(message, WireRequest):
            self._shared.take(delivery, message)
            return
        delivery.acknowledge()
        if isinstance(message, Greeting):
            known = self.journal.layout
            layout = Layout(
                id=message.id,
                partitions=known.partitions,
                generation=known.generation,
                form=self.journal.latest.writes,
            )
            self.nursery.start_soon(self._tell_layout, delivery, layout)

    async def _tell_layout(self, delivery: Delivery, layout: Layout) -> None:
        with suppress(*BROKEN, Unroutable, NotConfirmed):
            await send_back(self.link, delivery, layout, priority=USER)

    def _hear(self, delivery: Delivery, message: Message) -> None:
        delivery.acknowledge()
        if isinstance(message, Beacon) and message.node != self.name:
            self.members.hear(message, trio.current_time())
        elif isinstance(message, Leave) and message.node == self.name and not self._is_leaving:
            self.nursery.start_soon(self.leave, LEAVING_GRACE)
        elif isinstance(message, Dropped):
            self._shared.drop((delivery.properties.reply_to or "", message.id))

    def _take_in(self, partition: int, delivery: Delivery, message: Message) -> None:
        requests = self._requests[partition]
        if isinstance(message, WireRequest):
            requests.take(delivery, message)
        elif isinstance(message, PartitionToken):
            self._tokens.hold(partition, delivery)
        else:
            delivery.acknowledge()
            if isinstance(message, Dropped):
                requests.drop((delivery.properties.reply_to or "", message.id))

    # --- what is done --------------------------------------------------------------------

    def _act(self, todo: Iterable[Do]) -> None:
        """Carry out what was decided; what takes long by tasks of its own, but for what has an order."""
        for do in todo:
            match do.verb:
                case "subscribe":
                    self._subscribe(do.partition)
                case "take":
                    self._to_take.put(do.partition)
                case "recover":
                    self._to_recover.put(do)
                case "serve":
                    self._requests[do.partition].open(has_died=not do.was_clean)
                case "evict":
                    self.nursery.start_soon(self._evict, do)
                case "drain":
                    self.nursery.start_soon(self._drain, do)
                case "give_back":
                    raise AssertionError("it is awaited where turns have ended")
                case "close_channel":
                    self._close(do.partition)

    def _subscribe(self, partition: int) -> None:
        self._close(partition)
        scope = self._subscriptions[partition] = trio.CancelScope()
        self.nursery.start_soon(self._wait_at, self._connection, partition, scope)

    async def _wait_at(self, connection: Connection, partition: int, scope: trio.CancelScope) -> None:
        """Take what the queue of a partition gives, as long as it is waited for."""
        queue = self._queue(partition)
        with scope, suppress(*BROKEN):
            channel = await connection.open_channel(prefetch=PREFETCH)
            try:
                if not await _count_consumers(channel, queue):  # what lies there may be requests alone
                    with suppress(Unroutable, NotConfirmed):  # it is full, or just deleted
                        await self._tokens.put(partition)
                take = partial(self._take_from, partition, scope)
                async with await channel.consume(queue.name, take=take) as consumer:
                    await consumer.wait_end()
            finally:
                with suppress(*BROKEN):
                    channel.close()
        if not scope.cancel_called:
            connection.lose(f"the queue {queue.name} gives nothing more")

    def _take_from(self, partition: int, scope: trio.CancelScope, delivery: Delivery) -> None:
        """Take what the queue of a partition gives, unless it is left."""
        if self._subscriptions.get(partition) is scope:
            self._read(delivery, partial(self._take_in, partition))
            self._handed_over(partition)

    def _handed_over(self, partition: int) -> None:
        """The broker has given something of a partition: the first of it says that no other node has it."""
        if self.ownership.state(partition) is PartitionState.STANDBY:
            self.figures.begin_takeover(partition, self._runtime.stream)
        self._act(self.ownership.delivered(partition))

    def _close(self, partition: int) -> None:
        scope = self._subscriptions.pop(partition, None)
        if scope is not None:
            scope.cancel()
        self._tokens.forget(partition)
        self._requests[partition].close()

    async def _take(self, partitions: Sequence[int]) -> None:
        """Take partitions that were handed over, in one statement."""
        wanted = set(partitions)
        try:
            taken = await self.journal.take(wanted)
        except (Fenced, JournalError) as error:
            _log.warning(
                "the database did not hand over %s: %s", counted(len(wanted), "partition"), Each(str(error))
            )
            self.figures.forget_takeovers(wanted)
            for partition in wanted:
                self._act(self.ownership.not_taken(partition))
            await trio.sleep(AGAIN)
            return
        for each in taken:
            if each.is_kept:
                self._note_kept(each.partition)
            else:
                self._note_taken(each)
            self.nursery.start_soon(self._tell_owner, each.partition, each.epoch)

    def _note_kept(self, partition: int) -> None:
        self.figures.forget_takeovers([partition])
        self._act(self.ownership.kept(partition))

    def _note_taken(self, taken: Taken) -> None:
        if not taken.was_clean:
            self.members.forget(taken.before)
        self._requests[taken.partition].note_before(taken.before)
        self.figures.note_taken(taken)
        self._act(self.ownership.taken(taken.partition, taken.epoch, was_clean=taken.was_clean))

    async def _tell_owner(self, partition: int, epoch: int) -> None:
        """Have all who read from a partition read again: what they were told before may be lost, also by us."""
        with suppress(*BROKEN, Unroutable, NotConfirmed):
            message = encode_message(OwnerChanged(partition=partition, epoch=epoch))
            await self.link.publish("", message, properties(), exchange=owner_exchange(self.pool))

    async def _recover(self, todo: Sequence[Do]) -> None:
        """Go on with what is unfinished in partitions that were taken; what may kill its process is found before."""
        while True:
            try:
                for was_clean in (True, False):
                    numbers = [do.partition for do in todo if do.was_clean is was_clean]
                    await self._quarantine.count(numbers, self._runtime.agents, have_died=not was_clean)
                break
            except JournalError as error:
                _log.warning("what is unfinished cannot be counted: %s", Each(str(error)))
                await trio.sleep(AGAIN)
        for do in todo:
            self._act(self.ownership.counted(do.partition, do.epoch))
        self.figures.end_takeovers({do.partition for do in todo}, self.name, self._runtime.stream)
        here = [do.partition for do in todo if self.ownership.has_sessions(do.partition, do.epoch)]
        self.nursery.start_soon(self._take_up, frozenset(here))

    async def _take_up(self, taken: frozenset[int]) -> None:
        while True:
            try:
                await self._runtime.take_up(
                    lambda session_id: self.journal.partition_of(session_id) in taken, choose=self._choose
                )
            except JournalError as error:
                _log.warning("what is unfinished is not taken up yet: %s", Each(str(error)))
                await trio.sleep(AGAIN)
            else:
                return

    async def _wait_judged(self, at: float) -> bool:
        """Find out whether a node has died not long before a time."""
        while (found := self.members.has_died(at, trio.current_time())) is None:  # noqa: ASYNC110 - as above
            await trio.sleep(EVERY / 2)
        return found

    async def _choose(self, keys: Sequence[SessionKey]) -> list[SessionKey]:
        return [each for each in keys if not self._quarantine.is_withheld(each.session_id)]

    def note_lost(self, lost: Mapping[int, int]) -> None:
        """Others have taken partitions of ours; their epochs that are over. A node that has ended has nothing to let go."""
        self.figures.lost += len(lost)
        for partition, epoch in lost.items() if self.nursery.child_tasks else ():
            self._act(self.ownership.fenced(partition, epoch))

    async def _evict(self, do: Do) -> None:
        """Let the sessions of a partition go without a word: they live elsewhere."""
        self._requests[do.partition].close()
        self.figures.evicted += await self._runtime.evict(partial(self._is_of, do.partition))
        await self._turns_ended(do)

    async def _drain(self, do: Do) -> None:
        """Let turns of a partition end, and the rest go: another node goes on with it."""
        requests, over = self._requests[do.partition], trio.current_time() + self._grace
        requests.hold()
        async with self._runtime.drain(partial(self._is_of, do.partition), grace=self._grace):
            with trio.move_on_at(over):
                await requests.wait_looked_at()
            await self._turns_ended(do)

    async def _turns_ended(self, do: Do) -> None:
        for each in self.ownership.turns_ended(do.partition, do.epoch):
            if each.verb == "give_back":
                await self._give_back(each)
            else:
                self._act([each])

    async def _give_back(self, do: Do) -> None:
        """Let others have a partition; they get it when the database knows that nothing was left in the middle."""
        while self.journal.owned.get(do.partition) == do.epoch:  # else another node has had it since
            try:
                await self.journal.give_back([do.partition])
            except Fenced:  # another node has it already
                break
            except JournalError as error:
                _log.warning("a partition is not given back yet: %s", Each(str(error)))
                await trio.sleep(AGAIN)
        self._act(self.ownership.given_back(do.partition, do.epoch))

    def _is_of(self, partition: int, session_id: str) -> bool:
        return self.journal.partition_of(session_id) == partition

    # --- what goes on ---------------------------------------------------------------------

    async def _beat(self) -> None:
        """Say that the node is there, again and again."""
        while True:
            await self.link.wait_up()
            with suppress(*BROKEN, Unroutable, NotConfirmed):
                await self._tell_beacon()
            await trio.sleep(EVERY)

    async def _tell_beacon(self) -> None:
        exchange = beacon_exchange(self.pool)
        about = properties(expiration="2000")
        await self.link.publish("", encode_message(self._beacon()), about, exchange=exchange)

    def _beacon(self) -> Beacon:
        statistics = self._runtime.statistics()
        return Beacon(
            node=self.name,
            owned=self.serving,
            is_leaving=self._is_leaving,
            release=RELEASE,
            reads=self.journal.reads,
            writes=self.journal.latest.writes,
            agents=tuple(each.agent for each in statistics),
            turns=sum(each.inbox.claimed for each in statistics),
        )

    async def _look(self) -> None:
        """Look who is there, and what is still ours, again and again."""
        while not len(self._runtime.agents) or self._runtime.agents.starting.blocks:  # noqa: ASYNC110 - as above
            await trio.sleep(LISTENING / 10)
        await trio.sleep(LISTENING)
        while True:
            if self.link.is_up:
                nodes = self.members.staying(trio.current_time())
                if not self._is_leaving:
                    nodes.add(self.name)
                self._act(self.ownership.look(assign_partitions(self.journal.count, nodes)))
                with suppress(*BROKEN, Unroutable, NotConfirmed):
                    await self._tokens.look((*self.serving, *self._unserved()))
            await self._look_at_layout()
            await trio.sleep(LOOK)

    def _unserved(self) -> list[int]:
        """The partitions that are waited for here, and of which no node says that it serves them: perhaps there is no token."""
        served = {
            each for beacon in self.members.known(trio.current_time()).values() for each in beacon.owned
        }
        waited = range(self.journal.count)
        return [
            each
            for each in waited
            if each not in served and self.ownership.state(each) is PartitionState.STANDBY
        ]

    async def _look_at_layout(self) -> None:
        """Find out what is still ours, and leave if this process has no place in the pool any more."""
        try:
            await self.journal.look()
        except JournalError as error:
            _log.warning("nobody knows which partitions are still ours: %s", Each(str(error)))
        now, reads = self.journal.latest, self.journal.reads
        if self._is_leaving or (now.generation == self.journal.layout.generation and now.writes <= reads):
            return
        _log.error(
            "the pool has %s by now and writes the form %d, of which this node reads up to %d: it leaves; start it again",
            counted(now.partitions, "partition"),
            now.writes,
            reads,
        )
        self._is_leaving = True
        self.nursery.start_soon(self.leave, LEAVING_GRACE)


async def _count_consumers(channel: Channel, form: QueueForm) -> int:
    """Have a queue, and find out how many wait at it."""
    declared = await channel.declare_queue(
        form.name,
        durable=form.durable,
        exclusive=form.exclusive,
        auto_delete=form.auto_delete,
        arguments=form.arguments,
    )
    return declared.consumer_count or 0
