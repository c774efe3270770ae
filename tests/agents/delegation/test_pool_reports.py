"""What an agent of another pool is told of a task whose request came again."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.journal.base import Entry
from actgent.journal.memory import MemoryJournal
from actgent.journal.records import REFUSED, Accepted, Closed, Ended, Opened, message_id_of
from actgent.messages import Message, Sender, Text
from actgent.runtime.delegation.pools import PoolTask, PoolTasks

MESSAGE = Message(id=message_id_of("t"), session_id="t", sender=Sender("a@p", "agent"), parts=(Text("go"),))
OPENED = Opened(agent="inner", owner=Sender("a@p", "agent"), transient=True, asker="p/a/s", created_at=1.0)
TASK = PoolTask(session_id="t", agent="inner", asker="p/a/s", owner="a@p", message=MESSAGE)


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([REFUSED, "limit"], ("limit", "limit it was")),
        ([REFUSED, REFUSED, "stopped"], ("stopped", "stopped it was")),
        ([REFUSED], ("stopped", "it was closed before it answered")),
    ],
)
async def test_what_became_of_a_task_at_last_is_told(ends, told):
    """Not that it was refused before."""
    records = [OPENED]
    for failed in ends:
        records += [
            Accepted(message=MESSAGE),
            Ended(message_id=MESSAGE.id, failed=failed, words=f"{failed} it was"),
        ]
    entry = Entry(session_id="t", agent="inner", records=(*records, Closed()))
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await journal.commit(entry, epoch=journal.epoch_of("t"))
        await runtime.start(BareAgent("inner", llm=ScriptedLLM(["ok"])))
        report = await PoolTasks(runtime.delegation.agents, "q").answer(TASK, wait=50)
    assert (report.answered.failed, report.answered.text) == told


async def test_a_task_that_the_journal_did_not_take_is_begun_when_it_is_asked_for_again(monkeypatch):
    """Also where it is asked for again just as its session is taken back: nobody hears then that it has failed."""
    refused = (Accepted(message=MESSAGE), Ended(message_id=MESSAGE.id, failed=REFUSED), Closed(unused=True))
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
