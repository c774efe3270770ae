"""Relaxed durability in one process; `test_crashes.py` kills such processes."""

import pytest
import trio

from actgent import BareAgent, ConfigurationError, ScriptedLLM, open_runtime
from actgent.errors import JournalFull
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    AgentMessageRecord,
    DeliveryRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    MessageEndRecord,
    SessionCreatedRecord,
)


class FullJournal(MemoryJournal):
    """A journal that raises StorageFull while its flag is set."""

    is_full = False

    async def _write(self, rows, heads, epoch):
        if self.is_full:
            raise JournalFull("no space")
        await super()._write(rows, heads, epoch)


async def _talk(journal, durability):
    """Send messages until one is answered."""
    async with open_runtime(journal=journal, durability=durability) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)))
        session = await agent.create_session("ada", session_id=durability)
        await session.chat("hello")
        await session.wait_idle()
        return journal.statistics.commits


async def test_relaxed_commits_do_not_wait_for_the_disk(mock_clock):
    """No step is written before 50 ms have passed, and leaving the block writes all steps."""
    async with MemoryJournal().running() as journal:
        assert await _talk(journal, "relaxed") == 0
        records = await journal.load("relaxed")
        assert [type(record) for record in records if type(record) is not DeliveryRecord] == [
            SessionCreatedRecord,
            MessageAcceptedRecord,
            MessageAppendedRecord,
            AgentMessageRecord,
            MessageEndRecord,
        ]
        assert await _talk(journal, "full") > 2


async def test_full_disk_rejects_the_next_message(autojump_clock):
    """Unwritten steps are kept, and are written before the next accepted message."""
    async with (
        FullJournal().running() as journal,
        open_runtime(journal=journal, durability="relaxed") as runtime,
    ):
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)))
        session = await agent.create_session("ada")
        await trio.sleep(1)
        journal.is_full = True
        await session.chat("one")
        await session.wait_idle()
        await trio.sleep(1)
        with pytest.raises(JournalFull):
            await session.chat("two")
        journal.is_full = False
        await session.chat("three")
        await session.wait_idle()
        texts = [message.text for message in session.history]
        assert texts == ["one", "hi", "three", "hi"]
        assert [type(record).__name__ for record in await journal.load(session.id)].count(
            "MessageEndRecord"
        ) == 3


async def test_unknown_durability_is_rejected():
    with pytest.raises(ConfigurationError, match="'full' or 'relaxed'"):
        async with open_runtime(journal="memory:", durability="fast"):
            pass
