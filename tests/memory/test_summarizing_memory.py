"""Summaries: written concurrently with a session, shown from the next turn, and only of shown messages."""

import itertools
import re

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    Consolidation,
    LimitReached,
    Limits,
    LongTermMemory,
    ModelResponse,
    ProviderUnavailable,
    Quotas,
    ScriptedLLM,
    SummarizingMemory,
    Text,
    Usage,
    open_runtime,
)
from actgent.memory.summarizing_memory import SUMMARY
from actgent.testing import check_transcript

LONG = "It says a lot. " * 20


def writer(read, *, gate=None, fail=False):
    async def write(chat):
        read.append(chat.messages[0].parts[0].text)
        if gate is not None:
            await gate.wait()
        if fail:
            raise ProviderUnavailable("overloaded", model="w")
        return ModelResponse(
            parts=(Text(f"summary {len(read)}"),), usage=Usage(input_tokens=100, output_tokens=7)
        )

    return ScriptedLLM(write)


def speaker():
    return ScriptedLLM(lambda chat: f"answer to {chat.messages[-1].parts[0].text.split('.')[0]}")


def agent(llm, read, **options):
    return BareAgent("a", llm=llm, memory=SummarizingMemory(llm=writer(read, **options), keep=4, trigger=500))


async def say(agent, session, numbers):
    for number in numbers:
        await agent.run(f"question {number}. {LONG}", session=session)
        await trio.testing.wait_all_tasks_blocked()


def shown(chat):
    return "\n".join(part.text for message in chat.messages for part in message.parts)


def summaries(session):
    return [each for each in session.history if each.sender.name == SUMMARY]


async def test_a_summary_replaces_the_covered_messages():
    """The newest messages stay. The next summary covers the last summary and later messages."""
    llm, read = speaker(), []
    async with agent(llm, read) as it:
        session = await it.create_session("ada")
        await say(it, session, range(20))
        assert len(summaries(session)) in (len(read), len(read) - 1)
        assert session.usage.total.output_tokens >= 7
    last = shown(llm.chats[-1])
    assert "Summary of the earlier conversation" in last
    assert "question 19." in last
    assert "question 1." not in last
    assert len(read) > 2
    assert "question 0." in read[0]
    assert "summary 1" in read[1]
    assert "question 0." not in read[1]
    assert check_transcript(llm.chats[-1].messages) == []
    moved = [
        tuple(after.messages)[: len(before.messages)] != tuple(before.messages)
        for before, after in itertools.pairwise(llm.chats)
    ]
    assert sum(moved) <= len(read)


async def test_long_summary_is_not_truncated_for_the_next():
    """A long message can be truncated because the record has it. Only the summary has its own end."""
    read = []

    def write(chat):
        read.append(chat.messages[0].parts[0].text)
        return f"{'It was said. ' * 500}The end of summary {len(read)}."

    shown = SummarizingMemory(llm=ScriptedLLM(write), keep=4, trigger=500)
    async with BareAgent("a", llm=speaker(), memory=shown) as it:
        await say(it, await it.create_session("ada"), range(20))
    assert len(read) > 2
    for number, text in enumerate(read):
        assert number == 0 or f"The end of summary {number}." in text


async def test_turns_do_not_wait_for_summaries():
    """While the model writes a summary, turns use the messages themselves."""
    llm, read, gate = speaker(), [], trio.Event()
    async with agent(llm, read, gate=gate) as it:
        session = await it.create_session("ada")
        await say(it, session, range(10))
        assert len(read) == 1
        assert "question 0." in shown(llm.chats[-1])
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        await say(it, session, [20])
        assert "question 0." not in shown(llm.chats[-1])
        assert "summary 1" in shown(llm.chats[-1])
        assert "question 9." in shown(llm.chats[-1])  # sent while the summary was written


async def test_failed_summary_leaves_the_conversation_unchanged(caplog):
    """The failure is logged and retried after a quarter more text. No turn gets the error."""
    llm, read = speaker(), []
    async with agent(llm, read, fail=True) as it:
        session = await it.create_session("ada")
        await say(it, session, range(12))
        assert "question 0." in shown(llm.chats[-1])
    assert 1 < len(read) < 8
    assert "no summary of session" in caplog.text


async def test_summaries_are_restored_from_the_journal(tmp_path):
    """A summary is not written again, and the view is the same after the restart."""
    read, before, after = [], speaker(), speaker()
    url = f"sqlite:///{tmp_path / 'j.db'}"
    async with open_runtime(journal=url) as runtime:
        it = await runtime.start(agent(before, read))
        session = await it.create_session("ada", session_id="s")
        await say(it, session, range(8))
        summaries_told = summaries(session)
    assert summaries_told
    async with open_runtime(journal=url) as runtime:
        it = await runtime.start(agent(after, read))
        session = await it.open_session("s")
        await it.run("question 8.", session=session)
        assert summaries(session)[: len(summaries_told)] == summaries_told
    heading, _, text = summaries_told[-1].text.partition("\n")
    assert re.search(rf"{heading}\n\[from [^\n]*\n{text}\n", shown(after.chats[0]))
    assert "question 0." not in shown(after.chats[0])
    assert all("question 0." not in each for each in read[1:])


async def test_interrupted_summary_covers_no_message(tmp_path):
    """The next process shows all messages and writes the summary again."""
    read, after = [], speaker()
    url = f"sqlite:///{tmp_path / 'j.db'}"
    async with open_runtime(journal=url) as runtime:
        it = await runtime.start(agent(speaker(), read, gate=trio.Event()))
        session = await it.create_session("ada", session_id="s")
        await say(it, session, range(8))
        assert len(read) == 1
    async with open_runtime(journal=url) as runtime:
        it = await runtime.start(agent(after, read))
        session = await it.open_session("s")
        assert not summaries(session)
        await say(it, session, [8, 9])
        assert len(summaries(session)) == 1
    assert "question 0." in shown(after.chats[0])
    assert "question 0." not in shown(after.chats[1])


def test_invalid_summary_settings_are_rejected():
    """A memory without messages to keep or without a trigger is rejected."""
    with pytest.raises(ConfigurationError, match="keep"):
        SummarizingMemory(keep=0)
    with pytest.raises(ConfigurationError, match="trigger"):
        SummarizingMemory(trigger=0)


@pytest.mark.parametrize("bounded", ["session", "owner"])
async def test_summaries_count_for_session_limits_and_quotas(bounded, journal_url):
    """If no model call is left, no summary is written, and turns end with the limit."""
    ten, read = Limits(model_calls=10), []
    quotas = Quotas(day=ten) if bounded == "owner" else None
    async with open_runtime(journal=journal_url, quotas=quotas) as runtime:
        running = await runtime.start(agent(speaker(), read))
        session = await running.create_session("ada", limits=ten if bounded == "session" else None)
        with pytest.raises(LimitReached):
            await say(running, session, range(12))
        answers = [each for each in session.history if each.sender.kind == "assistant"]
        assert read
        assert len(answers) + len(read) == 10
        with pytest.raises(LimitReached):
            await say(running, session, [20])
        assert len(answers) + len(read) == 10


async def test_readings_count_under_the_quota_of_the_owner():
    """Model calls of a consolidation count against the quota of the session's owner."""
    requested = trio.Event()

    def reader(_chat):
        requested.set()
        return '{"memories": []}'

    clerk = BareAgent("clerk", llm=ScriptedLLM(["Noted."], repeat=True))
    memories = LongTermMemory("memory:")
    Consolidation(clerk, memories, llm=ScriptedLLM(reader), idle=0.05)
    async with open_runtime(quotas=Quotas(day=Limits(model_calls=2))) as runtime:
        await runtime.start(clerk)
        session = await clerk.create_session("ada")
        await clerk.run("Hello", session=session)
        await requested.wait()
        with pytest.raises(LimitReached, match="quota of 2 model calls a day"):
            await clerk.run("Hello again", session=session)
        assert str(await clerk.run("Hello", session=await clerk.create_session("bob"))) == "Noted."


@pytest.fixture(params=["memory", "sqlite"])
def journal_url(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/agents.db"
