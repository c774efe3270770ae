"""Limits of a turn and the turns that it causes: amounts, depth, restarts, and agents that call each other in a cycle."""

import collections
import json

import pytest
import trio

from actgent import (
    BareAgent,
    JournalDamaged,
    LimitReached,
    Limits,
    Quotas,
    ScriptedLLM,
    StepsAgent,
    Text,
    ToolCall,
    Usage,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import DownstreamUsageRecord, UsageRecord
from actgent.journal.session_list_queries import QUOTA_AGENT
from actgent.llm.model_interface import ModelResponse
from actgent.testing import CrashingJournal


class Pair:
    """Two agents that delegate each task to each other."""

    def __init__(self, *, waits=True, limits=None, by_run=False, stubborn=False):
        self.calls = self.ran = 0
        self.failures = []
        self.agents = [
            BareAgent(name, llm=ScriptedLLM(self.ask(other), keep=0), limits=limits, grace=0)
            for name, other in (("x", "y"), ("y", "x"))
        ]
        self.waits, self.by_run, self.stubborn = waits, by_run, stubborn
        for agent, other in zip(self.agents, reversed(self.agents), strict=True):
            for each in [self.runner(other)] if by_run else delegation_tools():
                agent.tools.add(each)
            agent.on_session(lambda session: session.on_exception(self.failures.append))

    def ask(self, other):
        def answer(chat):
            self.calls += 1
            last = chat.messages[-1]
            if last.role == "tool" and not self.stubborn:
                return "done"
            if last.parts[0].text.startswith("Task ") and not self.stubborn:
                return "I have heard"
            task = f"go {len(chat.messages)}"
            if self.by_run:
                return ToolCall("pass_on", {"task": task})
            return ToolCall("delegate_to_agent", {"agent": other, "task": task, "wait": self.waits})

        return answer

    def runner(self, other):
        @tool(effect="idempotent")
        async def pass_on(task: str) -> str:
            """Delegate the task to the other agent."""
            self.ran += 1
            return str(await other.run(task))

        return pass_on


def in_chain(error):
    return [each for each in error if isinstance(each.error, LimitReached)]


async def let_live(pair, journal=None, seconds=2000):
    async with open_runtime(journal=journal) as runtime:
        for agent in pair.agents:
            await runtime.start(agent)
        session = await pair.agents[0].ensure_session("ada", "s")
        if not session.history:
            await session.chat("go", message_id="m")
        with trio.move_on_after(seconds):
            await session.wait_idle()
        await trio.sleep(seconds)
    return session


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("by_run", [False, True])
async def test_agents_that_ask_each_other_go_eight_levels_deep(by_run, durable, autojump_clock):
    """The ninth ask is rejected, and the error names the limit; all of them answer with it."""
    async with MemoryJournal().running() as journal:
        pair = Pair(by_run=by_run)
        received = []
        for agent in pair.agents:
            agent.on_session(lambda session: session.on_tool_result(received.append))
        session = await let_live(pair, journal if durable else None)
    assert pair.calls == 9 * 2
    assert not pair.failures
    refused = [result.error for result in received if result.error]
    assert len(refused) == 1
    for part in ("limit of 8 levels", "used: 8 levels", "Limits(depth=...)", "agent 'x'"):
        assert part in refused[0]
    assert session.history[-1].text == "done"


async def test_depth_limit_bounds_nested_turns(autojump_clock):
    """With depth 3, three nested turns follow the first one."""
    pair = Pair(limits=Limits(depth=3))
    await let_live(pair)
    assert pair.calls == 4 * 2


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(("waits", "by_run"), [(True, False), (False, False), (True, True)])
async def test_tree_of_a_turn_shares_its_model_calls(waits, by_run, durable, autojump_clock):
    """Agents that keep asking each other make 250 model calls together, by asks, runs and tasks without a waiting caller."""
    async with MemoryJournal().running() as journal:
        pair = Pair(waits=waits, by_run=by_run, stubborn=True)
        await let_live(pair, journal if durable else None)
    assert pair.calls == 250
    first = next(each.error for each in pair.failures if each.error.field == "tree_model_calls")
    assert (first.value, first.agent) == (250, "x")
    assert first.used["model_calls"] + first.reserved == 250
    for part in ("limit of 250 model calls", "the turns that it causes", "used: ", "tree_model_calls", "'x'"):
        assert part in str(first)


async def test_tree_of_a_turn_shares_its_tool_calls(autojump_clock):
    """Helpers that call tools by the dozen stop at the tree's tool calls."""
    ran = []

    @tool(effect="pure")
    async def look(n: int) -> int:
        """Look."""
        ran.append(n)
        return n

    def work(chat):
        return [ToolCall("look", {"n": len(chat.messages) * 100 + n}) for n in range(10)]

    helper = BareAgent("helper", llm=ScriptedLLM(work, keep=0), tools=[look], goal="look")

    def lead(chat):
        return [ToolCall("helper", {"task": f"{len(chat.messages)} {n}"}) for n in range(4)]

    agent = BareAgent(
        "lead", llm=ScriptedLLM(lead, keep=0), tools=[helper.as_tool()], limits=Limits(tree_tool_calls=64)
    )
    async with agent:
        with pytest.raises(
            LimitReached, match=r"64 tool calls .* Limits\(tree_tool_calls=...\) of agent 'lead'"
        ) as caught:
            await agent.run("go")
    assert caught.value.field == "tree_tool_calls"
    assert len(ran) == 60, "four calls of the helper and six rounds of ten"


async def test_tightest_tree_limit_applies(autojump_clock):
    """An agent in the middle has a separate bound for its descendants, whatever its ancestors allow."""
    pair = Pair(stubborn=True)
    pair.agents[1].limits = Limits(tree_model_calls=10)
    counts = collections.Counter()
    async with open_runtime() as runtime:
        for agent in pair.agents:
            await runtime.start(agent)
        session = await pair.agents[0].create_session("ada")
        session.on_tool_result(
            lambda result: counts.update([result.error and "tree_model_calls" in result.error])
        )
        await session.chat("go")
        await session.wait_idle()
    assert counts[True] >= 20
    assert pair.calls == 250


async def test_turn_without_child_sessions_has_no_budget(autojump_clock):
    """The limit of 25 calls per turn is tighter, so usage is neither counted nor recorded in a budget."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:

        @tool
        async def add(a: int) -> int:
            """Add."""
            return a

        llm = ScriptedLLM(lambda chat: ToolCall("add", {"a": len(chat.messages)}), keep=0)
        agent = await runtime.start(BareAgent("a", llm=llm, tools=[add]))
        session = await agent.create_session("ada", session_id="s")
        failures, budgets = [], []
        session.on_exception(failures.append)
        session.on_tool_result(lambda _: budgets.append(session.budget))
        await session.chat("go")
        await session.wait_idle()
        records = await journal.load("s")
    assert failures[0].error.field == "model_calls"
    assert budgets == [None] * 25
    assert not any(isinstance(record, DownstreamUsageRecord) for record in records)


@pytest.mark.parametrize("waits", [True, False])
async def test_tree_limit_holds_over_restarts(waits, autojump_clock):
    """At any crash, all processes together make as many calls as one may, plus the calls whose answers were lost."""
    crashes = 0
    limits = Limits(tree_model_calls=12)
    for writes in range(3, 400, 3):
        pair, lives = Pair(waits=waits, stubborn=True, limits=limits), []
        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)

            async def live(pair=pair, dying=dying):
                await let_live(pair, dying)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(live)
                with trio.move_on_after(100):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            lives.append(pair.calls)
            again = Pair(waits=waits, stubborn=True, limits=limits)
            await let_live(again, journal, seconds=100)
            lives.append(again.calls)
        if not dying.is_dead:
            break
        crashes += 1
        lost = 1 + limits.depth
        assert sum(lives) <= 12 + lost, (writes, lives)
        assert sum(lives) >= 12 - lost, (writes, lives)
    assert crashes > 5


# --- circles -----------------------------------------------------------------------------------


def looping(cycle, results, kind=BareAgent, **options):
    """Return an agent that calls tools in a cycle; their results are taken from `results` repeatedly."""
    asked, ran = [0], [0]

    @tool(effect="idempotent")
    async def f(x: int) -> str:
        """Do one thing."""
        ran[0] += 1
        return results[ran[0] % len(results)]

    @tool(effect="idempotent")
    async def g(x: int) -> str:
        """Do another thing."""
        return "same"

    def answer(_):
        asked[0] += 1
        name, x = cycle[(asked[0] - 1) % len(cycle)]
        if kind is BareAgent:
            return ToolCall(name, {"x": x})
        expected = {"tool_name": name, "parameters": {"x": x}}
        return json.dumps({"tool_thought": "once more", "tool_calls": [expected]})

    return kind("a", llm=ScriptedLLM(answer, keep=0), tools=[f, g], **options), asked


TWO = [("f", 1), ("g", 1)]
THREE = [("f", 1), ("f", 2), ("g", 1)]
FOUR, FIVE, EIGHT = ([*(("f", n) for n in range(count - 1)), ("g", 1)] for count in (4, 5, 8))


@pytest.mark.parametrize(
    ("cycle", "most", "asks"),
    [
        (TWO, 3, 7),
        (THREE, 3, 10),
        (TWO, 1, 5),
        (THREE, 2, 7),
        (TWO, 5, 11),
        (FOUR, 3, 13),
        (FIVE, 3, 16),
        (EIGHT, 2, 17),
    ],
)
async def test_repeated_call_cycle_ends_the_turn(cycle, most, asks, autojump_clock):
    """A cycle of two to eight calls may repeat as often as a single call; then the turn ends before the next round."""
    agent, asked = looping(cycle, ["same"], limits=Limits(max_repeated_calls=most))
    async with agent:
        with pytest.raises(LimitReached, match=r"rounds of the same calls \('f', ") as caught:
            await agent.run("go")
    assert caught.value.field == "max_repeated_calls"
    assert asked[0] == asks


@pytest.mark.parametrize("cycle", [TWO, THREE, FOUR, FIVE, EIGHT])
async def test_repeated_calls_with_new_results_continue(cycle, autojump_clock):
    agent, asked = looping(cycle, [str(n) for n in range(100)])
    async with agent:
        with pytest.raises(LimitReached) as caught:
            await agent.run("go")
    assert caught.value.field == "model_calls"
    assert asked[0] == 25


@pytest.mark.parametrize("kind", [BareAgent, StepsAgent])
@pytest.mark.parametrize(("cycle", "asks"), [(TWO, 7), (THREE, 10), (FIVE, 16)])
async def test_cycles_are_detected_across_a_crash(cycle, asks, kind, autojump_clock):
    """A cycle is detected as in one process, wherever the process died."""
    crashes = 0
    options = {} if kind is BareAgent else {"max_iterations": 25}
    for writes in range(2, 100, 2):
        async with MemoryJournal().running() as journal:
            agent, asked = looping(cycle, ["same"], kind, **options)
            failures = []
            agent.on_session(lambda session, heard=failures: session.on_exception(heard.append))
            dying = CrashingJournal(journal, writes)

            async def live(agent=agent, dying=dying):
                async with open_runtime(journal=dying) as runtime:
                    await runtime.start(agent)
                    session = await agent.create_session("ada", session_id="s")
                    await session.chat("go", message_id="m")
                    await session.wait_idle()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(live)
                with trio.move_on_after(5):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            said = sum(bool(getattr(record, "stop", "")) for record in await journal.load("s"))
            if not dying.is_dead:
                break
            agent, asked = looping(cycle, ["same"], kind, **options)
            asked[0] = said
            agent.on_session(lambda session, heard=failures: session.on_exception(heard.append))
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(agent)
                session = await agent.ensure_session("ada", "s")
                await session.wait_idle()
        if said:
            crashes += 1
            assert asked[0] == asks, writes
            assert failures[-1].error.field == "max_repeated_calls"
    assert crashes > 3


@pytest.mark.parametrize("first", ["helper", "desk"])
@pytest.mark.parametrize("with_block", [True, False])
async def test_a_helper_works_for_the_root_owner_after_a_restart(first, with_block, autojump_clock):
    """`Chat.owner` of a helper's calls is the owner of the session at the top, whichever agent starts first."""
    owners, gate = [], trio.Event()

    async def answer(chat):
        owners.append(chat.owner)
        await gate.wait()
        return "ok"

    def plan(chat):
        if chat.messages[-1].role == "tool":
            return "done"
        return ToolCall(
            "delegate_to_agent", {"agent": "middle" if chat.session == "s" else "helper", "task": "x"}
        )

    async def start(runtime):
        helper = BareAgent("helper", llm=ScriptedLLM(answer, keep=0), grace=0)
        middle = BareAgent("middle", llm=ScriptedLLM(plan, keep=0), tools=delegation_tools(), grace=0)
        desk = BareAgent("desk", llm=ScriptedLLM(plan, keep=0), tools=delegation_tools(), grace=0)
        agents = [helper, middle, desk] if first == "helper" else [desk, middle, helper]
        if with_block:
            async with runtime.starting():
                for agent in agents:
                    await runtime.start(agent)
        else:
            for agent in agents:
                await runtime.start(agent)
        return desk

    async with MemoryJournal().running() as journal:
        with trio.move_on_after(5):
            async with open_runtime(journal=journal) as runtime:
                desk = await start(runtime)
                await desk.create_session("ada", "go", session_id="s")
                await trio.sleep_forever()
        assert owners == ["ada"]
        gate.set()
        async with open_runtime(journal=journal) as runtime:
            await start(runtime)
            await trio.sleep(30)
    assert set(owners[1:]) == {"ada"}
    assert len(owners) > 1


class DamagedSessionJournal(MemoryJournal):
    """Journal in which the records of the session `s` cannot be read."""

    async def read(self, session_id, *, agent=None, after=0, limit=1000):
        if session_id == "s":
            raise JournalDamaged("a record is changed", session_id=session_id, record=1)
        return await super().read(session_id, agent=agent, after=after, limit=limit)


async def test_a_helper_of_a_damaged_session_resumes_for_the_root_owner(autojump_clock):
    """A session that works for a session with unreadable records resumes, and its calls count for the name in the summary."""
    owners, gate = [], trio.Event()

    async def answer(chat):
        owners.append(chat.owner)
        await gate.wait()
        return "ok"

    def make_helper():
        return BareAgent("helper", llm=ScriptedLLM(answer, keep=0), grace=0)

    task = ToolCall("delegate_to_agent", {"agent": "helper", "task": "x"})
    async with DamagedSessionJournal().running() as journal:
        with trio.move_on_after(5):
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(make_helper())
                desk = BareAgent("desk", llm=ScriptedLLM([task]), tools=delegation_tools(), grace=0)
                await runtime.start(desk)
                await desk.create_session("ada", "go", session_id="s")
                await trio.sleep_forever()
        gate.set()
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(make_helper())
            await trio.sleep(30)
    assert owners == ["ada", "ada"]


async def test_tokens_of_a_helper_count_for_the_root_owner_after_a_restart(autojump_clock):
    """The helper starts before its caller."""
    gate = trio.Event()

    async def answer(_):
        await gate.wait()
        return ModelResponse(parts=(Text("ok"),), usage=Usage(input_tokens=100, output_tokens=10))

    def plan(chat):
        is_done = chat.messages[-1].role == "tool"
        return "done" if is_done else ToolCall("delegate_to_agent", {"agent": "helper", "task": "x"})

    async def start(runtime):
        helper = BareAgent("helper", llm=ScriptedLLM(answer, keep=0), grace=0)
        desk = BareAgent("desk", llm=ScriptedLLM(plan, keep=0), tools=delegation_tools(), grace=0)
        await runtime.start(helper)
        await runtime.start(desk)
        return desk

    quotas = Quotas(day=Limits(tokens=1_000_000))
    async with MemoryJournal().running() as journal:
        with trio.move_on_after(5):
            async with open_runtime(journal=journal, quotas=quotas) as runtime:
                desk = await start(runtime)
                await desk.create_session("ada", "go", session_id="s")
                await trio.sleep_forever()
        gate.set()
        async with open_runtime(journal=journal, quotas=quotas) as runtime:
            await start(runtime)
            await trio.sleep(30)
        spent = collections.Counter()
        for head in await journal.sessions():
            for record in await journal.load(head.session_id, agent=head.agent):
                if isinstance(record, UsageRecord) and head.agent == QUOTA_AGENT:
                    spent[head.owner] += record.tokens
    assert set(spent) == {"ada"}
    assert spent["ada"] >= 110
