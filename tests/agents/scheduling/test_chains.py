"""Turns that a model schedules for itself: delays under 60 seconds share the tree's model-call limit, longer ones do not."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import trio

from actgent import (
    BareAgent,
    LimitReached,
    Limits,
    Reply,
    ScriptedLLM,
    ToolCall,
    open_runtime,
    scheduling_tools,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.limits_and_schedules import clock as clock_module

AGAIN = 7
"""Limit of model calls of a session tree."""


@pytest.fixture(autouse=True)
def wall(monkeypatch):
    """Let the wall clock follow trio's clock across runtimes."""
    begin = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(time=lambda: begin + trio.current_time()))


def rescheduling(seconds, calls):
    """Return a model that schedules a task in each turn and then answers with the tool result."""

    def answer(chat):
        calls.append(trio.current_time())
        if chat.messages[-1].role == "tool":
            return f"tool said: {chat.messages[-1].parts[0].text}"
        when = {"type": "delayed", "seconds": seconds}
        return ToolCall("schedule_task", {"when": when, "description": "look again"})

    return ScriptedLLM(answer, keep=0)


def looking_again(seconds, calls, **settings):
    """Return an agent with a `rescheduling` model and a small `tree_model_calls` limit."""
    return BareAgent(
        "a",
        llm=rescheduling(seconds, calls),
        tools=scheduling_tools(),
        limits=Limits(tree_model_calls=AGAIN),
        **settings,
    )


@pytest.mark.parametrize("seconds", [0, 59])
async def test_a_model_that_schedules_itself_soon_ends_at_the_bound_of_the_tree(seconds, autojump_clock):
    """Turns of soon schedules share `tree_model_calls` with the first turn, and `LimitReached` names that limit."""
    calls, texts, failed = [], [], []
    async with looking_again(seconds, calls) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: texts.append(reply.text))
        session.on_exception(lambda failure: failed.append(failure.error))
        await session.chat("begin")
        await trio.sleep(3600)
        assert session.schedules == ()
        await session.chat("and again")
        await trio.sleep(3600)
    assert len(calls) == 2 * AGAIN
    assert [(type(error), error.field, error.used["model_calls"]) for error in failed] == [
        (LimitReached, "tree_model_calls", AGAIN)
    ] * 2


async def test_scheduling_fails_if_the_tree_has_no_model_call_left(autojump_clock):
    """The error for the model names the limit and the delay from which scheduling is allowed."""
    calls, results = [], []
    async with looking_again(0, calls) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(results.append)
        await session.chat("begin")
        await trio.sleep(3600)
    assert [result.status for result in results] == ["success"] * 3 + ["error"]
    assert "tree_model_calls" in results[-1].error
    assert "less than 60 seconds" in results[-1].error


@pytest.mark.parametrize("when", [{"seconds": 60}, {"seconds": 3600}])
async def test_a_model_may_schedule_itself_later_without_limit(when, autojump_clock):
    """Schedules of 60 seconds or more do not share the limit, so a chain may continue indefinitely."""
    calls, failed = [], []
    async with looking_again(when["seconds"], calls) as agent:
        session = await agent.create_session("ada")
        session.on_exception(failed.append)
        await session.chat("begin")
        await trio.sleep(100.5 * when["seconds"])
    assert len(calls) == 2 * 101
    assert failed == []


async def test_each_firing_of_a_cron_schedule_starts_a_new_chain(autojump_clock):
    """Each firing of a cron schedule has its own limit. A first firing within 60 seconds counts for the turn that set the schedule."""
    calls = []

    def answer(chat):
        calls.append(trio.current_time())
        if len(calls) == 1:
            when = {"type": "cron", "cron": "* * * * *"}
            return ToolCall("schedule_task", {"when": when, "description": "look"})
        return "looked"

    agent = BareAgent(
        "a", llm=ScriptedLLM(answer, keep=0), tools=scheduling_tools(), limits=Limits(tree_model_calls=4)
    )
    async with agent:
        session = await agent.create_session("ada")
        await session.chat("begin")
        await trio.sleep(20 * 60)
    assert len(calls) >= 20


async def test_the_bound_holds_over_restarts(autojump_clock):
    """The journal keeps the used part of the limit, so that restarts do not reset it."""
    calls = []
    async with MemoryJournal().running() as journal:
        for life in range(12):
            async with open_runtime(journal=journal) as runtime:
                agent = looking_again(30, calls)
                await runtime.start(agent)
                if not life:
                    await agent.create_session("ada", "begin", session_id="s")
                await trio.sleep(35)
    assert len(calls) == AGAIN


async def test_a_message_of_a_schedule_that_waits_keeps_its_bound_over_a_restart(autojump_clock):
    """A restart between the firing and the turn also keeps the limit, because it is stored with the message."""
    calls = []

    def answer(chat):
        calls.append(chat)
        if chat.messages[-1].role == "tool":
            return "set"
        return ToolCall(
            "schedule_task", {"when": {"type": "delayed", "seconds": 1}, "description": "look again"}
        )

    async with MemoryJournal().running() as journal:
        for life in range(2 * AGAIN):
            async with open_runtime(journal=journal) as runtime:
                agent = BareAgent(
                    "a",
                    llm=ScriptedLLM(answer, keep=0, delay=5),
                    tools=scheduling_tools(),
                    limits=Limits(tree_model_calls=AGAIN),
                )
                await runtime.start(agent)
                if not life:
                    await agent.create_session("ada", "begin", session_id="s")
                await trio.sleep(12)
    assert len(calls) == AGAIN


async def test_a_program_schedules_what_it_wants_outside_of_turns(autojump_clock):
    """Each schedule that a program sets outside of turns starts a new chain with its own limit."""
    calls = []

    def answer(chat):
        calls.append(chat)
        return "done"

    async with BareAgent("a", llm=ScriptedLLM(answer, keep=0), limits=Limits(tree_model_calls=2)) as agent:
        session = await agent.create_session("ada")
        for number in range(10):
            await session.schedule(f"task {number}", after=0)
        await trio.sleep(10)
        assert isinstance(await agent.run("and you", session=session), Reply)
    assert len(calls) == 11
