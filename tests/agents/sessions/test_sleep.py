"""With a journal, idle sessions are evicted from memory and loaded at their next message."""

import gc
import weakref

import pytest
import trio

from actgent import Approve, BareAgent, ConfigurationError, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.runtime.sessions import session_table


@pytest.fixture
async def runtime(monkeypatch):
    """A runtime with a journal that keeps three idle sessions of each agent in memory."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 3)
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as opened:
        yield opened


@pytest.fixture
async def agent(runtime):
    """Return an agent whose answers state the number of messages in the request."""
    llm = ScriptedLLM(lambda chat: f"saw {len(chat.messages)}", keep=0)
    return await runtime.start(BareAgent("a", llm=llm))


async def say(agent, session_id, text):
    """One message by id, as a service does that holds no session."""
    session = await agent.open_session(session_id)
    await session.chat(text)
    await session.wait_idle()
    return session.history[-1].text


async def test_idle_sessions_leave_memory(agent):
    """Only the most recent of many sessions stay in memory, and all answer with their whole conversation."""
    for number in range(20):
        await agent.create_session("ada", f"hello {number}", session_id=f"s{number}")
    await trio.testing.wait_all_tasks_blocked()
    assert len(agent._opener.running.sessions) == 3
    for number in range(20):
        assert await say(agent, f"s{number}", "again") == "saw 3"
    assert len(agent._opener.running.sessions) == 3


async def test_an_unreferenced_session_is_freed_immediately(agent):
    """No reference cycle delays it until a garbage collection."""
    gc.disable()
    try:
        session = await agent.create_session("ada", "hello", session_id="s")
        await session.wait_idle()
        ghost = weakref.ref(session._context)
        del session
        for number in range(3):
            await agent.create_session("ada", session_id=f"t{number}")
        assert ghost() is None
    finally:
        gc.enable()


async def test_a_held_session_stays_the_same_object(agent):
    """A referenced evicted session keeps its handlers, and no second object is created."""
    received = []
    session = await agent.create_session("ada", "hello", session_id="s")
    session.on_conversation(lambda reply: received.append(str(reply)))
    await session.wait_idle()
    for number in range(5):
        await agent.create_session("ada", session_id=f"t{number}")
    assert "s" not in agent._opener.running.sessions
    assert await agent.open_session("s") is session
    await session.chat("again")
    await session.wait_idle()
    assert received == ["saw 1", "saw 3"]
    assert "s" in agent._opener.running.sessions


async def test_id_of_an_evicted_session_cannot_be_reused(agent):
    for number in range(5):
        await agent.create_session("ada", session_id=f"s{number}")
    with pytest.raises(ConfigurationError, match="s0"):
        await agent.create_session("bob", session_id="s0")


async def test_concurrent_callers_share_one_evicted_session(agent):
    """Concurrent callers get one session object, and no message is lost."""
    await agent.create_session("ada", session_id="s")
    for number in range(5):
        await agent.create_session("ada", session_id=f"t{number}")
    opened = []

    async def open_and_say(number):
        session = await agent.open_session("s")
        opened.append(session)
        await session.chat(f"message {number}")

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(open_and_say, number)
    await opened[0].wait_idle()
    assert len(set(map(id, opened))) == 1
    assert len(opened[0].history) == 20


async def test_sessions_of_a_tree_are_not_evicted(agent):
    """A session with children and a child session are not evicted."""
    parent = await agent.create_session("ada", session_id="parent")
    child = await agent.create_session("ada", session_id="child", parent=parent)
    for number in range(6):
        await agent.create_session("ada", session_id=f"t{number}")
    assert {"parent", "child"} <= set(agent._opener.running.sessions)
    assert parent.children == (child,)


@pytest.mark.parametrize("is_held", [True, False])
async def test_evicted_child_is_loaded_with_its_parent(is_held, monkeypatch):
    """A referenced child is loaded with its parent after a restart; otherwise it finds its parent when it is opened."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 3)
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
            parent = await agent.create_session("ada", session_id="parent")
            await agent.create_session("ada", session_id="child", parent=parent)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)))
            child = await agent.open_session("child")
            for number in range(6):
                await agent.create_session("ada", session_id=f"t{number}")
            assert "child" not in agent._opener.running.sessions
            if not is_held:
                del child
            parent = await agent.open_session("parent")
            if not is_held:
                assert parent.children == ()
                child = await agent.open_session("child")
            assert parent.children == (child,)
            assert child.parent is parent
            assert str(await agent.run("hi", session=child)) == "ok"
            await parent.aclose()
            assert child.status == "closed"


async def test_session_evicted_during_its_open_is_loaded_again(autojump_clock, monkeypatch):
    """Opening pauses, which is long enough for an eviction if many sessions are used."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)))
        opened = {}

        async def open_again(session_id):
            for _ in range(20):
                opened[session_id] = await agent.open_session(session_id)
                await opened[session_id].chat("hello")
                await opened[session_id].wait_idle()

        for number in range(10):
            await agent.create_session("ada", session_id=f"s{number}")
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(open_again, f"s{number}")
        assert {session.id: len(session.history) for session in opened.values()} == {
            f"s{number}": 40 for number in range(10)
        }


class GatedJournal(MemoryJournal):
    """Its writes wait while its gate is shut."""

    gate = None

    async def _write(self, rows, heads, epoch):
        if self.gate is not None:
            await self.gate.wait()
        await super()._write(rows, heads, epoch)


async def test_pending_records_are_written_before_the_eviction(monkeypatch, autojump_clock):
    """A schedule that was cancelled during a write is not restored with its session."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    async with GatedJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["hi"], repeat=True)))
        session = await agent.create_session("ada", session_id="s")
        await agent.create_session("ada", session_id="other")
        journal.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.create_session, "ada")  # the one that writes meanwhile
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(1):
                await session.schedule("go", after=3600)
            journal.gate.set()
        journal.gate = None
        for number in range(3):
            await agent.create_session("ada", session_id=f"t{number}")
        assert "s" not in agent._opener.running.sessions
        del session
        session = await agent.open_session("s")
        assert session.schedules == ()


async def idle(agent, _, number):
    """A session that leaves memory as it is not the latest."""
    session = await agent.create_session("ada", "hello", session_id=f"s{number}")
    await session.wait_idle()
    return weakref.ref(session._context)


async def with_state(agent, _, number):
    """The same, of which something is known."""
    session = await agent.create_session("ada", "hello", session_id=f"s{number}")
    session.state.dispatch(("count", number))
    await session.wait_idle()
    return weakref.ref(session._context)


async def closed(agent, _, number):
    """One that was closed."""
    session = await agent.create_session("ada", "hello", session_id=f"s{number}")
    await session.wait_idle()
    await session.aclose()
    return weakref.ref(session._context)


async def transient(agent, *_):
    """One for one question."""
    ghosts = []
    agent.on_session(lambda session: ghosts.append(weakref.ref(session._context)))
    await agent.run("hello")
    return ghosts[0]


async def closed_tree(agent, _, number):
    """A session that was closed with the one below it."""
    session = await agent.create_session("ada", "hello", session_id=f"s{number}")
    child = await agent.create_session("ada", "hello", parent=session)
    await child.wait_idle()
    await session.wait_idle()
    await session.aclose()
    assert child.parent is session
    return weakref.ref(child._context)


async def moved(agent, runtime, number):
    """Return a session with which another process continued."""
    session = await agent.create_session("ada", "hello", session_id=f"s{number}")
    await session.wait_idle()
    await runtime.evict(lambda session_id: session_id == session.id)
    return weakref.ref(session._context)


async def approved(_, runtime, number):
    """Return a session in which a call was approved."""

    @tool(approval=True)
    async def deploy() -> str:
        """Deploy."""
        return "deployed"

    llm = ScriptedLLM([ToolCall("deploy", {}), "done"], keep=0)
    agent = await runtime.start(BareAgent(f"deployer{number}", llm=llm, tools=[deploy]))
    session = await agent.create_session("ada", "deploy", session_id="s")
    await session.wait_idle()
    await session.answer(session.approvals[0], Approve())
    await session.wait_idle()
    await session.aclose()
    return weakref.ref(session._context)


@pytest.mark.parametrize("make", [idle, with_state, closed, transient, closed_tree, moved, approved])
async def test_evicted_session_is_freed_without_the_garbage_collector(agent, runtime, make):
    """No reference cycle keeps the session, because the collector seldom runs with many live objects."""
    gc.disable()
    try:
        ghosts = [await make(agent, runtime, number) for number in range(8)]
        await trio.testing.wait_all_tasks_blocked()
        assert sum(ghost() is not None for ghost in ghosts) <= session_table.MAX_LOADED_IDLE
    finally:
        gc.enable()


async def test_ended_session_has_its_ended_parent(agent):
    """No reference to the parent is needed.

    A new object of the ended parent is created, and stays the same while it is referenced.
    """
    parent = await agent.create_session("ada", session_id="above")
    child = await agent.create_session("ada", parent=parent)
    await parent.aclose()
    assert child.parent is parent
    del parent
    gc.collect()
    above = child.parent
    assert (above.id, above.status, child.parent is above) == ("above", "closed", True)
    assert child.deps is None


async def test_ended_children_leave_no_entry_for_their_parent(agent, runtime):
    """Children that were loaded and evicted alone leave no entry for their parent."""
    for number in range(2 * session_table.PURGE_THRESHOLD):
        parent = await agent.create_session("ada", session_id=f"s{number}")
        child = await agent.create_session("ada", session_id=f"s{number}/child", parent=parent)
        await runtime.evict(lambda _: True)
        await agent.open_session(child.id)
        del parent, child
        await runtime.evict(lambda _: True)
    assert len(runtime.agents.trees._parentless) <= session_table.PURGE_THRESHOLD


async def test_fenced_session_can_be_opened_when_it_returns(agent, runtime):
    """If a write finds that another process owns the session, it can be opened again when it returns."""
    session = await agent.create_session("ada", "hello", session_id="s")
    await session.wait_idle()
    context = session._context
    for number in range(5):
        await agent.create_session("ada", session_id=f"t{number}")
    assert "s" not in agent._opener.running.sessions
    agent._opener.running.lifecycle.eviction.evict_tree(context.log)
    with trio.fail_after(5):
        assert (await agent.open_session("s")).history[-1].text == "saw 1"
