"""Runs in a suspended session: the caller gets an error at once instead of waiting for approvals."""

import pytest
import trio
import trio.testing

from actgent import BareAgent, Failure, Interrupted, Reply, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.approvals import Approve
from actgent.errors import JournalFailed, Suspended
from actgent.journal.in_memory_journal import MemoryJournal


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def says(chat):
    last = chat.messages[-1]
    if last.role == "tool":
        return "it is paid"
    text = last.parts[0].text
    return ToolCall("pay", {}) if text == "pay" else f"re: {text}"


def clerk(**options):
    return BareAgent("clerk", llm=ScriptedLLM(says, delay=1), tools=[pay], **options)


@pytest.fixture(params=[None, "memory:"], ids=["no journal", "journal"])
def journal(request):
    """Return a journal address, or None for no journal."""
    return request.param


async def test_a_run_in_a_suspended_session_raises_at_once(autojump_clock, journal):
    """`run()` and `stream()` raise `Suspended`. Their message is not answered later, and the session is unchanged."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", "pay")
        await session.wait_idle()
        started = trio.current_time()
        for _ in range(2):
            with pytest.raises(Suspended) as caught:
                await agent.run("hello", session=session)
            assert caught.value.ids == (session.approvals[0].id,)
            with pytest.raises(Suspended):
                async with agent.stream("hello", session=session):
                    pass
        assert trio.current_time() == started
        assert session.status == "suspended"
        await session.answer(session.approvals[0], Approve())
        await session.wait_idle()
        assert [message.text for message in session.history if message.sender.kind == "user"] == ["pay"]
        assert (await agent.run("hello", session=session)).text == "re: hello"


@pytest.mark.parametrize("how", ["run", "stream"])
async def test_queued_runs_are_withdrawn_when_the_turn_suspends(autojump_clock, journal, how, listen):
    """A queued run gets `Suspended` with the approval ids and reaches no handler. Messages without a waiting caller stay queued."""
    async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", "pay")
        received = listen(session)
        outcomes = []

        async def ask():
            if how == "run":
                with pytest.raises(Suspended) as caught:
                    await agent.run("mine", session=session)
                outcomes.append(caught.value)
            else:
                async with agent.stream("mine", session=session) as deliveries:
                    (failure,) = [each async for each in deliveries]
                assert (type(failure), failure.kind) == (Failure, "suspended")
                outcomes.append(failure.error)

        nursery.start_soon(ask)
        await session.chat("others")
        with trio.fail_after(5):
            await session.wait_idle()
            await trio.sleep(1)
        (approval,) = session.approvals
        assert [(type(each), each.ids) for each in outcomes] == [(Suspended, (approval.id,))]
        assert received == []
        await session.answer(approval, Approve())
        await session.wait_idle()
        asked = [message.text for message in session.history if message.sender.kind == "user"]
        assert asked == ["pay", "others"]


async def test_withdrawn_message_does_not_run_at_the_next_start(autojump_clock):
    """The journal records the withdrawal of a run before its caller receives the error."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            agent = await runtime.start(clerk(grace=0))
            session = await agent.create_session("ada", "pay", session_id="s")

            async def ask():
                with pytest.raises(Suspended):
                    await agent.run("mine", session=session)

            nursery.start_soon(ask)
            await session.wait_idle()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(clerk())
            session = await agent.open_session("s")
            await session.answer(session.approvals[0], Approve())
            await session.wait_idle()
            asked = [message.text for message in session.history if message.sender.kind == "user"]
            assert asked == ["pay"]


@pytest.mark.parametrize("rule", ["interrupt", "urgent"])
async def test_a_message_that_ends_the_suspended_turn_is_answered(autojump_clock, journal, rule):
    """An interrupting run or an URGENT message ends the suspended turn and is answered."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(clerk(on_busy="interrupt" if rule == "interrupt" else "queue"))
        session = await agent.create_session("ada", "pay")
        failures = []
        session.on_exception(failures.append)
        await session.wait_idle()
        if rule == "interrupt":
            assert (await agent.run("no, wait", session=session)).text == "re: no, wait"
        else:
            await session.chat("at once", priority="urgent")
            await session.wait_idle()
        assert [type(failure.error) for failure in failures] == [Interrupted]


async def test_run_inside_a_tool_waits_for_the_approval(autojump_clock, journal):
    """A run inside a tool call waits for the approval, and the tool timeout pauses."""
    asked = clerk()

    @tool(timeout=5)
    async def ask() -> str:
        """Ask."""
        return (await asked.run("hello", session=await asked.open_session("s"))).text

    asker = BareAgent("asker", llm=ScriptedLLM([ToolCall("ask", {}), "done"]), tools=[ask])
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(asked)
        await runtime.start(asker)
        session = await asked.create_session("ada", "pay", session_id="s")
        await session.wait_idle()
        asking = await asker.create_session("eve", "go")
        await trio.sleep(1000)
        assert asking.status == "working"
        await session.answer(session.approvals[0], Approve())
        with trio.fail_after(4):
            await asking.wait_idle()
        assert [each.content for message in asking.history for each in message.tool_results] == ["re: hello"]


class Hesitating(MemoryJournal):
    """A journal whose writes of decisions fail after one second."""

    refuses = False

    async def commit(self, entry, *, epoch):
        if self.refuses and any(
            type(record).__name__ == "ApprovalDecisionRecord" for record in entry.records
        ):
            await trio.sleep(1)
            raise JournalFailed("the disk failed")
        await super().commit(entry, epoch=epoch)


async def test_run_waits_for_a_decision_that_is_being_written(autojump_clock):
    """A run waits for the pending write: it raises `Suspended` if the write fails, and gets a reply if it succeeds."""
    async with (
        Hesitating().running() as journal,
        open_runtime(journal=journal) as runtime,
        trio.open_nursery() as nursery,
    ):
        agent = await runtime.start(clerk())
        session = await agent.create_session("ada", "pay")
        await session.wait_idle()
        (approval,) = session.approvals
        journal.refuses = True

        async def decide():
            with pytest.raises(JournalFailed):
                await session.answer(approval, Approve())

        nursery.start_soon(decide)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Suspended), trio.fail_after(5):
            await agent.run("hello", session=session)
        journal.refuses = False
        await session.answer(approval, Approve())
        reply = await agent.run("hello", session=session)
        assert isinstance(reply, Reply)


async def test_abandoned_waits_resume_outer_timeouts(autojump_clock):
    """The timeouts of a tool and its callers continue after the tool stops waiting for an approval."""
    clerk_, limit = clerk(), 5

    @tool(timeout=1000)
    async def try_it() -> str:
        """Try."""
        with trio.move_on_after(10):
            await clerk_.run("pay")
        await trio.sleep_forever()
        return ""

    middle = BareAgent("middle", llm=ScriptedLLM([ToolCall("try_it", {}), "done"]), tools=[try_it])

    @tool(timeout=limit)
    async def ask() -> str:
        """Ask."""
        return (await middle.run("go")).text

    asker = BareAgent("asker", llm=ScriptedLLM([ToolCall("ask", {}), "done"]), tools=[ask])
    async with open_runtime() as runtime:
        for each in (clerk_, middle, asker):
            await runtime.start(each)
        session = await asker.create_session("eve", "go")
        with trio.fail_after(10 + limit + 1):
            await session.wait_idle()
        (result,) = [each for message in session.history for each in message.tool_results]
        assert result.error == f"tool 'ask' did not finish within {limit} s"
