"""A process that acquires partitions resumes their unfinished, scheduled and suspended sessions."""

import pytest
import trio

from actgent import Approve, BareAgent, ScriptedLLM, SessionMoved, ToolCall, tool


def of(runtime, number):
    """Return an `has_moved` function for one partition."""
    return lambda session_id: runtime.journal.partition_of(session_id) == number


async def _never(_):
    await trio.sleep_forever()


async def test_a_suspended_turn_moves(open_node, id_in, until):
    """The old process raises `SessionMoved` for a decision. The new process accepts the decision and runs the tool once."""
    ran = []

    def clerk(name):
        @tool(approval=True)
        async def pay(amount: int) -> str:
            """Pay."""
            ran.append(name)
            return "paid"

        return BareAgent(
            "clerk", llm=ScriptedLLM(lambda chat: "done" if chat.messages[-1].role == "tool" else ToolCall("pay", {"amount": 7})), tools=[pay]
        )  # fmt: skip

    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agent, other = await one.start(clerk("one")), await two.start(clerk("two"))
        session = await agent.create_session("ada", "go", session_id=id_in(0))
        await until(lambda: session.status == "suspended")
        (approval,) = session.approvals
        await session.chat("more")
        await two.journal.acquire_partitions([0])
        assert await one.evict(of(one, 0)) == 0
        with pytest.raises(SessionMoved):
            await session.answer(approval, Approve())
        assert await two.resume_acquired() == 0
        moved = await other.open_session(session.id)
        await moved.answer(moved.approvals[0], Approve())
        await until(lambda: moved.approvals)
        await moved.answer(moved.approvals[0], Approve())
        await moved.wait_idle()
        assert [message.text for message in moved.history if message.text] == ["go", "done", "more", "done"]
    assert ran == ["two", "two"]


async def test_a_schedule_fires_once_in_the_process_that_owns_it(open_node, id_in, until):
    """After an eviction the old process drops its timer, and the schedule fires in the new process."""
    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agents = [
            await each.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok"))) for each in (one, two)
        ]
        session = await agents[0].create_session("ada", session_id=id_in(0))
        await session.schedule("call ada", after=0.6)
        await two.journal.acquire_partitions([0])
        await one.evict(of(one, 0))
        assert not len(agents[0]._opener.running.timer_service.index)
        assert await two.resume_acquired() == 0
        moved = await agents[1].open_session(session.id)
        await until(lambda: len(moved.history) == 2)
        assert [message.text for message in moved.history] == ["Running scheduled task: call ada", "ok"]


async def test_loaded_sessions_are_not_disturbed_by_a_takeover(open_node, id_in):
    """`resume_acquired()` does not interrupt a running turn of a partition that the process already owns."""
    gate = trio.Event()

    async def answer(chat):
        if chat.messages[-1].parts[0].text == "slow":
            await gate.wait()
        return "ok"

    async with open_node("one", take=[0, 1]) as one:
        agent = await one.start(BareAgent("clerk", llm=ScriptedLLM(answer)))
        session = await agent.create_session("ada", "slow", session_id=id_in(1))
        assert await one.resume_acquired() == 0
        assert session.status == "working"
        gate.set()
        await session.wait_idle()
        assert [message.text for message in session.history] == ["slow", "ok"]


async def test_resumed_sessions_are_counted_once(open_node, id_in, until):
    """A session is counted once, also if a request loaded it first or its agent stopped. Finished and suspended ones are not counted."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def answer(chat):
        content = chat.messages[-1].parts[0].text
        if content == "slow":
            await trio.sleep_forever()
        return ToolCall("pay", {}) if content == "pay" else "ok"

    ids = [id_in(0, nth=nth) for nth in range(4)]
    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agents = [BareAgent("clerk", llm=ScriptedLLM(each), tools=[pay]) for each in (answer, lambda _: "ok")]
        agent, other = await one.start(agents[0]), await two.start(agents[1])
        sessions = [
            await agent.create_session("ada", text, session_id=each)
            for text, each in zip(["slow", "slow", "pay", "done"], ids, strict=True)
        ]
        await until(lambda: [each.status for each in sessions[2:]] == ["suspended", "idle"])
        while len(await one.journal.unfinished("clerk")) > 2:  # noqa: ASYNC110 - ends are written without an event
            await trio.sleep(0.01)
        await two.journal.acquire_partitions([0])
        await one.evict(of(one, 0))
        for each in (ids[0], ids[2], ids[3]):
            await other.open_session(each)
        assert await two.resume_acquired() == 1
        assert two.agents.resumed == 2
        two.stop("clerk")
        await until(lambda: "clerk" not in two.agents)
        assert two.agents.resumed == 2


async def test_crashes_are_counted_before_a_session_is_opened(open_node, id_in):
    """`choose` gets all unfinished sessions, oldest first, before any is opened. Sessions that it omits stay unfinished."""
    chosen, opened = [], []

    def clerk(is_stuck):
        async def answer(_):
            if is_stuck:
                await trio.sleep_forever()
            return "ok"

        agent = BareAgent("clerk", llm=ScriptedLLM(answer))
        agent.on_session(lambda session: opened.append(session.id))
        return agent

    async def choose(keys):
        assert not opened
        chosen.extend(keys)
        return [key for key in keys if key.session_id != ids[1]]

    ids = [id_in(0, nth=nth) for nth in range(3)]
    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agent, other = await one.start(clerk(is_stuck=True)), await two.start(clerk(is_stuck=False))
        for each in ids:
            await agent.create_session("ada", "go", session_id=each)
        await two.journal.acquire_partitions([0])
        assert await one.evict(of(one, 0)) == 3
        opened.clear()
        assert await two.resume_acquired(choose=choose) == 2
        assert [key.session_id for key in chosen] == ids
        assert opened == [ids[0], ids[2]]
        for each in (ids[0], ids[2]):
            await (await other.open_session(each)).wait_idle()
        assert (await two.journal.head("clerk", ids[1])).unfinished == 1
        assert await two.resume_acquired() == 1


async def test_failed_open_does_not_block_other_sessions(open_node, id_in, caplog):
    """If `on_session` fails for one session, the error is logged and the other sessions resume."""
    ids = [id_in(0, nth=nth) for nth in range(3)]

    def picky(session):
        if session.id == ids[0]:
            raise ValueError("no")

    async with open_node("one", take=[0]) as one, open_node("two") as two:
        agent, other = [
            BareAgent("clerk", llm=ScriptedLLM(_never)),
            BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok")),
        ]
        await one.start(agent)
        other.on_session(picky)
        await two.start(other)
        for each in ids:
            await agent.create_session("ada", "go", session_id=each)
        await two.journal.acquire_partitions([0])
        await one.evict(of(one, 0))
        assert await two.resume_acquired() == 2
        assert ids[0] in caplog.text
        for each in ids[1:]:
            session = await other.open_session(each)
            await session.wait_idle()
            assert session.history[-1].text == "ok"


async def test_a_task_resumes_while_its_parent_is_opening(open_node, id_in, until):
    """A delegated task continues while `on_session` of its parent still runs, and is not treated as orphaned."""
    gate, opened, requests = trio.Event(), [], []

    def team(name, work):
        worker = BareAgent("worker", llm=ScriptedLLM(work))
        boss = BareAgent(
            "boss", llm=ScriptedLLM(lambda chat: "done" if chat.messages[-1].role == "tool" else ToolCall("worker", {"task": name})),
            tools=[worker.as_tool()],
        )  # fmt: skip
        return boss, worker

    async def hang(_):
        requests.append("one")
        await trio.sleep_forever()

    async def wait_opened(_):
        await gate.wait()

    first, second = team("dig", hang), team("dig", lambda _: "dug")
    second[0].on_session(wait_opened)
    second[1].on_session(opened.append)
    async with open_node("one", take=[0]) as one, open_node("two") as two, trio.open_nursery() as nursery:
        for runtime, (boss, _) in ((one, first), (two, second)):
            await runtime.start(boss)
        session = await first[0].create_session("ada", "go", session_id=id_in(0))
        await until(lambda: requests)
        await two.journal.acquire_partitions([0])
        await one.evict(of(one, 0))
        nursery.start_soon(two.resume_acquired)
        await until(lambda: opened)
        gate.set()
        moved = await second[0].open_session(session.id)
        await moved.wait_idle()
        results = [each for message in moved.history for each in message.tool_results]
        assert [(each.content, each.error) for each in results] == [("dug", None)]
