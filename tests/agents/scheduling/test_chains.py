"""Turns that a model schedules for itself: soon ones share the bound of a tree, later ones time bounds."""

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
"""Model calls that a tree may take here."""


@pytest.fixture(autouse=True)
def wall(monkeypatch):
    """What time it is goes on from one runtime to the next."""
    begin = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(time=lambda: begin + trio.current_time()))


def rescheduling(seconds, calls):
    """A model that schedules itself in each turn, and answers when it is told that this is done or refused."""

    def answer(chat):
        calls.append(trio.current_time())
        if chat.messages[-1].role == "tool":
            return f"tool said: {chat.messages[-1].parts[0].text}"
        when = {"type": "delayed", "seconds": seconds}
        return ToolCall("schedule_task", {"when": when, "description": "look again"})

    return ScriptedLLM(answer, keep=0)


def looking_again(seconds, calls, **settings):
    """An agent of such a model, whose trees are small."""
    return BareAgent(
        "a",
        llm=rescheduling(seconds, calls),
        tools=scheduling_tools(),
        limits=Limits(tree_model_calls=AGAIN),
        **settings,
    )


@pytest.mark.parametrize("seconds", [0, 59])
async def test_a_model_that_schedules_itself_soon_ends_at_the_bound_of_the_tree(seconds, autojump_clock):
    """All that a turn leads to shares `tree_model_calls`, and the refusal names it and what to do."""
    calls, said, failed = [], [], []
    async with looking_again(seconds, calls) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: said.append(reply.text))
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
    """The model reads the name of the limit, and that a later time is allowed."""
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
    """Time bounds such a chain: an hourly schedule may continue for ever."""
    calls, failed = [], []
    async with looking_again(when["seconds"], calls) as agent:
        session = await agent.create_session("ada")
        session.on_exception(failed.append)
        await session.chat("begin")
        await trio.sleep(100.5 * when["seconds"])
    assert len(calls) == 2 * 101
    assert failed == []


async def test_each_firing_of_a_cron_schedule_starts_a_new_chain(autojump_clock):
    """The first firing may come soon; only it belongs to the turn that set the schedule."""
    calls = []

    def answer(chat):
        calls.append(trio.current_time())
        if len(calls) == 1:
            when = {"type": "cron", "cron": "* * * * *"}
            return ToolCall("schedule_task", {"when": when, "description": "look"})
        return "looked"

    agent = BareAgent(
        "a",
        llm=ScriptedLLM(answer, keep=0),
        tools=scheduling_tools(),
        limits=Limits(tree_model_calls=4),
    )
    async with agent:
        session = await agent.create_session("ada")
        await session.chat("begin")
        await trio.sleep(20 * 60)
    assert len(calls) >= 20


async def test_the_bound_holds_over_restarts(autojump_clock):
    """What turns draw on that a schedule begins is in the journal, with what was spent of it."""
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
    """Between its time and its turn, too: what it draws on stands beside the message."""
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
    """Whoever is not in a turn begins a conversation of its own with each schedule."""
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
