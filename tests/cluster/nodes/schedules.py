"""Schedules of faults, drawn from seeds, with the client stories of `client_scenarios.py`.

A deed is an async function in `DEEDS` that injects a fault. It gets the `World`, one `Crew` and its own
random generator. A new story or deed changes the schedule of a seed, but not the random choices of the other
stories. `World.check` asserts the conditions that hold for each schedule.
"""

import random
import re
import signal
import traceback
from collections import Counter
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial

import attrs
import psycopg
import trio

from actgent import ActgentError, ConfigurationError, connect
from actgent.cluster.pool_operations import drain as drain_node, read_cluster_status, repartition
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.journal.session_list_queries import SessionFilter
from actgent.web.access_tokens import new_token, write_tokens
from tests.cluster.services import free_port
from tests.clusters import TOKEN, TOKENS

from .client_scenarios import STORIES
from .conversations import PATIENCE, open_nodes

LONG = 8.0
"""Seconds within which deeds begin."""
STORY_SECONDS = 2.0
"""Seconds between the beginnings of two stories of a chaos run."""
SHORT = 60
"""Maximum seconds of a chaos run that has only three deeds."""
STUCK = 300
"""Maximum seconds for each half of a story, on a loaded machine."""
SETTLED = 60
"""Seconds within which a cluster settles after the last fault."""
IDLE = """SELECT count(*) FROM pg_stat_activity
    WHERE state LIKE 'idle in transaction%' AND now() - state_change > interval '5 s'"""
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
TABLES = ("partitions", "nodes", "sessions", "steps", "pending_messages")
LOCKED = 12
"""Seconds for which a table is locked."""
DEEDS = {}


def deed(done):
    DEEDS[done.__name__] = done
    return done


# --- schedules ---------------------------------------------------------------------------


@attrs.frozen
class Schedule:
    """The stories and deeds that a seed draws."""

    seed: int
    nodes: tuple
    """Number of nodes of each pool."""
    stories: tuple
    """Pairs of a start time in seconds and a name, in order of time."""
    deeds: tuple
    """Pairs of a start time in seconds and a name, in order of time."""
    test: str = "test_each_accepted_message_ends_once_under_random_faults"
    """Name of the test that draws the schedule."""

    def __str__(self):
        deeds = "".join(f"\n  {at:5.2f} s  {name}" for at, name in self.deeds)
        return (
            f"seed {self.seed}: {self.nodes[0]} nodes and {self.nodes[1]} of another pool, stories {' '.join(name for _, name in self.stories)}; deeds{deeds}\n"
            f"again: ACTGENT_SEEDS={self.seed} .venv/bin/python -m pytest tests/cluster/nodes/test_schedules.py -k {self.test}"
        )

    def dice(self, *names):
        """Return the random generator of one story or deed."""
        return random.Random(f"{self.seed} {names}")


def draw(seed):
    """Draw the schedule of a seed: each story once, four more stories, and two to six deeds.

    Some deeds begin at nearly the same time.
    """
    dice = random.Random(seed)
    stories = [*STORIES, *dice.choices(list(STORIES), k=4)]
    dice.shuffle(stories)
    deeds = draw_deeds(dice, [dice.choice(list(DEEDS)) for _ in range(dice.randint(2, 6))], LONG)
    counts = dice.randint(2, 3), dice.randint(1, 2)
    return Schedule(seed, counts, tuple((0, name) for name in stories), deeds)


def draw_deeds(dice, names, seconds):
    """Draw a time within `seconds` for each deed; three of ten begin within half a second after another one."""
    times = []
    for _ in names:
        is_near = times and dice.random() < 0.3
        times.append(dice.choice(times) + dice.uniform(0, 0.5) if is_near else dice.uniform(0.3, seconds))
    return tuple(sorted((round(at, 2), name) for at, name in zip(times, names, strict=True)))


def draw_long(seed, seconds):
    """Draw the schedule of a chaos run: stories begin all the time, and each deed happens at least once.

    Deeds that stop all nodes to change the number of partitions are left out, because one node must survive
    the run.
    """
    dice = random.Random(f"long {seed}")
    stories = tuple(
        (each * STORY_SECONDS, dice.choice(list(STORIES))) for each in range(int(seconds / STORY_SECONDS))
    )
    possible = [name for name in DEEDS if not name.startswith("move_")]
    names = [*possible, *dice.choices(possible, k=int(seconds / 15)), "fail_over"]
    deeds = draw_deeds(dice, names if seconds > SHORT else dice.sample(possible, 3), seconds)
    return Schedule(seed, (3, 2), stories, deeds, "test_cluster_survives_a_chaos_run")


# --- the world ---------------------------------------------------------------------------


@attrs.define(eq=False)
class Crew:
    """The nodes of one pool, which start and end during a run."""

    nodes: object
    database: object
    """The server of the journal."""
    open_relay: object
    """Opens the two proxies of each node: one for its listener for other nodes, one for the database."""
    peers: list = attrs.field(factory=list)
    """Proxies in front of the nodes' listeners."""
    ways: list = attrs.field(factory=list)
    """Proxies in front of the database."""
    survivor: str = ""
    """Name of the node that no deed ends."""
    digger: str = "digger"
    """Name of the agent that gets tasks. An agent of a database belongs to one pool."""
    letter: str = "n"
    """First letter of the names of the nodes."""
    alive: list = attrs.field(factory=list)
    """Names of nodes that run or start."""
    _names: int = 0

    @property
    def cluster(self):
        return self.nodes.cluster

    @property
    def place(self):
        """The journal address and the pool, as arguments of cluster commands."""
        return self.cluster.journal, self.cluster.pool

    async def start(self, *options):
        """Start a node, and retry until it runs.

        Return its name, or None if a deed kills it during the start.
        """
        while True:
            self._names += 1
            name, port = f"{self.letter}{self._names}", free_port()
            self.peers.append(relay := await self.open_relay(port=port))
            self.ways.append(way := await self.open_relay(port=lambda: self.database.port))
            self.alive.append(name)
            try:
                journal = re.sub("@[^/]+/", f"@127.0.0.1:{way.port}/", self.cluster.journal)
                there = f"advertise=http://127.0.0.1:{port}", f"reached=http://127.0.0.1:{relay.port}"
                await self.nodes.start(name, *there, *options, journal=journal)
            except RuntimeError:  # it ended before it was ready
                if name not in self.alive:
                    return None
                self.alive.remove(name)
            else:
                return name
            await trio.sleep(0.5)

    def take(self, dice):
        """Remove a random node from `alive` and return its name. Return None if only the survivor is left."""
        names = [each for each in self.alive if each != self.survivor]
        if not names:
            return None
        self.alive.remove(name := dice.choice(names))
        return name

    def find_port(self):
        """Return the gateway port of a random node; 0 if no node runs."""
        return random.choice([self.nodes.ports.get(name, 0) for name in self.alive] or [0])

    async def ended(self, name):
        """Wait until the process of a node has ended."""
        with trio.fail_after(PATIENCE):
            while self.nodes.running[name].poll() is None:  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.05)

    async def tasks(self):
        """Return how often each text was accepted as a task by the diggers."""
        return await self.count_accepted(self.digger)

    async def count_accepted(self, agent):
        """Return how often each text was accepted as a message by the sessions of an agent."""
        async with open_journal(self.cluster.journal, read_only=True) as journal:
            found = await journal.page(SessionFilter(agent=agent), limit=1000)
            records = [await journal.load(each.session_id, agent=agent) for each in found]
        return Counter(
            each.message.text
            for record in records
            for each in record
            if isinstance(each, MessageAcceptedRecord)
        )


@attrs.define(eq=False)
class World:
    """Two pools in one database, their clients, and the observed failures.

    The first pool sends requests to the second.
    """

    database: object
    process_server: object
    crews: tuple
    """The crew of the pool that clients use, and the crew of the pool that receives its requests."""
    door: object
    """Proxy in front of a gateway of the first pool."""
    ways: tuple
    """Gateway addresses and further options of `connect`.

    The last entry has a token without the scope admin.
    """
    clients: tuple
    """One client for each entry of `ways`; a story gets two of them."""
    sessions: list = attrs.field(factory=list)
    """Sessions that must be usable at the end."""
    begun: float = attrs.field(factory=trio.current_time)
    serving: trio.Lock = attrs.field(factory=trio.Lock)
    """Serialises the deeds that kill a service or change the partitions."""

    failures: list = attrs.field(factory=list)
    """Pairs of the name of a story and an error."""

    @contextmanager
    def noting(self, name):
        """Record the error of a story, so that the other stories continue.

        A story that exceeds `STUCK` fails.
        """
        try:
            with trio.fail_after(STUCK):
                yield
        except (AssertionError, ActgentError, trio.TooSlowError, ExceptionGroup) as error:
            traceback.print_exc()
            self.failures.append((name, repr(error)))

    @property
    def cluster(self):
        return self.crews[0].cluster

    @property
    def clerk(self):
        return self.clients[0].agent("clerk")

    @property
    def diggers(self):
        """Names of the agents to which the clerk may delegate tasks, in this pool and the other one."""
        return "digger", f"miner@{self.crews[1].cluster.pool}"

    @property
    def calls(self):
        return self.crews[0].nodes.calls + self.crews[1].nodes.calls

    @property
    def effects(self):
        return self.crews[0].nodes.effects

    async def open(self, **options):
        """Create a session that must be usable at the end."""
        session = await self.clerk.create_session("ada", **options)
        self.sessions.append(session)
        return session

    async def end_of(self, session, message_id):
        """Return the outcome of a message: `("answered", text)` or `("failed", class)`."""
        try:
            return "answered", (await self.clerk.outcome(session, message_id)).text
        except ActgentError as error:
            return "failed", type(error).__name__

    async def mend(self):
        """Restart the database for the next test if an aborted deed left it stopped."""
        if not await self.database.answers():
            self.database.kill()
            await self.database.start()

    async def ask(self, sql):
        """Run a query against the database and return its rows."""
        return await trio.to_thread.run_sync(self._ask, sql)

    def _ask(self, sql):
        with psycopg.connect(self.database.url, autocommit=True) as database:
            return database.execute(sql).fetchall()

    async def check(self):
        """Assert the conditions that hold at the end of each schedule."""
        for session in self.sessions:
            assert (await self.clerk.run("last", session=session)).text == "you said: last", session.id
        assert {what: count for what, count in self.effects.items() if count > 1} == {}
        with trio.move_on_after(SETTLED):
            while await self._unrest():  # noqa: ASYNC110 - no event signals this state
                await trio.sleep(0.2)
        assert await self._unrest() == {}
        for crew in self.crews:
            assert await crew.nodes.count("dead") == 0
            tasks = await crew.tasks()
            assert {what: count for what, count in tasks.items() if count > 1} == {}

    async def _unrest(self):
        """Return the unfinished work.

        It consists of open transactions, partitions without a live owner, pending messages, suspects and open
        tasks.
        """
        found = {"idle in transaction": (await self.ask(IDLE))[0][0]}
        for crew in self.crews:
            place, schema = crew.cluster, crew.cluster.journal.partition("?schema=")[2]
            tasks = f"SELECT session_id FROM {schema}.sessions WHERE agent = '{crew.digger}' AND NOT closed"
            seen = await read_cluster_status(place.journal, place.pool)
            found |= {
                (place.pool, "unowned"): [
                    each for each in seen.partitions if each.owner.partition("-")[0] not in crew.alive
                ],
                (place.pool, "waiting"): [each for each in seen.partitions if each.pending],
                (place.pool, "suspects"): await crew.nodes.count("suspects"),
                (place.pool, "tasks"): await self.ask(tasks),
            }
        return {name: what for name, what in found.items() if what}


@asynccontextmanager
async def open_world(database, open_cluster, open_relay, process_server, tokens):
    """Yield a `World` without nodes.

    `process_server` starts processes, and `tokens` is the token file of the gateways.
    """
    token, known = new_token("t", owner="ada", scopes=("chat", "approve"))
    write_tokens(tokens, [known, *TOKENS])
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        near, far = [await enter(open_cluster(database.url)) for _ in range(2)]
        far.journal = near.journal  # pools that send requests to each other share a database and its schema

        async def serve_proxy(port, *, task_status):
            async with open_relay(port=port) as peer:
                task_status.started(peer)
                await trio.sleep_forever()

        proxies = await enter(trio.open_nursery())
        opened.callback(proxies.cancel_scope.cancel)

        async def open_proxy(*, port):
            return await proxies.start(serve_proxy, port)

        crews = [
            Crew(await enter(open_nodes(process_server, each)), database, open_proxy) for each in (near, far)
        ]
        crews[1].digger, crews[1].letter = "miner", "m"
        crews[0].nodes.options = (f"asks={far.pool}", f"tokens={tokens}", "awake=4")
        crews[1].nodes.options = ("awake=4", "mines")
        door = await enter(open_relay(port=crews[0].find_port))
        balanced = near.url, {"token": TOKEN}
        ways = balanced, balanced, (f"http://127.0.0.1:{door.port}", {"token": token})
        clients = [await enter(connect(url, retry_timeout=PATIENCE, **options)) for url, options in ways]
        yield World(database, process_server, tuple(crews), door, ways, tuple(clients))


async def live_through(world, schedule, *, has_survivor=False):
    """Run the stories during the deeds, and assert the final conditions.

    With `has_survivor`, no deed ends the first node of the first pool.
    """
    async with trio.open_nursery() as nursery:
        for crew, count in zip(world.crews, schedule.nodes, strict=True):
            for _ in range(count):
                nursery.start_soon(crew.start)
    world.begun = trio.current_time()
    if has_survivor:
        world.crews[0].survivor = world.crews[0].alive[0]
    are_over = trio.Event()
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as during:
            for number, (at, name) in enumerate(schedule.stories):
                dice = schedule.dice("story", number)
                await nursery.start(_tell, world, (at, name), dice, during, are_over)
            for number, (at, name) in enumerate(schedule.deeds):
                during.start_soon(_run_deed, world, at, name, schedule.dice("deed", number))
        for crew in world.crews:
            if not crew.alive:
                await crew.start()
        are_over.set()
    await world.check()
    assert world.failures == []


async def _tell(world, planned, dice, during, are_over, *, task_status):
    """Run a story to its `yield` in the nursery `during`, and the rest after the event `are_over`."""
    at, name = planned
    done, tellers = trio.Event(), dice.sample(world.clients, 2)
    async with aclosing(STORIES[name](attrs.evolve(world, clients=tellers), dice)) as telling:

        async def begin():
            await trio.sleep_until(world.begun + at)
            with world.noting(name):
                await anext(telling)
            print(f"{trio.current_time() - world.begun:5.2f} s  {name} told")  # noqa: T201 - shown if the test fails
            done.set()

        during.start_soon(begin)
        task_status.started()
        await are_over.wait()
        await done.wait()
        with suppress(StopAsyncIteration), world.noting(name):
            await anext(telling)


async def _run_deed(world, at, name, dice):
    await trio.sleep(at)
    (crew,) = dice.choices(world.crews, (3, 1))
    print(f"{trio.current_time() - world.begun:5.2f} s  {name} {crew.cluster.pool}: {crew.alive}")  # noqa: T201 - shown if the test fails
    await (fail_over if name == "fail_over" else DEEDS[name])(world, crew, dice)


# --- deeds -------------------------------------------------------------------------------


@deed
async def kill(world, crew, dice):
    if (name := crew.take(dice)) is not None:
        crew.nodes.kill(name)
    await trio.sleep(dice.uniform(0, 2))
    await crew.start()


@deed
async def kill_the_next(world, crew, dice):
    """The node that acquires the partitions of a killed node is killed as soon as it owns one."""
    if (name := crew.take(dice)) is not None:
        crew.nodes.kill(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crew.start)
            with trio.move_on_after(LONG), suppress(psycopg.OperationalError):
                owned = f"partitions WHERE owner LIKE '{name}-%'"
                before = await crew.nodes.count(owned)
                while before and await crew.nodes.count(owned) == before:  # noqa: ASYNC110 - no event signals this state
                    await trio.sleep(0.02)
        await kill(world, crew, dice)


@deed
async def hang(world, crew, dice):
    if crew.alive:
        name = dice.choice(crew.alive)
        crew.nodes.kill(name, signal.SIGSTOP)
        await trio.sleep(dice.choice((dice.uniform(1, 8), dice.uniform(8, 30))))
        crew.nodes.kill(name, signal.SIGCONT)


@deed
async def leave(world, crew, dice):
    if (name := crew.take(dice)) is not None:
        crew.nodes.kill(name, signal.SIGTERM)
        await crew.start()
        await crew.ended(name)


@deed
async def drain(world, crew, dice, *, may_die=True):
    """A node hands over its partitions, and may be killed meanwhile."""
    if (name := crew.take(dice)) is None:
        return
    is_killed = may_die and dice.random() < 0.5

    async def hand_over():
        await drain_node(*crew.place, name)

    with suppress(ActgentError):  # the node is killed or hangs, or the database does not answer
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
    """All connections of the nodes of a pool to the database break."""
    for relay in crew.ways:
        relay.cut()
    await trio.lowlevel.checkpoint()


@deed
async def cut_peers(world, crew, _):
    """All connections between the nodes of a pool break."""
    for relay in crew.peers:
        relay.cut()
    await trio.lowlevel.checkpoint()


@deed
async def hold_peers(world, crew, dice):
    """Data between nodes of a pool does not arrive for a while.

    Connections stay open, and no end is notified.
    """
    await hold(crew.peers, dice)


@deed
async def hold_peers_in_one_direction(world, crew, dice):
    """Data between nodes of a pool arrives in one direction only: the requests, or the responses."""
    requests = dice.random() < 0.5
    await hold(crew.peers, dice, requests=requests, answers=not requests)


@deed
async def hold_database(world, crew, dice):
    """One node of a pool loses the network to the database for a while.

    Connections stay open, and no end is notified.
    """
    await hold([dice.choice(crew.ways)] if crew.ways else [], dice)


@deed
async def hold_database_in_one_direction(world, crew, dice):
    """Data between the nodes of a pool and the database arrives in one direction only: statements, or responses."""
    requests = dice.random() < 0.5
    await hold(crew.ways, dice, requests=requests, answers=not requests)


async def hold(relays, dice, **directions):
    held = tuple(relays)
    for relay in held:
        relay.hold(**directions)
    await trio.sleep(dice.uniform(1, 8))
    for relay in held:
        relay.release()


@deed
async def lock_table(world, crew, dice):
    """A transaction locks a table of the journal."""
    table = f"{crew.cluster.journal.partition('?schema=')[2]}.{dice.choice(TABLES)}"
    # The database is stopped or ends the connection, or its standby is not promoted yet.
    with suppress(psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction):
        connection = await trio.to_thread.run_sync(psycopg.connect, world.database.url)
        try:
            await trio.to_thread.run_sync(connection.execute, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
            await trio.sleep(LOCKED)
        finally:
            connection.close()


@deed
async def kill_most(world, crew, dice):
    """Seventy percent of the nodes are killed at once."""
    for each in world.crews:
        for _ in range(round(len(each.alive) * 0.7)):
            if (name := each.take(dice)) is not None:
                each.nodes.kill(name)
    await trio.sleep(dice.uniform(0, 2))
    async with trio.open_nursery() as nursery:
        for each in world.crews:
            for _ in range(2):
                nursery.start_soon(each.start)


@deed
async def set_clock_wrong(world, crew, dice):
    """A node is replaced by a node whose clock is wrong by an hour."""
    await replace(crew, dice, f"clock={dice.choice((3600, -3600))}")


@deed
async def upgrade(world, crew, dice):
    """A node is replaced by a node with another release of the agent."""
    await replace(crew, dice, "code=2")


@deed
async def add_agent(world, crew, dice):
    """A node with one more agent starts, gets all partitions, and leaves again."""
    if (name := await crew.start("adds")) is not None:
        await trio.sleep(dice.uniform(3, 8))
        if name in crew.alive:
            crew.alive.remove(name)
            crew.nodes.kill(name, signal.SIGTERM)
            await crew.ended(name)


async def replace(crew, dice, *options):
    """Start a node with options, and make another node leave."""
    name = crew.take(dice)
    await crew.start(*options)
    if name is not None:
        crew.nodes.kill(name, signal.SIGTERM)
        await crew.ended(name)


async def fail_over(world, crew, dice):
    """The primary server of the database is lost, and its synchronous standby is promoted."""
    async with world.serving:
        await world.database.fail_over(dice.uniform(0, 3))


@deed
async def terminate_backends(world, crew, _):
    with suppress(psycopg.OperationalError):  # the database is stopped
        await world.ask(TERMINATE)


@deed
async def restart_database(world, crew, dice):
    async with world.serving:
        world.database.kill()
        await trio.sleep(dice.uniform(0, 2))
        await world.database.start()


@deed
async def move_partitions(world, crew, dice):
    """All nodes leave, and the number of partitions changes.

    If another node starts meanwhile, the change is rejected and has no effect.
    """
    async with world.serving:
        left = [crew.take(dice) for _ in tuple(crew.alive)]
        for name in left:
            crew.nodes.kill(name, signal.SIGCONT)
            crew.nodes.kill(name, signal.SIGTERM)
        for name in left:
            await crew.ended(name)
        with suppress(ConfigurationError):
            await repartition(*crew.place, dice.choice((16, 64, 256)))
    async with trio.open_nursery() as nursery:
        for _ in left:
            nursery.start_soon(crew.start)


@deed
async def move_beside_drains(world, crew, dice):
    """An operator repeatedly starts and aborts a change of the partitions while nodes drain and other nodes start."""
    partitions, left = dice.choice((16, 64, 256)), tuple(crew.alive)

    async def move():
        for number in range(30):
            pause = dice.uniform(0.5, 5) if number < 3 else PATIENCE
            with (
                suppress(ActgentError),
                trio.move_on_after(pause),
            ):  # a node still runs, or the database does not answer
                await repartition(*crew.place, partitions)
                break
            await trio.sleep(0.2)

    async with world.serving, trio.open_nursery() as nursery:
        for _ in left:
            nursery.start_soon(partial(drain, world, crew, dice, may_die=False))
        nursery.start_soon(move)


@deed
async def cut_door(world, crew, _):
    """All connections to gateways break."""
    world.door.cut()
    await trio.lowlevel.checkpoint()
