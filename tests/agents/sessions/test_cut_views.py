"""Views of conversations with an unusual beginning or too many messages."""

import itertools
import json

import pytest

from actgent import BareAgent, Modes, ScriptedLLM, Sender, open_runtime
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.memory.message_count_limit import LimitedMemory
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import Message, Text, ToolCall, ToolResult
from actgent.testing import check_transcript, open_provider
from tests.agents.conftest import model_client

ADA, CLERK, MODE = Sender("ada"), Sender("clerk", "assistant"), Sender("mode", "system")


def texts(messages):
    return [getattr(message.parts[0], "text", "") for message in messages]


def is_cut(messages):
    return texts(messages)[0].endswith("earlier messages are not shown.)")


# --- the mode --------------------------------------------------------------------------------


class Talk:
    """A long conversation in an agent with a small memory, and all that its model was shown."""

    def __init__(self):
        self.views = []

    def agent(self):
        def answer(chat):
            assert check_transcript(chat) == []
            self.views.append(chat.messages)
            return "answer ".ljust(100, ".")

        modes = Modes(initial="plan")
        memory = ShortTermMemory(max_tokens=600)
        return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), modes=modes, memory=memory)

    async def say(self, session, count):
        for number in range(count):
            await session.chat(f"question {number} ".ljust(100, "."))
            await session.wait_idle()


def told(view):
    """The notes that a view shows."""
    return [text for text in texts(view) if text.startswith("<system>")]


async def test_mode_notice_follows_each_cut(autojump_clock):
    """After a cut, the view has exactly one mode notice, the last. Between two cuts the prefix is unchanged."""
    talk = Talk()
    async with talk.agent() as agent:
        session = await agent.create_session("ada")
        await session.set_mode("integration")
        await session.set_mode("act")
        await talk.say(session, 50)
        assert session.mode == "act"
    cuts = 0
    for before, after in itertools.pairwise(talk.views):
        if after[: len(before)] != before:
            cuts += 1
        if is_cut(after):
            assert told(after) == told(talk.views[0])[-1:]
    assert 3 < cuts < 20


async def test_a_mode_change_after_a_cut_follows_the_earlier_mode(autojump_clock):
    """The prefix stays. After the next cut only the new mode is stated, and a restart has the same view."""
    talk = Talk()
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(talk.agent())
            session = await agent.create_session("ada", session_id="s")
            await session.set_mode("act")
            while not talk.views or not is_cut(talk.views[-1]):
                await talk.say(session, 1)
            before = talk.views[-1]
            await session.set_mode("plan")
            await talk.say(session, 1)
            assert talk.views[-1][: len(before)] == before
            first, second = told(talk.views[-1])
            while first in texts(talk.views[-1]):
                await talk.say(session, 1)
            assert told(talk.views[-1]) == [second]
            last = talk.views[-1]
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(talk.agent())
            await talk.say(await agent.open_session("s"), 1)
            assert talk.views[-1][: len(last)] == last


def say(view, sender, *parts, **options):
    view.add(Message(session_id="s", sender=sender, parts=parts, **options), answered=sender is ADA)
    return view.messages()


def test_limited_view_contains_the_mode():
    """The notice is first. A mode change during a turn keeps the turn complete and the first notice in place."""
    view = LimitedMemory(ShortTermMemory()).open_view()
    view.limit = 2
    say(view, MODE, Text("integration"), causation_id="0")
    say(view, MODE, Text("act"), causation_id="1")
    for number in range(5):
        say(view, ADA, Text(f"q{number}"))
        say(view, CLERK, Text(f"a{number}"), correlation_id="x")
    before = say(view, ADA, Text("go"))
    assert texts(before)[0] == "(9 earlier messages are not shown.)"
    assert texts(before)[1:] == ["<system>\nact\n</system>", "q4", "a4", "go"]
    call, result = ToolCall("set_mode", {}, "c"), ToolResult(call_id="c", tool_name="set_mode", content="ok")
    say(view, CLERK, call, correlation_id="m")
    say(view, Sender("tools", "tool"), result, correlation_id="m")
    after = say(view, MODE, Text("plan"), causation_id="2")
    assert after[: len(before)] == before
    assert texts(after)[-1] == "<system>\nplan\n</system>"
    say(view, CLERK, Text("done"), correlation_id="m")
    last = say(view, ADA, Text("and now?"))
    assert texts(last)[1:] == ["go", *texts(after)[-3:], "done", "and now?"]
    view.limit = 0
    assert texts(view.messages())[1:] == ["<system>\nplan\n</system>", "and now?"]


# --- the beginning ---------------------------------------------------------------------------


def roles(request):
    body = json.loads(request.body)
    items = body.get("messages") or body["input"]
    return [item["role"] for item in items if item["role"] not in ("system", "developer")]


@pytest.mark.parametrize("wire", ["openai", "openai-responses", "anthropic"])
@pytest.mark.parametrize("kind", ["agent", "assistant"])
async def test_conversation_begun_by_an_agent_starts_with_a_user_message(wire, kind):
    """The agent's first text becomes an assistant message, so a user message precedes it."""
    async with open_provider(["one", "two", "three"]) as provider:
        llm = model_client(wire, provider)
        async with BareAgent("clerk", llm=llm) as agent:
            session = await agent.create_session("ada")
            await session.chat("a report", Sender("worker", kind))
            for text in ("thanks", "bye"):
                await session.chat(text)
            await session.wait_idle()
            texts = [message.text for message in session.history if message.sender.name == "clerk"]
            assert texts == ["one", "two", "three"]
        await llm.aclose()
        assert not any(request.problems for request in provider.requests)
        assert [roles(request)[0] for request in provider.requests] == ["user"] * 3
        assert "assistant" in roles(provider.requests[1])[:2]


def test_history_that_begins_with_the_assistant_gets_an_opening():
    """The opening message stays the same, and nothing precedes a conversation that a user began."""
    view = ShortTermMemory().open_view()
    say(view, CLERK, Text("Welcome."))
    first = say(view, ADA, Text("hello"))
    assert [message.role for message in first] == ["user", "assistant", "user"]
    assert say(view, CLERK, Text("hi"))[:3] == first
    assert texts(say(ShortTermMemory().open_view(), ADA, Text("hello"))) == ["hello"]
