"""Runtimes that each own some partitions of one journal, as the processes of a cluster do."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import BareAgent, Failure, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.postgres.session_partitioning import partition_of_slot, slot_of
from actgent.journal.record_types import AgentMessageRecord, MessageAcceptedRecord, MessageEndRecord

DEFAULT_PARTITIONS = 8


def in_partition(number, *, nth=0):
    """Return the nth session id of a partition, with eight partitions."""
    found = (f"s{each}" for each in range(10_000))
    mine = [each for each in found if partition_of_slot(slot_of(each), DEFAULT_PARTITIONS) == number]
    return mine[nth]


@pytest.fixture
def id_in():
    """Return `id_in(partition, nth=0)`, which returns a session id of that partition."""
    return in_partition


@pytest.fixture
def until():
    """Return a function that waits up to 60 seconds until its argument, a condition function, is true."""

    async def wait(condition):
        with trio.fail_after(60):
            while not condition():  # noqa: ASYNC110 - the condition has no event
                await trio.sleep(0.01)

    return wait


@pytest.fixture
def open_node(postgres_url):
    """Return a context manager with a runtime in a named process that acquires the partitions in `acquire_partitions`."""

    @asynccontextmanager
    async def opened(name, *, take=(), kind=PartitionedJournal, **options):
        partitioned = kind(postgres_url, node=name, partitions=DEFAULT_PARTITIONS)
        async with partitioned.running() as journal, open_runtime(journal=journal, **options) as runtime:
            await journal.acquire_partitions(take)
            yield runtime

    return opened


@pytest.fixture
def open_journal_of(postgres_url):
    """Return a context manager with the journal of a named process. The journal owns no partition yet."""
    return lambda name: PartitionedJournal(postgres_url, node=name, partitions=DEFAULT_PARTITIONS).running()


# --- a process that can block -----------------------------------------------------------------------


class HoldingJournal(PartitionedJournal):
    """A journal that blocks some writes at the stage of its `World`."""

    world: "World"

    async def commit(self, entry, *, epoch, durable=True):
        records = entry.records
        if any(isinstance(each, MessageAcceptedRecord) and each.message.text == "go" for each in records):
            await self.world.pass_by("accepting")
        if any(isinstance(each, AgentMessageRecord) and each.message.text == "done" for each in records):
            await self.world.pass_by("said")
        await super().commit(entry, epoch=epoch, durable=durable)


@attrs.define
class World:
    """One process: its agents, their effects, and the stage at which they block."""

    held_at: str = ""
    reached: trio.Event = attrs.field(factory=trio.Event)
    let_go: trio.Event = attrs.field(factory=trio.Event)
    """Set by the test to end the block."""
    seen: list = attrs.field(factory=list)
    """Events that handlers received."""
    paid: list = attrs.field(factory=list)
    """Amounts that the tool paid."""

    async def pass_by(self, stage: str) -> None:
        """Block at this stage until `let_go` is set, if `held_at` is this stage."""
        if stage == self.held_at:
            self.reached.set()
            await self.let_go.wait()
        await trio.lowlevel.checkpoint()

    def agents(self):
        """Return a clerk that calls `pay` and a helper and then answers `done`, and the helper."""

        @tool(effect="idempotent")
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            await self.pass_by("tool")
            return "paid"

        async def help_out(chat):
            await self.pass_by("child")
            return "helped"

        helper = BareAgent("helper", llm=ScriptedLLM(help_out))

        async def answer(chat):
            done = sum(message.role == "tool" for message in chat.messages)
            if not done:
                await self.pass_by("model")
                return [ToolCall("pay", {"amount": 7}), ToolCall("helper", {"task": "help"})]
            await self.pass_by("second model")
            return "done"

        clerk = BareAgent("clerk", llm=ScriptedLLM(answer, chunk=2), tools=[pay, helper.as_tool()])
        clerk.on_session(self._attach)
        clerk.guard(self._guard)
        return clerk, helper

    async def _guard(self, message):
        await self.pass_by("guard")

    def _attach(self, session):
        async def received(delivery):
            self.seen.append(delivery)
            if isinstance(delivery, ToolResult):
                await self.pass_by("result handler")
            elif not isinstance(delivery, Failure):
                await self.pass_by("handler")

        async def token(_):
            await self.pass_by("token")

        session.on_conversation(received)
        session.on_tool_result(received)
        session.on_exception(received)
        if self.held_at == "token":
            session.on_token(token)

    @property
    def failures(self):
        return [each for each in self.seen if isinstance(each, Failure)]


@pytest.fixture
def check_once():
    """Return `check_once(journal, session_id, texts)`: checks that each message was accepted, ended and answered once."""
    return _check_once


async def _check_once(journal, session_id, texts):
    records = await journal.load(session_id, agent="clerk")
    accepted = [each.message for each in records if isinstance(each, MessageAcceptedRecord)]
    assert [each.text for each in accepted] == texts
    ended = [each for each in records if isinstance(each, MessageEndRecord)]
    assert [each.message_id for each in ended] == [each.id for each in accepted]
    assert {each.failed for each in ended} <= {None}
    received = [
        each.message.text
        for each in records
        if isinstance(each, AgentMessageRecord) and each.message.sender.kind == "assistant"
    ]
    assert received.count("done") == len(texts)


@pytest.fixture
def open_world(open_node, id_in):
    """Return a context manager with a `World`, its runtime and its clerk."""

    @asynccontextmanager
    async def opened(name, *, take=(), held_at=""):
        world = World(held_at)
        async with open_node(name, take=take, kind=HoldingJournal) as runtime:
            runtime.journal.world = world
            clerk, _ = world.agents()
            await runtime.start(clerk)
            yield world, runtime, clerk

    return opened
