"""Suspended sessions across restarts: evicted, listed, decided, expired, and crashed at every write."""

import collections

import pytest
import trio

from actgent import (
    ApprovalAlreadyDecided,
    ApprovalRequired,
    Approve,
    BareAgent,
    Edit,
    JournalFull,
    Limits,
    Priority,
    Reject,
    Respond,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.journal.record_types import ApprovalDecisionRecord
from actgent.runtime.sessions import session_table
from actgent.testing import CrashingJournal, check_transcript


class World:
    """State outside of the process: payments, deliveries to handlers, and the model requests."""

    def __init__(self, *, calls=("pay", "look", "pay"), **options):
        self.paid = collections.Counter()
        self.heard = collections.defaultdict(list)
        self.views = []
        self.calls = calls
        self.options = options

    def agent(self):
        @tool(approval=True)
        async def pay(order: str) -> str:
            """Pay an order."""
            await trio.lowlevel.checkpoint()
            self.paid[order] += 1
            await trio.lowlevel.checkpoint()
            return f"paid {order}"

        @tool(effect="idempotent")
        async def look(order: str) -> str:
            """Look an order up."""
            await trio.lowlevel.checkpoint()
            return f"seen {order}"

        @tool
        async def ask(order: str, context: ToolContext) -> str:
            """Ask a person by itself."""
            await trio.lowlevel.checkpoint()
            if context.approval is None:
                raise ApprovalRequired(f"Send {order}?", again=True)
            self.paid[order] += 1
            return f"sent {order}"

        def answer(chat):
            assert check_transcript(chat) == []
            self.views.append(
                [(m.role, [getattr(p, "text", None) or p.name for p in m.parts]) for m in chat.messages]
            )
            last = chat.messages[-1]
            if last.role == "tool":
                return "done: " + "; ".join(part.text for part in last.parts)
            if last.parts[0].text.startswith("order"):
                return [
                    ToolCall(name, {"order": f"{last.parts[0].text}/{index}"}, f"c{index}")
                    for index, name in enumerate(self.calls)
                ]
            return "hello"

        agent = BareAgent("clerk", llm=ScriptedLLM(answer, keep=0), tools=[pay, look, ask], **self.options)

        @agent.on_session
        def attach(session):
            for register in (
                session.on_conversation,
                session.on_tool_result,
                session.on_exception,
                session.on_approval,
            ):
                register(self.heard[session.id].append)

        return agent

    def kinds(self, session_id="s"):
        """Return the kinds of outcomes that the handlers received, each id once, without failures and approvals."""
        once = {each.id: type(each).__name__ for each in self.heard[session_id]}
        return [kind for kind in once.values() if kind not in ("Failure", "Approval")]


async def test_approval_is_listed_after_a_restart_without_its_session():
    """After a restart an approval is listed without opening its session, and can be decided by its id."""
    world = World()
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "order 1", session_id="s")
            await session.wait_idle()
            assert session.status == "suspended"
            await session.chat("hi")
        assert [(each.suspended, each.unfinished) for each in await journal.sessions()] == [(True, 2)]
        world.heard.clear()
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            assert not agent._opener.running.sessions
            one, two = await agent.approvals()
            assert await runtime.approvals() == (one, two)
            assert await runtime.approvals(after=two) == ()
            assert not agent._opener.running.sessions
            await agent.answer(two, Reject("no"))
            session = await agent.open_session("s")
            assert (session.status, session.approvals) == ("suspended", (one,))
            with pytest.raises(ApprovalAlreadyDecided):
                await session.answer(two, Approve())
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            with pytest.raises(ApprovalAlreadyDecided):
                await agent.answer(two, Approve())
            await agent.answer(one.id, Approve())
            session = await agent.open_session("s")
            await session.wait_idle()
            assert session.status == "idle"
            texts = [message.text for message in session.history if message.sender.kind == "assistant"]
            assert texts[1].startswith("done: paid order 1/0; seen order 1/1; Error: User denied")
            assert texts[2] == "hello"
            with pytest.raises(ApprovalAlreadyDecided):
                await session.answer(one, Approve())
        assert [(each.suspended, each.unfinished) for each in await journal.sessions()] == [(False, 0)]
    assert world.paid == {"order 1/0": 1}
    assert world.kinds() == ["ToolResult", "ToolResult", "ToolResult", "Reply", "Reply"]


@pytest.mark.parametrize("how", ["urgent", "interrupt", "newer", "aclose"])
@pytest.mark.parametrize("restart", [False, True])
async def test_approval_is_withdrawn_by_interrupts_and_close(how, restart):
    """An URGENT message, an interrupting message, `interrupt()` and `aclose()` withdraw approvals, also after a restart."""
    world = World()
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "order 1", session_id="s")
            await session.wait_idle()
            if not restart:
                await withdraw(session, how)
        if restart:
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(world.agent())
                await withdraw(await agent.open_session("s"), how)
        (summary,) = await journal.sessions()
        assert (summary.suspended, summary.unfinished, summary.closed) == (False, 0, how == "aclose")
    statuses = [each.status for each in world.heard["s"] if type(each).__name__ == "ToolResult"]
    assert statuses == ["cancelled", "success", "cancelled"]
    assert not world.paid


async def withdraw(session, how):
    if how == "urgent":
        await session.chat("stop", priority=Priority.URGENT)
    elif how == "newer":
        await session.chat("rather this", on_busy="interrupt")
    else:
        await getattr(session, how)()
    if how != "aclose":
        await session.wait_idle()
        assert session.status == "idle"


async def test_an_urgent_message_of_a_dead_process_withdraws():
    """An URGENT message accepted before the process died is answered at the next start, although the session was suspended."""
    world = World()
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "order 1", session_id="s")
            await session.wait_idle()
            await session._context.log.accept(session._context.new_message("stop", priority="urgent"))
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.open_session("s")
            await session.wait_idle()
            assert session.history[-1].text == "hello"
    assert not world.paid


async def test_undecided_call_is_rejected_after_its_timeout(autojump_clock):
    """An undecided call is rejected after `approval_timeout`. The model reads that, and a late decision is rejected."""
    world = World(limits=Limits(approval_timeout=3600))
    async with open_runtime() as runtime:
        agent = await runtime.start(world.agent())
        session = await agent.create_session("ada", "order 1", session_id="s")
        await session.wait_idle()
        one, two = session.approvals
        await trio.sleep(1800)
        await session.answer(one, Approve())
        assert session.status == "suspended"
        await trio.sleep(1805)
        await session.wait_idle()
        assert session.status == "idle"
        with pytest.raises(ApprovalAlreadyDecided, match="expired"):
            await session.answer(two, Approve())
    assert world.paid == {"order 1/0": 1}
    assert "'pay' was not approved in time" in world.views[-1][-1][1][2]


@pytest.mark.parametrize("restart", [False, True])
async def test_interrupting_message_keeps_approvals_of_an_urgent_message(restart):
    """An interrupting message does not end a turn that answers an URGENT message, so its approvals stay listed."""
    world = World()
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", session_id="s")
            await session.chat("order 1", priority=Priority.URGENT)
            await session.wait_idle()
            await session.chat("hi", on_busy="interrupt")
            if not restart:
                await found_and_answered(runtime, agent, session)
        if restart:
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(world.agent())
                await found_and_answered(runtime, agent, await agent.open_session("s"))
    assert world.paid == {"order 1/0": 1, "order 1/2": 1}


async def found_and_answered(runtime, agent, session):
    approvals = await runtime.approvals()
    assert len(approvals) == 2
    assert session.status == "suspended"
    for approval in approvals:
        await agent.answer(approval.id, Approve())
    await session.wait_idle()
    assert session.history[-1].text == "hello"


async def test_evicted_suspended_session_expires_in_time(autojump_clock, monkeypatch):
    """Evicted suspended sessions expire in time, also after a restart."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 2)
    world = World(limits=Limits(approval_timeout=3600))
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            for number in range(10):
                await agent.create_session("ada", f"order {number}", session_id=f"s{number}")
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            assert len(agent._opener.running.sessions) == 2
            assert len(await agent.approvals()) == 20
            await trio.sleep(10)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            assert not agent._opener.running.sessions
            await trio.sleep(4000)
            assert await agent.approvals() == ()
        assert [each.unfinished for each in await journal.sessions()] == [0] * 10
    assert not world.paid
    assert all(world.kinds(f"s{number}")[-1] == "Reply" for number in range(10))


async def test_suspended_sessions_are_evicted_and_loaded(monkeypatch):
    """Suspended sessions are evicted. A message loads the session and stays queued; a decision resumes the turn."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 2)
    world = World()
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(world.agent())
        running = agent._opener.running
        held = await agent.create_session("ada", "order 0", session_id="s0")
        for number in range(1, 10):
            await agent.create_session("ada", f"order {number}", session_id=f"s{number}")
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.2)
        assert len(running.sessions) == 2
        assert "s0" not in running.sessions
        await held.chat("hi")
        assert held.status == "suspended"
        other = await agent.open_session("s1")
        await other.chat("hi")
        assert (held.history[-1].text, other.history[-1].text) == ("", "")
        for session in (held, other):
            for approval in session.approvals:
                await agent.answer(approval.id, Approve())
            await session.wait_idle()
            assert session.history[-1].text == "hello"
        await agent.answer((await agent.approvals())[0], Approve())
        assert running.inbox.statistics().claimed == 0
    assert sum(world.paid.values()) == 4


# --- crashes -----------------------------------------------------------------------------

DECISIONS = {
    "approve": [Approve(), Approve()],
    "mixed": [Reject("no"), Edit({"order": "other"})],
    "respond": [Respond("by hand"), Approve()],
}


async def serve(journal, world, decisions, *, seconds=5):
    """Run one process that approves or rejects all calls. Return whether the session became idle within the time."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(world.agent())
        try:
            session = await agent.open_session("s")
        except LookupError:
            session = await agent.create_session("ada", session_id="s")
        await session.chat("order 1", message_id="m1")
        with trio.move_on_after(seconds):
            while session.status != "idle":
                await session.wait_idle()
                for approval in session.approvals:
                    await session.answer(approval, decisions[approval.call_id])
            return True
    return False


@pytest.mark.parametrize("kind", DECISIONS)
@pytest.mark.parametrize("calls", [("pay", "look", "pay"), ("pay",), ("ask", "look"), ("look", "pay", "ask")])
async def test_calls_run_once_after_a_crash_at_every_write(kind, calls, autojump_clock):
    """A crash at any write loses no call and runs none twice. The model requests equal those without a crash."""
    asking = [f"c{index}" for index, name in enumerate(calls) if name != "look"]
    decisions = dict(zip(asking, DECISIONS[kind], strict=False))
    whole = World(calls=calls)
    async with MemoryJournal().running() as journal:
        assert await serve(journal, whole, decisions)
    crashes, unknown = 0, 0
    for writes in range(1, 100):
        world = World(calls=calls)
        async with MemoryJournal().running() as inner:
            dying = CrashingJournal(inner, writes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, dying, world, decisions)
                with trio.move_on_after(2):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            before = dict(world.paid)
            has_decided = any(isinstance(record, ApprovalDecisionRecord) for record in await inner.load("s"))
            assert await serve(inner, world, decisions)
            (summary,) = await inner.sessions()
        if not dying.died.is_set():
            break
        crashes += 1
        assert (summary.unfinished, summary.suspended) == (0, False)
        assert all(count == 1 for count in world.paid.values()), (writes, world.paid)
        assert before.keys() <= world.paid.keys()
        last = world.views[-1]
        if "outcome is unknown" in str(last):
            unknown += 1  # the call was starting or running when the process died
            assert has_decided or "ask" in calls
        else:
            assert last == whole.views[-1], writes
            assert world.paid == whole.paid
    assert crashes >= 8
    assert unknown <= crashes / 3


class Full(WrappedJournal):
    """A journal that rejects records of decisions while it is full."""

    def __init__(self, inner):
        super().__init__(inner)
        self.is_full = True

    async def commit(self, entry, *, epoch, durable=True):
        if self.is_full and any(isinstance(record, ApprovalDecisionRecord) for record in entry.records):
            await trio.lowlevel.checkpoint()
            raise JournalFull("no space")
        await self.inner.commit(entry, epoch=epoch, durable=durable)


async def test_a_decision_that_cannot_be_written_does_not_count():
    """If the journal rejects a decision, the approval stays open and another decision is valid."""
    world = World()
    async with MemoryJournal().running() as inner:
        journal = Full(inner)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "order 1", session_id="s")
            await session.wait_idle()
            one, two = session.approvals
            with pytest.raises(JournalFull):
                await session.answer(one, Approve())
            assert set(session.approvals) == {one, two}
            journal.is_full = False
            await session.answer(one, Reject())
            await session.answer(two, Approve())
            await session.wait_idle()
    assert world.paid == {"order 1/2": 1}


async def test_a_cancelled_decision_is_valid():
    """A decision whose caller was cancelled is recorded or can be repeated. A later decision is rejected."""
    world = World(calls=("pay",))
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "order 1", session_id="s")
            await session.wait_idle()
            (approval,) = session.approvals
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(session.answer, approval, Approve())
                    await trio.lowlevel.checkpoint()
                    scope.cancel()
            if session.approvals:  # the decision was cancelled before its write began
                await session.answer(approval, Approve())
            await session.wait_idle()
            with pytest.raises(ApprovalAlreadyDecided):
                await session.answer(approval, Reject())
        (summary,) = await journal.sessions()
        assert (summary.unfinished, summary.suspended) == (0, False)
    assert world.paid == {"order 1/0": 1}


async def test_deleting_a_suspended_session_removes_its_approvals():
    """Deleting a suspended session removes its approvals and its records, and no call runs."""
    world = World()
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(world.agent())
            session = await agent.create_session("ada", "order 1", session_id="s")
            await session.wait_idle()
            await runtime.delete_session("s")
            assert await runtime.approvals() == ()
        assert await journal.sessions() == []
    assert not world.paid
