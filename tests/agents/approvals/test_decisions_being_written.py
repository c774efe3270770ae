"""While a decision is written, its approval stays open, its session is not idle, and a second decision waits."""

import pytest
import trio
import trio.lowlevel

from actgent import (
    ApprovalAlreadyDecided,
    Approve,
    BareAgent,
    Reject,
    ScriptedLLM,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.errors import JournalFailed
from actgent.testing import FaultyJournal


@tool(approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def sleep(_):
    """Delay a write by half a second."""
    await trio.sleep(0.5)


async def fail(_):
    """Fail a write after half a second."""
    await trio.sleep(0.5)
    raise JournalFailed("no disk")


async def answer_in_vain(session, approval):
    """Send a decision and expect `JournalFailed`."""
    with pytest.raises(JournalFailed):
        await session.answer(approval, Approve())


class Clerk:
    """A session with a suspended turn. After the suspension each journal write takes half a second."""

    def __init__(self, calls=1):
        self.heard = []
        self.journal = FaultyJournal()
        script = [[ToolCall("pay", {"euros": euros}) for euros in range(1, calls + 1)], "Paid."]
        self.agent = BareAgent("clerk", llm=ScriptedLLM(script, delay=20), tools=[pay])

    async def ask(self, runtime):
        clerk = await runtime.start(self.agent)
        session = await clerk.ensure_session("ada", "s")
        session.on_conversation(lambda reply: self.heard.append(reply.text))
        session.on_exception(lambda failure: self.heard.append(failure.kind))
        await session.chat("Pay.", message_id="m")
        await session.wait_idle()
        self.journal.fault = sleep
        return session


async def test_a_session_is_not_idle_while_a_decision_is_written(autojump_clock):
    """`wait_idle()` waits for the decision and the resumed turn. The approval is listed until the decision is written."""
    clerk = Clerk()
    async with clerk.journal.running(), open_runtime(journal=clerk.journal) as runtime:
        session = await clerk.ask(runtime)
        (approval,) = session.approvals
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.answer, approval, Approve())
            await trio.sleep(0.1)
            assert session.approvals == (approval,)
            await session.wait_idle()
            assert clerk.heard == ["Paid."]
        assert session.approvals == ()


async def test_a_second_decision_waits_for_the_first_one(autojump_clock):
    """A second decision is rejected only after the first is in the journal."""
    clerk = Clerk()
    async with clerk.journal.running(), open_runtime(journal=clerk.journal) as runtime:
        session = await clerk.ask(runtime)
        (approval,) = session.approvals
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.answer, approval, Approve())
            await trio.sleep(0.1)
            started = trio.current_time()
            with pytest.raises(ApprovalAlreadyDecided) as raised:
                await session.answer(approval, Reject("no"))
            assert raised.value.decision == Approve()
            assert trio.current_time() - started >= 0.3
        await session.wait_idle()
    assert clerk.heard == ["Paid."]


async def test_a_second_decision_is_valid_if_the_first_was_not_recorded(autojump_clock):
    """If the write of the first decision fails, its caller gets the error and the second decision is valid."""
    clerk = Clerk()
    async with clerk.journal.running(), open_runtime(journal=clerk.journal) as runtime:
        session = await clerk.ask(runtime)
        (approval,) = session.approvals
        clerk.journal.fault = fail
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_in_vain, session, approval)
            await trio.sleep(0.1)
            clerk.journal.fault = None
            await session.answer(approval, Reject("no"))
        await session.wait_idle()
        results = [each for message in session.history for each in message.tool_results]
    assert [each.status for each in results] == ["error"]
    assert clerk.heard == ["Paid."]


async def test_a_session_is_idle_again_if_the_decision_cannot_be_written(autojump_clock):
    """`wait_idle()` returns after a failed write, and the session is suspended again."""
    clerk = Clerk()
    async with clerk.journal.running(), open_runtime(journal=clerk.journal) as runtime:
        session = await clerk.ask(runtime)
        (approval,) = session.approvals
        clerk.journal.fault = fail
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_in_vain, session, approval)
            await trio.sleep(0.1)
            started = trio.current_time()
            with trio.fail_after(30):
                await session.wait_idle()
            assert trio.current_time() - started >= 0.3
        assert session.approvals == (approval,)
        clerk.journal.fault = None
        await session.answer(approval, Approve())
        await session.wait_idle()
    assert clerk.heard == ["Paid."]


async def test_a_turn_waits_on_if_one_of_two_decisions_cannot_be_written(autojump_clock):
    """The second decision does not resume a turn whose first decision failed. The failed approval stays listed."""
    clerk = Clerk(calls=2)
    async with clerk.journal.running(), open_runtime(journal=clerk.journal) as runtime:
        session = await clerk.ask(runtime)
        first, second = session.approvals
        clerk.journal.fault = fail
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_in_vain, session, first)
            await trio.sleep(0.1)
            clerk.journal.fault = None
            await session.answer(second, Approve())
        assert session.approvals == (first,)
        assert await clerk.agent.approvals() == (first,)
        await session.answer(first, Approve())
        await session.wait_idle()
    assert clerk.heard == ["Paid."]


async def test_failed_decision_keeps_the_turn_suspended(autojump_clock):
    """The last decision was written while another failed. The turn stays suspended until that call is decided."""
    clerk = Clerk(calls=2)
    async with clerk.journal.running(), open_runtime(journal=clerk.journal) as runtime:
        session = await clerk.ask(runtime)
        first, second = session.approvals
        clerk.journal.fault = None
        await session.answer(second, Approve())
        assert session.approvals == (first,)
        with trio.move_on_after(1):
            await session.wait_idle()
        assert clerk.heard == []
        await session.answer(first, Approve())
        await session.wait_idle()
    assert clerk.heard == ["Paid."]
