"""Closed and deleted parents leave no open child session in the journal, also if a creation failed or two callers race."""

from contextlib import suppress

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.errors import JournalFailed, JournalFull
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.llm.model_interface import LLM


class SlowLLM(LLM):
    """A model that never answers."""

    async def complete(self, chat, *, on_text=None):
        await trio.sleep_forever()


class FailingJournal(MemoryJournal):
    """A journal that can fail after it has stored a write, and then fails to roll it back."""

    doubts_next = is_in_doubt = False

    def __init__(self):
        super().__init__()
        self.open = []
        """Ids of the open sessions after each write."""

    async def _write(self, rows, heads, epoch):
        await super()._write(rows, heads, epoch)
        self.open.append({key.session_id for key, head in self._stored_heads.items() if not head.closed})
        if self.doubts_next:
            self.doubts_next, self.is_in_doubt = False, True
            raise JournalFailed("the confirmation is lost")

    async def _read_heads(self, keys):
        if self.is_in_doubt:
            raise JournalFailed("the disk failed")
        return await super()._read_heads(keys)

    async def _roll_back(self, key, head, epoch):
        if self.is_in_doubt:
            raise JournalFailed("the disk failed")
        await super()._roll_back(key, head, epoch)


async def test_failed_child_creation_is_resolved_before_the_close_of_its_parent(autojump_clock):
    """No write leaves the child open below its closed parent, so that a crash cannot resume the child."""
    journal = FailingJournal()
    desk, helper = (BareAgent(name, llm=ScriptedLLM([])) for name in ("desk", "helper"))
    with trio.fail_after(100):
        async with journal.running(), open_runtime(journal=journal) as runtime:
            await runtime.start(desk)
            await runtime.start(helper)
            session = await desk.create_session("ada", session_id="parent")
            journal.doubts_next = True
            with pytest.raises(JournalFailed):
                await session.delegate("helper", "work", task_id="child")
            with suppress(JournalFailed):
                await session.aclose()
            await trio.sleep(5)
            journal.is_in_doubt = False
    assert {"parent", "child"} in journal.open
    assert journal.open[-1] == set()
    assert {"child"} not in journal.open


async def test_an_interruption_does_not_close_a_parent_before_its_child(autojump_clock):
    """No write leaves the child open below its closed parent, if another caller interrupts the parent during its close."""
    journal = FailingJournal()
    desk = BareAgent("desk", llm=ScriptedLLM([]))
    helper = BareAgent("helper", llm=SlowLLM())
    with trio.fail_after(100):
        async with journal.running(), open_runtime(journal=journal) as runtime:
            await runtime.start(desk)
            await runtime.start(helper)
            session = await desk.create_session("ada", session_id="parent")
            await session.delegate("helper", "work", task_id="child")
            await trio.sleep(1)
            async with trio.open_nursery() as callers:
                callers.start_soon(session.aclose)
                callers.start_soon(session.interrupt)
    assert {"parent", "child"} in journal.open
    assert {"child"} not in journal.open


class FullJournal(MemoryJournal):
    """A journal whose disk can be full. A full disk still erases."""

    is_full = False

    async def _write(self, rows, heads, epoch):
        if self.is_full:
            await trio.sleep(1)
            raise JournalFull("the disk is full")
        await super()._write(rows, heads, epoch)


async def test_deleted_session_leaves_no_failed_child_creation(autojump_clock):
    """The creation is not written after the deletion, when the disk has room again."""
    journal = FullJournal()
    desk, helper = (BareAgent(name, llm=ScriptedLLM([])) for name in ("desk", "helper"))
    with trio.fail_after(100):
        async with journal.running(), open_runtime(journal=journal) as runtime:
            await runtime.start(desk)
            await runtime.start(helper)
            session = await desk.create_session("ada", session_id="parent")
            journal.is_full = True
            with trio.move_on_after(0.1):
                await session.delegate("helper", "work")
            await runtime.delete_session("parent", agent="desk")
            journal.is_full = False
            await trio.sleep(5)
            assert await journal.sessions() == []
