"""Schedules of disasters, drawn from seeds: `stories.py` that clients live through, and deeds that befall their cluster meanwhile.

A deed is an async function in `DEEDS`. It gets the `World`, one of its `Crew`s and dice of its own; so a new story or deed changes
what a seed draws, but not what it does with it. `World.check` holds what is to be so whatever was drawn.
"""

import random
import signal
import subprocess
from collections import Counter
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial

import attrs
import psycopg
import trio

from actgent import ActgentError, ConfigurationError, connect
from actgent.cluster.operations.changing import repartition
from actgent.cluster.operations.watching import look_at_cluster, open_cluster_watch
from actgent.journal.listing import SessionFilter
from actgent.journal.opening import open_journal
from actgent.journal.records import Accepted
from actgent.web.tokens import new_token, write_tokens

from .stories import STORIES
from .talks import PATIENCE, open_nodes

LONG = 8.0
"""Seconds within which deeds begin."""
SETTLED = 60
"""Seconds for a cluster to come to rest when nothing befalls it any more."""
IDLE = """SELECT count(*) FROM pg_stat_activity
    WHERE state LIKE 'idle in transaction%' AND now() - state_change > interval '5 s'"""
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
DEEDS = {}


def deed(done):
    DEEDS[done.__name__] = done
    return done


# --- what is drawn -----------------------------------------------------------------------


@attrs.frozen
class Schedule:
    """What a seed draws."""

    seed: int
    nodes: tuple
    """How many of each pool."""
    stories: tuple
    """Names."""
    deeds: tuple
    """Pairs of a time and a name, the first first."""

    def __str__(self):
        deeds = "".join(f"\n  {at:5.2f} s  {name}" for at, name in self.deeds)
        return (
            f"seed {self.seed}: {self.nodes[0]} nodes and {self.nodes[1]} of another pool, stories {' '.join(self.stories)}; deeds{deeds}\n"
            f"again: ACTGENT_SEEDS={self.seed} .venv/bin/python -m pytest tests/cluster/nodes/test_schedules.py"
        )

    def dice(self, *names):
        """Dice of one story or deed."""
        return random.Random(f"{self.seed} {names}")


def draw(seed):
    """The schedule of a seed: each story once and some twice, and two to six deeds, of which some begin at once."""
    dice = random.Random(seed)
    stories = [*STORIES, *dice.choices(list(STORIES), k=4)]
    dice.shuffle(stories)
    times = []
    for _ in range(dice.randint(2, 6)):
        is_beside = times and dice.random() < 0.3
        times.append(times[-1] + dice.uniform(0, 0.5) if is_beside else dice.uniform(0.3, LONG))
    deeds = sorted((round(at, 2), dice.choice(list(DEEDS))) for at in times)
    return Schedule(seed, (dice.randint(2, 3), dice.randint(1, 2)), tuple(stories), tuple(deeds))


# --- where it happens --------------------------------------------------------------------


@attrs.define(eq=False)
class Crew:
    """The nodes of a pool, which come and go."""

    nodes: object
    broker: str
    """The address at which they find it."""
    alive: list = attrs.field(factory=list)
    """Names of nodes that are there, or start."""
    _names: int = 0

    @property
    def cluster(self):
        return self.nodes.cluster

    @property
    def place(self):
        """As commands of a cluster are told it."""
        return self.cluster.journal, self.cluster.broker, self.cluster.pool

    async def start(self):
        """Start a node, again and again until it runs, as whoever looks after it would; unless it is killed meanwhile."""
        while True:
            self._names += 1
            name = f"n{self._names}"
            self.alive.append(name)
            try:
                return await self.nodes.start(name, broker=self.broker)
            except RuntimeError:  # it ended before it was ready
                if name not in self.alive:
                    return None
                self.alive.remove(name)
            await trio.sleep(0.5)

    def take(self, dice):
        """A node that is there, which is no more from now on; None if none is."""
        return self.alive.pop(dice.randrange(len(self.alive))) if self.alive else None

    def find_port(self):
        """Of the gateway of some node; 0 where none has one."""
        return random.choice([self.nodes.ports.get(name, 0) for name in self.alive] or [0])

    async def ended(self, name):
        """Wait until the process of a node has ended."""
        with trio.fail_after(PATIENCE):
            while self.nodes.running[name].poll() is None:  # noqa: ASYNC110 - it is asked
                await trio.sleep(0.05)

    async def tasks(self):
        """What its diggers were told, each as often as a session was."""
        async with open_journal(self.cluster.journal, read_only=True) as journal:
            found = await journal.page(SessionFilter(agent="digger"), limit=1000)
            records = [await journal.load(each.session_id, agent="digger") for each in found]
        return Counter(
            each.message.text for record in records for each in record if isinstance(each, Accepted)
        )


@attrs.define(eq=False)
class Doorkeeper:
    """A gateway in a process without agents, before a pool."""

    commands: object
    words: tuple
    """Of its command, but where it listens."""
    port: int = 0
    """0 while none is there."""
    process: object = None

    async def start(self):
        """Start it, again and again until it listens."""
        while not self.port:
            self.process = self.commands.popen(
                ["actgent", "serve", "--bind", "127.0.0.1:0", *self.words], stdout=subprocess.PIPE
            )
            line = await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True)
            if line:  # the agents of pool POOL at http://127.0.0.1:PORT/v1; Ctrl-C ends it
                self.port = int(line.partition(b"/v1;")[0].rpartition(b":")[2])
            else:
                await self.end(signal.SIGKILL)
                await trio.sleep(0.5)

    async def end(self, number):
        """Have its process end by a signal."""
        self.port = 0
        self.process.send_signal(number)
        await trio.to_thread.run_sync(self.process.wait)
        self.process.stdout.close()


@attrs.define(eq=False)
class World:
    """Two pools with services of their own, of which one asks the other, those who talk to them, and what was seen."""

    services: tuple
    relay: object
    """The way of all nodes to their broker."""
    lives: object
    crews: tuple
    """Of the pool that is talked to, and of the one that it asks."""
    door: object
    """The way to some gateway."""
    doorkeeper: Doorkeeper
    ways: tuple
    """Addresses for clients, and further options of `connect`; the last one is a gateway's."""
    clients: tuple
    """One for each way, and in a story two that tell it."""
    sessions: list = attrs.field(factory=list)
    """Those that are to be usable at the end."""
    begun: float = attrs.field(factory=trio.current_time)
    serving: trio.Lock = attrs.field(factory=trio.Lock)
    """Of who kills a service or moves partitions: of these one is done at a time."""

    @property
    def cluster(self):
        return self.crews[0].cluster

    @property
    def clerk(self):
        return self.clients[0].agent("clerk")

    @property
    def diggers(self):
        """Names of agents whom the clerk may give tasks, here and in the other pool."""
        return "digger", f"digger@{self.crews[1].cluster.pool}"

    @property
    def calls(self):
        return self.crews[0].nodes.calls + self.crews[1].nodes.calls

    @property
    def effects(self):
        return self.crews[0].nodes.effects

    async def open(self, **options):
        """A new session, which is to be usable at the end."""
        session = await self.clerk.create_session("ada", **options)
        self.sessions.append(session)
        return session

    async def end_of(self, session, message_id):
        """What came of a message: `("answered", text)`, or `("failed", class)`."""
        try:
            return "answered", (await self.clerk.outcome(session, message_id)).text
        except ActgentError as error:
            return "failed", type(error).__name__

    async def mend(self):
        """Have both services there, for whoever comes next, where a deed was broken off."""
        for service in self.services:
            if not await service.answers():
                service.kill()
                await service.start()

    async def ask(self, sql):
        """What the database says."""
        return await trio.to_thread.run_sync(self._ask, sql)

    def _ask(self, sql):
        with psycopg.connect(self.services[1].url, autocommit=True) as database:
            return database.execute(sql).fetchall()

    async def check(self):
        """What is to be so at the end, whatever was drawn."""
        for session in self.sessions:
            assert (await self.clerk.run("last", session=session)).text == "you said: last", session.id
        assert {what: count for what, count in self.effects.items() if count > 1} == {}
        with trio.move_on_after(SETTLED):
            while await self._unrest():  # noqa: ASYNC110 - it is asked
                await trio.sleep(0.2)
        assert await self._unrest() == {}
        for crew in self.crews:
            assert await crew.nodes.count("dead") == 0
            tasks = await crew.tasks()
            assert {what: count for what, count in tasks.items() if count > 1} == {}

    async def _unrest(self):
        """What is not at rest: partitions without a node that is there, what waits at the broker, who is suspected, tasks."""
        found = {"idle in transaction": (await self.ask(IDLE))[0][0]}
        for crew in self.crews:
            place, schema = crew.cluster, crew.cluster.pool.replace("-", "_")
            owners = await self.ask(f"SELECT p, owner FROM {schema}.partitions")
            tasks = f"SELECT session_id FROM {schema}.sessions WHERE agent LIKE 'digger%' AND NOT closed"
            seen = await look_at_cluster(place.broker, place.journal, place.pool)
            found |= {
                (place.pool, "unowned"): [
                    each for each in owners if each[1].partition("-")[0] not in crew.alive
                ],
                (place.pool, "waiting"): [each for each in seen.partitions if each.waiting],
                (place.pool, "suspects"): await crew.nodes.count("suspects"),
                (place.pool, "tasks"): await self.ask(tasks),
            }
        return {name: what for name, what in found.items() if what}


@asynccontextmanager
async def open_world(services, open_cluster, open_relay, processes, tokens):
    """A `World` without nodes; `processes` start nodes and commands, and `tokens` is the file of a gateway's."""
    broker, database = services
    token, known = new_token("t", owner="ada", scopes=("chat", "approve"))
    write_tokens(tokens, [known])
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        relay = await enter(open_relay(port=broker.port))
        near, far = [await enter(open_cluster(database.url, broker.url)) for _ in range(2)]
        crews = [Crew(await enter(open_nodes(processes[0], each)), relay.url) for each in (near, far)]
        crews[0].nodes.options = (f"asks={far.pool}", f"tokens={tokens}", "awake=4")
        crews[1].nodes.options = ("awake=4",)
        words = ("--broker", relay.url, "--pool", near.pool, "--tokens", tokens, "--host", "127.0.0.1")
        doorkeeper = Doorkeeper(processes[1], words)
        opened.push_async_callback(doorkeeper.end, signal.SIGKILL)

        def find_port():
            return random.choice((crews[0].find_port(), doorkeeper.port))

        door = await enter(open_relay(port=find_port))
        by_broker = near.broker, {"pool": near.pool, "name": "tests"}
        ways = by_broker, by_broker, (f"http://127.0.0.1:{door.port}", {"token": token})
        clients = [await enter(connect(url, patience=PATIENCE, **options)) for url, options in ways]
        yield World(services, relay, processes[0], tuple(crews), door, doorkeeper, ways, tuple(clients))


async def live_through(world, schedule):
    """Tell the stories while the deeds are done; then all that is to be so is."""
    async with trio.open_nursery() as nursery:
        for crew, count in zip(world.crews, schedule.nodes, strict=True):
            for _ in range(count):
                nursery.start_soon(crew.start)
        nursery.start_soon(world.doorkeeper.start)
    are_over = trio.Event()
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as during:
            for number, name in enumerate(schedule.stories):
                await nursery.start(_tell, world, name, schedule.dice("story", number), during, are_over)
            for number, (at, name) in enumerate(schedule.deeds):
                during.start_soon(_befall, world, at, name, schedule.dice("deed", number))
        for crew in world.crews:
            if not crew.alive:
                await crew.start()
        are_over.set()
    await world.check()


async def _tell(world, name, dice, during, are_over, *, task_status):
    """Tell a story to its `yield` in the nursery `during`, and the rest once all `are_over`."""
    done, tellers = trio.Event(), dice.sample(world.clients, 2)
    async with aclosing(STORIES[name](attrs.evolve(world, clients=tellers), dice)) as telling:

        async def begin():
            await anext(telling)
            print(f"{trio.current_time() - world.begun:5.2f} s  {name} told")  # noqa: T201 - shown where it fails
            done.set()

        during.start_soon(begin)
        task_status.started()
        await are_over.wait()
        await done.wait()
        with suppress(StopAsyncIteration):
            await anext(telling)


async def _befall(world, at, name, dice):
    await trio.sleep(at)
    (crew,) = dice.choices(world.crews, (3, 1))
    print(f"{trio.current_time() - world.begun:5.2f} s  {name} {crew.cluster.pool}: {crew.alive}")  # noqa: T201 - shown where it fails
    await DEEDS[name](world, crew, dice)


# --- deeds -------------------------------------------------------------------------------


@deed
async def kill(world, crew, dice):
    if (name := crew.take(dice)) is not None:
        crew.nodes.kill(name)
    await trio.sleep(dice.uniform(0, 2))
    await crew.start()


@deed
async def kill_the_next(world, crew, dice):
    """The node that takes over is killed as soon as it has something."""
    if (name := crew.take(dice)) is not None:
        crew.nodes.kill(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crew.start)
            with trio.move_on_after(LONG), suppress(psycopg.OperationalError):
                owned = f"partitions WHERE owner LIKE '{name}-%'"
                before = await crew.nodes.count(owned)
                while before and await crew.nodes.count(owned) == before:  # noqa: ASYNC110 - it is asked
                    await trio.sleep(0.02)
        await kill(world, crew, dice)


@deed
async def hang(world, crew, dice):
    if crew.alive:
        name = dice.choice(crew.alive)
        crew.nodes.kill(name, signal.SIGSTOP)
        await trio.sleep(dice.uniform(1, 8))
        crew.nodes.kill(name, signal.SIGCONT)


@deed
async def leave(world, crew, dice):
    if (name := crew.take(dice)) is not None:
        crew.nodes.kill(name, signal.SIGTERM)
        await crew.start()
        await crew.ended(name)


@deed
async def drain(world, crew, dice, *, may_die=True):
    """A node hands over what it has, and may be killed while it does."""
    if (name := crew.take(dice)) is None:
        return
    is_killed = may_die and dice.random() < 0.5

    async def hand_over():
        async with open_cluster_watch(crew.cluster.broker, crew.cluster.pool) as watch:
            await watch.drain(name)

    with suppress(
        ActgentError
    ):  # it is killed, or hangs, or the broker is not there: whoever drains it tries again
        if not is_killed:
            await hand_over()
        else:
            with trio.move_on_after(1 + dice.uniform(0, 1)):
                await hand_over()
    crew.nodes.kill(name, signal.SIGKILL if is_killed else signal.SIGTERM)
    await crew.start()


@deed
async def join(world, crew, _):
    await crew.start()


@deed
async def cut(world, crew, _):
    """All connections of nodes to the broker break."""
    world.relay.cut()
    await trio.lowlevel.checkpoint()


@deed
async def restart_broker(world, crew, _):
    async with world.serving:
        world.services[0].kill()
        await world.services[0].start()


@deed
async def terminate_backends(world, crew, _):
    with suppress(psycopg.OperationalError):  # the database is not there
        await world.ask(TERMINATE)


@deed
async def restart_database(world, crew, dice):
    async with world.serving:
        world.services[1].kill()
        await trio.sleep(dice.uniform(0, 2))
        await world.services[1].start()


@deed
async def move_partitions(world, crew, dice):
    """All nodes leave for another number of partitions; where one comes beside it, it is refused and nothing is changed."""
    async with world.serving:
        left = [crew.take(dice) for _ in tuple(crew.alive)]
        for name in left:
            crew.nodes.kill(name, signal.SIGCONT)
            crew.nodes.kill(name, signal.SIGTERM)
        for name in left:
            await crew.ended(name)
        with suppress(ConfigurationError):
            await repartition(*crew.place, dice.choice((16, 32, 64)))
    async with trio.open_nursery() as nursery:
        for _ in left:
            nursery.start_soon(crew.start)


@deed
async def move_beside_drains(world, crew, dice):
    """Somebody says again and again that there are to be other partitions, and breaks off, while the nodes are drained, and others come."""
    partitions, left = dice.choice((16, 32, 64)), tuple(crew.alive)

    async def move():
        for number in range(30):
            pause = dice.uniform(0.5, 5) if number < 3 else PATIENCE
            with suppress(ActgentError), trio.move_on_after(pause):  # some node is there, or nothing answers
                await repartition(*crew.place, partitions)
                break
            await trio.sleep(0.2)

    async with world.serving, trio.open_nursery() as nursery:
        for _ in left:
            nursery.start_soon(partial(drain, world, crew, dice, may_die=False))
        nursery.start_soon(move)


@deed
async def kill_gateway(world, crew, dice):
    """It takes what it was asked with it; or it tells streams that it ends."""
    if world.doorkeeper.port:
        await world.doorkeeper.end(dice.choice((signal.SIGKILL, signal.SIGTERM)))
        await trio.sleep(dice.uniform(0, 2))
        await world.doorkeeper.start()


@deed
async def hang_gateway(world, crew, dice):
    process = world.doorkeeper.process
    process.send_signal(signal.SIGSTOP)
    await trio.sleep(dice.uniform(1, 8))
    process.send_signal(signal.SIGCONT)


@deed
async def cut_door(world, crew, _):
    """All connections to gateways break."""
    world.door.cut()
    await trio.lowlevel.checkpoint()
