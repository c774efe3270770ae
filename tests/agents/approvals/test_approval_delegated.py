"""Approvals of delegated tasks: the calling agents wait, and their sessions list the approval."""

from functools import partial

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    NotSuspended,
    Reject,
    ScriptedLLM,
    SessionClosed,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import CallFinishedRecord
from actgent.testing import CrashingJournal

PAY = ToolCall("pay", {"amount": 5})


def team(ran, *, depth=1):
    """Return a chain of agents in which each has the next as a tool. The last has a tool that requires approval."""

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay an amount."""
        ran.append(amount)
        return f"paid {amount}"

    def worker(chat):
        last = chat.messages[-1]
        return f"worker: {last.parts[0].text}" if last.role == "tool" else [ToolCall("pay", {"amount": 5})]

    agents = [BareAgent("worker", llm=ScriptedLLM(worker, keep=0), tools=[pay])]
    for number in range(depth):
        below = agents[-1]

        def lead(chat, name=below.name, number=number):
            last = chat.messages[-1]
            if last.role == "tool":
                return f"lead{number}: {last.parts[0].text}"
            return [ToolCall(name, {"task": "pay 5"})]

        agents.append(BareAgent(f"lead{number}", llm=ScriptedLLM(lead, keep=0), tools=[below.as_tool()]))
    return agents[::-1]


@pytest.mark.parametrize("depth", [1, 3])
async def test_calling_agent_forwards_approvals(autojump_clock, depth):
    """The lead's session lists the worker's approval and can decide it. Two hours of waiting expire nothing."""
    ran, approvals = [], []
    lead, *_ = team(ran, depth=depth)
    async with lead:
        session = await lead.create_session("ada")
        session.on_approval(approvals.append)
        await session.chat("pay 5")
        await trio.sleep(7200)
        assert (session.status, ran) == ("working", [])
        (approval,) = approvals
        assert session.approvals == (approval,)
        assert (approval.agent, approval.tool_name) == ("worker", "pay")
        assert approval.session_id != session.id
        await session.answer(approval, Approve())
        await session.wait_idle()
        with pytest.raises(NotSuspended):
            await session.answer("nonsense." + approval.session_id, Approve())
        assert session.history[-1].text.endswith("lead0: worker: paid 5")
    assert ran == [5]


async def test_a_tool_timeout_pauses_during_an_approval(autojump_clock):
    """The tool timeout counts the time before and after the suspension, not the wait for the decision."""
    ran = []
    lead, worker = team(ran)

    def slow(chat):
        last = chat.messages[-1]
        return "done" if last.role == "tool" else [ToolCall("pay", {"amount": 5})]

    worker._models.named["default"] = ScriptedLLM(slow, delay=40, keep=0)
    worker._models.clients = None
    async with lead:
        session = await lead.create_session("ada", "pay 5")
        await trio.sleep(50)
        (approval,) = session.approvals
        await trio.sleep(5000)
        await session.answer(approval, Approve())
        await session.wait_idle()
        result = session.history[2].tool_results[0]
        assert (result.status, "within 60 s" in (result.error or "")) == ("error", True)
        assert lead.tools.list()[0].timeout is None


@pytest.mark.parametrize("decide_after", [10, 5000])
async def test_an_ask_deadline_pauses_during_an_approval(autojump_clock, decide_after):
    """The deadline of an ask pauses while the asked agent waits for approval, and continues afterwards."""
    ran, took = [], []
    _, worker = team(ran)

    @tool(timeout=10_000, parallel=True)
    async def ask(deadline: float) -> str:
        """Ask the worker."""
        started = trio.current_time()
        try:
            return str(await worker.ref.ask("pay 5", deadline=deadline))
        finally:
            took.append(trio.current_time() - started)

    def say(chat):
        return "done" if chat.messages[-1].role == "tool" else [PAY]

    worker._models.named["default"] = ScriptedLLM(say, delay=10, keep=0)
    worker._models.clients = None
    calls = [ToolCall("ask", {"deadline": 15.0}), ToolCall("ask", {"deadline": 25.0})]
    boss = BareAgent(
        "boss", llm=ScriptedLLM(lambda chat: calls if len(chat.messages) == 1 else "ok"), tools=[ask]
    )
    async with open_runtime() as runtime:
        await runtime.start(worker)
        await runtime.start(boss)
        session = await boss.create_session("ada", "go")
        await trio.sleep(10 + decide_after)
        for approval in session.approvals:
            await session.answer(approval, Approve())
        await session.wait_idle()
        short, long = session.history[2].tool_results
    assert "did not answer within 15 s" in short.error
    assert long.content == "done"
    assert took == [pytest.approx(15 + decide_after), pytest.approx(20 + decide_after)]


async def test_interrupting_the_caller_withdraws_the_approval():
    """Interrupting the lead withdraws the worker's approval, so a later decision is rejected."""
    ran = []
    lead, _ = team(ran)
    async with lead:
        session = await lead.create_session("ada", "pay 5")
        while not session.approvals:
            await trio.testing.wait_all_tasks_blocked()
        (approval,) = session.approvals
        await session.interrupt()
        await trio.testing.wait_all_tasks_blocked()
        assert session.approvals == ()
        with pytest.raises(NotSuspended):
            await session.answer(approval, Approve())
    assert ran == []


@pytest.mark.parametrize("decision", [Approve(), Reject("no")])
async def test_delegated_approval_survives_a_restart(decision, autojump_clock):
    """After restarts the lead still waits for the worker, and the approval can be decided by its id."""
    ran = []
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            lead, _ = team(ran)
            await runtime.start(lead)
            lead.grace = 0.1
            session = await lead.create_session("ada", "pay 5", session_id="s")
            await trio.sleep(1)
            (approval,) = session.approvals
            assert await runtime.approvals() == (approval,)
        for _ in range(2):
            async with open_runtime(journal=journal) as runtime:
                lead, worker = team(ran)
                lead.grace = 0.1
                await runtime.start(lead)
                await trio.sleep(1)
                assert await runtime.approvals() == (approval,)
                assert (await worker.approvals()) == (approval,)
        async with open_runtime(journal=journal) as runtime:
            lead, worker = team(ran)
            await runtime.start(lead)
            await worker.answer(approval.id, decision)
            session = await lead.open_session("s")
            await session.wait_idle()
            assert session.history[-1].text.startswith("lead0: worker: ")
            assert await runtime.approvals() == ()
        assert [each.unfinished for each in await journal.sessions()] == [0, 0]
    assert ran == ([5] if decision == Approve() else [])


def asking_both(ran, asked):
    """Return a lead that calls an agent and a tool that requires approval in one batch."""

    @tool(approval=True)
    async def pay(amount: int) -> str:
        """Pay an amount."""
        ran.append(amount)
        return f"paid {amount}"

    def help_out(chat):
        asked.append(len(chat.messages))
        return "helped"

    def lead(chat):
        last = chat.messages[-1]
        if last.role == "tool":
            return "; ".join(part.text for part in last.parts)
        return [ToolCall("helper", {"task": "x"}), PAY]

    helper = BareAgent("helper", llm=ScriptedLLM(help_out, keep=0))
    return BareAgent("lead", llm=ScriptedLLM(lead, keep=0), tools=[helper.as_tool(), pay])


async def ask_both(journal, ran, asked, answers):
    """Run the lead in one process until its reply, approving each approval."""
    async with open_runtime(journal=journal) as runtime:
        lead = await runtime.start(asking_both(ran, asked))
        session = await lead.ensure_session("ada", "s")
        await session.chat("go", message_id="m")
        await session.wait_idle()
        for approval in session.approvals:
            await session.answer(approval, Approve())
        await session.wait_idle()
        answers.append(session.history[-1].text)


async def test_crash_at_every_write_leaves_no_open_child_session(autojump_clock, mortal):
    """After a crash the helper's answer is kept, the helper is called once, and no child session stays open."""
    unknown = 0
    for writes in range(1, 100):
        ran, requests, answers = [], [], []
        life = partial(ask_both, ran=ran, asked=requests, answers=answers)
        async with mortal().running() as journal:
            if not await journal.live(life, steps=writes):
                break
            records = [each for each in await journal.load("s") if isinstance(each, CallFinishedRecord)]
            before = len(requests)
            await journal.live(life)
            open_ones = [each.session_id for each in await journal.sessions() if not each.closed]
            assert (open_ones, await journal.unfinished("helper")) == (["s"], []), writes
        assert len(requests) - before <= (0 if records else 1), writes
        if answers[-1] == "helped; paid 5":
            assert ran == [5], writes
        else:  # the process died after the call could have started
            assert answers[-1] == "helped; Error: stopped while it ran: its outcome is unknown"
            assert len(ran) <= 1, writes
            unknown += 1
    assert writes > 12
    assert unknown < 4


@pytest.mark.parametrize("order", [1, -1], ids=["leads first", "workers first"])
@pytest.mark.parametrize("depth", [1, 3])
async def test_waiting_calls_get_their_full_time_after_a_restart(autojump_clock, depth, order):
    """A slow approval expires no delegated call after a restart, in any order of agent starts."""
    ran = []
    async with MemoryJournal().running() as journal:
        with trio.move_on_after(5):
            async with open_runtime(journal=journal) as runtime:
                lead, *_ = team(ran, depth=depth)
                await runtime.start(lead)
                await lead.create_session("ada", "pay 5", session_id="s")
                await trio.sleep_forever()
        async with open_runtime(journal=journal) as runtime:
            lead, *others = team(ran, depth=depth)
            if order < 0:
                for agent in reversed(others):
                    await runtime.start(agent)
                    await trio.sleep(1)
            await runtime.start(lead)
            await trio.sleep(5000)
            (approval,) = await runtime.approvals()
            session = await lead.open_session("s")
            assert session.approvals == (approval,)
            await session.answer(approval, Approve())
            await session.wait_idle()
            assert session.history[-1].text.endswith("worker: paid 5")
    assert ran == [5]


async def test_an_approval_of_an_orphaned_task_ends_at_the_next_access(autojump_clock):
    """If the process died while its asking turn was stopped, a decision is rejected and the approval ends."""
    ended = 0
    for writes in range(1, 60):
        ran = []
        async with MemoryJournal().running() as journal:
            dying = CrashingJournal(journal, writes)

            async def live(scope, dying=dying, ran=ran):
                async with open_runtime(journal=dying) as runtime:
                    lead, *_ = team(ran)
                    await runtime.start(lead)
                    session = await lead.create_session("ada", "pay 5", session_id="s")
                    requested = trio.Event()
                    session.on_approval(lambda _: requested.set())
                    await requested.wait()
                    await trio.sleep(1)
                    await session.interrupt()
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(live, nursery.cancel_scope)
                with trio.move_on_after(5):
                    await dying.died.wait()
                nursery.cancel_scope.cancel()
            if not dying.is_dead:
                break
            is_over = not await journal.unfinished("lead0")
            async with open_runtime(journal=journal) as runtime:
                worker = await runtime.start(team(ran)[-1])
                open_ones = await runtime.approvals()
                if is_over and open_ones:
                    ended += 1
                    with pytest.raises(SessionClosed):
                        await worker.answer(open_ones[0].id, Approve())
                    await trio.sleep(1)
                    assert await runtime.approvals() == ()
                    assert [each for each in await journal.sessions("worker") if not each.closed] == []
        assert ran == []
    assert ended > 0
