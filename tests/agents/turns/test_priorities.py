"""Priorities of callers: a misspelt one is rejected; an unknown word in `chat` and in stored messages is NORMAL."""

from functools import partial

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
        ("", "choose one of"),
        (7, "7"),
        (True, "True"),
        (None, "None"),
        (b"HIGH", "HIGH"),
    ],
)
async def test_unknown_priorities_are_rejected_with_a_suggestion(wrong, says):
    """`chat`, `schedule` and `delegate` raise before a message is sent."""
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


@pytest.mark.parametrize("value", ["urgent", " Urgent ", "URGENT", 0, Priority.URGENT])
async def test_names_in_any_case_and_numbers_are_priorities(value):
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        await session.chat("hi", priority=value)
        await session.wait_idle()
        assert session.history[0].priority is Priority.URGENT


async def test_scheduled_message_has_its_priority(autojump_clock):
    """The journal keeps it."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(agent_of())
        session = await agent.create_session("ada")
        schedule = await session.schedule("tea", after=5, priority="high")
        assert schedule.priority is Priority.HIGH
        await trio.sleep(6)
        await session.wait_idle()
        assert session.history[0].priority is Priority.HIGH


async def test_an_unknown_priority_of_a_chat_is_normal_with_a_warning(caplog):
    """A misspelt priority is rejected, because another priority was meant."""
    async with BareAgent("tutor", llm=ScriptedLLM(["ok"])) as agent:
        session = await agent.create_session("ada")
        await session.chat("hi", priority="whatever")
        await session.wait_idle()
        assert session.history[0].priority is Priority.NORMAL
        with pytest.raises(ConfigurationError, match="'URGENT'"):
            await session.chat("hi", priority="urgnet")
        for say in (partial(session.schedule, after=1), partial(session.delegate, "tutor")):
            with pytest.raises(ConfigurationError, match="URGENT, HIGH, NORMAL, LOW"):
                await say("hi", priority="whatever")
    assert "priority 'whatever' is unknown" in caplog.text


def test_unknown_stored_priorities_are_normal():
    """Records of an earlier system must be readable with any word."""
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text("hi"),), priority="urgnet")
    assert message.priority is Priority.NORMAL
    assert Priority.of("medium") is Priority.NORMAL
