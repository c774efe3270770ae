"""Recorded sessions as tests."""

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    Instruction,
    ReActAgent,
    ScriptedLLM,
    SimpleAgent,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.errors import ModelTimeout
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.session_export_and_fork import read_sessions, save_sessions
from actgent.testing import assert_replays, load_recording

PAID = []


@tool
async def pay(order: str) -> str:
    """Pay an order."""
    PAID.append(order)
    return f"paid {order}"


async def record(agent, *texts):
    """Return the recording of a conversation."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            session = await agent.create_session("ada", session_id="s")
            for text in texts:
                await session.chat(text)
                await session.wait_idle()
        await journal.acquire()
        return await load_recording(journal, "s")


def clerk(script=("unused",), **options):
    return BareAgent("clerk", llm=ScriptedLLM(list(script)), **options)


ORDER = [ToolCall("pay", {"order": "7"}), "It is paid.", "You are welcome."]


async def test_a_recorded_session_is_a_test_case():
    """The code of the agent gets the recorded answers and results, and no tool runs."""
    PAID.clear()
    recording = await record(clerk(ORDER, tools=[pay]), "Pay order 7", "Thanks")
    assert PAID == ["7"]
    await assert_replays(clerk(tools=[pay]), recording)
    assert PAID == ["7"]
    assert [message.text for message in recording.messages] == ["Pay order 7", "Thanks"]


async def test_tools_may_run_in_a_replay():
    """With `run_tools`, a changed result of a tool is the reported difference."""

    @tool(name="pay")
    async def refuse(order: str) -> str:
        """Pay an order."""
        return "no money"

    recording = await record(clerk(ORDER, tools=[pay]), "Pay order 7", "Thanks")
    await assert_replays(clerk(tools=[pay]), recording, run_tools=True)
    with pytest.raises(AssertionError, match=r"recorded .*'paid 7'.*, replayed .*'no money'"):
        await assert_replays(clerk(tools=[refuse]), recording, run_tools=True)


async def test_the_first_difference_is_named():
    """If the code interprets the same answers differently, the report names the first different record."""
    script = ['{"messageType": "GREETING", "content": {"text": "Hi"}}']
    recording = await record(
        SimpleAgent("clerk", llm=ScriptedLLM(script), instructions=[Instruction("GREETING", "Greet.")]),
        "Hello",
    )
    same = SimpleAgent("clerk", llm=ScriptedLLM([]), instructions=[Instruction("GREETING", "Greet.")])
    assert await recording.compare(same) is None
    difference = await recording.compare(SimpleAgent("clerk", llm=ScriptedLLM([])), prompts=False)
    assert difference is not None
    assert difference.recorded == "outcome reply"
    assert "known: DIRECT_RESPONSE" in difference.replayed


async def test_a_changed_prompt_is_the_first_difference():
    """The recording has a checksum of the system prompt and the tools."""
    recording = await record(clerk(ORDER, tools=[pay], role="a clerk"), "Pay order 7", "Thanks")
    assert await recording.compare(clerk(tools=[pay], role="a clerk")) is None
    for changed in (clerk(tools=[pay], role="a king"), clerk(role="a clerk")):
        assert await recording.compare(changed, prompts=False) is None
        difference = await recording.compare(changed)
        assert difference is not None
        assert difference.step == 4
        assert difference.recorded.startswith("system prompt and tools ")
    assert 1 < difference.step <= len(recording.records)


async def test_failures_and_repairs_replay_equally(autojump_clock):
    """A failed model call fails again in the replay, and an invalid answer is retried again."""
    react = '{"question_nature": "x"}'
    script = [ModelTimeout("too slow"), "fine"]
    await assert_replays(clerk(), await record(clerk(script), "one", "two"))
    agent = ReActAgent("clerk", llm=ScriptedLLM([react, react, react, react]))
    recording = await record(agent, "one")
    assert len([r for r in recording.records if getattr(r, "stop", "")]) > 1
    await assert_replays(ReActAgent("clerk", llm=ScriptedLLM([])), recording)


async def test_interrupted_turn_replays_equally(autojump_clock):
    """A call that was interrupted is also interrupted in the replay."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(clerk(["never", "second"], tools=[pay]))
            agent._models.clients["default"]._delay = 60
            session = await agent.create_session("ada", session_id="s")
            await session.chat("first")
            await trio.sleep(1)
            await session.interrupt("changed my mind")
            await session.chat("second")
            await session.wait_idle()
        await journal.acquire()
        recording = await load_recording(journal)
    assert await recording.compare(clerk(tools=[pay])) is None


async def test_the_state_is_compared():
    """The replay applies the state changes of the program, and compares the state changes of the protocol."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(clerk(["a", "b"]))
            session = await agent.create_session("ada", session_id="s")
            session.state.dispatch(("count", 1))
            await session.chat("one")
            await session.wait_idle()
            session.state.dispatch(lambda state: ("count", state["count"] + 1))
            await session.chat("two")
            await session.wait_idle()
        await journal.acquire()
        recording = await load_recording(journal)
    await assert_replays(clerk(), recording)


async def test_recording_loads_from_a_file_or_a_journal(tmp_path):
    """The source of a recording may be a file of exported sessions or the address of a journal."""
    async with open_runtime(journal=f"sqlite:///{tmp_path}/a.db") as runtime:
        agent = await runtime.start(clerk(["Hello."]))
        session = await agent.create_session("ada", "Hi", session_id="s")
        await session.wait_idle()
        save_sessions(tmp_path / "case.sessions", await read_sessions(runtime.journal))
    await assert_replays(clerk(), tmp_path / "case.sessions")
    await assert_replays(clerk(), f"sqlite:///{tmp_path}/a.db", "s")
    with pytest.raises(ConfigurationError, match="session"):
        await load_recording(tmp_path / "case.sessions", "other")
    for missing in (tmp_path / "missing.db", f"sqlite:///{tmp_path}/missing.db"):
        with pytest.raises(ConfigurationError, match="no such file"):
            await load_recording(missing)
    assert not (tmp_path / "missing.db").exists()


async def test_the_state_that_a_tool_left_is_taken_from_the_recording():
    """The tool does not run in the replay. Its recorded state changes are applied, and times and ids may differ."""

    @tool
    async def count(n: int, context: ToolContext) -> str:
        """Count."""
        context.state.dispatch(lambda state: ("n", state.get("n", 0) + n))
        context.state.dispatch(("by", context.call_id))
        return "counted"

    script = [
        [ToolCall("count", {"n": 2}), ToolCall("count", {"n": 3})],
        "5",
        ToolCall("count", {"n": 1}),
        "6",
    ]
    recording = await record(clerk(script, tools=[count]), "count", "again")
    await assert_replays(clerk(tools=[count]), recording)
    await assert_replays(clerk(tools=[count]), recording, run_tools=True)
