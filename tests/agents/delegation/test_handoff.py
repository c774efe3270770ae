"""Conversations that are handed over to another agent and back."""

import json

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    GuardrailTripped,
    Refuse,
    Reply,
    ScriptedLLM,
    Sender,
    SimpleAgent,
    Token,
    ToolCall,
    ToolResult,
    hand_back,
    handoff,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import MessageEndRecord
from actgent.testing import assert_valid_transcript

TO_CLERK = ToolCall("handoff_to_clerk", {"note": "It is about bill 7."})


def texts(chat):
    """Return the texts of a request."""
    return [part.text for message in chat.messages for part in message.parts if hasattr(part, "text")]


def pair(desk_says, clerk_says, **options):
    """Return a desk that may hand over to a clerk, and the requests of both models."""
    clerk_llm, desk_llm = ScriptedLLM(clerk_says), ScriptedLLM(desk_says)
    clerk = BareAgent("clerk", llm=clerk_llm, goal="answer for bills", tools=[hand_back()])
    desk = BareAgent("desk", llm=desk_llm, tools=[handoff(to=clerk)], **options)
    return desk, clerk, desk_llm, clerk_llm


async def test_other_agent_answers_after_the_handoff(listen):
    """The other agent answers the rest of the turn and later messages.

    Record and handlers stay those of the first session.
    """
    desk, _, desk_llm, clerk_llm = pair(["Hello.", TO_CLERK], ["It is 5 euros.", "Until Monday."])
    async with desk:
        session = await desk.create_session("ada", "hi")
        received = listen(session)
        await session.chat("my bill?")
        await session.wait_idle()
        assert session.handoff_agent == "clerk"
        reply = await desk.run("until when?", session=session)
        assert [message.sender.name for message in session.history if message.text] == [
            "ada", "desk", "ada", "clerk", "ada", "clerk",
        ]  # fmt: skip
    assert [str(item) for item in received if isinstance(item, Reply)] == [
        "Hello.",
        "It is 5 euros.",
        "Until Monday.",
    ]
    assert (reply.text, len(desk_llm.chats)) == ("Until Monday.", 2)
    assert texts(clerk_llm.chats[0])[:3] == ["hi", "Hello.", "my bill?"]
    assert "from desk. It is about bill 7." in texts(clerk_llm.chats[0])[-1]
    for chat in (*desk_llm.chats, *clerk_llm.chats):
        assert_valid_transcript(chat)


async def test_other_agent_hands_the_conversation_back():
    """Its last text is delivered, its session is closed, and the first agent reads the whole conversation."""
    back = ToolCall("hand_back", {})
    desk, clerk, desk_llm, _ = pair([TO_CLERK, "Welcome back."], ["5 euros.", back, "Bye."])
    async with desk:
        session = await desk.create_session("ada")
        received_texts = [
            str(await desk.run(text, session=session)) for text in ("my bill?", "thanks", "hello?")
        ]
        assert (received_texts, session.handoff_agent) == (["5 euros.", "Bye.", "Welcome back."], "")
        assert clerk._opener.running.sessions == {}
    assert_valid_transcript(desk_llm.chats[-1])
    shown = texts(desk_llm.chats[-1])
    assert [shown.index(text) for text in ("5 euros.", "thanks", "Bye.", "hello?")] == sorted(
        shown.index(text) for text in ("5 euros.", "thanks", "Bye.", "hello?")
    )


async def test_handoff_after_hand_back_starts_a_new_child_session():
    """The second child session begins with the messages of both agents."""
    desk, _, _, clerk_llm = pair([TO_CLERK, "Here I am.", TO_CLERK], ["5 euros.", "Again."])
    async with desk:
        session = await desk.create_session("ada")
        await desk.run("my bill?", session=session)
        await session.hand_back()
        assert (session.handoff_agent, session.children) == ("", ())
        assert str(await desk.run("desk?", session=session)) == "Here I am."
        assert str(await desk.run("bill again", session=session)) == "Again."
    assert texts(clerk_llm.chats[1])[:5] == ["my bill?", "5 euros.", "desk?", "Here I am.", "bill again"]


async def test_hand_back_without_a_handoff_is_an_error_result():
    """The model reads the error if its conversation was not handed over."""
    clerk = BareAgent("clerk", llm=ScriptedLLM([ToolCall("hand_back", {}), "ok"]), tools=[hand_back()])
    async with clerk:
        session = await clerk.create_session("ada")
        await clerk.run("hi", session=session)
        assert "was not handed over to you" in session.history[2].tool_results[0].error


async def test_handlers_receive_tokens_and_tool_results_after_a_handoff(listen):
    """Handlers receive the deliveries of the second agent in order, like those of the first."""

    @tool
    async def look_up() -> str:
        """Look it up."""
        await trio.lowlevel.checkpoint()
        return "5"

    clerk = BareAgent("clerk", llm=ScriptedLLM([ToolCall("look_up", {}), "five euros"]), tools=[look_up])
    desk = BareAgent("desk", llm=ScriptedLLM([ToolCall("handoff_to_clerk", {})]), tools=[handoff(clerk)])
    async with desk, desk.stream("my bill?") as reading:
        received = [item async for item in reading]
    results = [item.tool_name for item in received if isinstance(item, ToolResult)]
    assert results == ["handoff_to_clerk", "look_up"]
    assert "".join(item.text for item in received if isinstance(item, Token)) == "five euros"
    assert isinstance(received[-1], Reply)
    assert received[-1].id == [item.reply_id for item in received if isinstance(item, Token)][-1]


async def test_guards_of_the_first_agent_apply_after_a_handoff():
    """A rejected message never reaches the second agent. Its answers pass the output guards as well."""
    desk, _, _, clerk_llm = pair([TO_CLERK], ["code 1234", "secret"])

    @desk.guard
    def no_weather(message):
        return Refuse("no weather") if "weather" in message.text else None

    @desk.guard(on="answer")
    def hidden(reply):
        return reply.text.replace("1234", "****")

    async with desk:
        session = await desk.create_session("ada")
        assert str(await desk.run("my bill?", session=session)) == "code ****"
        with pytest.raises(GuardrailTripped, match="no weather"):
            await desk.run("the weather?", session=session)
    assert len(clerk_llm.chats) == 1


async def test_scheduled_messages_stay_with_the_first_agent():
    """After a handoff, the first agent still answers the schedules of its session."""
    desk, _, desk_llm, _ = pair([TO_CLERK, "Noted."], ["5 euros."])
    async with desk:
        session = await desk.create_session("ada")
        await desk.run("my bill?", session=session)
        await session.chat("a report", sender=Sender("clock", "system"))
        await session.wait_idle()
        assert (session.history[-1].text, len(desk_llm.chats)) == ("Noted.", 2)


async def test_an_interruption_stops_the_other_agents_turn():
    """Neither session has a running turn afterwards."""
    requested = trio.Event()

    async def never(_):
        requested.set()
        await trio.sleep_forever()

    desk, clerk, _, _ = pair([TO_CLERK], never)
    async with desk:
        session = await desk.create_session("ada", "my bill?")
        await requested.wait()
        await session.interrupt()
        await session.wait_idle()
        assert [context.public_session.status for context in clerk._opener.running.sessions.values()] == [
            "idle"
        ]


async def test_handoff_target_has_to_be_an_agent():
    """The handoff tool takes its name from the agent."""
    with pytest.raises(ConfigurationError, match="must be an agent"):
        handoff(to="clerk")


@pytest.mark.parametrize("step", range(1, 21))
async def test_a_crash_at_each_write_repeats_no_answer(step, mortal, autojump_clock):
    """Each message is answered once by the responsible agent, under one id; the next process resumes."""
    request = {"desk": [], "clerk": []}
    received = {}

    def agents():
        def clerk_says(chat):
            request["clerk"].append(texts(chat)[-1])
            return json.dumps({"messageType": "conversation", "content": f"clerk on {texts(chat)[-1]}"})

        def desk_says(chat):
            request["desk"].append(texts(chat)[-1])
            return ToolCall("handoff_to_clerk", {})

        clerk = SimpleAgent("clerk", llm=ScriptedLLM(clerk_says), instructions=["conversation"])
        desk = BareAgent("desk", llm=ScriptedLLM(desk_says), tools=[handoff(clerk)])
        desk.on_session(
            lambda session: session.on_conversation(lambda reply: received.setdefault(reply.id, str(reply)))
        )
        return desk

    async with mortal().running() as journal:

        async def life(store):
            async with open_runtime(journal=store) as runtime:
                desk = await runtime.start(agents())
                session = await desk.ensure_session("ada", "s")
                for number in (1, 2):
                    await session.chat(f"q{number}", message_id=f"m{number}")
                await session.wait_idle()

        await journal.live(life, steps=step)
        heard_before = dict(received)
        await journal.live(life)
        async with open_runtime(journal=journal) as runtime:
            desk = await runtime.start(agents())
            session = await desk.open_session("s")
            answers = [m for m in session.history if m.sender.name == "clerk"]
            assert [m.text for m in answers] == ["clerk on q1", "clerk on q2"]
            assert session.handoff_agent == "clerk"
            assert {m.id for m in answers} >= heard_before.keys()
        assert set(received.values()) == {"clerk on q1", "clerk on q2"}


async def test_handoff_survives_a_restart():
    """The next process forwards without a call of the first model."""
    async with MemoryJournal().running() as journal:
        desk, _, _, _ = pair([TO_CLERK], ["5 euros."])
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(desk)
            session = await desk.create_session("ada", session_id="s")
            await desk.run("my bill?", session=session)
        desk, _, desk_llm, clerk_llm = pair([], ["Monday."])
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(desk)
            session = await desk.open_session("s")
            assert str(await desk.run("until when?", session=session)) == "Monday."
    assert not desk_llm.chats
    assert texts(clerk_llm.chats[0])[:3] == ["my bill?", "5 euros.", "until when?"]


async def test_message_to_a_stopped_target_of_a_handoff_fails_as_stopped():
    """The failure is final and names the agent. The next message is answered after the start of the target."""
    received = []
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        desk, clerk, _, _ = pair([TO_CLERK], ["5 euros.", "Monday."])
        await runtime.start(desk)
        session = await desk.create_session("ada", session_id="s")
        session.on_exception(received.append)
        await desk.run("my bill?", session=session)
        runtime.stop("clerk")
        await trio.sleep(0.1)
        await session.chat("until when?", message_id="m1")
        await session.wait_idle()
        assert [(each.kind, each.message_id, each.may_continue) for each in received] == [
            ("stopped", "m1", False)
        ]
        assert "'clerk' is not running" in str(received[0])
        records = await journal.load("s", agent="desk")
        assert [each.failed for each in records if isinstance(each, MessageEndRecord)] == [None, "stopped"]
        await runtime.start(clerk)
        assert str(await desk.run("until when?", session=session)) == "Monday."
