"""Tool calls of one answer run in its order, for every kind of agent, with approvals, agents as tools, and after a crash."""

import itertools
import json

import pytest
import trio
import trio.testing

from actgent import (
    Approve,
    BareAgent,
    GoalAgent,
    PlanAgent,
    Reject,
    ScriptedLLM,
    StepsAgent,
    ToolCall,
    delegation_tools,
    handoff,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.testing import CrashingJournal

ORDER = ("write", "read", "write", "read", "read", "write")


def tools_noting(log):
    """A tool with an effect and a pure one, which take some steps of the event loop each."""

    @tool
    async def write(n: int) -> str:
        """Write."""
        log.append(f"write {n}+")
        await trio.testing.wait_all_tasks_blocked()
        log.append(f"write {n}-")
        return f"wrote {n}"

    @tool(effect="pure")
    async def read(n: int) -> str:
        """Read."""
        log.append(f"read {n}+")
        await trio.testing.wait_all_tasks_blocked()
        log.append(f"read {n}-")
        return f"read {n}"

    return [write, read]


def numbered():
    return [(name, {"n": n}) for n, name in enumerate(ORDER)]


def native():
    return [ToolCall(name, arguments) for name, arguments in numbered()]


def step():
    made = [
        {"id": str(n), "tool_name": name, "parameters": args} for n, (name, args) in enumerate(numbered())
    ]
    return json.dumps({"tool_thought": "go", "tool_calls": made})


def planned():
    made = [{"toolName": name, "arguments": arguments} for name, arguments in numbered()]
    return json.dumps({"intent": "i", "plan": "p", "toolCalls": made})


DONE = json.dumps({"final_answer": "done", "thought": "t"})
EVALUATED = json.dumps(
    {"action": "evaluate", "params": {"achieved": True, "feedback": "ok"}, "reasoning": "r"}
)
SUMMED = json.dumps({"action": "summarize", "params": {"summary": "done"}, "reasoning": "r"})
PLAN = json.dumps({"action": "plan", "params": {"steps": ["a"]}, "reasoning": "r"})
KINDS = {
    "bare": (BareAgent, [native(), "done"]),
    "steps": (StepsAgent, [step(), DONE]),
    "steps, native calls": (StepsAgent, [native(), DONE]),
    "plan": (PlanAgent, [planned(), "done"]),
    "plan, native calls": (PlanAgent, [native(), "done"]),
    "goal": (GoalAgent, [PLAN, native(), SUMMED, EVALUATED]),
}


def assert_in_order(log):
    """The pure calls 3 and 4 may overlap; all other calls end before the next one starts."""
    others = [entry for entry in log if entry[:-1] not in ("read 3", "read 4")]
    assert others == [f"{name} {n}{sign}" for n, name in enumerate(ORDER) if n not in (3, 4) for sign in "+-"]
    assert [entry for entry in log if entry.endswith("+")] == [f"{name} {n}+" for n, name in enumerate(ORDER)]
    middle = slice(log.index("write 2-") + 1, log.index("write 5+"))
    assert sorted(log[middle]) == ["read 3+", "read 3-", "read 4+", "read 4-"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_agent_runs_calls_in_the_order_of_the_answer(kind):
    """The calls are native or written as text."""
    make, script = KINDS[kind]
    for _ in range(5):
        log = []
        async with make("a", llm=ScriptedLLM(script), tools=tools_noting(log)) as agent:
            session = await agent.create_session("ada", "go")
            await session.wait_idle()
            results = [r for message in session.history for r in message.tool_results]
        assert [each.text for each in results] == [
            f"{'wrote' if name == 'write' else 'read'} {n}" for n, name in enumerate(ORDER)
        ]
        assert_in_order(log)


async def test_an_agent_lets_calls_overlap():
    """`Agent(parallel_tools=True)` also runs calls with an effect concurrently; they start in order nevertheless."""
    log = []
    llm = ScriptedLLM([native(), "done"])
    async with BareAgent("a", llm=llm, tools=tools_noting(log), parallel_tools=True) as agent:
        await agent.run("go")
    assert log[:6] == [f"{name} {n}+" for n, name in enumerate(ORDER)]


async def test_agents_asked_by_one_answer_work_at_the_same_time(autojump_clock):
    """An agent as a tool, and a task that is delegated, take as long as the slowest of them."""
    workers = [BareAgent(name, llm=ScriptedLLM(lambda _: "ok", delay=10)) for name in ("x", "y")]
    calls = [
        ToolCall("x", {"task": "t"}),
        ToolCall("y", {"task": "t"}),
        ToolCall("delegate_to_agent", {"agent": "x", "task": "t"}),
        ToolCall("delegate_to_agent", {"agent": "y", "task": "t"}),
    ]
    tools = [*(worker.as_tool(name=worker.name) for worker in workers), *delegation_tools()]
    boss = BareAgent("boss", llm=ScriptedLLM([calls, "done"]), tools=tools)
    async with open_runtime() as runtime:
        for each in (*workers, boss):
            await runtime.start(each)
        started = trio.current_time()
        await boss.run("go")
        assert trio.current_time() - started == 10


async def test_a_write_after_a_handoff_call_runs_in_order():
    """A handoff takes effect for the next message; the later calls of its answer run after it."""
    log = []
    other = BareAgent("other", llm=ScriptedLLM(lambda _: "from now on I answer"))
    calls = [ToolCall("write", {"n": 0}), ToolCall("handoff_to_other", {}), ToolCall("write", {"n": 1})]
    agent = BareAgent("a", llm=ScriptedLLM([calls, "done"]), tools=[*tools_noting(log), handoff(other)])
    async with open_runtime() as runtime:
        await runtime.start(other)
        await runtime.start(agent)
        session = await agent.create_session("ada", "go")
        await session.wait_idle()
    assert log == ["write 0+", "write 0-", "write 1+", "write 1-"]


@pytest.mark.parametrize("verdicts", list(itertools.product([True, False], repeat=2)))
async def test_calls_that_wait_for_approval_run_in_order_after_the_decisions(verdicts):
    """Calls without an approval run before; a decision about a later call does not put it first."""
    log = []

    @tool(approval=True)
    async def pay(n: int) -> str:
        """Pay."""
        log.append(f"pay {n}")
        await trio.testing.wait_all_tasks_blocked()
        log.append(f"paid {n}")
        return "paid"

    @tool
    async def note(n: int) -> str:
        """Note."""
        log.append(f"note {n}")
        return "noted"

    names = ("note", "pay", "note", "pay", "note")
    calls = [ToolCall(name, {"n": n}) for n, name in enumerate(names)]
    async with BareAgent("a", llm=ScriptedLLM([calls, "done"]), tools=[pay, note]) as agent:
        session = await agent.create_session("ada", "go")
        with trio.fail_after(5):
            while len(session.approvals) < 2:
                await trio.lowlevel.checkpoint()
            assert log == ["note 0", "note 2", "note 4"]
            for approval, verdict in reversed(list(zip(session.approvals, verdicts, strict=True))):
                await session.answer(approval, Approve() if verdict else Reject())
            await session.wait_idle()
    expected = [
        f"{word} {n}"
        for n, verdict in zip((1, 3), verdicts, strict=True)
        if verdict
        for word in ("pay", "paid")
    ]
    assert log[3:] == expected


@pytest.mark.parametrize("effect", ["idempotent", "once"])
async def test_calls_keep_their_order_over_a_crash(effect, autojump_clock):
    """The process dies at any write. A call starts after all earlier calls of the answer have started and ended."""
    lives = 0
    for writes in itertools.count(1):
        log = []

        def make(log=log):
            def noting(name):
                async def run() -> str:
                    """Have an effect."""
                    log.append(f"{name}+")
                    await trio.sleep(1)
                    log.append(f"{name}-")
                    return name

                return tool(run, name=name, effect=effect)

            def answer(chat):
                return "done" if chat.messages[-1].role == "tool" else [ToolCall(name, {}) for name in "cab"]

            return BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=[noting(name) for name in "abc"])

        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def live(dying=dying, make=make):
                    async with open_runtime(journal=dying) as runtime:
                        agent = make()
                        await runtime.start(agent)
                        session = await agent.create_session("ada", "go", session_id="s")
                        await session.wait_idle()

                with trio.move_on_after(60):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            if not dying.is_dead:
                break
            lives += 1
            log.append("crash")
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(make())
                await trio.sleep(60)
        started = [entry[0] for entry in log if entry.endswith("+")]
        first = list(dict.fromkeys(started))
        assert first == sorted(first, key="cab".index), log
        for life in " ".join(log).split("crash"):
            entries = life.split()
            pairs = [(entries[at], entries[at + 1]) for at in range(0, len(entries) - 1, 2)]
            assert all(first[0] == second[0] for first, second in pairs), log
            names = [entry[0] for entry in entries if entry.endswith("+")]
            assert names == sorted(names, key="cab".index), log
        if effect == "once":
            assert len(started) == len(set(started)), log
    assert lives > 3
