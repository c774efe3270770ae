"""Spending before a restart counts after it: crashes at each write of the journal."""

import collections
import json
from functools import partial

import pytest
import trio

from actgent import (
    BareAgent,
    GoalAgent,
    LimitReached,
    Limits,
    PlanAgent,
    ScriptedLLM,
    StepsAgent,
    Text,
    ToolCall,
    Usage,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    SessionCreatedRecord,
    UsageRecord,
)
from actgent.journal.session_export_and_fork import ExportedSession, build_fork, write_sessions
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Message, Sender
from actgent.testing import CrashingJournal

TOKENS = 60
"""What each model call takes; less than its prompt is reckoned with, so that the same is reckoned after a restart."""


class World:
    """Data outside of the process."""

    def __init__(self):
        self.asked = collections.Counter()
        """Model calls, by agent; also those whose answer was lost in a crash."""
        self.ran = []
        """Tool calls."""
        self.failures = []

    def model(self, name, *, calls):
        """Return a model that calls a tool repeatedly."""

        def answer(chat):
            self.asked[name] += 1
            parts = tuple(ToolCall(tool_name, arguments) for tool_name, arguments in calls(chat))
            usage = Usage(input_tokens=TOKENS - 5, output_tokens=5)
            return ModelResponse(
                parts=parts or (Text("done"),), stop="tool_calls" if parts else "end", usage=usage
            )

        return ScriptedLLM(answer, keep=0)

    def count_tool(self):
        @tool(effect="idempotent")
        async def count(n: int) -> int:
            """Count something that is to be counted once."""
            await trio.lowlevel.checkpoint()
            self.ran.append(n)
            return n

        return count

    def looping(self, **options):
        """An agent that never ends by itself, and calls two tools at a time."""
        calls = lambda chat: [("count", {"n": len(chat.messages) + extra}) for extra in (0, 1)]  # noqa: E731
        agent = BareAgent("loop", llm=self.model("loop", calls=calls), tools=[self.count_tool()], **options)
        agent.on_session(lambda session: session.on_exception(self.failures.append))
        return agent

    def repeating(self, kind, said=None):
        """Return an agent that repeats the same call, natively or in the text of its protocol."""

        def say(chat):
            self.asked["loop"] += 1
            return said(chat)

        model = self.model("loop", calls=lambda _: [("count", {"n": 1})])
        agent = kind(
            "loop", llm=model if said is None else ScriptedLLM(say, keep=0), tools=[self.count_tool()]
        )
        agent.on_session(lambda session: session.on_exception(self.failures.append))
        return agent

    def leading(self, **options):
        """Return an agent that asks four others at once; each of them counts and answers."""

        def once(chat):
            return [] if chat.messages[-1].role == "tool" else [("count", {"n": 1})]

        def four(chat):
            return [("worker", {"task": f"{len(chat.messages)} {n}"}) for n in range(4)]

        worker = BareAgent(
            "worker", llm=self.model("worker", calls=once), tools=[self.count_tool()], goal="count"
        )
        lead = BareAgent("lead", llm=self.model("lead", calls=four), tools=[worker.as_tool()], **options)
        lead.on_session(lambda session: session.on_exception(self.failures.append))
        return lead


async def die(inner, writes, make, *, limits=None):
    """Run a process that ends at its n-th write. Return False if it ended before."""
    dying = CrashingJournal(inner, writes)

    async def run():
        async with open_runtime(journal=dying) as runtime:
            agent = await runtime.start(make())
            session = await agent.create_session("ada", session_id="s", limits=limits)
            await session.chat("go", message_id="m")
            await session.wait_idle()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        with trio.move_on_after(5):
            await dying.died.wait()
        nursery.cancel_scope.cancel()
    return dying.is_dead


async def go_on(journal, make):
    """Run the next process until nothing is unfinished. Return the remaining budget of the session."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(make())
        for running in runtime._agents():
            for context in list(running.sessions.values()):
                await context.public_session.wait_idle()
        try:
            session = await agent.open_session("s")
        except LookupError:
            return None
        await session.wait_idle()
        return session.budget and dict(session.budget.left)


async def answers_in(journal):
    """Return the number of model answers in the journal."""
    return sum(
        isinstance(record, AgentMessageRecord) and bool(record.stop) for record in await journal.load("s")
    )


async def turn_in(journal):
    """Return the id of the only message."""
    return next(
        record.message.id for record in await journal.load("s") if isinstance(record, MessageAcceptedRecord)
    )


async def spent_in(journal, session_id="s", turn=""):
    records = await journal.load(session_id)
    return [record for record in records if isinstance(record, UsageRecord) and record.turn == turn]


@pytest.mark.parametrize(
    "limits",
    [Limits(model_calls=4), Limits(tool_calls=7), Limits(tokens=800)],
    ids=["model_calls", "tool_calls", "tokens"],
)
@pytest.mark.parametrize("scope", ["turn", "session"])
async def test_limit_counters_survive_a_restart(autojump_clock, limits, scope):
    """After a crash, an interrupted model call counts with its estimate. Tool calls are counted exactly."""
    whole = World()
    async with MemoryJournal().running() as journal:
        of_turn = {"limits": limits} if scope == "turn" else {}
        of_session = limits if scope == "session" else None
        assert not await die(journal, 1000, partial(whole.looping, **of_turn), limits=of_session)
    turn = "m" if scope == "turn" else ""
    hits = 0
    for writes in range(1, 100):
        world = World()
        async with MemoryJournal().running() as journal:
            died = await die(journal, writes, partial(world.looping, **of_turn), limits=of_session)
            asked = world.asked["loop"]
            known = sum(record.model_calls for record in await spent_in(journal, turn=turn))
            answered = await answers_in(journal)
            has_begun = bool(await journal.load("s"))
            await go_on(journal, partial(world.looping, **of_turn))
            spent = await spent_in(journal, turn=turn)
        if not died:
            break
        if not has_begun or not world.asked:
            continue
        under_way = known - answered
        assert answered <= asked <= known <= answered + 1, writes
        hits += under_way
        left = {  # an estimate of tokens reserves all that there are
            "model_calls": whole.asked["loop"] - known,
            "tool_calls": whole.asked["loop"] - answered,
            "tokens": 0 if under_way else whole.asked["loop"] - answered,
        }[next(iter(limits.shared))]
        assert world.asked["loop"] == asked + left, writes
        assert sum(record.model_calls for record in spent) == known + left, writes
        assert sum(record.tool_calls for record in spent) == sum(r.tool_calls for r in spent if r.of)
        assert limits.tokens is None or sum(record.tokens for record in spent) <= limits.tokens
        assert [failure.kind for failure in world.failures][-1:] == ["limit"], writes
        assert isinstance(world.failures[-1].error, LimitReached)
    assert writes > 10
    assert hits >= 3


def step(_):
    """A step that is always the same."""
    expected = {"id": "call", "tool_name": "count", "parameters": {"n": 1}}
    return json.dumps({"tool_thought": "once more", "tool_calls": [expected]})


def item(chat):
    """A plan, and then the same call for its only item."""
    if "Do only this item" not in chat.messages[-1].parts[0].text:
        todo = [{"id": "one", "description": "count"}]
        return json.dumps({"intent": "count", "plan": "count", "todoList": todo})
    return json.dumps({"thoughts": "go on", "toolCalls": [{"toolName": "count", "arguments": {"n": 1}}]})


def action(chat):
    """A plan, and then the same call."""
    if not any(message.role == "assistant" for message in chat.messages):
        return json.dumps({"action": "plan", "params": {"steps": ["count"]}, "reasoning": "as planned"})
    calls = [{"tool": "count", "args": {"n": 1}}]
    return json.dumps({"action": "execute", "params": {"calls": calls}, "reasoning": "as planned"})


REPEATING = {
    "native": (BareAgent, None, 4),
    "steps": (StepsAgent, step, 4),
    "plan": (PlanAgent, item, 5),
    "goal": (GoalAgent, action, 5),
}


@pytest.mark.parametrize(("kind", "answer", "asks"), REPEATING.values(), ids=REPEATING)
async def test_repetitions_before_a_crash_count(autojump_clock, kind, answer, asks):
    """The fourth identical call in a row does not run, even if the process died in between."""
    counted = 0
    for writes in range(1, 100):
        world = World()
        async with MemoryJournal().running() as journal:
            died = await die(journal, writes, lambda world=world: world.repeating(kind, answer))
            answered = await answers_in(journal)
            lost = world.asked["loop"] - answered
            counted += 1 < answered < asks
            await go_on(journal, lambda world=world: world.repeating(kind, answer))
        if not died:
            break
        if world.asked:
            assert 0 <= lost <= 1
            assert world.asked["loop"] == asks + lost, writes
            assert world.failures[-1].error.field == "max_repeated_calls"
    assert counted > 3


@pytest.mark.parametrize("scope", ["turn", "session"])
async def test_usage_of_child_sessions_survives_a_crash(autojump_clock, scope):
    """A session and its four children never exceed the limit, including calls whose answer was lost."""
    limits = Limits(model_calls=7)
    of_turn = {"limits": limits} if scope == "turn" else {}
    of_session = limits if scope == "session" else None
    crashes = 0
    for writes in range(1, 400):
        world = World()
        async with MemoryJournal().running() as journal:
            died = await die(journal, writes, partial(world.leading, **of_turn), limits=of_session)
            asked = sum(world.asked.values())
            turn = "m" if scope == "turn" else ""
            known = sum(record.model_calls for record in await spent_in(journal, turn=turn))
            assert asked <= known <= 7, (writes, asked, known)
            await go_on(journal, partial(world.leading, **of_turn))
            spent = sum(record.model_calls for record in await spent_in(journal, turn=turn))
        if not died:
            assert sum(world.asked.values()) == 7
            break
        crashes += 1
        assert sum(world.asked.values()) <= spent <= 7, (writes, world.asked)
    assert crashes > 20


async def test_reopened_session_has_its_remaining_budget(autojump_clock):
    """The budget includes usage of children, also if a child is opened first. Another session has a separate budget."""
    async with MemoryJournal().running() as journal:
        world = World()
        agent = BareAgent("a", llm=world.model("a", calls=lambda _: []))
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            parent = await agent.create_session(
                "ada", session_id="p", limits=Limits(model_calls=5, tokens=50_000)
            )
            child = await agent.create_session("ada", session_id="c", parent=parent)
            other = await agent.create_session("ada", session_id="o", limits=Limits(model_calls=5))
            for session in (parent, child, child, other):
                await agent.run("hello", session=session)
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            child = await agent.open_session("c")
            assert dict(child.budget.left) == {"model_calls": 2, "tokens": 50_000 - 3 * TOKENS}
            await agent.run("hello", session=child)
            parent = await agent.open_session("p")
            assert dict(parent.budget.left) == {"model_calls": 1, "tokens": 50_000 - 4 * TOKENS}
            assert parent.budget.accounts[0] is child.budget.accounts[0]
            await agent.run("hello", session=parent)
            with pytest.raises(LimitReached) as caught:
                await agent.run("hello", session=child)
            assert caught.value.session_id == "p"
            assert dict((await agent.open_session("o")).budget.left) == {"model_calls": 4}


async def test_seconds_before_a_restart_count(autojump_clock):
    """Seconds of the stopped turn count as well: four are used, and one is left."""

    async def slow(chat):
        await trio.sleep(2)
        return "fine" if len(chat.messages) > 1 else ToolCall("wait", {})

    @tool
    async def wait() -> str:
        """Wait."""
        await trio.sleep(3)
        return "waited"

    received = []

    def make():
        agent = BareAgent("a", llm=ScriptedLLM(slow, keep=0), tools=[wait], limits=Limits(seconds=5))
        agent.on_session(lambda session: session.on_exception(received.append))
        return agent

    async with MemoryJournal().running() as journal:
        with trio.move_on_after(4):  # in the middle of the tool
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(make())
                session = await agent.create_session("ada", session_id="s", limits=Limits(seconds=100))
                await agent.run("go", session=session)
        started = trio.current_time()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(make())
            session = await agent.open_session("s")
            await session.wait_idle()
            assert session.budget.left["seconds"] == pytest.approx(95)
    assert trio.current_time() - started == pytest.approx(1)
    assert [failure.kind for failure in received] == ["stopped", "limit"]


async def test_calls_in_a_journal_of_an_earlier_version_count(autojump_clock):
    """Such a journal has counts of model calls only."""
    message = Message(id="m", session_id="s", sender=Sender("ada"), parts=(Text("go"),))
    asks = Message(session_id="s", sender=Sender("loop", "assistant"), parts=(ToolCall("count", {"n": 1}, id="c"),),
                   causation_id="m", correlation_id="m")  # fmt: skip
    records = (
        SessionCreatedRecord(owner=Sender("ada"), created_at=0.0),
        MessageAcceptedRecord(message=message),
        MessageAppendedRecord(message_id="m"),
        AgentMessageRecord(message=asks, stop="tool_calls", calls=3),
    )
    world = World()
    async with MemoryJournal().running() as journal:
        await journal.commit(
            Entry(session_id="s", agent="loop", records=records), epoch=await journal.acquire()
        )
        await go_on(journal, partial(world.looping, limits=Limits(model_calls=5)))
    assert world.asked["loop"] == 2


async def test_budget_of_an_erased_session_is_not_restored(autojump_clock):
    """Later spending of a fork, which outlives the session, is not written to the erased account."""
    async with MemoryJournal().running() as journal:
        for life in range(2):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["fine"], repeat=True)))
                if not life:
                    session = await agent.create_session("ada", session_id="s", limits=Limits(model_calls=5))
                    await agent.run("hello", session=session)
                    whole = ExportedSession("s", "a", await journal.load("s"))
                    await write_sessions(journal, [build_fork(whole, "f", "a")])
                    continue
                fork = await agent.open_session("f")  # and not the other one
                await agent.run("hello", session=fork)
                assert sum(record.model_calls for record in await spent_in(journal)) == 2
                await runtime.delete_session("s")
                await agent.run("hello", session=fork)
                assert dict(fork.budget.left) == {"model_calls": 2}
                assert await journal.load("s") == ()


async def test_limits_of_one_call_hold_after_a_restart(autojump_clock):
    """`run(limits=...)` is written with its message, whether or not its turn had begun."""
    for writes in range(2, 8):
        world = World()
        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)

            async def run(dying=dying, world=world):
                async with open_runtime(journal=dying) as runtime:
                    agent = await runtime.start(world.looping())
                    session = await agent.create_session("ada", session_id="s")
                    await agent.run("go", session=session, limits=Limits(model_calls=3))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await dying.died.wait()
                nursery.cancel_scope.cancel()
            asked = world.asked["loop"]
            known = sum(record.model_calls for record in await spent_in(journal, turn=await turn_in(journal)))
            assert asked <= known <= asked + 1, writes
            await go_on(journal, world.looping)
        assert world.asked["loop"] == asked + 3 - known, writes
        assert world.failures[-1].error.value == 3
