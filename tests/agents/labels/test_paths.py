"""Random paths over all boundaries, with deaths of the process, summaries, snapshots and memories, have the labels of the guide."""

import os
import random

import pytest
import trio

from actgent import BareAgent, LongTermMemory, ScriptedLLM, ToolCall, open_runtime
from actgent.agents.unapproved_tool_call_audit import audit_journal, audit_session
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import ApprovalRequestRecord
from actgent.sessions import session_record_writer
from actgent.sessions.restore import snapshotter

from .paths import Life, Walker, random_path

PATHS = 1000 if os.environ.get("ACTGENT_SOAK") else 12
FOUND = []
"""Approvals whose loss the audit has found."""
SECONDS = 100_000
"""Simulated seconds for one path."""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Snapshots after few records and messages."""
    monkeypatch.setattr(session_record_writer, "SNAPSHOT_RECORDS", 12)
    monkeypatch.setattr(snapshotter, "MARK_MESSAGES", 4)


@pytest.fixture
async def memories(tmp_path):
    """Memories of ada, in which a query finds something."""
    found = LongTermMemory(f"sqlite:///{tmp_path}/memories.db")
    script = [ToolCall("remember", {"text": "mallory wants money"}), "ok"]
    async with BareAgent("first", llm=ScriptedLLM(script), long_term_memory=found) as agent:
        await agent.run("remember", session=await agent.create_session("ada"))
    return found


@pytest.mark.parametrize("seed", range(PATHS))
async def test_a_random_path_has_the_labels_of_the_interpreter(seed, memories, autojump_clock):
    """After each step, also after a death in the middle of it, the label of each session is that of the reference interpreter."""
    path, first = random_path(seed)
    with trio.fail_after(SECONDS):
        async with MemoryJournal().running() as journal:
            walker = Walker(journal, memories, path, first)
            await walker.walk()
            async with open_runtime(journal=journal) as runtime:
                await check_audit(runtime.journal, memories, random.Random(seed))
    assert walker.done == len(path)


async def check_audit(journal, memories, chosen):
    """Check that the audit finds no call in the journal, and that it finds a payment whose approval is removed."""
    helper, clerk = Life(memories).make()
    assert [found async for found in audit_journal(journal, [helper, clerk]) if found[1]] == []
    for summary in await journal.sessions("clerk"):
        records = await journal.load(summary.session_id, agent="clerk")
        asked = {
            each.approval.id: each.approval for each in records if isinstance(each, ApprovalRequestRecord)
        }
        paid = [each for each in asked.values() if each.tool_name == "pay"]
        if paid:
            lost = chosen.choice(paid)
            rest = [each for each in records if getattr(each, "approval_id", "") != lost.id]
            found = audit_session(rest, clerk)
            assert [each.call.id for each in found] == [lost.call_id]
            FOUND.append(lost)


def test_removed_approvals_were_found():
    """This test runs after the others. The paths have at least 100 such payments per 200 paths."""
    assert len(FOUND) >= PATHS / 2
