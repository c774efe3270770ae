"""Scheduling tools for models: case 16 of the specification, and invalid times."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, scheduling_tools
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.limits_and_schedules import clock as clock_module
from actgent.testing import CrashingJournal

TASK = "Running scheduled task: "


@pytest.fixture(autouse=True)
def wall(monkeypatch):
    """Set the wall clock to 08:00 UTC on 20 November 2026 for each runtime."""
    begin = datetime(2026, 11, 20, 8, 0, tzinfo=UTC).timestamp()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(time=lambda: begin))


def calling(name, /, **arguments):
    """Return a model that calls a tool at the first message and then answers with the result."""

    def answer(chat):
        last = chat.messages[-1]
        if last.role == "tool":
            return last.parts[0].text
        text = last.parts[0].text
        return ToolCall(name, arguments) if TASK not in text else f"did it: {text}"

    return ScriptedLLM(answer, keep=0)


async def call(name, /, **arguments):
    """Return the text of one tool result, from a run in a new session."""
    async with BareAgent("a", llm=calling(name, **arguments), tools=scheduling_tools()) as agent:
        session = await agent.create_session("ada")
        return (await agent.run("go", session=session)).text


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"type": "delayed", "seconds": 60}, "2026-11-20T08:01:00+00:00"),
        ({"type": "scheduled", "date": "2026-11-20T10:30:00+01:00"}, "2026-11-20T09:30:00+00:00"),
        ({"type": "scheduled", "date": "2026-11-20T09:30"}, "2026-11-20T09:30:00+00:00"),
        ({"type": "scheduled", "date": "2026-11-20T09:30", "zone": "Asia/Tokyo"}, None),
        ({"type": "cron", "cron": "0 9 * * mon-fri", "zone": "Europe/Berlin"}, "2026-11-23T09:00:00+01:00"),
    ],
)
async def test_model_reads_the_next_firing_time_of_each_kind(when, expected, autojump_clock):
    """The model reads the next firing time, or that the time is in the past."""
    text = await call("schedule_task", when=when, description="call home")
    if expected is None:
        assert "is in the past" in text
        return
    shown = json.loads(text)
    assert datetime.fromisoformat(shown["next"]) == datetime.fromisoformat(expected)
    assert shown["description"] == "call home"


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"type": "no-schedule"}, "nothing was scheduled"),
        ({"type": "delayed"}, "needs 'seconds'"),
        ({"type": "delayed", "seconds": -5}, "minimum"),
        ({"type": "scheduled", "date": "tomorrow"}, "ISO 8601"),
        (
            {"type": "scheduled", "date": "2026-11-19T09:30"},
            "is in the past: pass a time after 2026-11-20T08:00:00",
        ),
        ({"type": "cron", "cron": "every day"}, "five fields"),
        ({"type": "cron", "cron": "0 9 * * *", "zone": "Berlin"}, "time zone"),
        ({"type": "sometime"}, "sometime"),
    ],
)
async def test_invalid_schedule_time_is_an_error_for_the_model(when, expected, autojump_clock):
    """The model reads the reason, so that it can correct the time."""
    assert expected in await call("schedule_task", when=when, description="x")


async def test_a_task_is_run_and_a_cancelled_one_is_not(autojump_clock):
    """Case 16: a scheduled message is processed at 60 s in its session. A cancelled one is not."""
    texts = []

    def answer(chat):
        last = chat.messages[-1]
        text = last.parts[0].text
        if last.role == "tool":
            return "noted: " + text
        if TASK in text:
            return "did it"
        match text.split():
            case ["schedule", seconds]:
                when = {"type": "delayed", "seconds": int(seconds)}
                return ToolCall("schedule_task", {"when": when, "description": f"task {seconds}"})
            case ["cancel", task]:
                return ToolCall("cancel_scheduled_task", {"id": task})
        return ToolCall("get_scheduled_tasks", {})

    async with BareAgent("a", llm=ScriptedLLM(answer, keep=0), tools=scheduling_tools()) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: texts.append((round(trio.current_time()), reply.text)))
        for text in ("schedule 60", "schedule 90", "list"):
            await agent.run(text, session=session)
        listed = json.loads(texts[-1][1].removeprefix("noted: "))
        assert listed["now"] == "2026-11-20T08:00:00+00:00"
        assert [task["description"] for task in listed["tasks"]] == ["task 60", "task 90"]
        await agent.run(f"cancel {listed['tasks'][1]['id']}", session=session)
        assert "is cancelled" in texts[-1][1]
        await agent.run("cancel nothing", session=session)
        assert "No task nothing" in texts[-1][1]
        await trio.sleep(200)
    assert [(at, text) for at, text in texts if text == "did it"] == [(60, "did it")]


async def test_scheduling_fails_in_a_run_without_a_session(autojump_clock):
    """In a `run` without a session scheduling fails, because the session ends with the reply."""
    llm = calling("schedule_task", when={"type": "delayed", "seconds": 60}, description="x")
    async with BareAgent("a", llm=llm, tools=scheduling_tools()) as agent:
        assert "create_session" in (await agent.run("go")).text


async def test_a_crash_at_every_write_sets_a_task_once(autojump_clock):
    """A tool call that is repeated after a crash finds its schedule by id, so that the task fires once."""
    writes = 1
    while True:
        async with MemoryJournal().running() as inner:
            journal = CrashingJournal(inner, writes)
            with trio.move_on_after(300) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_when_dead, journal, scope)
                    await talk(journal)
                    nursery.cancel_scope.cancel()
            if journal.is_dead:
                fired = await talk(inner)
                assert len(fired) == len(set(fired)) == 1, writes
            else:
                break
        writes += 1
    assert writes > 6


async def cancel_when_dead(journal, scope):
    """Cancel the scope after the journal crashed."""
    await journal.died.wait()
    scope.cancel()


async def talk(journal):
    """Run one process in which the model schedules a task and runs it. Return the ids of the fired messages."""
    llm = calling("schedule_task", when={"type": "delayed", "seconds": 60}, description="x")
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=llm, tools=scheduling_tools()))
        session = await agent.ensure_session("ada", "s")
        await session.chat("go", message_id="go")
        await trio.sleep(100)
        await session.wait_idle()
        return [message.id for message in session.history if message.sender.name == "schedule"]
