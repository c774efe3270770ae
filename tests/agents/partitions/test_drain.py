"""Drain of a partition: running turns end, and queued messages stay in the journal for the next owner."""

from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from actgent import Approve, BareAgent, Failure, ScriptedLLM, SessionMoved, ToolCall, tool
from actgent.journal.postgres.partitioned_journal import PartitionedJournal
from actgent.journal.record_types import MessageAcceptedRecord


def of(runtime, number):
    return lambda session_id: runtime.journal.partition_of(session_id) == number


class Slow:
    """An agent whose answers wait for the event `gate`."""

    def __init__(self, tools=(), name="clerk"):
        self.gate, self.asked = trio.Event(), []
        self.agent = BareAgent(name, llm=ScriptedLLM(self._answer), tools=list(tools))

    async def _answer(self, chat):
        self.asked.append(chat.messages[-1].parts[0])
        await self.gate.wait()
        return "ok"


async def test_a_running_turn_ends_and_queued_messages_move(open_node, id_in, until):
    """A draining session rejects new messages and ends its turn. The next owner answers the queued messages."""
    slow, failures, given = Slow(), [], trio.Event()
    async with open_node("one", take=[0, 1]) as one, open_node("two") as two, trio.open_nursery() as nursery:
        agent, other = (
            await one.start(slow.agent),
            await two.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok"))),
        )
        session = await agent.create_session("ada", "first", session_id=id_in(0))
        session.on_exception(failures.append)
        stays = await agent.create_session("ada", "stays", session_id=id_in(1))
        await session.chat("second")
        await until(lambda: len(slow.asked) == 2)

        async def give():
            async with one.drain(of(one, 0), grace=20):
                with pytest.raises(SessionMoved):
                    await agent.open_session(session.id)
                await one.journal.give_back([0])
                given.set()  # ownership ends with the write to the database

        nursery.start_soon(give)
        await until(lambda: one.drains)
        with pytest.raises(SessionMoved):
            await session.chat("third")
        with pytest.raises(SessionMoved):
            await agent.create_session("ada", session_id=id_in(0, nth=1))
        assert session.status == "working"
        slow.gate.set()
        await until(given.is_set)
        assert not one.journal.owns(session.id)
        assert session.id not in agent._opener.running.sessions
        (taken,) = await two.journal.acquire_partitions([0])
        assert taken.was_clean
        assert await two.resume_acquired() == 1
        moved = await other.open_session(session.id)
        await moved.wait_idle()
        assert [each.text for each in moved.history] == ["first", "ok", "second", "ok"]
        await stays.wait_idle()
        assert [each.text for each in stays.history] == ["stays", "ok"]
    assert not failures
    assert len(slow.asked) == 2


async def test_drain_interrupts_the_running_turn_and_hands_over_queued_messages(open_node, id_in, until):
    """The running turn can be interrupted. An interrupt for a handed-over message raises `SessionMoved`."""
    slow = Slow()
    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agent, other = (
            await one.start(slow.agent),
            await two.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok"))),
        )
        session = await agent.create_session("ada", session_id=id_in(0))
        await session.chat("first", message_id="m1")
        await session.chat("second", message_id="m2")
        await until(lambda: slow.asked)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hand_over, one)
            await until(lambda: one.drains)
            with pytest.raises(SessionMoved):
                await session.interrupt(message_id="m2")
            await session.interrupt(message_id="m1")
            with pytest.raises(SessionMoved):
                await session.interrupt(drop_queued=True)
        await two.journal.acquire_partitions([0])
        assert await two.resume_acquired() == 1
        moved = await other.open_session(session.id)
        await moved.wait_idle()
        assert [each.text for each in moved.history] == ["first", "second", "ok"]
    assert len(slow.asked) == 1


class Held(PartitionedJournal):
    """A journal that blocks the acceptance of the message `third` until its gate opens."""

    is_held = False
    gate = None

    async def commit(self, entry, *, epoch, durable=True):
        if any(
            isinstance(each, MessageAcceptedRecord) and each.message.text == "third" for each in entry.records
        ):
            self.is_held = True
            await self.gate.wait()
        await super().commit(entry, epoch=epoch, durable=durable)


@asynccontextmanager
async def at_work(open_node, id_in, until, said):
    """Open two nodes and a session of the first whose turn runs. The agent of the second node answers `said`."""
    slow = Slow()
    async with open_node("one", take=[0], kind=Held) as one, open_node("two") as two:
        one.journal.gate = trio.Event()
        agent = await one.start(slow.agent)
        other = await two.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: said)))
        session = await agent.create_session("ada", "first", session_id=id_in(0))
        await until(lambda: slow.asked)
        yield one, two, other, session, slow


async def test_a_message_being_written_does_not_overtake_queued_messages(open_node, id_in, until):
    """A message whose write ends during the drain is handed over after the earlier queued messages."""
    async with at_work(open_node, id_in, until, "ok") as (one, two, other, session, slow):
        async with trio.open_nursery() as nursery:
            await session.chat("second")
            accepted = trio.Event()
            nursery.start_soon(_chat, session, "third", accepted)
            await until(lambda: one.journal.is_held)
            nursery.start_soon(_hand_over, one)
            await until(lambda: one.drains)
            one.journal.gate.set()
            await accepted.wait()
            slow.gate.set()
        await two.journal.acquire_partitions([0])
        assert await two.resume_acquired() == 1
        moved = await other.open_session(session.id)
        await moved.wait_idle()
        assert [each.text for each in moved.history] == ["first", "ok", "second", "ok", "third", "ok"]
    assert len(slow.asked) == 1


async def test_message_that_is_being_written_is_answered_by_the_next_owner(open_node, id_in, until):
    """The only message of a one-run session is handed over, so the session stays open and the next owner answers."""

    async def ask(agent):
        with pytest.raises(SessionMoved):
            await agent.run("third")

    async with at_work(open_node, id_in, until, "ok") as (one, two, other, _, slow):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, slow.agent)
            await until(lambda: one.journal.is_held)
            nursery.start_soon(_hand_over, one)
            await until(lambda: one.drains)
            one.journal.gate.set()
            slow.gate.set()
        requests = []
        other.on_session(requests.append)
        await two.journal.acquire_partitions([0])
        assert await two.resume_acquired() == 1
        await requests[0].wait_idle()
        assert [each.text for each in requests[0].history] == ["third", "ok"]
    assert len(slow.asked) == 1


async def test_wait_idle_raises_if_queued_messages_are_handed_over(open_node, id_in, until):
    """`wait_idle()` raises `SessionMoved` if queued messages are handed over, even while the turn still runs here."""

    async def wait(session):
        with pytest.raises(SessionMoved):
            await session.wait_idle()

    async with at_work(open_node, id_in, until, "ok") as (one, _, _, session, slow):
        await session.chat("second")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, session)
            nursery.start_soon(_hand_over, one)
            await until(lambda: one.drains)
            slow.gate.set()


async def test_a_stop_during_the_write_applies_before_the_handover(open_node, id_in, until):
    """A message that is interrupted while its write runs is not handed over or answered."""
    async with at_work(open_node, id_in, until, "no") as (one, two, other, session, slow):
        async with trio.open_nursery() as nursery:
            accepted = trio.Event()
            nursery.start_soon(_chat, session, "third", accepted, "m3")
            await until(lambda: one.journal.is_held)
            await session.interrupt(message_id="m3")
            nursery.start_soon(_hand_over, one)
            await until(lambda: one.drains)
            one.journal.gate.set()
            await accepted.wait()
            slow.gate.set()
        await two.journal.acquire_partitions([0])
        await two.resume_acquired()
        moved = await other.open_session(session.id)
        await moved.wait_idle()
        assert "no" not in [each.text for each in moved.history]
    assert len(slow.asked) == 1


async def test_draining_turn_may_run_another_session(open_node, id_in, until):
    """During the grace period a turn can run another session of the partition and gets its reply."""
    clerk, outcomes = BareAgent("clerk", llm=ScriptedLLM(lambda _: "helped")), []
    started, may_have_approvals = trio.Event(), trio.Event()

    @tool
    async def ask() -> str:
        """Ask the other session."""
        started.set()
        await may_have_approvals.wait()
        outcomes.append((await clerk.run("help", session=below)).text)
        return "asked"

    boss = BareAgent("boss", llm=ScriptedLLM([ToolCall("ask", {}), "done"]), tools=[ask])
    async with open_node("one", take=[0]) as one, trio.open_nursery() as nursery:
        await one.start(boss)
        await one.start(clerk)
        below = await clerk.create_session("ada", session_id=id_in(0, nth=1))
        session = await boss.create_session("ada", "go", session_id=id_in(0))
        await started.wait()
        nursery.start_soon(_drain, one, 20)
        await until(lambda: one.drains)
        may_have_approvals.set()
        await until(lambda: not one.drains)
        again = await boss.open_session(session.id)
        assert again.history[-1].text == "done"
    assert outcomes == ["helped"]


async def test_turn_is_evicted_after_its_grace_period(open_node, id_in, until):
    """After the grace period the turn is evicted, and the next owner calls the model again."""
    slow = Slow()
    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agent, other = (
            await one.start(slow.agent),
            await two.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok"))),
        )
        session = await agent.create_session("ada", "first", session_id=id_in(0))
        await until(lambda: slow.asked)
        with trio.fail_after(60):
            async with one.drain(of(one, 0), grace=0.1):
                await one.journal.give_back([0])
        await two.journal.acquire_partitions([0])
        assert await two.resume_acquired() == 1
        moved = await other.open_session(session.id)
        await moved.wait_idle()
        assert [each.text for each in moved.history] == ["first", "ok"]


async def test_draining_turn_may_call_an_agent_as_a_tool(open_node, id_in, until):
    """During the grace period a turn can call an agent as a tool: a new child session of its own tree is accepted."""
    slow = Slow()

    gate, may_have_approvals = trio.Event(), trio.Event()

    async def asks(chat):
        if chat.messages[-1].role == "tool":
            return "done"
        gate.set()
        await may_have_approvals.wait()
        return ToolCall("clerk", {"task": "help"})

    boss = BareAgent("boss", llm=ScriptedLLM(asks), tools=[slow.agent.as_tool()])
    async with open_node("one", take=[0]) as one, trio.open_nursery() as nursery:
        await one.start(boss)
        session = await boss.create_session("ada", session_id=id_in(0))
        nursery.start_soon(session.chat, "go")
        await gate.wait()
        nursery.start_soon(_drain, one, 20)
        await until(lambda: one.drains)
        may_have_approvals.set()
        slow.gate.set()
        await until(lambda: not one.drains)
        again = await boss.open_session(session.id)
        assert again.history[-1].text == "done"


class Payments:
    """A boss that calls a clerk, whose tool `pay` requires approval. Records the payments."""

    def __init__(self, *calls, tools=()):
        self.paid, self.asked, self.gate = [], [], trio.Event()
        self.gate.set()

        @tool(approval=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        async def pays(chat):
            self.asked.append("clerk")
            await self.gate.wait()
            return "done" if chat.messages[-1].role == "tool" else ToolCall("pay", {"amount": 7})

        def asks(chat):
            self.asked.append("boss")
            is_asked = chat.messages[-1].role == "tool"
            return "done" if is_asked else [ToolCall("clerk", {"task": "pay"}), *calls]

        self.clerk = BareAgent("clerk", llm=ScriptedLLM(pays, keep=0), tools=[pay])
        self.boss = BareAgent("boss", llm=ScriptedLLM(asks), tools=[self.clerk.as_tool(), *tools])


async def test_approvals_of_a_running_turn_can_be_decided_during_a_drain(open_node, id_in, until):
    """An approval can be decided here while its turn has other running work. For a suspended turn `SessionMoved` is raised."""
    slow = trio.Event()

    @tool
    async def dig() -> str:
        """Dig."""
        await slow.wait()
        return "dug"

    here = Payments(ToolCall("dig", {}), tools=[dig])
    async with open_node("one", take=[0]) as one, trio.open_nursery() as nursery:
        await one.start(here.boss)
        alone = await here.clerk.create_session("ada", "go", session_id=id_in(0, nth=1))
        session = await here.boss.create_session("ada", "go", session_id=id_in(0))
        await until(lambda: alone.approvals and session.approvals)
        nursery.start_soon(_drain, one, 200)
        await until(lambda: one.drains)
        with pytest.raises(SessionMoved):
            await alone.answer(alone.approvals[0], Approve())
        await session.answer(session.approvals[0], Approve())
        slow.set()
        await until(lambda: not one.drains)
        assert here.paid == [7]
        again = await here.boss.open_session(session.id)
        assert again.history[-1].text == "done"
        still = await here.clerk.open_session(alone.id)
        await still.answer(still.approvals[0], Approve())
        await still.wait_idle()
    assert here.paid == [7, 7]


async def _chat(session, text, accepted, message_id=None):
    await session.chat(text, message_id=message_id)
    accepted.set()


async def _hand_over(runtime):
    async with runtime.drain(of(runtime, 0), grace=20):
        await runtime.journal.give_back([0])


async def _drain(runtime, grace):
    async with runtime.drain(of(runtime, 0), grace=grace):
        pass


async def test_a_drained_node_that_keeps_the_partition_resumes(open_node, id_in):
    """After a drain without a release the node serves its sessions again."""
    async with open_node("one", take=[0]) as one:
        agent = await one.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok")))
        session = await agent.create_session("ada", "hi", session_id=id_in(0))
        await session.wait_idle()
        async with one.drain(of(one, 0)):
            with pytest.raises(SessionMoved):
                await agent.open_session(session.id)
        again = await agent.open_session(session.id)
        assert (await agent.run("more", session=again)).text == "ok"
        assert len(again.history) == 4
        assert not any(isinstance(each, Failure) for each in again.history)


async def test_a_drain_does_not_wait_for_approvals_of_child_sessions(open_node, id_in, until):
    """The drain ends before its grace period. The next owner keeps the approval and accepts the decision."""
    here, there = Payments(), Payments()
    async with open_node("one", take=[0]) as one, open_node("two") as two:
        await one.start(here.boss)
        await two.start(there.boss)
        session = await here.boss.create_session("ada", "go", session_id=id_in(0))
        await until(lambda: session.approvals)
        with trio.fail_after(60):
            async with one.drain(of(one, 0), grace=3600):
                await one.journal.give_back([0])
        await two.journal.acquire_partitions([0])
        await two.resume_acquired()
        moved = await there.boss.open_session(session.id)
        await until(lambda: moved.approvals)
        await moved.answer(moved.approvals[0], Approve())
        await moved.wait_idle()
        assert moved.history[-1].text == "done"
    assert (here.paid, there.paid) == ([], [7])
    assert (here.asked, there.asked) == (["boss", "clerk"], ["clerk", "boss"])


@pytest.mark.parametrize("is_below", [False, True])
async def test_a_drain_does_not_wait_for_new_approvals(open_node, id_in, until, is_below):
    """The drain also ends if the turn or a called agent requests an approval during the drain."""
    here = Payments()
    here.gate = trio.Event()
    agent = here.boss if is_below else here.clerk
    async with open_node("one", take=[0]) as one:
        await one.start(here.boss)
        session = await agent.create_session("ada", "go", session_id=id_in(0))
        await until(lambda: "clerk" in here.asked)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_drain, one, 3600)
                await until(lambda: one.drains)
                here.gate.set()
        again = await agent.open_session(session.id)
        await until(lambda: again.approvals)
        await again.answer(again.approvals[0], Approve())
        await again.wait_idle()
        assert again.history[-1].text == "done"
    assert here.asked.count("boss") == 2 * is_below
    assert (here.asked.count("clerk"), here.paid) == (2, [7])


async def test_suspended_turns_are_decided_by_the_next_owner(open_node, id_in, until):
    """Decisions raise `SessionMoved` while the drain waits for another session, because a call that starts now would be stopped."""
    here, slow = Payments(), Slow(name="digger")
    async with open_node("one", take=[0]) as one, trio.open_nursery() as nursery:
        await one.start(here.boss)
        await one.start(slow.agent)
        busy = await slow.agent.create_session("ada", "dig", session_id=id_in(0, nth=1))
        asking = await here.boss.create_session("ada", "go", session_id=id_in(0))
        told = await slow.agent.create_session("ada", session_id=id_in(0, nth=2))
        await told.delegate("clerk", "pay")
        await until(lambda: asking.approvals and told.approvals and slow.asked)
        # Until the asking turn is suspended, its caller runs, and this node accepts the decision.
        await until(lambda: sum(each.suspended for each in one.statistics() if each.agent == "clerk") == 2)
        nursery.start_soon(_drain, one, 3600)
        await until(lambda: one.drains)
        for session in (asking, told):
            with pytest.raises(SessionMoved):
                await session.answer(session.approvals[0], Approve())
        assert busy.status == "working"
        slow.gate.set()
        await until(lambda: not one.drains)
        assert not here.paid
        for each in await one.approvals():
            await here.clerk.answer(each, Approve())
        for agent, session in ((here.boss, asking), (slow.agent, told)):
            again = await agent.open_session(session.id)
            await until(lambda again=again: again.status == "idle" and len(again.history) > 1)
    assert here.paid == [7, 7]


class Deciding(PartitionedJournal):
    """A journal that blocks the write of a decision until its gate opens."""

    is_held = False
    gate = None

    async def _write_group(self, group, begun=None):
        if any(b"decided" in each.batch.body for each in group):
            self.is_held = True
            await self.gate.wait()
        await super()._write_group(group, begun)


async def test_a_decision_at_the_start_of_a_drain_is_executed_first(open_node, id_in, until):
    """The drain waits for a decision that is being written and for its call, whose outcome would otherwise be unknown."""
    here = Payments()
    async with open_node("one", take=[0], kind=Deciding) as one, trio.open_nursery() as nursery:
        one.journal.gate = trio.Event()
        await one.start(here.clerk)
        session = await here.clerk.create_session("ada", "go", session_id=id_in(0))
        await until(lambda: session.approvals)
        nursery.start_soon(session.answer, session.approvals[0], Approve())
        await until(lambda: one.journal.is_held)
        nursery.start_soon(_drain, one, 3600)
        await until(lambda: one.drains)
        one.journal.gate.set()
        await until(lambda: not one.drains)
        again = await here.clerk.open_session(session.id)
        await again.wait_idle()
        results = [each for message in again.history for each in message.tool_results]
        assert [(each.status, each.content) for each in results] == [("success", "paid")]
    assert here.paid == [7]


class Looking(PartitionedJournal):
    """A journal that blocks the lookup of child sessions until its gate opens."""

    is_held = False
    gate = None

    async def children_of(self, keys):
        self.is_held = True
        await self.gate.wait()
        return await super().children_of(keys)


async def test_session_with_forwarded_messages_is_closed_by_the_next_owner(open_node, id_in, until):
    """A close during a drain raises `SessionMoved` and records nothing. The next owner resumes the session and can close it."""
    async with at_work(open_node, id_in, until, "ok") as (one, two, other, session, _):
        await session.chat("second")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_hand_over, one)
            await until(lambda: one.drains)
            await trio.testing.wait_all_tasks_blocked()  # "second" has left the inbox
            with pytest.raises(SessionMoved):
                await session.aclose()
        await two.journal.acquire_partitions([0])
        assert await two.resume_acquired() == 1
        moved = await other.open_session(session.id)
        await moved.wait_idle()
        assert [each.text for each in moved.history] == ["first", "second", "ok"]
        await moved.aclose()
        head = await two.journal.head("clerk", session.id)
        assert (head.closed, head.unfinished) == (True, 0)


async def test_drain_finishes_a_started_close(open_node, id_in, until):
    """A drain waits until a started close has closed the session and its unloaded child, even if the caller was cancelled."""

    def make():
        return BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok"))

    async with open_node("one", take=[0]) as one:
        agent = await one.start(make())
        root = await agent.create_session("ada", "hi", session_id=id_in(0))
        below = await agent.create_session("ada", "hi", session_id=f"{root.id}/below", parent=root)
        for each in (root, below):
            await each.wait_idle()
    async with open_node("two", take=[0], kind=Looking) as two, trio.open_nursery() as nursery:
        two.journal.gate = trio.Event()
        agent = await two.start(make())
        session = await agent.open_session(root.id)
        async with trio.open_nursery() as closing:
            closing.start_soon(session.aclose)
            await until(lambda: two.journal.is_held)
            closing.cancel_scope.cancel()
        two.journal.is_held = False
        await until(lambda: two.journal.is_held)
        drained = trio.Event()

        async def hand_over():
            async with two.drain(of(two, 0), grace=3600):
                drained.set()

        nursery.start_soon(hand_over)
        await trio.testing.wait_all_tasks_blocked()
        two.journal.gate.set()
        await drained.wait()
        assert {each.session_id: each.state for each in await two.sessions()} == {
            root.id: "closed",
            below.id: "closed",
        }
