"""Session methods of portals that match those on trio: created messages, followed records, observations."""

import asyncio
import threading

import pytest
import trio.testing

from actgent import (
    Agent,
    AsyncPortalAgent,
    AsyncPortalSession,
    BareAgent,
    ConfigurationError,
    InboxFull,
    InvalidCursor,
    PortalAgent,
    PortalSession,
    ScriptedLLM,
    Session,
    ToolCall,
    open_portal,
    tool,
)
from actgent.information_flow_labels import TRUSTED
from actgent.journal.record_types import AgentMessageRecord, MessageAcceptedRecord, MessageEndRecord
from actgent.sessions.subscriptions import FollowedRecord

ON_TRIO_ALONE = {
    Session: {"budget", "clock", "database", "deps", "own_deps", "store_created_deps"},
    Agent: {
        "accompany",
        "as_tool",
        "core_type",
        "default_protocol",
        "inbox_bounds",
        "long_term_memory",
        "model_clients",
        "narration_type",
        "open_toolsets",
        "process",
        "ref",
        "run_sync",
    },
}
"""Members for tools, for other agents or for the runtime. They are available at `inner`."""


def public(cls):
    """Return the public names of a class, without names that only raise a hint to another name."""
    return {name for name, value in _members(cls) if type(value).__name__ != "_Missing"}


def _members(cls):
    for base in cls.__mro__:
        yield from ((name, value) for name, value in vars(base).items() if not name.startswith("_"))


def clerk(*texts, **options):
    return BareAgent("clerk", llm=ScriptedLLM(list(texts) or ["Yes."], repeat=not texts), **options)


def said_in(items):
    """Return the texts of questions and answers among the followed items."""
    return [
        item.record.message.text
        for item in items
        if isinstance(item, FollowedRecord) and _speaks(item.record)
    ]


def _speaks(record):
    return isinstance(record, MessageAcceptedRecord | AgentMessageRecord)


def has_ended(item):
    return isinstance(item, FollowedRecord) and isinstance(item.record, MessageEndRecord)


@pytest.mark.parametrize(
    ("native", "proxy"),
    [
        (Session, PortalSession),
        (Session, AsyncPortalSession),
        (Agent, PortalAgent),
        (Agent, AsyncPortalAgent),
    ],
)
def test_portals_have_all_members_of_trio_objects(native, proxy):
    """Each public member of a session or an agent exists in both portals, or is listed here."""
    renamed = {"aclose"} if proxy is PortalSession else set()  # PortalSession names this method `close`
    instance = {"agent_name", "id", "owner"} if native is Session else set()
    assert public(native) - public(proxy) - ON_TRIO_ALONE[native] == renamed | instance
    assert ON_TRIO_ALONE[native] <= public(native)


def test_agent_has_its_system_prompt():
    """The prompt is a property of a `PortalAgent` and a method of an `AsyncPortalAgent`."""
    with open_portal() as portal:
        agent = portal.start(clerk(system_prompt="You are a clerk."))
        assert agent.system_prompt == "You are a clerk."

    async def read():
        async with open_portal() as portal:
            agent = await portal.start(clerk(system_prompt="You are a clerk."))
            return await agent.system_prompt()

    assert asyncio.run(read()) == "You are a clerk."


def test_created_message_is_received_once():
    """`create_message` and `receive` are the two halves of `chat`. A repeated message is accepted once."""
    with open_portal() as portal:
        agent = portal.start(clerk("one", "two"))
        session = agent.create_session("ada", session_id="s")
        message = session.create_message("Hello", priority="high", message_id="m")
        assert (message.id, message.session_id, message.text) == ("m", "s", "Hello")
        assert (session.history, session.label) == ((), TRUSTED)
        assert [agent.receive(message) for _ in range(2)] == ["m", "m"]
        session.wait_idle()
        assert [each.text for each in session.history] == ["Hello", "one"]
        assert [each.text for each in session.messages(limit=1)] == ["one"]
        with pytest.raises(ConfigurationError, match="priority"):
            session.create_message("Hello", priority="soonish")
        with pytest.raises(ConfigurationError, match=r"needs a Message"):
            agent.receive("Hello")


def test_parent_and_child_sessions_are_portal_objects():
    """Their properties can be read."""
    with open_portal(journal="memory:") as portal:
        agent = portal.start(clerk())
        above = agent.create_session("ada", session_id="above", on_busy="collect")
        below = agent.create_session("ada", session_id="below", parent=above)
        assert (below.parent.id, above.parent) == ("above", None)
        assert [type(each) for each in above.children] == [PortalSession]
        assert [each.id for each in above.children] == ["below"]
        assert (above.is_durable, above.on_busy, below.on_busy) == (True, "collect", "queue")


def test_session_is_followed():
    """The records of the session arrive in order, existing ones first.

    The cursor is the number of the last record read.
    """
    with open_portal(journal="memory:") as portal:
        agent = portal.start(clerk("one", "two"))
        session = agent.create_session("ada", "First", session_id="s")
        session.wait_idle()
        items = []
        with session.follow() as stream:
            session.chat("Second")
            for item in stream:
                items.append(item)
                if isinstance(item, FollowedRecord):
                    assert stream.cursor == item.number
                if sum(map(has_ended, items)) == 2:
                    break
            cursor = stream.cursor
        assert said_in(items) == ["First", "one", "Second", "two"]
        numbers = [item.number for item in items if isinstance(item, FollowedRecord)]
        assert numbers == list(range(1, cursor + 1))
        with session.follow(after=numbers[-2]) as stream:
            assert next(stream).number == cursor
        with pytest.raises(InvalidCursor), session.follow(after=cursor + 1):
            pass


def test_leaving_follow_does_not_stop_the_turn(chatty):
    """The reader exits, and the turn continues."""
    with open_portal(journal="memory:") as portal:
        agent = portal.start(BareAgent("clerk", llm=chatty(50)))
        session = agent.create_session("ada", "Hello")
        with session.follow() as stream:
            next(stream)
        session.wait_idle()
        assert session.history[-1].text.startswith("0 1 2 ")


def test_session_is_observed():
    """The portal streams new observations, and returns past observations by page."""

    @tool(effect="pure")
    def depth(lake: str) -> int:
        """Tell how deep a lake is."""
        return 1642

    with open_portal(journal="memory:") as portal:
        agent = portal.start(clerk(ToolCall("depth", {"lake": "Baikal"}), "Deep.", tools=[depth]))
        session = agent.create_session("ada")
        with session.observe(types=["TOOL_EXECUTION", "FINAL_RESPONSE"]) as observed:
            session.chat("How deep?")
            assert [next(observed).type for _ in range(2)] == ["TOOL_EXECUTION", "FINAL_RESPONSE"]
            cursor = observed.cursor
        types = [each.type for each in session.observations()]
        assert types == ["TOOL_CALL", "TOOL_EXECUTION", "FINAL_RESPONSE"]
        assert [each.number > cursor for each in session.observations(after=cursor)] == []


def test_a_session_without_a_journal_can_be_observed_and_not_followed():
    """The error of follow() is raised when its block is entered, with the remedy. The portal keeps working."""
    with open_portal() as portal:
        session = portal.start(clerk()).create_session("ada")
        with pytest.raises(ConfigurationError, match="journal='memory:'"), session.follow():
            pass
        with session.observe():
            pass
        assert session.status == "idle"


def test_stream_of_a_message_has_no_cursor():
    """The deliveries of the stream have no record numbers."""
    with open_portal() as portal, portal.start(clerk()).stream("Hello") as events:
        assert list(events)
        assert events.cursor is None


def test_closing_a_session_ends_its_readers():
    """Closing the session ends the reader's loop."""
    with open_portal(journal="memory:") as portal:
        session = portal.start(clerk()).create_session("ada")
        items = []
        with session.follow() as stream:
            reading = threading.Thread(target=lambda: items.extend(stream))
            reading.start()
            session.close()
            reading.join(10)
            assert not reading.is_alive()
        assert type(items[-1].record).__name__ == "SessionClosedRecord"


# --- asyncio -----------------------------------------------------------------------------------


def run_in_asyncio(test):
    asyncio.run(asyncio.wait_for(test, 20), debug=True)


def test_asyncio_portal_has_message_and_record_methods():
    """The asyncio portal has the same methods as coroutines."""

    async def main():
        async with open_portal(journal="memory:") as portal:
            agent = await portal.start(clerk("one"))
            session = await agent.create_session("ada", session_id="s")
            below = await agent.create_session("ada", session_id="t", parent=session)
            message = await session.create_message("Hello", message_id="m")
            async with session.follow() as stream, session.observe(types=["FINAL_RESPONSE"]) as observed:
                assert [await agent.receive(message) for _ in range(2)] == ["m", "m"]
                assert (await anext(observed)).content == "one"
                items = []
                async for item in stream:
                    items.append(item)
                    if has_ended(item):
                        break
                assert stream.cursor == items[-1].number
            assert said_in(items) == ["Hello", "one"]
            assert [each.text for each in await session.messages()] == ["Hello", "one"]
            assert [each.type for each in await session.observations()] == ["FINAL_RESPONSE"]
            assert [each.id for each in await session.children()] == ["t"]
            assert ((await below.parent()).id, await session.parent()) == ("s", None)
            assert (await session.is_durable(), await session.on_busy()) == (True, "queue")

    run_in_asyncio(main())


def test_cancelled_read_of_records_loses_none():
    """Each read has a timeout, often too short. All records arrive once and in order."""

    async def main():
        async with open_portal(journal="memory:") as portal:
            agent = await portal.start(clerk())
            session = await agent.create_session("ada", session_id="s")
            items, cut = [], 0
            async with session.follow() as stream:
                for number in range(10):
                    await session.chat(f"{number}")
                while sum(map(has_ended, items)) < 10:
                    reading = asyncio.ensure_future(anext(stream))
                    for _ in range(cut % 7):
                        await asyncio.sleep(0)
                    if cut < 200:
                        reading.cancel()
                    cut += 1
                    try:
                        items.append(await reading)
                    except asyncio.CancelledError:
                        continue
                assert stream.cursor == max(item.number for item in items if isinstance(item, FollowedRecord))
            numbers = [item.number for item in items if isinstance(item, FollowedRecord)]
            assert numbers == list(range(1, len(numbers) + 1))
            assert cut > len(items)

    run_in_asyncio(main())


def test_cancelled_reader_leaves_no_follower():
    """The reader is cancelled while it enters, waits or runs its block.

    Answers are no longer streamed for it.
    """
    streamed = []

    class Looking(ScriptedLLM):
        async def complete(self, chat, *, on_text=None):
            streamed.append(on_text is not None)
            return await super().complete(chat, on_text=on_text)

    async def main():
        async with open_portal(journal="memory:") as portal:
            agent = await portal.start(BareAgent("clerk", llm=Looking(["Yes."], repeat=True)))
            session = await agent.create_session("ada", session_id="s")

            async def read():
                async with session.follow(after=None) as stream:
                    async for _ in stream:
                        pass

            for steps in (0, 1, 2, 3, 5, 8, 200):
                reading = asyncio.create_task(read())
                for _ in range(steps):
                    await asyncio.sleep(0)
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            await agent.run("Hello", session=session)
            async with session.follow(after=None) as stream:
                await session.chat("Hello")
                async for item in stream:
                    if has_ended(item):
                        break

    run_in_asyncio(main())
    assert streamed == [False, True]


def test_cancelled_sender_sends_no_message(slow):
    """The sender is cancelled while it waits for room in a full inbox. Its slot is released."""

    async def main():
        async with open_portal() as portal:
            agent = await portal.start(BareAgent("clerk", llm=slow, session_inbox_capacity=1, grace=0.0))
            session = await agent.create_session("ada", "Hello")
            assert await asyncio.to_thread(slow.begun.wait, 10)
            await session.chat("behind it")
            late, later = [await session.create_message(text) for text in ("late", "later")]
            waiting = asyncio.create_task(agent.receive(late))
            await asyncio.sleep(0)
            await portal.call(trio.testing.wait_all_tasks_blocked)
            assert not waiting.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(InboxFull):
                await agent.receive(later, enqueue_timeout=0)
            await session.interrupt(drop_queued=True)
            texts = [each.text for each in await session.history()]
            assert "late" not in texts
            assert "later" not in texts

    run_in_asyncio(main())
