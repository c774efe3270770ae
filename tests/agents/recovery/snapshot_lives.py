"""A process with one long session and early snapshots, killed by SIGKILL before or after a chosen write.

`python snapshot_lives.py URL TURNS WRITE` prints each accepted id as a line when it is confirmed.
"""

import os
import signal
import sys

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.journal_url import open_journal
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.sessions import session_record_writer


class DeadlyJournal(WrappedJournal):
    """A journal that counts writes, and snapshots twice. Its process ends before or after it stores a snapshot."""

    def __init__(self, inner, writes):
        super().__init__(inner)
        self._left = writes

    def _count(self):
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    async def commit(self, entry, *, epoch, durable=True):
        await self.inner.commit(entry, epoch=epoch, durable=durable)
        self._count()

    def enqueue_write(self, entry, *, epoch):
        self.inner.enqueue_write(entry, epoch=epoch)
        self._count()

    async def keep_snapshot(self, session_id, snapshot, *, agent, epoch):
        self._count()
        done = await self.inner.keep_snapshot(session_id, snapshot, agent=agent, epoch=epoch)
        self._count()
        return done


@tool(effect="idempotent")
async def look(what: str) -> str:
    """Look at something."""
    return f"seen {what}"


def answer(chat):
    if chat.messages[-1].role == "tool" or len(chat.messages) % 3:
        return f"answer {len(chat.messages)}"
    return [ToolCall("look", {"what": str(len(chat.messages))})]


def make():
    return BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[look])


async def live(url, turns, write):
    """Resume where the last process ended."""
    session_record_writer.SNAPSHOT_RECORDS = 30
    async with open_journal(url) as inner, open_runtime(journal=DeadlyJournal(inner, write)) as runtime:
        session = await (await runtime.start(make())).ensure_session("ada", "s")
        for _ in range(turns):
            session.state.dispatch(("n", session.state.get("n", 0) + 1))
            message = await session.chat("hello")
            os.write(1, f"{message}\n".encode())
            await session.wait_idle()


if __name__ == "__main__":
    trio.run(live, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
