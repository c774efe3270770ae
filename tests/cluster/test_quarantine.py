"""Suspects whose database does not answer for a moment, at each step of their trial in turn."""

import types
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import BareAgent, ScriptedLLM, Text, ToolCall, open_runtime
from actgent.cluster.amqp import NotConfirmed, Unroutable
from actgent.cluster.quarantine import POISON, Quarantine
from actgent.errors import Fenced, JournalDamaged, JournalFailed, JournalFull
from actgent.journal.listing import SessionKey
from actgent.journal.postgres import PartitionedJournal, Suspect
from actgent.journal.records import Accepted, Ended, Said
from actgent.messages import Message, Sender
from actgent.support.logs import summarise

KEY = SessionKey("clerk", "s1")
TRIES = 3


@pytest.fixture(autouse=True)
def _told():
    """Equal records are counted and told later: here, and not in another test."""
    yield
    summarise(all_of_them=True)


@attrs.define(eq=False)
class World:
    """A database, a journal, a runtime and a broker, of which one call fails some times."""

    failing: str = ""
    error: Exception = attrs.field(factory=lambda: JournalFailed("the database is away"))
    alone: int = 0
    crashes: int = 3
    left: int = TRIES
    is_ours: bool = True
    noted: list = attrs.field(factory=list)
    """What was done, in its order."""
    records: list = attrs.field(factory=list)
    count: int = 64
    node: str = "web-1"
    owned: dict = attrs.field(factory=dict)

    @property
    def suspects(self):
        fake = types.SimpleNamespace(forget_ended=self.forget_ended)
        for name in ("mark_alone", "clear", "bury"):
            setattr(fake, name, self.step(name))
        fake.count = self.count_all
        return fake

    async def count_all(self, *_, **__):
        await trio.lowlevel.checkpoint()
        return [Suspect(key=KEY, crashes=self.crashes, alone=self.alone)]

    async def forget_ended(self, *_):
        await trio.lowlevel.checkpoint()
        return False

    def step(self, name, result=None):
        async def do(*_, **options):
            await trio.lowlevel.checkpoint()
            if name == self.failing and self.left:
                self.left -= 1
                raise self.error
            self.noted.append(name)
            return result() if result is not None else None

        return do

    def epoch_of(self, session_id):
        if not self.is_ours:
            raise Fenced("it is another one's")
        return 1

    @property
    def head(self):
        return self.step("head")

    @property
    def load(self):
        return self.step("load", lambda: tuple(self.records))

    async def commit(self, entry, *, epoch):
        await self.step("commit")()
        self.records += entry.records

    # --- the runtime and the broker --------------------------------------------------------

    agents = ("clerk",)

    async def take_up(self, is_taken):
        assert is_taken(KEY.session_id)
        await self.step("take_up")()

    async def publish(self, *_):
        await self.step("publish")()


def accepted(number):
    return Accepted(
        message=Message(id=f"m{number}", session_id=KEY.session_id, sender=Sender("ada"), parts="hi")
    )


async def try_suspect(world):
    """Count the suspect, and return when it may be opened by others."""
    quarantine = Quarantine(world, world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count([0], ["clerk"], have_died=True)
        assert quarantine.is_withheld(KEY.session_id)
        await quarantine.wait(KEY.session_id)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("error", [JournalFailed("away"), JournalFull("full")], ids=["away", "full"])
@pytest.mark.parametrize("failing", ["mark_alone", "take_up", "head", "clear"])
async def test_a_suspect_is_tried_until_the_database_answers(autojump_clock, failing, error):
    """Nobody else would ever open it: whatever step fails is done again, and none that was done."""
    world = World(failing, error)
    await try_suspect(world)
    assert world.left == 0
    assert world.noted == ["mark_alone", "take_up", "head", "clear"]


@pytest.mark.parametrize("failing", ["load", "bury", "commit", "publish", "take_up"])
async def test_only_the_message_that_kills_is_buried(autojump_clock, failing):
    """Also where the database or the broker fails at any step: what waits behind it goes on."""
    errors = {"publish": Unroutable("no queue")}
    world = World(failing, alone=2)
    world.error = errors.get(failing, world.error)
    world.records = [accepted(1), accepted(2)]
    await try_suspect(world)
    ended = [each for each in world.records if isinstance(each, Ended)]
    assert [(each.message_id, each.failed) for each in ended] == [("m1", POISON)]
    assert world.noted[-3:] == ["take_up", "head", "clear"]


@pytest.mark.parametrize("error", [Unroutable("no queue"), NotConfirmed("full")], ids=["unroutable", "full"])
async def test_a_notice_that_the_broker_does_not_take_fails_nobody(autojump_clock, error):
    """The table of the dead has what it was about."""
    world = World("publish", error, alone=2, records=[accepted(1)])
    await try_suspect(world)
    assert world.noted[:3] == ["load", "bury", "commit"]
    assert world.noted[-1] == "clear"


async def test_a_suspect_that_another_node_has_by_now_is_not_tried_again(autojump_clock):
    """As its partition was taken while the database was away."""
    world = World("take_up", left=10**9)
    quarantine = Quarantine(world, world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count([0], ["clerk"], have_died=True)
        while world.left > 10**9 - TRIES:  # noqa: ASYNC110 - the journal counts
            await trio.sleep(0.1)
        world.is_ours = False
        await quarantine.wait(KEY.session_id)
        nursery.cancel_scope.cancel()
    assert world.noted == ["mark_alone"]


async def test_a_suspect_that_is_damaged_is_left(autojump_clock):
    """It would be damaged the next time, too."""
    world = World("take_up", JournalDamaged("its checksum is wrong"), left=10**9)
    await try_suspect(world)
    assert world.left == 10**9 - 1


@pytest.mark.parametrize(("crashes", "alone", "is_blamed"), [(3, 0, True), (4, 1, True), (4, 0, False)])
async def test_a_suspect_is_blamed_for_deaths_in_its_trial(crashes, alone, is_blamed):
    """Those after it went on beside others may be of a request to it, which is counted then: else that would kill node after node."""
    world = World(crashes=crashes, alone=alone)
    quarantine = Quarantine(world, world)
    await quarantine.count([0], ["clerk"], have_died=True)
    assert quarantine.is_blamed(f"{KEY.session_id}/below") is is_blamed
    assert not quarantine.is_blamed("other")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.wait(KEY.session_id)
        assert not quarantine.is_blamed(KEY.session_id)
        nursery.cancel_scope.cancel()


async def test_a_suspect_is_not_opened_beside_a_request_that_is_begun_alone(autojump_clock):
    """Nor is such a request begun beside it: a node that dies would have died of both."""
    world = World("head", left=1)
    quarantine = Quarantine(world, world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        async with quarantine.alone:
            await quarantine.count([0], ["clerk"], have_died=True)
            await trio.sleep(10)
            assert world.noted == []
        while not world.noted:  # noqa: ASYNC110 - as above
            await trio.sleep(0.01)
        assert quarantine.alone.locked()
        await quarantine.wait(KEY.session_id)
        await trio.testing.wait_all_tasks_blocked()
        assert not quarantine.alone.locked()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("alone", [0, 2])
async def test_suspects_of_one_tree_are_tried_together(autojump_clock, alone):
    """As they are opened together: each is marked before, and none is open to others before all have been tried. The deepest is given up first."""
    parent, child = KEY, SessionKey("digger", f"{KEY.session_id}/x")
    done = []

    class Tree(World):
        async def count_all(self, *_, **__):
            await trio.lowlevel.checkpoint()
            return [Suspect(key=key, crashes=3 + alone, alone=alone) for key in (parent, child)]

        def step(self, name, result=None):
            async def do(*args, **options):
                await trio.lowlevel.checkpoint()
                key = args[0] if name in ("mark_alone", "clear", "bury") else None
                done.append((name, key, quarantine.is_withheld(KEY.session_id)))
                return result() if result is not None else None

            return do

    world = Tree(records=[accepted(1)])
    quarantine = Quarantine(world, world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quarantine.run, world)
        await quarantine.count([0], ["clerk", "digger"], have_died=True)
        await quarantine.wait(KEY.session_id)
        nursery.cancel_scope.cancel()
    assert all(is_withheld for *_, is_withheld in done)
    tried = [name if key is None else f"{name} {key.agent}" for name, key, _ in done if name != "head"]
    begin = ["mark_alone digger"] if not alone else ["load", "bury digger", "commit", "publish"]
    assert tried == [*begin, "mark_alone clerk", "take_up", "clear digger", "clear clerk"]


class Quiet:
    """A broker that takes all."""

    async def publish(self, *args, **options):
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(("waits", "is_told_more"), [(True, False), (False, False), (True, True)])
async def test_who_gave_a_task_hears_that_it_is_given_up(postgres_url, waits, is_told_more):
    """As the result of its call, or as a message; its session is closed. It would wait for somebody who does not work at it any more.

    So it does where that session has more to answer, which it goes on with.
    """
    begun, told = trio.Event(), []

    async def dig(chat):
        if chat.messages[-1].parts[0] != Text("more"):
            begun.set()
            await trio.sleep_forever()
        return "no more"

    def ask(chat):
        last = chat.messages[-1]
        told.append(last)
        return ToolCall("digger", {"task": "dig"}) if last.parts[0] == Text("go") else "done"

    @asynccontextmanager
    async def node(name):
        journal = PartitionedJournal(postgres_url, node=name, partitions=1)
        async with journal.running() as opened, open_runtime(journal=opened) as runtime:
            digger = BareAgent("digger", llm=ScriptedLLM(dig))
            clerk = BareAgent("clerk", llm=ScriptedLLM(ask), tools=[digger.as_tool()])
            await runtime.start(clerk)
            await opened.take([0])
            yield runtime, opened, clerk, digger

    with trio.CancelScope() as scope:
        async with node("one") as (_, journal, clerk, digger):
            session = await clerk.create_session("ada", session_id="s")
            await (session.chat("go") if waits else session.delegate("digger", "dig"))
            await begun.wait()
            if is_told_more:
                (child,) = await journal.children("clerk", "s")
                await (await digger.open_session(child.session_id)).chat("more")
            scope.cancel()
    told.clear()
    with trio.fail_after(60):
        async with node("two") as (runtime, journal, clerk, _):
            (child,) = await journal.children("clerk", "s")
            quarantine = Quarantine(journal, Quiet())
            quarantine._runtime = runtime
            await quarantine._try([Suspect(key=child.key, crashes=5, alone=2)])
            session = await clerk.open_session("s")
            await session.wait_idle()
            assert session.history[-1].text == "done"
            while not (await journal.head(*child.key)).closed:  # noqa: ASYNC110 - it has more to answer
                await trio.sleep(0.01)
            said = [
                each for each in await journal.load(child.session_id, agent="digger") if type(each) is Said
            ]
            assert [each.message.text for each in said] == ["no more"] * is_told_more
    (heard,) = told
    words = heard.parts[0].error if waits else heard.parts[0].text
    assert "failed (poison): 5 processes died while it was worked on, 2 of them with it alone" in words
