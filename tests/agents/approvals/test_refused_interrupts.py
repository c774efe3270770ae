"""If a message that would interrupt a suspended turn is rejected, the turn stays suspended and listed."""

import pytest
import trio
import trio.testing

from actgent import BareAgent, InboxFull, ScriptedLLM, SessionBusy, ToolCall, open_runtime, tool
from actgent.approvals import Approve
from actgent.errors import JournalFailed
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import MessageAcceptedRecord

RULES = {"interrupt": {"on_busy": "interrupt"}, "urgent": {"priority": "urgent"}}


class LateJournal(MemoryJournal):
    """A journal that stores an accepted message, and then returns a second later or reports a failure."""

    late = fails = False

    async def commit(self, entry, *, epoch):
        await super().commit(entry, epoch=epoch)
        if any(isinstance(record, MessageAcceptedRecord) for record in entry.records):
            if self.late:
                await trio.sleep(1)
            if self.fails:
                raise JournalFailed("the disk failed")


def clerk(ran):
    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    def says(chat):
        last = chat.messages[-1]
        return ToolCall("pay", {}) if last.role != "tool" and last.parts[0].text == "pay" else "ok"

    return BareAgent(
        "clerk",
        llm=ScriptedLLM(says),
        tools=[pay],
        session_inbox_capacity=1,
        urgent_inbox_capacity=1,
        grace=0,
    )


async def refuse(session, journal, how, rule):
    """Send a message that would end the turn and make its acceptance fail."""
    options = RULES[rule]
    match how:
        case "no room":
            await session.chat("next")
            with pytest.raises(InboxFull):
                await session.chat("no, wait", on_busy="interrupt", enqueue_timeout=0.1)
        case "busy":
            with pytest.raises(SessionBusy):
                await session.chat("no, wait", on_busy="reject")
        case "cancelled":
            journal.late = True
            with trio.move_on_after(0.5) as scope:
                await session.chat("no, wait", **options)
            assert scope.cancelled_caught
        case "journal":
            journal.fails = True
            with pytest.raises(JournalFailed):
                await session.chat("no, wait", **options)
    journal.late = journal.fails = False
    await trio.testing.wait_all_tasks_blocked()


CASES = [
    ("no room", "interrupt"),
    ("busy", "interrupt"),
    *[(how, rule) for how in ("cancelled", "journal") for rule in RULES],
]


@pytest.mark.parametrize(("how", "rule"), CASES)
@pytest.mark.parametrize("later", ["at once", "restart"])
async def test_approval_stays_listed_after_a_rejected_interrupt(autojump_clock, how, rule, later):
    """This process or the next one can decide the approval, and the turn resumes."""
    ran = []
    async with LateJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(clerk(ran))
            session = await agent.create_session("ada", "pay", session_id="s")
            await session.wait_idle()
            (approval,) = await runtime.approvals()
            await refuse(session, journal, how, rule)
            assert await runtime.approvals() == (approval,)
            assert await agent.approvals() == (approval,)
            assert session.approvals == (approval,)
            assert session.status == "suspended"
            if later == "at once":
                await session.answer(approval, Approve())
                await session.wait_idle()
                assert session.history[3].text == "ok"
        if later == "restart":
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(clerk(ran))
                assert await runtime.approvals() == (approval,)
                await agent.answer(approval, Approve())
                session = await agent.open_session("s")
                await session.wait_idle()
                assert await runtime.approvals() == ()
        assert ran == [1]
        assert "no, wait" not in [message.text for message in session.history]


@pytest.mark.parametrize("rule", RULES)
async def test_accepted_interrupt_removes_the_approval_from_all_lists(autojump_clock, rule):
    """An accepted interrupting message withdraws the approval and is answered."""
    async with LateJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk([]))
        session = await agent.create_session("ada", "pay")
        await session.wait_idle()
        await session.chat("no, wait", **RULES[rule])
        await session.wait_idle()
        assert await runtime.approvals() == ()
        assert session.approvals == ()
        assert session.history[-1].text == "ok"
