"""A request never exceeds the limit of the memory, and a session continues after a message that was too large."""

import pytest

from actgent import (
    BareAgent,
    ContextOverflow,
    ReActAgent,
    ScriptedLLM,
    StepsAgent,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.testing import check_transcript


def sent(chat):
    return sum(len(getattr(part, "text", "")) for message in chat.messages for part in message.parts)


class Desk:
    """A model that requests large results on demand, with its recorded requests."""

    def __init__(self):
        self.chats = []

    def __call__(self, chat):
        self.chats.append(chat)
        assert check_transcript(chat) == []
        last = chat.messages[-1]
        if last.role == "user" and last.parts[0].text == "look":
            return [ToolCall("big", {"i": i}) for i in range(20)]
        return "fine"


@tool(effect="pure", thread=False)  # in a thread it would race with the clock's jumps
def big(i: int) -> str:
    """Return a lot."""
    return f"{i}" + "x" * 50_000


def agent_of(desk, **options):
    memory = ShortTermMemory(max_tokens=8000)
    agent = BareAgent("a", llm=ScriptedLLM(desk, keep=0), tools=[big], memory=memory, **options)
    agent.failures = []
    agent.on_session(lambda session: session.on_exception(agent.failures.append))
    return agent


async def test_message_beyond_the_context_limit_fails_only_its_turn(autojump_clock):
    """The failure has the kind `context`.

    The next request has a notice in place of the message, and all earlier messages.
    """
    desk = Desk()
    async with agent_of(desk) as agent:
        session = await agent.create_session("ada")
        for text in ("hello", "x" * 10_000_000, "and now?"):
            await session.chat(text)
            await session.wait_idle()
    assert [failure.kind for failure in agent.failures] == ["context"]
    error = agent.failures[0].error
    assert isinstance(error, ContextOverflow)
    assert (error.parts, error.budget) == ((("text of the user", 2_500_000),), 8000)
    assert len(desk.chats) == 2
    texts = [message.parts[0].text for message in desk.chats[-1].messages]
    assert texts[:2] == ["hello", "fine"]
    assert "2,500,000 tokens" in texts[2]
    assert "cannot be shown" in texts[2]
    assert texts[3:] == ["and now?"]


async def test_default_context_limit_applies(autojump_clock):
    """10 MB exceed 180,000 tokens."""
    async with BareAgent("a", llm=ScriptedLLM(["never"])) as agent:
        with pytest.raises(ContextOverflow, match="180,000"):
            await agent.run("x" * 10_000_000)


@pytest.mark.parametrize("durable", [False, True])
async def test_results_beyond_the_context_limit_fail_the_turn(durable, autojump_clock):
    """Twenty results of 50,000 characters are not sent; the session continues with the same view after a restart."""
    desk = Desk()
    async with MemoryJournal().running() as journal:
        for life in range(2):
            async with open_runtime(journal=journal if durable else None) as runtime:
                agent = await runtime.start(agent_of(desk))
                session = await agent.ensure_session("ada", "s")
                for text in ("hello", "look") if not life or not durable else ():
                    await session.chat(text)
                    await session.wait_idle()
                    assert len(agent.failures) == (text == "look")
                await session.chat("and now?")
                await session.wait_idle()
    assert max(map(sent, desk.chats)) <= 32_000
    last = [message.parts[0].text for message in desk.chats[-1].messages]
    note = next(text for text in last if "cannot be shown" in text)
    assert "20 tool calls with all results" in note
    if durable:
        before = next(chat for chat in desk.chats if chat.messages[-1].parts[0].text == "and now?").messages
        assert tuple(desk.chats[-1].messages[: len(before)]) == tuple(before)


@pytest.mark.parametrize("kind", [StepsAgent, ReActAgent])
async def test_context_limit_applies_to_every_protocol(kind, autojump_clock):
    """The text of a stage at the end of the prompt counts with the conversation."""
    chats = []

    def answer(chat):
        chats.append(chat)
        return "no form"

    agent = kind("a", llm=ScriptedLLM(answer, keep=0), memory=ShortTermMemory(max_tokens=2000))
    async with agent:
        session = await agent.create_session("ada")
        failures = []
        session.on_exception(failures.append)
        for size in (100, 50_000, 3000, 5000, 100):
            await session.chat("q" * size)
            await session.wait_idle()
    assert "context" in {failure.kind for failure in failures}
    assert max(map(sent, chats)) <= 8000


async def test_system_prompt_counts_towards_the_context_budget(autojump_clock):
    """Older messages are dropped to make room, and a message that does not fit with the prompt is rejected."""
    llm = ScriptedLLM(["fine"] * 4)
    memory = ShortTermMemory(max_tokens=8000)
    failures = []
    async with BareAgent("a", llm=llm, memory=memory, assistant_prompt="w" * 20_000) as agent:
        session = await agent.create_session("ada")
        session.on_exception(failures.append)
        for size in (5000, 6000, 7000, 20_000):
            await session.chat("q" * size)
            await session.wait_idle()
    assert [failure.kind for failure in failures] == ["context"]
    assert len(llm.chats) == 3
    assert max(map(sent, llm.chats)) <= 32_000
