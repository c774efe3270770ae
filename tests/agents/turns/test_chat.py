"""Contents and senders of messages, and their form in requests."""

import pytest
import trio

from actgent import (
    LLM,
    BareAgent,
    ConfigurationError,
    File,
    Image,
    InboxFull,
    Priority,
    ScriptedLLM,
    Sender,
    SessionClosed,
    StreamInterrupted,
    Text,
    ToolCall,
)
from actgent.messages import ToolResult
from actgent.testing import assert_valid_transcript

PNG = Image(media_type="image/png", data=b"\x89PNG")
PDF = File(media_type="application/pdf", data=b"%PDF", name="a.pdf")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("hi", (Text("hi"),)),
        (Text("hi"), (Text("hi"),)),
        (PNG, (PNG,)),
        (["look:", PNG, PDF], (Text("look:"), PNG, PDF)),
        (("a", Text("b")), (Text("a"), Text("b"))),
    ],
)
async def test_content_is_text_or_parts(make, content, parts):
    """Text, one part, or several parts reach the model unchanged, from chat, run and a description."""
    agent, llm = make(lambda _: "ok")
    async with agent:
        session = await agent.create_session("ada", content)
        await session.chat(content)
        await session.wait_idle()
        await agent.run(content)
    assert [m.parts for m in session.history[::2]] == [parts, parts]
    assert [chat.messages[-1].parts for chat in llm.chats] == [parts] * 3


@pytest.mark.parametrize("content", [None, 5, {"text": "hi"}, b"hi", [None]])
async def test_content_of_another_type_is_rejected(make, content):
    """The error names the value, and no message is queued."""
    agent, _ = make("x")
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError, match="a string or parts"):
            await session.chat(content)
        assert session.status == "idle"


@pytest.mark.parametrize("part", [ToolCall("add", {}, "1"), ToolResult(call_id="1", tool_name="add")])
async def test_calls_and_results_are_rejected_as_user_content(make, part):
    """They would make a transcript that no provider accepts."""
    agent, _ = make("x")
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError, match="a string or parts"):
            await session.chat(["look", part])
        assert session.status == "idle"


@pytest.mark.parametrize("content", ["", "  \n", [], Text("")])
async def test_an_empty_message_is_rejected(make, content):
    """No provider accepts an empty message, so the sender gets an error."""
    agent, _ = make("x")
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="empty"):
            await session.chat(content)
        assert session.status == "idle"


@pytest.mark.parametrize(
    ("sender", "expected"),
    [
        (None, Sender("ada", "user")),
        ("bob", Sender("bob", "user")),
        ("agent_smith_customer", Sender("agent_smith_customer", "user")),
        ("assistant", Sender("assistant", "assistant")),
        ("Agent", Sender("Agent", "agent")),
        ("TOOL", Sender("TOOL", "tool")),
        ("SYSTEM", Sender("SYSTEM", "user")),
        (Sender("clock", "system"), Sender("clock", "system")),
        (Sender("helper", "agent"), Sender("helper", "agent")),
        (Sender("assistant", "user"), Sender("assistant", "user")),
    ],
)
async def test_sender_kinds_map_to_roles(make, sender, expected):
    """A name is a user's except for three words. The message to answer has the role user, so nothing is prefilled."""
    agent, llm = make(lambda _: "ok")
    async with agent:
        session = await agent.create_session("ada")
        await session.chat("hi", sender)
        await session.wait_idle()
    assert session.history[0].sender == expected
    (message,) = llm.chats[0].messages
    assert message.role == "user"
    assert "hi" in message.parts[0].text
    assert_valid_transcript(llm.chats[0])


async def test_history_of_agents_has_the_role_assistant(make):
    """Users and system have the role user, assistant and agent the role assistant."""
    agent, llm = make(lambda _: "ok")
    async with agent:
        session = await agent.create_session("ada")
        for sender in ("bob", "assistant", "agent", Sender("clock", "system"), "tool", None):
            await session.chat("hi", sender)
            await session.wait_idle()
    roles = [message.role for message in llm.chats[-1].messages[::2]]
    assert roles == ["user", "assistant", "assistant", "user", "user", "user"]
    for chat in llm.chats:
        assert chat.messages[-1].role == "user"
        assert_valid_transcript(chat)


async def test_owner_is_the_default_user_sender(make):
    """Without `sender=`, messages come from the owner with the kind user, even if the owner is an agent."""
    agent, llm = make(lambda _: "ok")
    async with agent:
        session = await agent.create_session(Sender("bot", "agent"), "one")
        await session.wait_idle()
        await session.chat("two")
        await session.wait_idle()
    assert session.owner == Sender("bot", "agent")
    assert [m.role for m in llm.chats[-1].messages] == ["user", "assistant", "user"]


async def test_system_message_is_a_delimited_block(make):
    """There is one system prompt; later instructions stay at their position."""
    agent, llm = make(lambda _: "ok", role="tutor")
    async with agent:
        session = await agent.create_session("ada", "one")
        await session.wait_idle()
        await session.chat("Be brief.", Sender("clock", "system"))
        await session.wait_idle()
    assert llm.chats[0].system == llm.chats[1].system == agent.system_prompt
    last = llm.chats[1].messages[-1]
    assert (last.role, last.parts) == ("user", (Text("<system>\nBe brief.\n</system>"),))


async def test_a_picture_in_a_system_message_reaches_the_model(make):
    """Only the text of a system message is delimited. Its other parts are included."""
    agent, llm = make("ok")
    async with agent:
        session = await agent.create_session("ada")
        await session.chat(["The plan:", PNG], Sender("clock", "system"))
        await session.wait_idle()
    assert llm.chats[0].messages[-1].parts == (Text("<system>\nThe plan:\n</system>"), PNG)


async def test_the_same_message_id_is_accepted_once(make, listen):
    """A repetition does nothing, while the first is queued and after it was answered."""
    agent, llm = make(lambda _: "ok")
    async with agent:
        session = await agent.create_session("ada")
        received = listen(session)
        assert await session.chat("hi", message_id="m1") == "m1"
        assert await session.chat("hi", message_id="m1") == "m1"
        await session.wait_idle()
        assert await session.chat("other words", message_id="m1") == "m1"
        assert session.status == "idle"
        await session.chat("hi", message_id="m2")
        await session.wait_idle()
    assert len(received) == len(llm.chats) == 2


async def test_a_message_id_rejected_by_a_full_inbox_may_be_repeated(autojump_clock, listen):
    """Only an accepted id is a duplicate."""
    agent = BareAgent("busy", llm=ScriptedLLM(lambda _: "ok", delay=10), session_inbox_capacity=1)
    async with agent:
        session = await agent.create_session("ada", "one")
        received = listen(session)
        await session.chat("two")
        with pytest.raises(InboxFull):
            await session.chat("three", message_id="m3", enqueue_timeout=1)
        await session.wait_idle()
        await session.chat("three", message_id="m3")
        await session.wait_idle()
    assert len(received) == 3


async def test_chat_waits_for_room_until_its_deadline(autojump_clock):
    """Senders wait for room in a full inbox; the error has the bound and the remedy."""
    agent = BareAgent("busy", llm=ScriptedLLM(lambda _: "ok", delay=10), session_inbox_capacity=1)
    async with agent:
        session = await agent.create_session("ada", "one")
        await session.chat("two")
        began = trio.current_time()
        with pytest.raises(InboxFull, match="deadline="):
            await session.chat("three", enqueue_timeout=4)
        assert trio.current_time() - began == pytest.approx(4)
        await session.chat("three")
        assert trio.current_time() - began == pytest.approx(10)


async def test_priorities_order_queued_messages(autojump_clock, listen):
    """HIGH precedes NORMAL, and NORMAL precedes LOW, in any order of arrival."""
    agent = BareAgent("busy", llm=ScriptedLLM(lambda chat: chat.messages[-1].parts[0].text, delay=1))
    async with agent:
        session = await agent.create_session("ada", "begin")
        received = listen(session)
        for priority in ("low", Priority.NORMAL, "normal", "HIGH", Priority.HIGH):
            await session.chat(f"{priority!s}", priority=priority)
        await session.wait_idle()
    assert [str(reply) for reply in received] == ["begin", "HIGH", "1", "2", "normal", "low"]


async def test_a_closed_session_rejects_messages(make):
    """The error states a remedy."""
    agent, _ = make("x")
    async with agent:
        session = await agent.create_session("ada")
        await session.aclose()
        await session.aclose()
        with pytest.raises(SessionClosed, match="create_session"):
            await session.chat("hi")
        with pytest.raises(SessionClosed):
            await agent.run("hi", session=session)
        await session.wait_idle()


async def test_error_names_a_model_client_with_an_invalid_result(listen):
    """The error states a remedy."""

    class Chatty(LLM):
        name = "own:chatty"

        async def complete(self, chat, *, on_text=None):
            await trio.lowlevel.checkpoint()
            return "hello"

    async with BareAgent("a", llm=Chatty()) as agent:
        with pytest.raises(
            StreamInterrupted, match=r"Chatty.complete\(\) must return a ModelResponse, not str"
        ):
            await agent.run("hi")


async def test_chat_and_tell_wait_for_room_for_the_enqueue_timeout(make, autojump_clock):
    """A full inbox raises InboxFull after `enqueue_timeout` seconds."""
    gate = trio.Event()

    async def slow(chat):
        await gate.wait()
        return "ok"

    agent, _ = make(slow, inbox_capacity=1, max_concurrent_sessions=1)
    async with agent:
        session = await agent.create_session("ada", "one")
        await trio.testing.wait_all_tasks_blocked()
        await session.chat("two")
        for say in (session.chat, agent.ref.tell):
            started = trio.current_time()
            with pytest.raises(InboxFull, match="enqueue_timeout="):
                await say("three", enqueue_timeout=7)
            assert trio.current_time() - started == 7
        gate.set()
        await session.wait_idle()
