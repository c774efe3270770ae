"""Random paths over all boundaries, with deaths of the process, summaries, snapshots and memories, have the labels of the guide."""

import os

import pytest
import trio

from actgent import BareAgent, LongTermMemory, ScriptedLLM, ToolCall
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.sessions import session_record_writer
from actgent.sessions.restore import snapshotter

from .paths import Walker, random_path

PATHS = 1000 if os.environ.get("ACTGENT_SOAK") else 12
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
    assert walker.done == len(path)
