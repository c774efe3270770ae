"""What an agent of another pool is told of a task whose request came again."""

import pytest

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.journal.base import Entry
from actgent.journal.memory import MemoryJournal
from actgent.journal.records import REFUSED, Accepted, Closed, Ended, Opened, message_id_of
from actgent.messages import Message, Sender, Text
from actgent.runtime.delegation.pools import PoolTask, PoolTasks


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
    message = Message(
        id=message_id_of("t"), session_id="t", sender=Sender("a@p", "agent"), parts=(Text("go"),)
    )
    records = [
        Opened(agent="inner", owner=Sender("a@p", "agent"), transient=True, asker="p/a/s", created_at=1.0)
    ]
    for failed in ends:
        records += [
            Accepted(message=message),
            Ended(message_id=message.id, failed=failed, words=f"{failed} it was"),
        ]
    entry = Entry(session_id="t", agent="inner", records=(*records, Closed()))
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await journal.commit(entry, epoch=journal.epoch_of("t"))
        await runtime.start(BareAgent("inner", llm=ScriptedLLM(["ok"])))
        task = PoolTask(session_id="t", agent="inner", asker="p/a/s", owner="a@p", message=message)
        report = await PoolTasks(runtime.delegation.agents, "q").answer(task, wait=50)
    assert (report.answered.failed, report.answered.text) == told
