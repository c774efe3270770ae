"""Agents that work for others and need a person: their askers wait, and hear of it."""

import pytest
import trio

from actgent import Approve, BareAgent, NotSuspended, Reject, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.memory import MemoryJournal


def team(ran, *, depth=1):
    """A lead whose tool is an agent, and so on; the last has a tool that needs a person."""

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
async def test_the_asker_hears_and_decides(autojump_clock, depth):
    """Whoever talks to the lead is asked about the worker's call, with all the time that it takes."""
    ran, asked = [], []
    lead, *_ = team(ran, depth=depth)
    async with lead:
        session = await lead.create_session("ada")
        session.on_approval(asked.append)
        await session.chat("pay 5")
        await trio.sleep(7200)
        assert (session.status, ran) == ("working", [])
        (approval,) = asked
        assert session.approvals == (approval,)
        assert (approval.agent, approval.tool_name) == ("worker", "pay")
        assert approval.session_id != session.id
        await session.answer(approval, Approve())
        await session.wait_idle()
        with pytest.raises(NotSuspended):
            await session.answer("nonsense." + approval.session_id, Approve())
        assert session.history[-1].text.endswith("lead0: worker: paid 5")
    assert ran == [5]


async def test_the_time_of_a_call_goes_on_where_it_was(autojump_clock):
    """What a call took before its agent waited for a person, and takes after, counts."""
    ran = []
    lead, worker = team(ran)

    def slow(chat):
        last = chat.messages[-1]
        return "done" if last.role == "tool" else [ToolCall("pay", {"amount": 5})]

    worker._model_names["default"] = ScriptedLLM(slow, delay=40, keep=0)
    worker._models = None
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


async def test_interrupting_the_asker_withdraws():
    """Nobody wants the worker's call any more."""
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
async def test_it_survives_a_restart(decision, autojump_clock):
    """The lead's turn goes on waiting for the worker, whose approval can be answered by its id."""
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
