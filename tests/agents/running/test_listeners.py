"""Several callers that wait for one turn: each gets its result, and the turn stops when the last one leaves."""

import pytest
import trio
import trio.testing

from actgent import BareAgent, Interrupted, Reply, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.approvals import Approve, Reject
from actgent.errors import ApprovalAlreadyDecided, Suspended
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.messages import Token


class Office:
    """A clerk whose `pay` needs an approval and then takes `seconds`, and a boss with a tool that asks the clerk."""

    def __init__(self, *, seconds=0.0, calls=1, timeout=5.0):
        self.ran = []

        @tool(approval=True)
        async def pay(number: int = 0) -> str:
            """Pay."""
            await trio.sleep(seconds)
            self.ran.append(number)
            return "paid"

        def clerk_says(chat):
            if chat.messages[-1].role == "tool":
                return "it is paid"
            return [ToolCall("pay", {"number": number}) for number in range(calls)]

        @tool(timeout=timeout)
        async def ask_clerk() -> str:
            """Ask."""
            return (await self.clerk.run("pay it")).text

        def boss_says(chat):
            return "all done" if chat.messages[-1].role == "tool" else ToolCall("ask_clerk", {})

        self.clerk = BareAgent("clerk", llm=ScriptedLLM(clerk_says, chunk=4), tools=[pay])
        self.boss = BareAgent("boss", llm=ScriptedLLM(boss_says), tools=[ask_clerk])

    async def open(self, runtime):
        """Open the boss' session, whose tool waits for the clerk, which waits for an approval. Return the approval too."""
        await runtime.start(self.clerk)
        await runtime.start(self.boss)
        session = await self.boss.create_session("ada", "go")
        await trio.sleep(1)
        return session, await runtime.approvals()


def results(session):
    return [result.content for message in session.history for result in message.tool_results]


async def listen(stream, heard):
    async with stream as deliveries:
        async for delivery in deliveries:
            heard.append(delivery)


@pytest.mark.parametrize("how", ["resume", "follow", "resume and follow", "answer"])
async def test_all_waiters_receive_the_answer_after_a_decision(autojump_clock, how):
    """Both the asking tool and the deciding operator get the answer.

    The tool's timeout continues after the decision.
    """
    office = Office(seconds=3)
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        session, (approval,) = await office.open(runtime)
        child = await office.clerk.open_session(approval.session_id)
        await trio.sleep(100)
        received = []
        with trio.fail_after(4):
            if "follow" in how:
                nursery.start_soon(listen, office.clerk.follow(child), received)
                await trio.testing.wait_all_tasks_blocked()
            if "resume" in how:
                assert (await office.clerk.resume({approval.id: Approve()})).text == "it is paid"
            else:
                await office.clerk.answer(approval, Approve())
            await session.wait_idle()
        assert session.history[-1].text == "all done"
        assert results(session) == ["it is paid"]
        if "follow" in how:
            assert [type(each) for each in received if not isinstance(each, Token)] == [ToolResult, Reply]


@pytest.mark.parametrize("how", ["resume", "follow"])
async def test_tool_timeout_continues_when_the_turn_resumes(autojump_clock, how):
    """A tool that waited for an approval is still cancelled at its timeout."""
    office = Office(seconds=50, timeout=5)
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        session, (approval,) = await office.open(runtime)
        child = await office.clerk.open_session(approval.session_id)
        if how == "resume":
            nursery.start_soon(office.clerk.resume, {approval.id: Approve()})
        else:
            nursery.start_soon(listen, office.clerk.follow(child), [])
            await trio.testing.wait_all_tasks_blocked()
            await child.answer(approval, Approve())
        with trio.fail_after(10):
            await session.wait_idle()
        assert "did not finish within 5 s" in session.history[2].tool_results[0].error
        assert office.ran == []  # the operator still waits for it
        await trio.sleep(60)
        assert office.ran == [0]


async def test_cancelled_resume_keeps_a_turn_with_other_waiters(autojump_clock):
    """The tool that asked gets its answer. Without any waiter, the turn stops."""
    office = Office(seconds=3)
    async with open_runtime() as runtime:
        session, (approval,) = await office.open(runtime)
        with trio.move_on_after(1):
            await office.clerk.resume({approval.id: Approve()})
        await session.wait_idle()
        assert (office.ran, results(session)) == ([0], ["it is paid"])
        alone = await office.clerk.create_session("eve", "pay")
        failures = []
        alone.on_exception(failures.append)
        await alone.wait_idle()
        with trio.move_on_after(1):
            await office.clerk.resume({alone.approvals[0].id: Approve()})
        await alone.wait_idle()
        assert [type(failure.error) for failure in failures] == [Interrupted]
        assert office.ran == [0]


async def test_cancelled_caller_does_not_stop_a_turn_with_other_waiters(autojump_clock):
    """The operator that resumed the turn gets its answer, although the asking session was interrupted."""
    office = Office(seconds=3)
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        session, (approval,) = await office.open(runtime)
        replies = []

        async def resume():
            replies.append(await office.clerk.resume({approval.id: Approve()}))

        nursery.start_soon(resume)
        await trio.sleep(1)
        await session.interrupt()
        assert session.status == "idle"
        await trio.sleep(3)
        assert [reply.text for reply in replies] == ["it is paid"]


async def test_two_resumes_with_a_decision_each_get_the_same_answer(autojump_clock):
    """If approvals are still pending, the first caller gets these approvals."""
    office = Office(calls=2)
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        session, (one, two) = await office.open(runtime)
        outcomes = []

        async def resume(approval, decision):
            try:
                outcomes.append((await office.clerk.resume({approval.id: decision})).text)
            except Suspended as error:
                outcomes.append(error.ids)

        nursery.start_soon(resume, one, Approve())
        nursery.start_soon(resume, two, Reject())
        await trio.sleep(1)
        await session.wait_idle()
        assert len(outcomes) == 2
        assert "it is paid" in outcomes
        assert set(outcomes) <= {"it is paid", (one.id,), (two.id,)}
        assert (len(office.ran), results(session)) == (1, ["it is paid"])


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_second_resume_with_the_same_decision_is_rejected(autojump_clock, journal):
    """The first caller gets the answer."""
    office = Office(seconds=1)
    async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
        await runtime.start(office.clerk)
        session = await office.clerk.create_session("ada", "pay")
        await session.wait_idle()
        (approval,) = session.approvals
        outcomes = []

        async def resume():
            try:
                outcomes.append((await office.clerk.resume({approval.id: Approve()})).text)
            except ApprovalAlreadyDecided:
                outcomes.append("too late")

        nursery.start_soon(resume)
        nursery.start_soon(resume)
        await trio.sleep(5)
    assert (office.ran, outcomes) == ([0], ["too late", "it is paid"])


@pytest.mark.parametrize("journal", [None, "memory:"])
async def test_a_late_decision_of_a_follower_does_not_stop_the_turn(autojump_clock, journal):
    """The turn continues with the first decision, although no caller waits for it."""
    office = Office(seconds=1)
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(office.clerk)
        session = await office.clerk.create_session("ada", "pay")
        await session.wait_idle()
        (approval,) = session.approvals
        failures = []
        session.on_exception(failures.append)
        with pytest.raises(ApprovalAlreadyDecided):  # noqa: PT012 - it comes out of the block
            async with office.clerk.follow(session):
                await office.clerk.answer(approval, Approve())
                await session.answer(approval, Reject())
        await session.wait_idle()
    assert (office.ran, failures) == ([0], [])


async def test_followers_are_independent(autojump_clock):
    """Each follower receives everything.

    A follower that leaves affects no other, and the turn stops with the last one.
    """
    office = Office(seconds=5)
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        await runtime.start(office.clerk)
        session = await office.clerk.create_session("ada", "pay")
        await session.wait_idle()
        async with office.clerk.follow(session):
            pass
        assert session.status == "suspended"
        received = [[], []]
        for each in received:
            nursery.start_soon(listen, office.clerk.follow(session), each)
        await trio.testing.wait_all_tasks_blocked()
        async with office.clerk.follow(session):
            await session.answer(session.approvals[0], Approve())
            await trio.sleep(1)
        await trio.sleep(5)
        assert [type(each) for each in received[0] if not isinstance(each, Token)] == [ToolResult, Reply]
        assert received[0] == received[1]
        await session.chat("again")
        await session.wait_idle()
        failures = []
        session.on_exception(failures.append)
        async with office.clerk.follow(session), office.clerk.follow(session):
            await session.answer(session.approvals[0], Approve())
            await trio.sleep(1)
        await session.wait_idle()
        assert [type(failure.error) for failure in failures] == [Interrupted]
        assert office.ran == [0]


@pytest.mark.parametrize("how", ["answer", "resume", "follow"])
@pytest.mark.parametrize("restart", [False, True])
async def test_parent_session_receives_the_outcome_of_a_decided_task(autojump_clock, how, restart):
    """Any user in any process may decide the approval of the task."""

    def company():
        return Office().clerk, BareAgent("lead", llm=ScriptedLLM(["noted"], repeat=True), grace=0)

    async with MemoryJournal().running() as journal:
        if restart:
            async with open_runtime(journal=journal) as runtime:
                clerk, lead = company()
                await runtime.start(clerk)
                await runtime.start(lead)
                session = await lead.create_session("ada", session_id="s")
                await session.delegate("clerk", "pay it", task_id="t")
                await trio.sleep(1)
        async with open_runtime(journal=journal) as runtime:
            clerk, lead = company()
            await runtime.start(clerk)
            await runtime.start(lead)
            session = await lead.ensure_session("ada", "s")
            if not restart:
                await session.delegate("clerk", "pay it", task_id="t")
                await trio.sleep(1)
            (approval,) = await clerk.approvals()
            match how:
                case "answer":
                    await clerk.answer(approval, Approve())
                case "resume":
                    assert (await clerk.resume({approval.id: Approve()})).text == "it is paid"
                case "follow":
                    child = await clerk.open_session(approval.session_id)
                    async with clerk.follow(child) as deliveries:
                        await child.answer(approval, Approve())
                        assert [each async for each in deliveries]
            await trio.sleep(1)
            await session.wait_idle()
            (texts,) = [message.text for message in session.history if message.sender.kind == "agent"]
            assert "was done by agent 'clerk':\nit is paid" in texts


async def test_stop_during_resume_leaves_the_turn_for_the_next_start(autojump_clock):
    """With a journal, the waiting caller does not end the turn."""
    office = Office(seconds=50)
    async with MemoryJournal().running() as journal:
        with trio.move_on_after(1):
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(office.clerk)
                session = await office.clerk.create_session("ada", "pay", session_id="s")
                await session.wait_idle()
                with pytest.raises(trio.Cancelled):
                    await office.clerk.resume({session.approvals[0].id: Approve()})
                await trio.lowlevel.checkpoint()
        assert await journal.unfinished("clerk") == ["s"]


async def test_resume_in_a_tool_waits_for_further_approvals(autojump_clock):
    """The turn suspends again, and its tool gets the answer in the end. The tool timeout pauses in between."""
    rounds = [ToolCall("pay", {}), ToolCall("pay", {}), "it is paid"]

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    clerk = BareAgent("clerk", llm=ScriptedLLM(rounds), tools=[pay])

    @tool(timeout=5)
    async def operate() -> str:
        """Decide."""
        (approval,) = await clerk.approvals()
        return (await clerk.resume({approval.id: Approve()})).text

    operator = BareAgent("operator", llm=ScriptedLLM([ToolCall("operate", {}), "done"]), tools=[operate])
    async with open_runtime() as runtime:
        await runtime.start(clerk)
        await runtime.start(operator)
        session = await clerk.create_session("ada", "pay")
        await session.wait_idle()
        deciding = await operator.create_session("eve", "go")
        await trio.sleep(100)
        assert deciding.status == "working"
        (approval,) = session.approvals
        await clerk.answer(approval, Approve())
        await deciding.wait_idle()
        assert results(deciding) == ["it is paid"]
