"""The trial of suspects, with a database that does not answer for a moment at each step in turn."""

import types
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import BareAgent, ScriptedLLM, Text, ToolCall, open_runtime
from actgent.cluster.crashing_session_quarantine import (
    GROUPS,
    MAX_WATCH_SECONDS,
    POISON_KIND,
    WATCH_GROWTH,
    WATCH_SECONDS,
    Quarantine,
    _groups_of,
)
from actgent.errors import Fenced, JournalDamaged, JournalFailed, JournalFull
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.session_crash_counts import Suspect
from actgent.journal.postgres.session_partitioning import AcquiredPartition
from actgent.journal.record_types import AgentMessageRecord, MessageAcceptedRecord, MessageEndRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message, Sender
from actgent.support.safe_logging import summarise

KEY = SessionKey("clerk", "s1")
TRIES = 3
TAKEN = [AcquiredPartition(partition=0, epoch=2, before="web-0", was_clean=False)]


@pytest.fixture(autouse=True)
def _flush_log_summaries():
    """Flush the summarised log records in this test and not in a later one."""
    yield
    summarise(all_of_them=True)


@attrs.define(eq=False)
class World:
    """A database, a journal and a runtime, of which one call fails some times."""

    failing: str = ""
    error: Exception = attrs.field(factory=lambda: JournalFailed("the database is away"))
    alone: int = 0
    crashes: int = 3
    left: int = TRIES
    is_ours: bool = True
    noted: list = attrs.field(factory=list)
    """Names of the calls, in order."""
    records: list = attrs.field(factory=list)
    looks_at_ended: int = 0
    """Number of checks whether sessions with counted deaths have ended.

    Some are left until the third check.
    """
    count: int = 64
    node: str = "web-1"
    owned: dict = attrs.field(factory=dict)

    @property
    def suspects(self):
        fake = types.SimpleNamespace(remove_ended=self.remove_ended)
        for name in ("mark_watched", "mark_open", "note_survived", "clear", "clear_all", "dead_letter"):
            setattr(fake, name, self.step(name))
        fake.list_near_suspects = self.list_near_suspects
        fake.count_deaths = self.count_all
        return fake

    async def count_all(self, *_, **__):
        await trio.lowlevel.checkpoint()
        return [Suspect(key=KEY, crashes=self.crashes, alone=self.alone)]

    async def list_near_suspects(self, *_):
        await trio.lowlevel.checkpoint()
        return {}

    async def remove_ended(self, *_):
        await trio.lowlevel.checkpoint()
        self.looks_at_ended += 1
        return self.looks_at_ended < TRIES

    def step(self, name, result=None):
        async def do(*_, **options):
            await trio.lowlevel.checkpoint()
            if name == self.failing and self.left:
                self.left -= 1
                raise self.error
            if name != "clear_all":
                self.noted.append(name)
            return result() if result is not None else None

        return do

    def epoch_of(self, session_id):
        if not self.is_ours:
            raise Fenced("it is another one's")
        return 1

    head_of: object = None

    @property
    def head(self):
        return self.step("head", lambda: self.head_of)

    @property
    def load(self):
        return self.step("load", lambda: tuple(self.records))

    async def commit(self, entry, *, epoch):
        await self.step("commit")()
        self.records += entry.records

    # --- the runtime -----------------------------------------------------------------------

    agents = ("clerk",)

    async def resume_acquired(self, is_taken):
        assert is_taken(KEY.session_id)
        await self.step("resume_acquired")()


def accepted(number):
    return MessageAcceptedRecord(
        message=Message(id=f"m{number}", session_id=KEY.session_id, sender=Sender("ada"), parts="hi")
    )


async def try_suspect(world):
    """Count the suspect, and return when other requests may open it."""
    quarantine = Quarantine(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count_deaths(TAKEN, ["clerk"], dead=["web-0"])
        assert quarantine.is_held_back(KEY.session_id)
        await quarantine.wait(KEY.session_id)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("error", [JournalFailed("away"), JournalFull("full")], ids=["away", "full"])
@pytest.mark.parametrize("failing", ["mark_watched", "resume_acquired", "head", "clear"])
async def test_a_suspect_is_tried_until_the_database_answers(autojump_clock, failing, error):
    """A failed step is repeated, and a completed step is not.

    Otherwise the session would never be opened again.
    """
    world = World(
        failing, error, left=1 if failing == "head" else TRIES
    )  # the session is watched for a second
    await try_suspect(world)
    assert world.left == 0
    assert world.noted == ["mark_watched", "resume_acquired", "head", "clear"]


@pytest.mark.parametrize("failing", ["load", "dead_letter", "commit", "note_survived", "resume_acquired"])
async def test_only_the_killing_message_is_dead_lettered(autojump_clock, failing):
    """The database fails at any step. Messages after the dead-lettered one are answered."""
    world = World(failing, alone=2)
    world.records = [accepted(1), accepted(2)]
    await try_suspect(world)
    ended = [each for each in world.records if isinstance(each, MessageEndRecord)]
    assert [(each.message_id, each.failed) for each in ended] == [("m1", POISON_KIND)]
    assert world.noted[-5:] == ["commit", "note_survived", "resume_acquired", "head", "clear"]


async def test_suspect_of_another_owner_is_not_tried_again(autojump_clock):
    """Another node has acquired the partition during the outage of the database."""
    world = World("resume_acquired", left=10**9)
    quarantine = Quarantine(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count_deaths(TAKEN, ["clerk"], dead=["web-0"])
        while world.left > 10**9 - TRIES:  # noqa: ASYNC110 - the state is in the database
            await trio.sleep(0.1)
        world.is_ours = False
        await quarantine.wait(KEY.session_id)
        nursery.cancel_scope.cancel()
    assert world.noted == ["mark_watched"]


async def test_damaged_suspect_is_skipped(autojump_clock):
    """A retry would find the same damage."""
    world = World("resume_acquired", JournalDamaged("its checksum is wrong"), left=10**9)
    await try_suspect(world)
    assert world.left == 10**9 - 1


async def test_suspect_that_survives_probation_runs_normally(autojump_clock):
    """After three deaths the session is watched for a second. A longer run is no sign of poison."""
    world = World()
    world.head_of = types.SimpleNamespace(unfinished=True, suspended=False)
    started = trio.current_time()
    await try_suspect(world)
    assert trio.current_time() - started == WATCH_SECONDS
    assert (world.noted[:2], world.noted[-1]) == (["mark_watched", "resume_acquired"], "note_survived")


@pytest.mark.parametrize("dead", [("web-0",), ()], ids=["died", "left"])
async def test_death_counts_are_removed_after_their_node_left(autojump_clock, dead):
    """A node that counted deaths and left cannot check whether their sessions have ended.

    The next owner does.
    """
    world = World()
    quarantine = Quarantine(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count_deaths(TAKEN, ["clerk"], dead=dead)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert world.looks_at_ended == TRIES


async def test_released_session_is_reported(autojump_clock):
    """The pending messages of the named session can then be delivered."""
    world, released = World(), []
    quarantine = Quarantine(world, on_released=released.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count_deaths(TAKEN, ["clerk"], dead=["web-0"])
        await quarantine.wait(KEY.session_id)
        nursery.cancel_scope.cancel()
    assert released == [KEY.session_id]


def suspect(number, *, crashes=3, alone=0):
    return [Suspect(key=SessionKey("clerk", f"s{number}"), crashes=crashes, alone=alone)]


@pytest.mark.parametrize("count", [1, 12, 24, 1000])
@pytest.mark.parametrize("crashes", [3, 4, 6, 30])
def test_the_wait_for_suspects_is_bounded(count, crashes):
    """There are 4 groups, watched for a second after the third death and for longer after each further one."""
    groups = list(_groups_of([suspect(each, crashes=crashes) for each in range(count)]))
    assert sum(len(group.trees) for group in groups) == count
    assert len(groups) <= GROUPS
    growth = WATCH_GROWTH ** min(crashes - 3, 10)
    assert {group.seconds for group in groups} == {min(MAX_WATCH_SECONDS, WATCH_SECONDS * growth)}


def ids_of(group):
    return [each[0].key.session_id for each in group.trees]


def test_tree_with_a_single_suspect_is_opened_alone_again():
    """Other sessions are opened with those of the same number of deaths.

    Fewer than three deaths count as three.
    """
    trees = [suspect(1, crashes=5, alone=2), suspect(2, crashes=4, alone=1), *map(suspect, range(3, 101))]
    trees += [suspect(101, crashes=1), suspect(102, crashes=2)]
    groups = list(_groups_of(trees))
    assert [ids_of(group) for group in groups[:2]] == [["s1"], ["s2"]]
    assert [len(group.trees) for group in groups[2:]] == [25] * 4


def test_the_group_of_a_death_is_divided_further():
    """The group is divided until one session is alone."""
    trees = [*map(suspect, range(12)), *(suspect(each, crashes=4) for each in range(12, 15))]
    sizes = {4: [], 3: []}
    for group in _groups_of(trees):
        sizes[group.deaths[1]].append(len(group.trees))
    assert sizes == {4: [1, 1, 1], 3: [3, 3, 3, 3]}


async def test_group_with_more_deaths_is_opened_first(autojump_clock):
    """The order is the same if the deaths are counted later.

    Each group is opened after the previous one has survived.
    """
    opened = []

    found = [*suspect(1), *suspect(2), *suspect(3)]

    class Many(World):
        async def count_all(self, *_, **__):
            await trio.lowlevel.checkpoint()
            return tuple(found)

        async def head(self, *key):
            await trio.lowlevel.checkpoint()
            return types.SimpleNamespace(unfinished=True, suspended=False)

        async def resume_acquired(self, is_taken):
            await trio.lowlevel.checkpoint()
            opened.extend(
                (each, trio.current_time() - started) for each in "s1 s2 s3 s4".split() if is_taken(each)
            )

    world, started = Many(), trio.current_time()
    quarantine = Quarantine(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count_deaths(TAKEN, ["clerk"], dead=["web-0"])
        await trio.sleep(WATCH_SECONDS / 2)
        found[:] = suspect(4, crashes=5, alone=1)
        await quarantine.count_deaths(TAKEN, ["clerk"], dead=["web-0"])
        for each in ("s1", "s2", "s3", "s4"):
            await quarantine.wait(each)
        nursery.cancel_scope.cancel()
    watched = WATCH_SECONDS, WATCH_SECONDS * WATCH_GROWTH
    assert [at for _, at in opened] == [0, watched[0], sum(watched), watched[0] + sum(watched)]
    assert opened[1][0] == "s4"


@pytest.mark.parametrize("alone", [0, 2])
async def test_suspects_of_one_tree_are_tried_together(autojump_clock, alone):
    """Each session of the tree is marked first, and none is open to other requests until all were tried.

    The deepest session is dead-lettered first.
    """
    parent, child = KEY, SessionKey("digger", f"{KEY.session_id}/x")
    done = []

    class Tree(World):
        async def count_all(self, *_, **__):
            await trio.lowlevel.checkpoint()
            return [Suspect(key=key, crashes=3 + alone, alone=alone) for key in (parent, child)]

        def step(self, name, result=None):
            async def do(*args, **options):
                await trio.lowlevel.checkpoint()
                key = args[0] if name in ("mark_watched", "clear", "dead_letter", "note_survived") else None
                if name != "clear_all":
                    done.append((name, key, quarantine.is_held_back(KEY.session_id)))
                return result() if result is not None else None

            return do

    world = Tree(records=[accepted(1)])
    quarantine = Quarantine(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count_deaths(TAKEN, ["clerk", "digger"], dead=["web-0"])
        await quarantine.wait(KEY.session_id)
        nursery.cancel_scope.cancel()
    assert all(is_held_back for *_, is_held_back in done)
    tried = [name if key is None else f"{name} {key.agent}" for name, key, _ in done if name != "head"]
    begin = (
        ["mark_watched digger"]
        if not alone
        else ["load", "dead_letter digger", "commit", "note_survived digger"]
    )
    assert tried == [*begin, "mark_watched clerk", "resume_acquired", "clear digger", "clear clerk"]


@pytest.mark.parametrize(("waits", "is_told_more"), [(True, False), (False, False), (True, True)])
async def test_parent_is_notified_of_a_dead_lettered_task(postgres_url, waits, is_told_more):
    """The notification is the result of the call, or a message, and the task's session is closed. A session with further work continues with it."""
    started, received = trio.Event(), []

    async def dig(chat):
        if chat.messages[-1].parts[0] != Text("more"):
            started.set()
            await trio.sleep_forever()
        return "no more"

    def ask(chat):
        last = chat.messages[-1]
        received.append(last)
        return ToolCall("digger", {"task": "dig"}) if last.parts[0] == Text("go") else "done"

    @asynccontextmanager
    async def node(name):
        journal = PartitionedJournal(postgres_url, node=name, partitions=1)
        async with journal.running() as opened, open_runtime(journal=opened) as runtime:
            digger = BareAgent("digger", llm=ScriptedLLM(dig))
            clerk = BareAgent("clerk", llm=ScriptedLLM(ask), tools=[digger.as_tool()])
            await runtime.start(clerk)
            await opened.acquire_partitions([0])
            yield runtime, opened, clerk, digger

    with trio.CancelScope() as scope:
        async with node("one") as (_, journal, clerk, digger):
            session = await clerk.create_session("ada", session_id="s")
            await (session.chat("go") if waits else session.delegate("digger", "dig"))
            await started.wait()
            if is_told_more:
                (child,) = await journal.children("clerk", "s")
                await (await digger.open_session(child.session_id)).chat("more")
            scope.cancel()
    received.clear()
    with trio.fail_after(60):
        async with node("two") as (runtime, journal, clerk, _):
            (child,) = await journal.children("clerk", "s")
            quarantine = Quarantine(journal)
            quarantine._runtime = runtime
            await quarantine._try([Suspect(key=child.key, crashes=5, alone=2)], 30.0, True)
            session = await clerk.open_session("s")
            await session.wait_idle()
            assert session.history[-1].text == "done"
            while not (await journal.head(*child.key)).closed:  # noqa: ASYNC110 - the session closes later
                await trio.sleep(0.01)
            texts = [
                each
                for each in await journal.load(child.session_id, agent="digger")
                if type(each) is AgentMessageRecord
            ]
            assert [each.message.text for each in texts] == ["no more"] * is_told_more
    (message,) = received
    text = message.parts[0].error if waits else message.parts[0].text
    assert "failed (poison): 5 processes died while it was worked on, 2 of them with it alone" in text
