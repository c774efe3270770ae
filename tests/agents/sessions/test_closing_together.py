"""Sessions that several tasks close at once."""

import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.journal.in_memory_journal import MemoryJournal


class Gated(MemoryJournal):
    """Writes nothing while its gate is shut; knows which sessions are closed in it."""

    def __init__(self):
        super().__init__()
        self.gate, self.closed = trio.Event(), set()
        self.gate.set()

    async def _write(self, rows, heads, epoch):
        await self.gate.wait()
        await super()._write(rows, heads, epoch)
        self.closed |= {head.key.session_id for head in heads if head.closed}


async def wait_for_ever(chat):
    await trio.sleep_forever()


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize(
    "names", [("root", "root"), ("root", "child"), ("child", "root"), ("child", "child")]
)
async def test_close_returns_after_the_durable_write(autojump_clock, is_running, names):
    """This holds for all callers, with a running turn and a queued message, and with an idle session."""
    returned = {}
    async with Gated().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(wait_for_ever, keep=0)))
        root = await agent.create_session("ada", session_id="root")
        child = await agent.create_session("ada", session_id="child", parent=root)
        sessions = {"root": root, "child": child}
        if is_running:
            for session in (root, child):
                await session.chat("one")
                await session.chat("two")
        await trio.testing.wait_all_tasks_blocked()
        journal.gate = trio.Event()

        async def close(number, session):
            await session.aclose()
            returned[number] = session.id in journal.closed

        async with trio.open_nursery() as nursery:
            for number, name in enumerate(names):
                nursery.start_soon(close, number, sessions[name])
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            assert returned == {}
            journal.gate.set()
        assert returned == {0: True, 1: True}
