"""Reports to an agent of another pool about a task whose request arrived again."""

from contextlib import suppress

import attrs
import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.errors import JournalFailed, JournalFull
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import (
    NOT_KEPT,
    REFUSED,
    MessageAcceptedRecord,
    MessageEndRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    task_message_id,
)
from actgent.messages import Message, Sender, Text
from actgent.runtime.delegation.tasks_between_cluster_pools import PoolTask, PoolTasks

SLOW_SECONDS = 10
MESSAGE = Message(id=task_message_id("t"), session_id="t", sender=Sender("a@p", "agent"), parts=(Text("go"),))
OPENED = SessionCreatedRecord(
    agent="inner", owner=Sender("a@p", "agent"), transient=True, asker="p/a/s", created_at=1.0
)
TASK = PoolTask(session_id="t", agent="inner", asker="p/a/s", owner="a@p", message=MESSAGE)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([REFUSED, "limit"], ("limit", "limit it was")),
        ([REFUSED, REFUSED, "stopped"], ("stopped", "stopped it was")),
        ([NOT_KEPT, "limit"], ("limit", "limit it was")),
        ([REFUSED], ("stopped", "it was closed before it answered")),
    ],
)
async def test_report_has_only_the_final_outcome_of_a_task(ends, told):
    """Earlier rejections and journal errors of the same task are not reported."""
    records = [OPENED]
    for failed in ends:
        records += [
            MessageAcceptedRecord(message=MESSAGE),
            MessageEndRecord(message_id=MESSAGE.id, failed=failed, error_text=f"{failed} it was"),
        ]
    entry = Entry(session_id="t", agent="inner", records=(*records, SessionClosedRecord()))
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await journal.commit(entry, epoch=journal.epoch_of("t"))
        await runtime.start(BareAgent("inner", llm=ScriptedLLM(["ok"])))
        report = await PoolTasks(runtime.delegation.agents, "q").answer(TASK, wait=50)
    assert (report.answered.failed, report.answered.text) == told


async def test_unrecorded_task_starts_at_its_second_request(monkeypatch):
    """The second request may arrive while the session of the task is rolled back. No caller gets a failure then."""
    refused = (
        MessageAcceptedRecord(message=MESSAGE),
        MessageEndRecord(message_id=MESSAGE.id, failed=REFUSED),
        SessionClosedRecord(unused=True),
    )
    entry = Entry(session_id="t", agent="inner", records=(OPENED, *refused))
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await journal.commit(entry, epoch=journal.epoch_of("t"))
        await runtime.start(BareAgent("inner", llm=ScriptedLLM(["ok"])))
        tasks = PoolTasks(runtime.delegation.agents, "q")
        with monkeypatch.context() as patched:
            patched.setattr(PoolTasks, "_open", _find_closed)
            assert (await tasks.answer(TASK, wait=50)).answered is None
        report = await tasks.answer(TASK, wait=50)
    assert (report.answered.failed, report.answered.text) == (None, "ok")


async def _find_closed(*_):
    await trio.lowlevel.checkpoint()


async def test_stopped_task_closes_child_sessions_of_the_journal():
    """After a restart nothing else would close its child sessions."""

    async def hang(chat):
        await trio.sleep_forever()

    below = SessionCreatedRecord(
        agent="inner", owner=Sender("inner", "agent"), parent_id="t", parent_agent="inner", created_at=1.0
    )
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        for session_id, records in (
            ("t", (OPENED, MessageAcceptedRecord(message=MESSAGE))),
            ("t/below", (below,)),
        ):
            entry = Entry(session_id=session_id, agent="inner", records=records)
            await journal.commit(entry, epoch=journal.epoch_of(session_id))
        await runtime.start(BareAgent("inner", llm=ScriptedLLM(hang)))
        report = await PoolTasks(runtime.delegation.agents, "q").cancel(TASK, wait=50)
        assert report.answered.failed == "interrupted"
        assert {each.session_id: each.closed for each in await journal.sessions()} == {
            "t": True,
            "t/below": True,
        }


class Full(MemoryJournal):
    """Takes nothing while it is full."""

    is_full = False

    async def _write(self, *args):
        if self.is_full:
            raise JournalFull
        await super()._write(*args)


class Unconfirmed(MemoryJournal):
    """Writes the first step, and then does not confirm it: the answer takes long, or the connection breaks."""

    fails = False
    writes = 0

    async def _write(self, *args):
        await super()._write(*args)
        self.writes += 1
        if self.writes == 1:
            if self.fails:
                raise JournalFailed("the connection broke")
            await trio.sleep(SLOW_SECONDS)


@pytest.mark.parametrize("fails", [False, True], ids=["cancelled", "failed"])
async def test_task_starts_again_if_its_first_request_ended_during_the_write(autojump_clock, fails):
    """The journal has its message, and no caller has its session. So the message is rejected, and the session is unused."""
    async with Unconfirmed().running() as journal, open_runtime(journal=journal) as runtime:
        journal.fails = fails
        await runtime.start(BareAgent("inner", llm=ScriptedLLM(["ok"])))
        tasks = PoolTasks(runtime.delegation.agents, "q")
        with trio.move_on_after(SLOW_SECONDS / 2), suppress(JournalFailed):
            await tasks.answer(TASK, wait=50)
        assert journal.writes >= 1
        await trio.sleep(2 * SLOW_SECONDS)
        report = await tasks.answer(TASK, wait=50)
    assert (report.answered.failed, report.answered.text) == (None, "ok")


async def test_task_stopped_before_its_start_leaves_no_session():
    """The journal fails at first. The stop is repeated, and no session of the task exists in between."""
    async with Full().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("inner", llm=ScriptedLLM(["ok"])))
        tasks, journal.is_full = PoolTasks(runtime.delegation.agents, "q"), True
        with pytest.raises(JournalFull):
            await tasks.cancel(TASK, wait=50)
        assert list(agent._opener.running.sessions.values()) == []
        journal.is_full = False
        assert (await tasks.cancel(TASK, wait=50)).answered.failed == "stopped"
        assert [each.closed for each in await journal.sessions()] == [True]


async def test_overdue_task_closes_child_sessions_of_the_journal(autojump_clock):
    """The child sessions may be only in the journal since a restart."""

    async def hang(chat):
        await trio.sleep_forever()

    agent = Sender("inner", "agent")
    late = attrs.evolve(OPENED, task="work", deadline=1.0)
    below = SessionCreatedRecord(
        agent="inner", owner=agent, parent_id="t", parent_agent="inner", created_at=1.0
    )
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        for session_id, records in (
            ("t", (late, MessageAcceptedRecord(message=MESSAGE))),
            ("t/below", (below,)),
        ):
            entry = Entry(session_id=session_id, agent="inner", records=records)
            await journal.commit(entry, epoch=journal.epoch_of(session_id))
        await runtime.start(BareAgent("inner", llm=ScriptedLLM(hang)))
        await trio.sleep(5)
        assert {each.session_id: each.closed for each in await journal.sessions()} == {
            "t": True,
            "t/below": True,
        }
