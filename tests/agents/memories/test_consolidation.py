"""`Consolidation` reads idle conversations and stores memories from them."""

import json
import re

import pytest
import trio

from actgent import (
    BareAgent,
    ConfigurationError,
    Consolidation,
    Label,
    Limits,
    LongTermMemory,
    ScriptedLLM,
    Sender,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.memory.longterm.memory_records import memory_label
from actgent.testing import CrashingJournal

IDLE = 100.0


class Reader:
    """A model that remembers each user message and replaces a shown memory with the same first word."""

    def __init__(self):
        self.shown = []
        self.priorities = []

    def __call__(self, chat):
        text = chat.messages[-1].parts[-1].text
        self.shown.append(text)
        self.priorities.append(chat.priority.name)
        known = dict(re.findall(r"- (m\w+) \(.*?\): (.*)", text))
        found = []
        for said in re.findall(r"\] user: (.*)", text):
            old = [key for key, each in known.items() if each.split()[0] == said.split()[0]]
            found.append({"text": said, "replaces": old[0] if old else None})
        return json.dumps({"memories": found})


def pair(memories, reader, **options):
    clerk = BareAgent("clerk", llm=ScriptedLLM(lambda _: "I see."))
    Consolidation(clerk, memories, llm=ScriptedLLM(reader), idle=IDLE, **options)
    return clerk


async def texts(memories, owner="ada"):
    return [each.text for each in await memories.page(owner=owner)]


async def test_an_idle_conversation_is_read_once(memories, autojump_clock):
    """A conversation is read after its idle time, with priority LOW, and each message once."""
    reader = Reader()
    async with pair(memories, reader) as clerk:
        session = await clerk.create_session("ada")
        await session.chat("Tea is what I drink")
        await trio.sleep(IDLE * 0.4)
        await session.chat("Oslo is where I live")
        await trio.sleep(IDLE * 0.4)
        assert await texts(memories) == []
        await trio.sleep(IDLE)
        assert await texts(memories) == ["Tea is what I drink", "Oslo is where I live"]
        await trio.sleep(10 * IDLE)
        assert len(reader.shown) == 1
        await session.chat("Cats are what I like")
        await trio.sleep(2 * IDLE)
        assert (await texts(memories))[2:] == ["Cats are what I like"]
        assert "Tea" not in reader.shown[1].partition("Remembered already")[0]
    assert set(reader.priorities) == {"LOW"}
    (first, *_) = await memories.page(owner="ada")
    assert (first.agent, first.session_id) == ("clerk", session.id)


async def test_later_statement_replaces_a_memory(memories, autojump_clock):
    """An outdated memory is replaced. A memory newer than the conversation is not."""
    async with pair(memories, Reader()) as clerk:
        session = await clerk.create_session("ada")
        await session.chat("Home: London")
        await trio.sleep(2 * IDLE)
        await session.chat("Home: Paris")
        await trio.sleep(2 * IDLE)
        assert await texts(memories) == ["Home: Paris"]
        (now,) = await memories.page(owner="ada")
        assert len(await memories.history(now.id, owner="ada")) == 2
    young = LongTermMemory("memory:", now=lambda: 4e9)
    async with young, pair(young, Reader()) as clerk:
        await young.remember("Home: Rome", owner="ada")
        session = await clerk.create_session("ada")
        await session.chat("Home: Nice")
        await trio.sleep(2 * IDLE)
        assert await texts(young) == ["Home: Rome"]


async def test_memories_have_the_readers_of_the_conversation(memories, autojump_clock):
    """New and replaced memories have the readers of the conversation, and of the memories that the model was shown with it."""
    script = ScriptedLLM(lambda _: "I see.")
    clerk = BareAgent("clerk", llm=script)
    Consolidation(clerk, memories, llm=ScriptedLLM(Reader()), idle=IDLE)

    async def readers():
        found = await memories.page(owner="ada")
        return {each.text: each.metadata.get("actgent.readers") for each in found}

    async def say(text, label, session_id):
        session = await clerk.create_session("ada", session_id=session_id)
        await session.chat(text, label=label)
        await trio.sleep(2 * IDLE)

    async with clerk:
        await say("Home: London", Label(), "s1")
        assert await readers() == {"Home: London": None}
        await say("Home: Paris", Label(readers={"ada", "eve"}), "s2")
        assert await readers() == {"Home: Paris": "ada|eve"}
        await say("Home: Rome", Label(readers={"ada", "bob"}), "s3")
        assert await readers() == {"Home: Rome": "ada"}
        await say("Rome has rain", Label(), "s4")
        assert await readers() == {"Home: Rome": "ada", "Rome has rain": "ada"}


async def test_memories_have_the_sources_of_the_observed_conversation(memories, autojump_clock):
    """A memory names the tool whose result the conversation has from outside. A correction keeps the sources."""

    @tool(outside=True, effect="pure")
    async def web() -> str:
        """Read a page."""
        return "It rains."

    script = ["Hello.", ToolCall("web", {}), "I see.", "I see."]
    clerk = BareAgent("clerk", llm=ScriptedLLM(script), tools=[web])
    Consolidation(clerk, memories, llm=ScriptedLLM(Reader()), idle=IDLE)

    async def sources():
        return {each.text: memory_label(each).sources for each in await memories.page(owner="ada")}

    async with clerk:
        first = await clerk.create_session("ada")
        await first.chat("Tea: green")
        await first.wait_idle()
        await first.chat("Home: London")  # does not postpone the schedule of the first message
        await trio.sleep(2 * IDLE)
        assert await sources() == {"Tea: green": {"web"}, "Home: London": {"web"}}
        second = await clerk.create_session("ada")
        await second.chat("Home: Paris", label=Label({"mail:eve"}))
        await trio.sleep(2 * IDLE)
        assert await sources() == {"Tea: green": {"web"}, "Home: Paris": {"mail:eve", "web"}}


async def test_owners_are_apart(memories, autojump_clock):
    """Memories of one owner are neither stored for another owner nor shown with that owner's conversation."""
    reader = Reader()
    async with pair(memories, reader) as clerk:
        for owner in ("ada", "bob"):
            session = await clerk.create_session(owner)
            await session.chat(f"Secret of {owner}")
            await trio.sleep(3 * IDLE)
    assert await texts(memories, "ada") == ["Secret of ada"]
    assert await texts(memories, "bob") == ["Secret of bob"]
    assert "Secret of ada" not in reader.shown[1]


async def test_a_long_conversation_is_read_in_parts(memories, autojump_clock, monkeypatch):
    """A long conversation is split into parts, and each message is read once."""
    monkeypatch.setattr("actgent.agents.model_tools.memory_consolidation.MAX_PART_TOKENS", 40)
    reader = Reader()
    async with pair(memories, reader) as clerk:
        session = await clerk.create_session("ada")
        for number in range(9):
            await session.chat(f"Note{number} says that there is something in it")
        await trio.sleep(3 * IDLE)
    assert len(reader.shown) > 2
    places = [int(place) for text in reader.shown for place in re.findall(r"^\[(\d+)\] ", text, re.MULTILINE)]
    assert places == list(range(18))
    assert len(await texts(memories)) == 9


async def test_invalid_answer_stores_no_memory(memories, autojump_clock):
    """After an invalid answer the part stays unread and is read again with the next messages."""
    answers = iter(["no JSON", "no JSON", "no JSON", '{"memories": [{"text": "all of it"}]}'])
    shown = []

    def reader(chat):
        shown.append(chat.messages[-1].parts[-1].text)
        return next(answers)

    async with pair(memories, reader, limits=Limits(output_retries=2)) as clerk:
        session = await clerk.create_session("ada")
        await session.chat("First")
        await trio.sleep(3 * IDLE)
        assert await texts(memories) == []
        await session.chat("Second")
        await trio.sleep(3 * IDLE)
    assert await texts(memories) == ["all of it"]
    assert "First" in shown[-1]
    assert "Second" in shown[-1]


async def test_a_crash_at_any_write_reads_everything_once(autojump_clock):
    """After a crash at any write, each message is remembered exactly once."""
    writes, has_died = 0, True
    while has_died:
        writes += 1
        inner = MemoryJournal()
        async with inner.running(), LongTermMemory() as memories:
            dying = CrashingJournal(inner, writes)
            with trio.move_on_after(20 * IDLE) as life:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_end_when_dead, dying, life)
                    await _live(dying, memories)
                    nursery.cancel_scope.cancel()
            has_died = dying.is_dead
            await _live(inner, memories)
            assert await texts(memories) == ["Tea is green", "Oslo is cold"], writes
            everything = await memories.export(Sender("ada"))
            assert len(everything) == 2, writes
    assert writes > 10


async def _end_when_dead(journal, life):
    await journal.died.wait()
    life.cancel()


async def _live(journal, memories):
    """Run one process with two messages, each followed by a long idle time."""
    async with open_runtime(journal=journal) as runtime:
        clerk = await runtime.start(pair(memories, Reader()))
        session = await clerk.ensure_session("ada", "s")
        await session.chat("Tea is green", message_id="1")
        await trio.sleep(3 * IDLE)
        await session.chat("Oslo is cold", message_id="2")
        await trio.sleep(5 * IDLE)


def test_wrong_arguments_are_refused():
    """A wrong agent, wrong memories or a negative idle time raise `ConfigurationError`."""
    clerk = BareAgent("clerk", llm=ScriptedLLM(["x"]))
    for agent, memories, options in (
        ("clerk", LongTermMemory(), {}),
        (clerk, None, {}),
        (clerk, LongTermMemory(), {"idle": -1}),
    ):
        with pytest.raises(ConfigurationError):
            Consolidation(agent, memories, llm=ScriptedLLM(["x"]), **options)
