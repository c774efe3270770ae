"""Schedules of disasters, drawn from seeds: stories that clients live through, and deeds that befall their cluster meanwhile.

A story is an async generator in `STORIES`: what it does up to its `yield` is done beside the deeds, what stands behind it is what
is to be so when all is over. A deed is an async function in `DEEDS`. Both get the `World` and dice of their own, so that a new
one changes what a seed draws, but not what it does with it. `World.check` holds what is to be so whatever was drawn.
"""

import random
import signal
import subprocess
import sys
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import psycopg
import trio

from actgent import (
    ActgentError,
    AlreadyDecided,
    ApprovalNotFound,
    Approve,
    ConfigurationError,
    LimitReached,
    Limits,
    NotSuspended,
    Reject,
    SessionClosed,
)
from actgent.cluster.operations.changing import repartition
from actgent.cluster.operations.watching import look_at_cluster, open_cluster_watch

from .talks import PATIENCE, hear_process

VISITOR = Path(__file__).with_name("visitor.py")
LONG = 8.0
"""Seconds within which deeds begin."""
SETTLED = 60
"""Seconds for a cluster to come to rest when nothing befalls it any more."""
IDLE = """SELECT count(*) FROM pg_stat_activity
    WHERE state LIKE 'idle in transaction%' AND now() - state_change > interval '5 s'"""
TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
STORIES, DEEDS = {}, {}


def story(told):
    STORIES[told.__name__] = told
    return told


def deed(done):
    DEEDS[done.__name__] = done
    return done


# --- what is drawn -----------------------------------------------------------------------


@attrs.frozen
class Schedule:
    """What a seed draws."""

    seed: int
    nodes: int
    stories: tuple
    """Names."""
    deeds: tuple
    """Pairs of a time and a name, the first first."""

    def __str__(self):
        deeds = "".join(f"\n  {at:5.2f} s  {name}" for at, name in self.deeds)
        return (
            f"seed {self.seed}: {self.nodes} nodes, stories {' '.join(self.stories)}; deeds{deeds}\n"
            f"again: ACTGENT_SEEDS={self.seed} .venv/bin/python -m pytest tests/cluster/nodes/test_schedules.py"
        )

    def dice(self, *names):
        """Dice of one story or deed."""
        return random.Random(f"{self.seed} {names}")


def draw(seed):
    """The schedule of a seed: each story once and some twice, and two to five deeds, of which some begin at once."""
    dice = random.Random(seed)
    stories = [*STORIES, *dice.choices(list(STORIES), k=4)]
    dice.shuffle(stories)
    times = []
    for _ in range(dice.randint(2, 5)):
        is_beside = times and dice.random() < 0.3
        times.append(times[-1] + dice.uniform(0, 0.5) if is_beside else dice.uniform(0.3, LONG))
    deeds = sorted((round(at, 2), dice.choice(list(DEEDS))) for at in times)
    return Schedule(seed, dice.randint(2, 3), tuple(stories), tuple(deeds))


# --- where it happens --------------------------------------------------------------------


@attrs.define(eq=False)
class World:
    """A cluster with services of its own, those who talk to it, and what was seen."""

    nodes: object
    services: tuple
    relay: object
    """The way of the nodes to their broker."""
    clients: tuple
    alive: list = attrs.field(factory=list)
    """Names of nodes that are there, or start."""
    sessions: list = attrs.field(factory=list)
    """Those that are to be usable at the end."""
    serving: trio.Lock = attrs.field(factory=trio.Lock)
    """Of who kills a service or moves partitions: of these one is done at a time."""
    _names: int = 0

    @property
    def cluster(self):
        return self.nodes.cluster

    @property
    def clerk(self):
        return self.clients[0].agent("clerk")

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

    async def start(self):
        """Start a node, again and again until it runs, as whoever looks after it would; unless it is killed meanwhile."""
        address = f"amqp://guest:guest@127.0.0.1:{self.relay.port}/"
        while True:
            self._names += 1
            name = f"n{self._names}"
            self.alive.append(name)
            try:
                return await self.nodes.start(name, broker=address)
            except RuntimeError:  # it ended before it was ready
                if name not in self.alive:
                    return None
                self.alive.remove(name)
            await trio.sleep(0.5)

    def take(self, dice):
        """A node that is there, which is no more from now on; None if none is."""
        return self.alive.pop(dice.randrange(len(self.alive))) if self.alive else None

    async def ended(self, name):
        """Wait until the process of a node has ended."""
        with trio.fail_after(PATIENCE):
            while self.nodes.running[name].poll() is None:  # noqa: ASYNC110 - it is asked
                await trio.sleep(0.05)

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
        assert {what: count for what, count in self.nodes.effects.items() if count > 1} == {}
        with trio.move_on_after(SETTLED):
            while await self._unrest():  # noqa: ASYNC110 - it is asked
                await trio.sleep(0.2)
        assert await self._unrest() == {}
        assert await self.nodes.count("dead") == 0

    async def _unrest(self):
        """What is not at rest: partitions without a node that is there, what waits at the broker, who is suspected."""
        schema = self.cluster.pool.replace("-", "_")
        owners = await self.ask(f"SELECT p, owner FROM {schema}.partitions")
        seen = await look_at_cluster(self.cluster.broker, self.cluster.journal, self.cluster.pool)
        found = {
            "unowned": [each for each in owners if each[1].partition("-")[0] not in self.alive],
            "waiting": [each for each in seen.partitions if each.waiting],
            "suspects": await self.nodes.count("suspects"),
            "idle in transaction": (await self.ask(IDLE))[0][0],
        }
        return {name: what for name, what in found.items() if what}


@asynccontextmanager
async def open_world(nodes, services, relay):
    """A `World` without nodes."""
    connect = partial(nodes.cluster.connect, patience=PATIENCE)
    async with connect() as one, connect() as other:
        yield World(nodes, services, relay, (one, other))


async def live_through(world, schedule):
    """Tell the stories while the deeds are done; then all that is to be so is."""
    async with trio.open_nursery() as nursery:
        for _ in range(schedule.nodes):
            nursery.start_soon(world.start)
    are_over = trio.Event()
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as during:
            for number, name in enumerate(schedule.stories):
                await nursery.start(_tell, world, name, schedule.dice("story", number), during, are_over)
            for number, (at, name) in enumerate(schedule.deeds):
                during.start_soon(_befall, world, at, name, schedule.dice("deed", number))
        if not world.alive:
            await world.start()
        are_over.set()
    await world.check()


async def _tell(world, name, dice, during, are_over, *, task_status):
    """Tell a story to its `yield` in the nursery `during`, and the rest once all `are_over`."""
    done = trio.Event()
    async with aclosing(STORIES[name](world, dice)) as telling:

        async def begin():
            await anext(telling)
            done.set()

        during.start_soon(begin)
        task_status.started()
        await are_over.wait()
        await done.wait()
        with suppress(StopAsyncIteration):
            await anext(telling)


async def _befall(world, at, name, dice):
    await trio.sleep(at)
    await DEEDS[name](world, dice)


# --- stories -----------------------------------------------------------------------------


def said(history, kind):
    return [each.text for each in history if each.sender.kind == kind]


async def asked(question):
    """Ask until there is an answer that says something; that."""
    while not (found := await question()):  # noqa: ASYNC110 - it is asked
        await trio.sleep(0.2)
    return found


def errors(history):
    """What went wrong with tools, None where nothing did."""
    return [result.error for each in history for result in each.tool_results]


@story
async def talk(world, dice):
    """Each message is answered once, in order, for who hears and in the journal, though it is said twice."""
    session, heard = await world.open(), []
    session.on_conversation(lambda reply: heard.append(reply.text))
    words = [f"{session.id}-{number}" for number in range(8)]
    for each in words:
        for _ in range(dice.randint(1, 2)):
            await session.chat(each, message_id=each)
        await trio.sleep(dice.uniform(0, 1))
    yield
    await session.wait_idle()
    history, answers = await session.history(), [f"you said: {each}" for each in words]
    assert said(history, "user") == words
    assert said(history, "assistant") == answers
    assert heard == answers


@story
async def visitor(world, dice):
    """A client that is killed says all of it again when it comes back, and each message is in the session once."""
    session = await world.open()
    command = [sys.executable, VISITOR, world.cluster.broker, world.cluster.pool, session.id, "8"]
    for is_last in (False, True):
        process = world.nodes.lives.popen(command, stdout=subprocess.PIPE)
        async with trio.open_nursery() as nursery:
            if is_last:
                await nursery.start(hear_process, process, lambda *_: None)
            else:
                await trio.sleep(dice.uniform(0.5, 3))
                process.kill()
        await trio.to_thread.run_sync(process.wait)
        process.stdout.close()
    yield
    await session.wait_idle()
    history = await session.history()
    assert said(history, "user") == [f"{session.id}-{number}" for number in range(8)]
    assert said(history, "assistant") == [f"you said: {session.id}-{number}" for number in range(8)]


@story
async def tools(world, dice):
    """What is done once is done at most once, and if not is said to be unknown; what may be repeated has a result."""
    session = await world.open()
    for number in range(3):
        await world.clerk.run(f"note {session.id}-{number}", session=session, message_id=f"n{number}")
        await world.clerk.run(f"look {session.id}-{number}", session=session, message_id=f"l{number}")
        await trio.sleep(dice.uniform(0, 1.5))
    yield
    results = errors(await session.history())
    assert len(results) == 6
    assert results[1::2] == [None] * 3
    for number, error in enumerate(results[::2]):
        assert error is not None or world.nodes.effects[f"note {session.id}-{number}"] == 1


@story
async def approval(world, dice):
    """Of two people who decide at once one is told that it counts, and that is what is done."""
    session, counted = await world.open(), []
    await trio.sleep(dice.uniform(0, 4))
    await session.chat(f"deploy {session.id}", message_id="m")
    waits = await asked(session.approvals)

    async def decide(client, decision, by):
        there = await client.agent("clerk").open_session(session.id)
        await trio.sleep(dice.uniform(0, 0.2))
        with suppress(AlreadyDecided, NotSuspended, ApprovalNotFound):
            await there.answer(waits[0].id, decision, by=by)
            counted.append(by)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(decide, world.clients[0], Approve(), "ada")
        nursery.start_soon(decide, world.clients[1], Reject("no"), "bob")
    await world.clerk.outcome(session, "m")
    yield
    assert len(counted) == 1, counted
    (error,) = errors(await session.history())
    done = world.nodes.effects[f"deploy {session.id}"]
    assert done == 0 if counted == ["bob"] else error is not None or done == 1


@story
async def task(world, dice):
    """A task is reported once, with its result, or, where it was stopped, without."""
    session = await world.open()
    await trio.sleep(dice.uniform(0, 4))
    task_id = await session.delegate("digger", f"slowly {session.id}")
    is_stopped = False
    if dice.random() < 0.5:
        await trio.sleep(dice.uniform(0, 3.5))
        is_stopped = await session.cancel_task(task_id)

    async def reported():
        return is_stopped or said(await session.history(), "agent")

    await asked(reported)
    yield
    await session.wait_idle()
    reports = said(await session.history(), "agent")
    results = [each for each in reports if f"you said: slowly {session.id}" in each]
    assert len(reports) <= 1 if is_stopped else len(reports) == 1, reports
    assert len(results) == (0 if is_stopped else 1), reports


@story
async def timer(world, dice):
    """What two set with one key fires once."""
    session, words = await world.open(), f"tick {dice.random()}"
    there = await world.clients[1].agent("clerk").open_session(session.id)
    for each in (session, there):
        await each.schedule(words, after=dice.uniform(2, 6), key="k")

    async def fired():
        return not await session.schedules()

    await asked(fired)
    yield
    await session.wait_idle()
    history = await session.history()
    assert len([each for each in history if words in each.text and each.sender.kind != "assistant"]) == 1
    assert len(said(history, "assistant")) == 1


@story
async def mode(world, dice):
    """A mode holds."""
    session = await world.open()
    for number in range(4):
        await session.set_mode("plan" if number % 2 else "act")
        await trio.sleep(dice.uniform(0, 1.5))
    yield
    assert await session.mode() == "plan"


@story
async def budget(world, dice):
    """No more is answered than was granted, and what was refused stays so."""
    session, ends = await world.clerk.create_session("ada", limits=Limits(model_calls=3)), []
    for number in range(6):
        try:
            await world.clerk.run(f"{number}", session=session, message_id=f"m{number}")
            ends.append("answered")
        except LimitReached:
            ends.append("failed")
        await trio.sleep(dice.uniform(0, 1))
    yield
    assert ends == sorted(ends), ends
    assert 1 <= ends.count("answered") <= 3, ends
    assert [(await world.end_of(session, f"m{number}"))[0] for number in range(6)] == ends


@story
async def interrupt(world, dice):
    """What is stopped was answered or failed, the one or the other for ever."""
    session = await world.open()
    for number in range(3):
        await session.chat(f"slowly {number}", message_id=f"m{number}")
        await trio.sleep(dice.uniform(0, 2))
        await session.interrupt(message_id=f"m{number}")
    ends = [await world.end_of(session, f"m{number}") for number in range(3)]
    yield
    assert [await world.end_of(session, f"m{number}") for number in range(3)] == ends
    assert set(ends) <= {("answered", f"you said: slowly {number}") for number in range(3)} | {
        ("failed", "Interrupted")
    }
    answers = said(await session.history(), "assistant")
    for number, (how, _) in enumerate(ends):
        assert answers.count(f"you said: slowly {number}") == (how == "answered")


@story
async def urgent(world, dice):
    """What is urgent is answered, and what it comes between has one end."""
    session = await world.open()
    await session.chat("slowly a b c", message_id="m")
    await trio.sleep(dice.uniform(0, 3))
    await session.chat("now", message_id="u", priority="urgent")
    ends = [await world.end_of(session, each) for each in "mu"]
    yield
    assert [await world.end_of(session, each) for each in "mu"] == ends
    assert ends[1] == ("answered", "you said: now")
    answers = said(await session.history(), "assistant")
    assert answers.count("you said: now") == 1
    assert answers.count("you said: slowly a b c") == (ends[0][0] == "answered")


@story
async def tokens(world, dice):
    """What grows is the answer in the end."""
    session, grown, whole = await world.open(), [], []
    session.on_token(grown.append)
    session.on_conversation(whole.append)
    for number in range(3):
        await session.chat(f"slowly {number} b c d e f", message_id=f"m{number}")
        await trio.sleep(dice.uniform(0, 2))
    yield
    await session.wait_idle()
    assert [each.text for each in whole] == [f"you said: slowly {number} b c d e f" for number in range(3)]
    for reply in whole:
        mine = [each for each in grown if each.reply_id == reply.id]
        last = max((each.attempt for each in mine), default=0)
        assert "".join(each.text for each in mine if each.attempt == last) in ("", reply.text)


@story
async def fork(world, dice):
    """A copy goes its own way."""
    session = await world.open()
    await world.clerk.run("before", session=session, message_id="m0")
    await trio.sleep(dice.uniform(0, 4))
    made = await world.clients[0].fork(session.id, agent="clerk", new_id=f"{session.id}-copy")
    copy = await world.clerk.open_session(made.session_id)
    world.sessions.append(copy)
    await world.clerk.run("here", session=session, message_id="m1")
    await world.clerk.run("there", session=copy, message_id="m2")
    yield
    assert said(await session.history(), "user") == ["before", "here"]
    assert said(await copy.history(), "user") == ["before", "there"]


@story
async def close(world, dice):
    """A tree that is closed has ended: it is not opened again, and its task comes to nothing."""
    session = await world.clerk.create_session("ada")
    await session.delegate("digger", "slowly dig")
    await session.chat("slowly talk", message_id="m")
    await trio.sleep(dice.uniform(0, 3))
    await session.aclose()
    yield
    assert await session.status() == "closed"
    with suppress(SessionClosed):
        await world.clerk.open_session(session.id)
        raise AssertionError(f"{session.id} is closed, and was opened")


# --- deeds -------------------------------------------------------------------------------


@deed
async def kill(world, dice):
    if (name := world.take(dice)) is not None:
        world.nodes.kill(name)
    await trio.sleep(dice.uniform(0, 2))
    await world.start()


@deed
async def kill_the_next(world, dice):
    """The node that takes over is killed as soon as it has something."""
    if (name := world.take(dice)) is not None:
        world.nodes.kill(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.start)
            with trio.move_on_after(LONG), suppress(psycopg.OperationalError):
                owned = f"partitions WHERE owner LIKE '{name}-%'"
                before = await world.nodes.count(owned)
                while before and await world.nodes.count(owned) == before:  # noqa: ASYNC110 - it is asked
                    await trio.sleep(0.02)
        await kill(world, dice)


@deed
async def hang(world, dice):
    if world.alive:
        name = dice.choice(world.alive)
        world.nodes.kill(name, signal.SIGSTOP)
        await trio.sleep(dice.uniform(1, 8))
        world.nodes.kill(name, signal.SIGCONT)


@deed
async def leave(world, dice):
    if (name := world.take(dice)) is not None:
        world.nodes.kill(name, signal.SIGTERM)
        await world.start()
        await world.ended(name)


@deed
async def drain(world, dice):
    """A node hands over what it has, and may be killed while it does."""
    if (name := world.take(dice)) is None:
        return
    is_killed = dice.random() < 0.5

    async def hand_over():
        async with open_cluster_watch(world.cluster.broker, world.cluster.pool) as watch:
            await watch.drain(name)

    with suppress(
        ActgentError
    ):  # it is killed, or hangs, or the broker is not there: whoever drains it tries again
        if not is_killed:
            await hand_over()
        else:
            with trio.move_on_after(1 + dice.uniform(0, 1)):
                await hand_over()
    world.nodes.kill(name, signal.SIGKILL if is_killed else signal.SIGTERM)
    await world.start()


@deed
async def join(world, _):
    await world.start()


@deed
async def cut(world, _):
    """All connections of nodes to the broker break."""
    world.relay.cut()
    await trio.lowlevel.checkpoint()


@deed
async def restart_broker(world, _):
    async with world.serving:
        world.services[0].kill()
        await world.services[0].start()


@deed
async def terminate_backends(world, _):
    with suppress(psycopg.OperationalError):  # the database is not there
        await world.ask(TERMINATE)


@deed
async def restart_database(world, dice):
    async with world.serving:
        world.services[1].kill()
        await trio.sleep(dice.uniform(0, 2))
        await world.services[1].start()


@deed
async def move_partitions(world, dice):
    """All nodes leave for another number of partitions; where one comes beside it, it is refused and nothing is changed."""
    async with world.serving:
        left = [world.take(dice) for _ in tuple(world.alive)]
        for name in left:
            world.nodes.kill(name, signal.SIGCONT)
            world.nodes.kill(name, signal.SIGTERM)
        for name in left:
            await world.ended(name)
        with suppress(ConfigurationError):
            await repartition(
                world.cluster.journal, world.cluster.broker, world.cluster.pool, dice.choice((16, 32, 64))
            )
    async with trio.open_nursery() as nursery:
        for _ in left:
            nursery.start_soon(world.start)
