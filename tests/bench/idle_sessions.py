"""ASLEEP: many inactive sessions in a journal, with a few active sessions.

Another process writes the sessions, so that their memory is not measured here. Each measurement has its own process.
"""

import json
import sys
import tempfile
import time

import trio
from measure import Figures, expect, rss

from actgent import BareAgent, ScriptedLLM, Sender, open_runtime
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import SessionCreatedRecord

FEW = 100
"""Divisor of the number of sessions for the comparison."""
TALKS = 2_000
"""Active sessions, twice as many as stay in memory."""


async def compare_crowds(size: int) -> Figures:
    """Compare the same turns with many sessions in the journal and with few."""
    many, few = await _in_processes(size), await _in_processes(max(1, size // FEW))
    return {
        "rss_mb": many["rss_mb"],
        "rss_ratio": many["rss_mb"] / few["rss_mb"],
        "start_s": many["start_s"],
        "file_mb": many["file_mb"],
    }


async def _in_processes(size: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        path = trio.Path(folder, "asleep.db")
        for part in ("write", "talk"):
            command = [sys.executable, __file__, part, f"sqlite:///{path}", str(size)]
            done = await trio.run_process(command, capture_stdout=True)
        figures: Figures = json.loads(done.stdout)
        return figures | {"file_mb": (await path.stat()).st_size / 1e6}


# --- the other processes -------------------------------------------------------------------


async def write(url: str, size: int) -> None:
    """Write sessions without pending work."""
    async with open_journal(url) as journal:
        epoch = await journal.acquire()
        for number in range(size):
            opened = SessionCreatedRecord(owner=Sender("ada"), created_at=time.time())
            entry = Entry(session_id=f"s{number}", agent="a", records=(opened,))
            journal.enqueue_write(entry, epoch=epoch)
            if number % 1000 == 0:
                await journal.unfinished("")  # which waits until all sessions are written


async def talk(url: str, size: int) -> Figures:
    """Run a turn in some of the sessions, evenly spread. Report the growth of the process."""
    before, started, replies = rss(), time.perf_counter(), 0
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True, keep=0)))
        start_s = time.perf_counter() - started
        for number in range(TALKS):
            session = await agent.open_session(f"s{number * size // TALKS}")
            await session.chat("hello")
            await session.wait_idle()
            replies += session.history[-1].text == "hi"
        figures = {"rss_mb": (rss() - before) / 1e6, "start_s": start_s}
    expect(seen=replies, wanted=TALKS, what="replies")
    return figures


if __name__ == "__main__":
    if sys.argv[1] == "write":
        trio.run(write, sys.argv[2], int(sys.argv[3]))
    else:
        print(json.dumps(trio.run(talk, sys.argv[2], int(sys.argv[3]))))
