"""Messages to agents are bounded in bytes: one message, and all that wait, by every way in."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent import (
    BareAgent,
    ConfigurationError,
    File,
    Image,
    InboxFull,
    MessageTooLarge,
    Priority,
    ScriptedLLM,
    open_runtime,
)
from actgent.messages import Message, Sender, Text, message_bytes

MEGABYTE = 1_000_000


def clerk(**options):
    return BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok", keep=0), **options)


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        (("abc",), 3),
        (("é", "€"), 5),
        (("\ud800",), 3),
        ((Image(media_type="image/png", data=bytes(7)), "a"), 8),
        ((File(media_type="text/plain", url="https://x.example"),), 17),
        ((), 0),
    ],
)
def test_message_size_counts_text_and_media_bytes(parts, size):
    """Texts count as UTF-8, pictures and files with their data."""
    made = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    assert message_bytes(Message(session_id="s", sender=Sender("ada"), parts=made)) == size


async def say(agent, session, way, words):
    """Send a message to an agent in one of all ways."""
    match way:
        case "chat":
            await session.chat(words)
        case "urgent":
            await session.chat(words, priority=Priority.URGENT)
        case "run":
            await agent.run(words, session=session)
        case "stream":
            async with agent.stream(words, session=session) as events:
                async for _ in events:
                    pass
        case "ask":
            await agent.ref.ask(words)
        case "tell":
            await agent.ref.tell(words)
        case "first message":
            await agent.create_session("ada", words)
        case "attachment":
            await session.chat(["see", File(media_type="application/pdf", data=words[3:].encode())])


@pytest.mark.parametrize("journal", [None, "memory:"])
@pytest.mark.parametrize(
    "way", ["chat", "urgent", "run", "stream", "ask", "tell", "first message", "attachment"]
)
async def test_message_of_100_megabytes_is_rejected(way, journal):
    """The error comes at once and has the size and the limit. Nothing of the message is written or queued."""
    text = "x" * (100 * MEGABYTE)
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", session_id="s")
        match = r"has 100,000,000 bytes.*at most 25,000,000 bytes"
        with pytest.raises(MessageTooLarge, match=match) as caught:
            await say(agent, session, way, text)
        assert (caught.value.size, caught.value.limit) == (100 * MEGABYTE, 25 * MEGABYTE)
        assert session.history == ()
        assert str(await agent.run("hello", session=session)) == "ok"


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_queued_bytes_of_an_agent_are_bounded(journal, autojump_clock):
    """A sender waits for room, and then gets `InboxFull`; an answered message frees its bytes."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(
            BareAgent(
                "clerk",
                llm=ScriptedLLM(lambda _: "ok", keep=0, delay=10),
                message_bytes=2000,
                inbox_bytes=3000,
                max_concurrent_sessions=1,
            )
        )
        session = await agent.create_session("ada")
        text = "x" * 1000
        await session.chat(text)
        await wait_all_tasks_blocked()
        for _ in range(3):
            await session.chat(text)
        with pytest.raises(InboxFull, match=r"is full \(3,000 bytes\)"):
            await session.chat("y", enqueue_timeout=1)
        began = trio.current_time()
        await session.chat(text)
        assert 5 < trio.current_time() - began < 15
        await session.chat("stop", priority=Priority.URGENT)
        await session.wait_idle()
        assert agent._opener.running.inbox.statistics().bytes == 0


async def test_messages_of_a_journal_count_after_a_restart(tmp_path, autojump_clock):
    """Restored messages are accepted beyond the bounds. New messages wait until these are answered."""
    url, text = f"sqlite:///{tmp_path}/j.db", "x" * 1000

    def agent(delay):
        llm = ScriptedLLM(lambda _: "ok", keep=0, delay=delay)
        return BareAgent("clerk", llm=llm, inbox_bytes=2000, max_concurrent_sessions=1, grace=0)

    async with open_runtime(journal=url) as runtime:
        made = await runtime.start(agent(1000))
        session = await made.create_session("ada", session_id="s")
        for _ in range(3):
            await session.chat(text)
    async with open_runtime(journal=url) as runtime:
        made = await runtime.start(agent(10))
        session = await made.open_session("s")
        with pytest.raises(InboxFull):
            await session.chat(text, enqueue_timeout=0)
        await session.wait_idle()
        assert made._opener.running.inbox.statistics().bytes == 0


@pytest.mark.parametrize("name", ["message_bytes", "inbox_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None, "1 MB", True])
def test_the_bounds_are_whole_numbers(name, value):
    """Any other value raises an error."""
    with pytest.raises(ConfigurationError, match=f"{name}= must be a whole number"):
        clerk(**{name: value})
