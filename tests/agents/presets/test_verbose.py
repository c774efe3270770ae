"""`verbose=`: a plain-text report of an agent's actions while they happen."""

import io
import json

import pytest

from actgent import (
    BareAgent,
    ConfigurationError,
    GoalAgent,
    ModelError,
    PlanAgent,
    ScriptedLLM,
    SimpleAgent,
    StepsAgent,
    ToolCall,
    run_agent,
    tool,
)


@tool(thread=False, effect="pure")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def words(lines):
    """The lines without the time."""
    return [line.partition(" s] ")[2].rstrip() for line in lines]


def step(**members):
    return json.dumps(members)


async def test_verbose_prints_steps_as_plain_text():
    """Plan, thoughts, calls, results and the answer are printed in order, without braces of the protocol."""
    lines = []
    call = {"id": "1", "tool_name": "add", "parameters": {"a": 1, "b": 2}}
    script = [
        step(plan="Add them."), step(tool_thought="I add.", tool_calls=[call]), step(final_answer="It is\n3."),
    ]  # fmt: skip
    async with StepsAgent("clerk", llm=ScriptedLLM(script), tools=[add], verbose=lines.append) as agent:
        await agent.run("1 + 2?")
    assert words(lines) == [
        "user: 1 + 2?",
        "plans: Add them.",
        '  state: steps.plan = "Add them."',
        "thinks: I add.",
        'calls add {"a": 1, "b": 2}',
        "  add: 3",
        "answers: It is\\n3.",
    ]


async def test_verbose_reports_native_calls_text_and_failures():
    """This holds for agents of all kinds, and a failed turn is reported."""
    lines = []

    def gone(chat):
        raise ConnectionError("gone")

    llm = ScriptedLLM([ToolCall("add", {"a": 1}), "Three.", gone])
    async with BareAgent("clerk", llm=llm, tools=[add], verbose=lines.append) as agent:
        session = await agent.create_session("ada")
        session.state.dispatch(("mood", "good"))
        await agent.run("1 + 2?", session=session)
        with pytest.raises(ModelError):
            await agent.run("again", session=session)
    assert words(lines)[:3] == ['  state: mood = "good"', "user: 1 + 2?", 'calls add {"a": 1}']
    assert words(lines)[3].startswith("  add: failed: Invalid arguments")
    assert words(lines)[4:] == [
        "says: Three.", "user: again", "failed (model): scripted: ConnectionError: gone",
    ]  # fmt: skip


async def test_verbose_names_the_session_when_it_changes():
    """A line names its session if the previous line belongs to another one."""
    lines = []
    async with BareAgent("clerk", llm=ScriptedLLM(lambda _: "Hi."), verbose=lines.append) as agent:
        ada, bob = [await agent.create_session(name) for name in ("ada", "bob")]
        for session in (ada, bob):
            await agent.run("Hello", session=session)
    assert words(lines) == ["user: Hello", "says: Hi.", f"session {bob.id}", "user: Hello", "says: Hi."]


@pytest.mark.parametrize("kind", [BareAgent, SimpleAgent, StepsAgent, PlanAgent, GoalAgent])
async def test_every_agent_accepts_verbose(kind, capsys):
    """True writes to standard error, a file gets whole lines, and without it nothing is written."""
    file = io.StringIO()
    for verbose in (True, file, False):
        async with kind("clerk", llm=ScriptedLLM(["x"] * 9), verbose=verbose) as agent:
            session = await agent.create_session("ada")
            session.on_exception(lambda _: None)
            await session.chat("Hello")
            await session.wait_idle()
        captured = capsys.readouterr()
        assert (captured.out, bool(captured.err)) == ("", verbose is True)
    assert "Hello" in file.getvalue().splitlines()[0]
    for wrong in (3, "stderr", io.StringIO):
        with pytest.raises(ConfigurationError, match="verbose="):
            kind("clerk", llm=ScriptedLLM([]), verbose=wrong)


async def test_run_agent_writes_its_report_to_a_file():
    file = io.StringIO()
    await run_agent("find", ScriptedLLM(["x"] * 3), verbose=file)
    assert "ended: error (the model gave no usable answer: no JSON" in file.getvalue().splitlines()[-1]
