"""Each public call, cancelled at each of its steps, alone and concurrently with a second caller, with and without a journal.

A cancelled call leaves no state, and each accepted message ends once. `make soak` tries 30 task orders, each as a test of
its own, so that `pytest --stepwise` resumes at the failed one.
"""

import os
import random
from collections import Counter
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing

from actgent import (
    Agent,
    BareAgent,
    Priority,
    Reply,
    Runtime,
    ScriptedLLM,
    Session,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.approvals import Approve
from actgent.errors import ActgentError, DuplicateMessage, Interrupted, SessionExists
from actgent.journal.in_memory_journal import MemoryJournal

SEEDS = 30 if os.environ.get("ACTGENT_SOAK") else 1
"""Number of task orders of trio."""
AT_END = 5
"""Consecutive runs in which the call ends before its step; after these the call has no further steps."""
MOST = 400
"""Maximum number of steps of a call."""


@tool
async def look() -> str:
    """Look."""
    await trio.lowlevel.checkpoint()
    return "seen"


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def answer(chat):
    last = chat.messages[-1]
    if last.role == "tool":
        return "done"
    text = last.parts[0].text
    return ToolCall("look", {}) if "look" in text else ToolCall("pay", {}) if "pay" in text else "hello " * 3


async def attach(session):
    await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class World:
    """Two agents, two sessions, an approval, and the number of failures of each message."""

    runtime: Runtime
    agent: Agent
    worker: Agent
    session: Session
    other: Session
    failed: Counter[str] = attrs.field(factory=Counter)
    """Number of failures of each message id."""
    approval: object = None

    async def read(self, session=None, **options):
        async with self.agent.stream("look", session=session, **options) as events:
            async for _ in events:
                pass

    async def decide(self):
        await self.session.answer(self.approval, Approve())

    async def resume(self):
        await self.agent.resume({self.approval.id: Approve()})

    def listen(self):
        self.session.on_exception(lambda failure: self.failed.update([failure.message_id]))
        self.session.on_conversation(str)

    async def read_suspended(self):
        async with self.agent.follow(self.session) as events:
            await self.decide()
            async for _ in events:
                pass

    def say(self):
        return self.agent.receive(self.session.create_message("look", message_id="m"))

    async def suspend(self):
        await self.session.chat("pay")
        await self.session.wait_idle()
        (self.approval,) = self.session.approvals


@attrs.frozen
class Case:
    """A call, a concurrent call of a second caller, and a preparation."""

    call: object
    beside: object
    before: object = None
    says_m: bool = False
    """Whether the second caller sends a message with the id "m"."""


async def busy(world):
    await world.session.chat("look")


async def full(world):
    for text in ("look", "x", "y"):
        await world.session.chat(text)


async def answered(world):
    await world.session.chat("x")
    await world.session.wait_idle()


async def other_busy(world):
    await world.other.chat("look")
    await world.other.chat("x")


async def scheduled(world):
    await world.session.schedule("x", after=1000, key="k")


async def delegated(world):
    await world.session.delegate("w", "work", task_id="t")


def create(world, key=None):
    return world.agent.create_session("bob", "look", session_id=key)


CASES = {
    "chat": Case(
        lambda w: w.session.chat("look", message_id="m"),
        lambda w: w.session.chat("look", message_id="m"),
        says_m=True,
    ),
    "urgent": Case(
        lambda w: w.session.chat("look", priority=Priority.URGENT),
        lambda w: w.session.interrupt(drop_queued=True),
        busy,
    ),
    "full": Case(
        lambda w: w.session.chat("look", message_id="m"),
        lambda w: w.session.chat("look", message_id="m"),
        full,
        says_m=True,
    ),
    "run": Case(lambda w: w.agent.run("look"), lambda w: w.agent.run("look")),
    "run in": Case(
        lambda w: w.agent.run("look", session=w.session), lambda w: w.agent.run("x", session=w.session)
    ),
    "stream": Case(lambda w: w.read(w.session), lambda w: w.session.chat("x", on_busy="interrupt")),
    "stream fresh": Case(lambda w: w.read(), lambda w: w.read()),
    "create": Case(create, create),
    "create id": Case(lambda w: create(w, "b"), lambda w: create(w, "b")),
    "ensure": Case(
        lambda w: w.agent.ensure_session("bob", "b"), lambda w: w.agent.ensure_session("bob", "b")
    ),
    "interrupt": Case(
        lambda w: w.session.interrupt(drop_queued=True),
        lambda w: w.session.chat("look", message_id="m"),
        full,
        says_m=True,
    ),
    "answer": Case(lambda w: w.decide(), lambda w: w.decide(), World.suspend),
    "resume": Case(lambda w: w.resume(), lambda w: w.agent.run("x", session=w.session), World.suspend),
    "delegate": Case(
        lambda w: w.session.delegate("w", "work", task_id="t"),
        lambda w: w.session.delegate("w", "work", task_id="t"),
    ),
    "ask": Case(lambda w: w.worker.ref.ask("hi"), lambda w: w.worker.ref.ask("hi")),
    "tell": Case(lambda w: w.worker.ref.tell("hi"), lambda w: w.worker.ref.tell("hi")),
    "aclose": Case(lambda w: w.other.aclose(), lambda w: w.other.chat("look", message_id="m"), other_busy),
    "schedule": Case(
        lambda w: w.session.schedule("x", after=1000, key="k"),
        lambda w: w.session.schedule("x", after=1000, key="k"),
    ),
    "open": Case(
        lambda w: w.agent.open_session("s"),
        lambda w: w.session.chat("look", message_id="m"),
        answered,
        says_m=True,
    ),
    "run id": Case(
        lambda w: w.agent.run("look", session=w.session, message_id="m"),
        lambda w: w.session.chat("look", message_id="m"),
        says_m=True,
    ),
    "stream id": Case(
        lambda w: w.read(w.session, message_id="m"),
        lambda w: w.agent.run("look", session=w.session, message_id="m"),
        says_m=True,
    ),
    "receive": Case(
        lambda w: w.say(), lambda w: w.agent.run("look", session=w.session, message_id="m"), full, says_m=True
    ),
    "interrupt id": Case(
        lambda w: w.session.interrupt(message_id="m"),
        lambda w: w.session.chat("look", message_id="m"),
        busy,
        says_m=True,
    ),
    "follow": Case(lambda w: w.read_suspended(), lambda w: w.resume(), World.suspend),
    "approvals": Case(lambda w: w.agent.approvals(), lambda w: w.decide(), World.suspend),
    "deliver": Case(
        lambda w: w.session.inject(Reply(text="hello")),
        lambda w: w.session.chat("look", message_id="m"),
        says_m=True,
    ),
    "unschedule": Case(
        lambda w: w.session.unschedule("k"), lambda w: w.session.schedule("x", after=1000, key="k"), scheduled
    ),
    "cancel task": Case(
        lambda w: w.session.cancel_task("t"),
        lambda w: w.session.delegate("w", "work", task_id="t"),
        delegated,
    ),
    "delete": Case(
        lambda w: w.runtime.delete_session("o"), lambda w: w.other.chat("look", message_id="m"), other_busy
    ),
}


REPEATED = [
    CASES[name]
    for name in (
        "chat",
        "full",
        "create id",
        "ensure",
        "delegate",
        "schedule",
        "run id",
        "stream id",
        "receive",
        "unschedule",
        "delete",
    )
]
"""Calls with an id. A repetition after a cancellation is confirmed, and the operation is done once."""


async def repeat(world, case):
    """Repeat the call after the session is idle. Its session may exist, or its message may have ended."""
    await world.session.wait_idle()
    with suppress(SessionExists, Interrupted, DuplicateMessage):
        await case.call(world)


def start_agents():
    llm = ScriptedLLM(answer, chunk=3)
    agent = BareAgent("a", llm=llm, tools=[look, pay], session_inbox_capacity=2, grace=1)
    worker = BareAgent("w", llm=ScriptedLLM(["42"], repeat=True))
    for each in (agent, worker):
        each.on_session(attach)
    return agent, worker


@pytest.mark.parametrize("durable", [False, True], ids=["in memory", "in a journal"])
@pytest.mark.parametrize("callers", [1, 2])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_call_may_be_cancelled_at_each_of_its_steps(  # noqa: PLR0917 - three of them are fixtures
    seed, name, callers, durable, cancelled_at, autojump_clock, monkeypatch
):
    """A call that is cancelled at any step leaves the sessions usable for other callers and for the next start."""
    ended = 0
    for step in range(MOST):
        monkeypatch.setattr(trio._core._run, "_r", random.Random(f"{seed} {step}"))
        async with MemoryJournal().running() as journal:
            has_ended = await live(CASES[name], callers, step, journal if durable else None, cancelled_at)
            if durable:
                await live_again(journal)
        ended = ended + 1 if has_ended else 0
        if ended == AT_END:
            break
    else:
        raise AssertionError(f"it has not ended after {MOST} steps")


async def live(case, callers, step, journal, cancelled_at):
    """Run one process: cancel the call at its step and check the remaining state."""
    async with open_runtime(journal=journal) as runtime:
        agent, worker = start_agents()
        await runtime.start(worker)
        await runtime.start(agent)
        world = World(
            runtime,
            agent,
            worker,
            await agent.create_session("ada", session_id="s"),
            await agent.create_session("bob", session_id="o"),
        )
        world.listen()
        if case.before is not None:
            await case.before(world)
        outcome = []

        async def beside():
            try:
                await case.beside(world)
            except ActgentError as error:
                outcome.append(type(error).__name__)
            else:
                outcome.append("in")

        with trio.fail_after(1000):  # seconds of the autojump clock: no call waits forever
            async with trio.open_nursery() as nursery:
                if callers == 2:
                    nursery.start_soon(beside)
                has_ended = await cancelled_at(step, lambda: case.call(world))
            if case in REPEATED and not has_ended:
                await repeat(world, case)
                outcome.append("in")
            await check(world, case, outcome)
        return has_ended


async def check(world, case, outcome):
    session, agent = world.session, world.agent
    await session.wait_idle()
    if session.approvals:
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
    assert (await agent.run("again", session=session)).text == "hello " * 3
    for key in ("b", "o"):
        with suppress(ActgentError):
            await (await agent.open_session(key)).wait_idle()
    while session.children:
        await trio.lowlevel.checkpoint()
    await session.wait_idle()
    await trio.testing.wait_all_tasks_blocked()
    check_agent(agent)
    check_agent(world.worker)
    assert world.runtime.threads.abandoned == ()
    check_record(session)
    assert all(count == 1 for count in world.failed.values())
    users = {message.id for message in session.history if message.sender.kind == "user"}
    if case.says_m and "in" in outcome:
        assert "m" in users or world.failed["m"]  # a confirmed message has ended
    if case is CASES["delegate"] and outcome:
        messages = [message for message in session.history if message.sender.kind == "agent"]
        assert len(messages) == 1
    if case in (CASES["create id"], CASES["ensure"]) and outcome:
        assert (await agent.open_session("b")).status == "idle"
    if case is CASES["schedule"]:
        assert len(session.schedules) <= 1
        assert not outcome or len(session.schedules) == 1


def check_agent(agent):
    """Check that no slot, waiter, pending open, turn or open call is left."""
    opener = agent._opener
    if opener is None:  # an unused agent has no actor
        return
    running = opener.running
    inbox = running.inbox.statistics()
    assert (inbox.waiting, inbox.urgent, inbox.claimed, inbox.senders, inbox.sessions) == (0, 0, 0, 0, 0)
    assert len(running.inbox) == 0
    assert (running.runner._held_up, opener._pending_opens) == ([], {})
    for context in running.sessions.values():
        left = (
            context.acceptances,
            context.pending,
            context.pins,
            context._idle,
            context.opening_task,
            context.schedules.writing,
        )
        assert left == (None, 0, 0, None, None, {})
        assert (context.turn, context.conversation.open_calls, context.suspension) == (None, (), None)
        assert not context.is_transient


def check_record(session):
    """Check that each message occurs once and each call has one result."""
    ids = [message.id for message in session.history]
    assert len(ids) == len(set(ids))
    calls = [call.id for message in session.history for call in message.tool_calls]
    results = [result.call_id for message in session.history for result in message.tool_results]
    assert sorted(calls) == sorted(results)


async def live_again(journal):
    """Start again on the journal and check that no turn runs and the sessions are consistent."""
    said = {each.session_id: await journal.load(each.session_id) for each in await journal.sessions()}
    requests = []

    def count(chat):
        requests.append(chat)
        return "again"

    async with open_runtime(journal=journal) as runtime:
        agents = [BareAgent(each, llm=ScriptedLLM(count), tools=[look, pay]) for each in "aw"]
        for agent in agents:
            await runtime.start(agent)
        await trio.testing.wait_all_tasks_blocked()
        assert requests == []
        for key in said:
            with suppress(ActgentError):
                check_record(await agents[0].open_session(key))
