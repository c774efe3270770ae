"""Random operations of users and programs on sessions, with agent failures and process restarts between them.

After all approvals are decided, each message has ended once, each call has one result, no ungranted call ran, and no session,
slot, approval or child is left.
"""

import collections
import os
import random
from contextlib import suppress

import attrs
import pytest
import trio
from trio.testing import MockClock

from actgent import (
    ActgentError,
    Approve,
    BareAgent,
    Limits,
    Priority,
    Reject,
    Respond,
    ScriptedLLM,
    SessionClosed,
    ToolCall,
    ToolContext,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.actors.supervision import Supervision
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    AgentMessageRecord,
    MessageAcceptedRecord,
    MessageEndRecord,
    SessionCreatedRecord,
)
from actgent.runtime.sessions import session_table
from actgent.testing import check_transcript
from actgent.turns.turn_lifecycle import TurnLifecycle

SOAK = bool(os.environ.get("ACTGENT_SOAK"))
SEEDS = 150 if SOAK else 8
CHAOS = 45 if SOAK else 9
RULES = ("queue", "collect", "interrupt", "reject")
SESSIONS = ("s1", "s2", "s3")
RESTARTS = Supervision(max_restarts=1000, backoff=0.3, max_backoff=1)


@attrs.define
class World:
    """State outside of the processes: the random generator, payments, accepted messages, and found problems."""

    chance: random.Random
    paid: collections.Counter = attrs.field(factory=collections.Counter)
    problems: list = attrs.field(factory=list)
    accepted: list = attrs.field(factory=list)
    deleting: list = attrs.field(factory=list)
    """Ids of sessions that are being deleted."""
    breaks: bool = False
    """Whether the agent fails after its next turn."""
    said: int = 0
    more: tuple = ()
    """Further kinds of operations."""
    trace: list = attrs.field(factory=list)
    """Operations with their times."""

    async def pause(self, maximum):
        await trio.sleep(self.chance.uniform(0, maximum))

    # --- agents ----------------------------------------------------------------------------

    def agents(self):
        """Return a lead and a worker to which the lead delegates."""
        deadline = self.chance.choice([3, 30, 1e6])
        options = {"limits": Limits(model_calls=8), "max_concurrent_sessions": 3}
        return {
            "worker": BareAgent("worker", llm=self._model([]), tools=self._tools(), **options),
            "lead": BareAgent(
                "lead",
                llm=self._model(["delegate"] * 3),
                tools=[*self._tools(), *delegation_tools(deadline=deadline)],
                **options,
            ),
        }

    def _model(self, more):
        async def answer(chat):
            self.problems += [f"transcript: {problem}" for problem in check_transcript(chat)]
            await self.pause(1)
            if chat.messages[-1].role == "tool" and self.chance.random() < 0.7:
                return "done"
            order = {"order": str(self.chance.randrange(10**9))}
            match self.chance.choice(["say", "say", "pay", "look", "both", "break", *more]):
                case "say":
                    return "ok"
                case "both":
                    return [ToolCall("pay", order), ToolCall("look", order)]
                case "break":
                    self.breaks = self.chance.random() < 0.2
                    return "ok"
                case "delegate":
                    waits = [self.chance.random() < 0.5 for _ in range(self.chance.randint(1, 2))]
                    tasks = [{"agent": "worker", "task": order["order"], "wait": wait} for wait in waits]
                    return [ToolCall("delegate_to_agent", task) for task in tasks]
                case name:
                    return ToolCall(name, order)

        return ScriptedLLM(answer, keep=0)

    def _tools(self):
        @tool(approval=True)
        async def pay(order: str, context: ToolContext) -> str:
            """Pay an order."""
            self.paid[context.idempotency_key] += 1
            if context.approval is None:
                self.problems.append(f"{order} ran and nobody granted it")
            await self.pause(1)
            return f"paid {order}"

        @tool(effect="pure")
        async def look(order: str) -> str:
            """Look an order up."""
            await self.pause(2)
            return f"seen {order}"

        return [pay, look]

    # --- operations --------------------------------------------------------------------------

    async def do_something(self, runtime, agents):
        """Do one random operation. It may be rejected, or cancelled with the process."""
        wanted = self.chance.choice(SESSIONS)
        try:
            session = await agents["lead"].ensure_session("ada", wanted)
        except SessionClosed:
            assert wanted in self.deleting  # the session is closed and not yet deleted
            return
        deed = self.chance.choice(
            [*["chat"] * 4, *["decide"] * 4, "ask", "ask", *["urge", "interrupt", "other"] * 2, *self.more]
        )
        self.trace.append((round(trio.current_time(), 6), deed, session.id, session.status))
        with suppress(ActgentError, LookupError):  # the test checks the remaining state only
            match deed:
                case "chat":
                    await self._chat(session, on_busy=self.chance.choice(RULES))
                case "urge":
                    await self._chat(session, priority=Priority.URGENT)
                case "interrupt":
                    await session.interrupt(drop_queued=self.chance.random() < 0.5)
                case "ask":
                    with trio.move_on_after(self.chance.uniform(0, 2)):
                        await agents["lead"].run("q", session=self.chance.choice([session, None]))
                case "decide":
                    for approval in await self._one_of(await runtime.approvals(limit=20)):
                        decision = self.chance.choice([Approve(), Reject("no"), Respond("by hand")])
                        await agents[approval.agent].answer(approval.id, decision)
                case "delete":
                    await self._delete(runtime, session)
                case _:
                    await self._something_else(session)

    async def _delete(self, runtime, session):
        """Delete the session and forget its accepted messages, which are deleted with the session."""
        session_id = session.id
        self.deleting.append(session_id)
        try:
            await runtime.delete_session(session_id)
        finally:
            self.deleting.remove(session_id)
            self.accepted = [each for each in self.accepted if each[0] != session_id]

    async def _something_else(self, session):
        match self.chance.choice(["delegate", "schedule", "cancel"]):
            case "delegate":
                await session.delegate("worker", "x", deadline=self.chance.choice([1, 5, 50]))
            case "schedule":
                await session.schedule("tick", after=self.chance.uniform(0, 5))
            case _:
                for child in await self._one_of(session.children):
                    await session.cancel_task(child.id)

    async def _one_of(self, found):
        await trio.lowlevel.checkpoint()
        return self.chance.sample(found, min(1, len(found)))

    async def _chat(self, session, **options):
        self.said += 1
        message_id = f"m{self.said}"
        await session.chat("hi", message_id=message_id, **options)
        self.accepted.append((session.id, message_id))

    # --- a process -----------------------------------------------------------------------------

    async def live(self, journal, seconds, *, is_last=False):
        async with open_runtime(journal=journal, supervision=RESTARTS) as runtime:
            agents = self.agents()
            for agent in self.chance.sample(list(agents.values()), 2):
                await runtime.start(agent)
            until = trio.current_time() + seconds
            async with trio.open_nursery() as nursery:
                while trio.current_time() < until:
                    nursery.start_soon(self.do_something, runtime, agents)
                    await self.pause(0.6)
            if is_last:
                await self._settle(runtime, agents)
                self._look_round(agents.values())

    async def _settle(self, runtime, agents):
        """Reject all approvals until no work is left."""
        self.breaks, is_busy = False, True
        while is_busy:
            await trio.sleep(5)
            approvals = await runtime.approvals()
            for approval in approvals:
                with suppress(ActgentError, LookupError):  # the session may end concurrently
                    await agents[approval.agent].answer(approval.id, Reject())
            contexts = _contexts(agents.values())
            is_busy = approvals or any(each.pending or each.public_session.schedules for each in contexts)
        await trio.sleep(200)

    def _look_round(self, agents):
        for agent in agents:
            if agent._opener.running.inbox.statistics().claimed:
                self.problems.append(f"{agent.name} has sessions that are claimed")
        for context in _contexts(agents):
            left = (
                context.turn,
                context.suspension,
                context.wait_node,
                context.conversation.open_calls,
                context.children,
            )
            ledger = context.approvals
            if any(left) or context.pending or context.is_transient:
                self.problems.append(f"{context.id} is left with {left}")
            if ledger is not None and (ledger.has_open or ledger.is_suspended):
                self.problems.append(f"{context.id} still asks")

    # --- the records -----------------------------------------------------------------------------

    async def check(self, journal):
        records = {each.session_id: await journal.load(each.session_id) for each in await journal.sessions()}
        for summary in await journal.sessions():
            if summary.suspended or summary.unfinished or summary.closed == (summary.session_id in SESSIONS):
                self.problems.append(f"the journal has {summary}")
        for session_id, written in records.items():
            self.problems += _wrong_in(session_id, written)
        known = {
            (key, each.message.id)
            for key, written in records.items()
            for each in written
            if type(each) is MessageAcceptedRecord
        }
        self.problems += [f"{each} is lost" for each in self.accepted if each not in known]
        self.problems += [f"{key} ran {count} times" for key, count in self.paid.items() if count > 1]


def _contexts(agents):
    return [context for agent in agents for context in agent._opener.running.sessions.values()]


def _wrong_in(session_id, records):
    accepted = collections.Counter(
        each.message.id for each in records if isinstance(each, MessageAcceptedRecord)
    )
    ended = collections.Counter(each.message_id for each in records if isinstance(each, MessageEndRecord))
    received = [each.message for each in records if isinstance(each, AgentMessageRecord)]
    if not isinstance(records[0], SessionCreatedRecord):
        yield f"{session_id} has no beginning"
    if accepted != ended:
        yield f"{session_id}: accepted but not ended {accepted - ended}, ended but not accepted {ended - accepted}"
    if [call.id for each in received for call in each.tool_calls] != [
        result.call_id for each in received for result in each.tool_results
    ]:
        yield f"{session_id} has not one result for each call"


@pytest.fixture
def breaking(monkeypatch):
    """Return `breaking(world)`: an agent fails after the end of a turn if `world.breaks` is set."""

    def watch(world):
        end = TurnLifecycle.end_turn

        def end_and_break(self, turn):
            end(self, turn)
            if world.breaks and not turn.host.is_stopping:
                world.breaks = False
                raise RuntimeError("a mistake")

        monkeypatch.setattr(TurnLifecycle, "end_turn", end_and_break)

    return watch


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_agents_without_a_journal_leave_no_unfinished_state(autojump_clock, breaking, seed):
    """Without a journal, agent failures leave no unfinished state."""
    breaking(world := World(random.Random(seed)))
    with trio.fail_after(100_000):
        await world.live(None, 20, is_last=True)
    assert world.problems == []


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_agents_with_a_journal_leave_no_unfinished_state(autojump_clock, breaking, seed):
    """With a journal, agent failures and processes cancelled at any time leave no unfinished state."""
    breaking(world := World(random.Random(seed)))
    async with MemoryJournal().running() as journal:
        for _ in range(world.chance.randint(0, 3)):
            with trio.move_on_after(world.chance.uniform(1, 15)):
                await world.live(journal, 20)
        with trio.fail_after(100_000):
            await world.live(journal, 10, is_last=True)
        await world.check(journal)
    assert world.problems == []


@pytest.fixture
def scheduled(monkeypatch):
    """Return `scheduled(seed)`, which makes trio's task order depend on the seed only."""

    def schedule(seed):
        monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        trio._core._run._r.seed(seed)

    yield schedule
    trio._core._run._r.seed()


async def chaos(seed, journal, breaking):
    """Run and return a world with random operations, restarts, evictions of idle sessions and deletions."""
    breaking(world := World(random.Random(seed), more=("delete", "urge", "interrupt")))
    for _ in range(world.chance.randint(1, 3)):
        with trio.move_on_after(world.chance.uniform(1, 15)):
            await world.live(journal, 20)
    with trio.fail_after(100_000):
        await world.live(journal, 10, is_last=True)
    await world.check(journal)
    return world


@pytest.mark.parametrize("seed", range(CHAOS))
async def test_evicted_and_deleted_sessions_leave_no_unfinished_state(
    autojump_clock, breaking, scheduled, monkeypatch, seed
):
    """Urgent messages, interrupts, restarts, evictions, failures and `delete_session` together leave no unfinished state."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    scheduled(seed)
    async with MemoryJournal().running() as journal:
        world = await chaos(seed, journal, breaking)
    assert world.problems == []
    assert len({deed for _, deed, *_ in world.trace}) > 3


def test_a_seed_is_a_history(monkeypatch, breaking, scheduled):
    """The same seed repeats the same operations at the same times, so that a failure can be reproduced."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)

    async def run():
        async with MemoryJournal().running() as journal:
            return (await chaos(3, journal, breaking)).trace

    traces = []
    for _ in range(2):
        scheduled(3)
        traces.append(trio.run(run, clock=MockClock(autojump_threshold=0)))
    assert traces[0] == traces[1]
    assert {"delete", "urge", "interrupt"} <= {deed for _, deed, *_ in traces[0]}
