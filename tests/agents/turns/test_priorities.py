"""Priorities as callers say them: a word that is none is refused, with the nearest; what was stored is read as NORMAL."""

import pytest
import trio

from actgent import BareAgent, ConfigurationError, Message, Priority, ScriptedLLM, Sender, Text, open_runtime


def agent_of(name="tutor"):
    return BareAgent(name, llm=ScriptedLLM(lambda _: "ok"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("urgnet", "'URGENT'"),
        ("hihg", "'HIGH'"),
        ("Lo", "'LOW'"),
        ("xyz", "URGENT, HIGH, NORMAL, LOW"),
        ("", "choose one of"),
        (7, "7"),
        (True, "True"),
        (None, "None"),
        (b"HIGH", "HIGH"),
    ],
)
async def test_unknown_priorities_are_refused_with_the_nearest(wrong, says):
    """In `chat`, `schedule` and `delegate`, before anything is said."""
    async with open_runtime() as runtime:
        agent = await runtime.start(agent_of())
        await runtime.start(agent_of("other"))
        session = await agent.create_session("ada")
        for say in (
            lambda: session.chat("hi", priority=wrong),
            lambda: session.schedule("hi", after=1, priority=wrong),
            lambda: session.delegate("other", "hi", priority=wrong),
        ):
            with pytest.raises(ConfigurationError, match=says):
                await say()
        assert len(session.history) == 0
        assert session.schedules == session.children == ()


@pytest.mark.parametrize("given", ["urgent", " Urgent ", "URGENT", 0, Priority.URGENT])
async def test_names_in_any_case_and_numbers_are_priorities(given):
    """As before."""
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        await session.chat("hi", priority=given)
        await session.wait_idle()
        assert session.history[0].priority is Priority.URGENT


async def test_a_schedule_sends_with_its_priority(autojump_clock):
    """And keeps it in the journal."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(agent_of())
        session = await agent.create_session("ada")
        schedule = await session.schedule("tea", after=5, priority="high")
        assert schedule.priority is Priority.HIGH
        await trio.sleep(6)
        await session.wait_idle()
        assert session.history[0].priority is Priority.HIGH


def test_stored_words_are_read_as_normal():
    """What an earlier system wrote has to be read, whatever it says."""
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text("hi"),), priority="urgnet")
    assert message.priority is Priority.NORMAL
    assert Priority.of("medium") is Priority.NORMAL
