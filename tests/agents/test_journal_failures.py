"""A journal that fails while agents work."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.errors import Fenced, JournalFailed, JournalFull
from actgent.journal.memory import MemoryJournal


class FailingJournal(MemoryJournal):
    """Raises this at each write, while it is set."""

    error = None

    async def _write(self, rows, heads, epoch):
        if self.error is not None:
            raise self.error("the disk is what it is")
        await super()._write(rows, heads, epoch)


@pytest.mark.parametrize("error", [JournalFull, JournalFailed, Fenced])
async def test_a_journal_that_fails_in_a_turn_is_named(error, autojump_clock):
    """The message ends as `Failure(kind="journal")`, nobody hears of an answer that was not kept, and the next is answered."""
    heard = []
    async with FailingJournal().running() as journal, open_runtime(journal=journal) as runtime:

        async def answer(chat):
            journal.error = error if len(chat.messages) == 1 else None
            await trio.lowlevel.checkpoint()
            return "hi"

        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(answer, keep=0)))
        session = await agent.create_session("ada")
        session.on_conversation(heard.append)
        session.on_exception(heard.append)
        await session.chat("one")
        await session.wait_idle()
        (failure,) = heard
        assert failure.kind == "journal"
        assert isinstance(failure.error, error)
        journal.error = None
        await session.chat("two")
        await session.wait_idle()
        assert str(heard[-1]) == "hi"
