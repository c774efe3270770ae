"""Delegated tasks end at their deadlines, with a separate kind of failure, at any stage."""

import math

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    DeadlineExceeded,
    ScriptedLLM,
    ToolCall,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import TaskOutcomeRecord


def last_text(chat):
    return chat.messages[-1].parts[0].text


@tool(approval=True)
async def dig() -> str:
    """Dig."""
    return "dug"


@pytest.fixture
def team():
    """`team(script, delay)`: a lead, a worker, and the failures that the worker's sessions have."""

    def make(script=None, *, delay=0, lead=lambda _: "noted", **options):
        llm = ScriptedLLM(script or (lambda chat: f"did {last_text(chat)}"), delay=delay)
        worker = BareAgent("worker", llm=llm, **options)
        failures = []
        worker.on_session(lambda session: session.on_exception(failures.append))
        return BareAgent("lead", llm=ScriptedLLM(lead), tools=delegation_tools(deadline=5)), worker, failures

    return make


async def told(session, seconds):
    """Return the reports that the session received within the given seconds."""
    await trio.sleep(seconds)
    await session.wait_idle()
    return [message.text for message in session.history if message.sender.kind == "agent"]


LATE = "Task t, given to agent 'worker', failed (deadline): agent 'worker' did not answer within 5 s"


@pytest.mark.parametrize("where", ["model", "tool", "queue", "person"])
async def test_late_task_fails_at_any_stage(autojump_clock, team, where):
    """The delegating session gets the failure at the deadline, and no session of the task remains."""

    @tool
    async def wait() -> str:
        """Wait."""
        await trio.sleep(50)
        return "waited"

    script = {"model": None, "tool": [ToolCall("wait", {})], "queue": None, "person": [ToolCall("dig", {})]}
    delay = {"model": 100, "queue": 100}.get(where, 0)
    lead, worker, failures = team(script[where], delay=delay, tools=[wait, dig], max_concurrent_sessions=1)
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        if where == "queue":
            await worker.create_session("eve", "something long")
            await trio.sleep(1)
        await session.delegate("worker", "a hole", task_id="t", deadline=5)
        assert await told(session, 4.9) == []
        assert await told(session, 0.2) == [LATE]
        (failure,) = failures
        assert (failure.kind, type(failure.error)) == ("deadline", DeadlineExceeded)
        assert session.children == ()
        assert "t" not in worker._opener.running.sessions
        assert len(worker._opener.running.timer_service.index) == 0


async def test_completed_task_has_no_deadline(autojump_clock, team):
    """The session of the task may stay open for tasks that it delegated."""
    digger = BareAgent("digger", llm=ScriptedLLM(lambda _: "two metres", delay=20))
    first = ToolCall("delegate_to_agent", {"agent": "digger", "task": "dig", "wait": False})
    lead, worker, failures = team(
        lambda chat: first if len(chat.messages) == 1 else "done", tools=delegation_tools()
    )
    async with open_runtime() as runtime:
        for agent in (lead, worker, digger):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        await session.delegate("worker", "a hole", task_id="t", deadline=5)
        assert await told(session, 1) == ["Task t was done by agent 'worker':\ndone"]
        assert len(worker._opener.running.timer_service.index) == 0
        assert await told(session, 18) != []
        assert "t" in worker._opener.running.sessions
        await trio.sleep(3)
        assert "t" not in worker._opener.running.sessions
    assert failures == []


async def test_overdue_task_ends_its_own_tasks(autojump_clock, team):
    """Tasks that the overdue task delegated also end."""
    digger = BareAgent("digger", llm=ScriptedLLM(lambda _: "two metres", delay=20))
    first = [
        ToolCall("delegate_to_agent", {"agent": "digger", "task": str(n), "wait": n > 0}) for n in (0, 1)
    ]
    lead, worker, _ = team(lambda _: first, tools=delegation_tools())
    async with open_runtime() as runtime:
        for agent in (lead, worker, digger):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        await session.delegate("worker", "a hole", task_id="t", deadline=5)
        await trio.sleep(1)
        assert len(digger._opener.running.sessions) == 2
        assert await told(session, 5) == [LATE]
        assert not digger._opener.running.sessions


async def test_delegation_tools_set_the_deadline_of_tasks(autojump_clock, team):
    """With `delegation_tools(deadline=...)` the model reads a message at the deadline."""
    received = []

    def script(chat):
        received.append(last_text(chat))
        if len(received) == 1:
            return ToolCall("delegate_to_agent", {"agent": "worker", "task": "a hole", "wait": False})
        return "ok"

    lead, worker, _ = team(delay=100, lead=script)
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada", "go")
        assert len(await told(session, 6)) == 1
    assert received[-1].endswith("failed (deadline): agent 'worker' did not answer within 5 s")


@pytest.mark.parametrize("down", [1, 60])
@pytest.mark.parametrize("script", [None, [ToolCall("dig", {})]], ids=["working", "suspended"])
async def test_task_deadline_counts_while_no_process_runs(autojump_clock, team, script, down):
    """An overdue task ends at the next start, and its parent session receives the failure once."""
    async with MemoryJournal().running() as journal:
        for life in range(3):
            lead, worker, failures = team(script, delay=100 * (script is None), tools=[dig])
            with trio.move_on_after(2) as scope:
                async with open_runtime(journal=journal) as runtime:
                    runtime.clock._opened_at = 1e9 + trio.current_time()  # one clock for all lives
                    for agent in (lead, worker):
                        await runtime.start(agent)
                    session = await lead.ensure_session("ada", "s")
                    if not life:
                        await session.delegate("worker", "a hole", task_id="t", deadline=5)
                        await trio.sleep_forever()
                    scope.shield, scope.deadline = False, math.inf
                    texts = await told(session, 0.5 if down > 5 else 3)
                    assert texts == [LATE]
            if not life:
                assert failures == [] or failures[0].kind == "stopped"
                await trio.sleep(down)
        answers = [each for each in await journal.load("t") if isinstance(each, TaskOutcomeRecord)]
        assert [each.failed for each in answers] == ["deadline"]
        assert await journal.due("worker") == []


async def test_a_decision_before_the_deadline_resumes_a_task(autojump_clock, team):
    """The time of a pending approval counts; a decision before the deadline is applied."""
    calls = iter([ToolCall("dig", {}), "a hole"])
    lead, worker, _ = team(lambda _: next(calls), tools=[dig])
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        await session.delegate("worker", "a hole", task_id="t", deadline=5)
        await trio.sleep(4)
        (approval,) = session.approvals
        await session.answer(approval, Approve())
        assert await told(session, 10) == ["Task t was done by agent 'worker':\na hole"]


@pytest.mark.parametrize("deadline", [-1, "soon", None])
async def test_a_deadline_is_a_number_of_seconds(autojump_clock, team, deadline):
    """Any other value raises an error."""
    lead, worker, _ = team()
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        with pytest.raises(ConfigurationError, match="deadline"):
            await session.delegate("worker", "a hole", deadline=deadline)
    with pytest.raises(ConfigurationError, match="deadline"):
        delegation_tools(deadline=deadline)


async def test_task_without_a_deadline_has_no_timer(autojump_clock, team):
    """`math.inf` means no deadline."""
    lead, worker, _ = team(delay=100)
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        await session.delegate("worker", "a hole", task_id="t", deadline=math.inf)
        assert len(worker._opener.running.timer_service.index) == 0
        assert await told(session, 101) == ["Task t was done by agent 'worker':\ndid a hole"]
