"""Evictions of sessions during other operations, and sessions that return at once."""

import pytest
import trio
import trio.testing

from actgent import BareAgent, Priority, ScriptedLLM, SessionMoved, open_runtime
from actgent.errors import ActgentError
from actgent.journal.in_memory_journal import MemoryJournal


def of(runtime, number):
    """Return an `has_moved` function for one partition."""
    return lambda session_id: runtime.journal.partition_of(session_id) == number


class Caller:
    """Runs a function in a nursery and stores its error."""

    def __init__(self, nursery, fn, *args, **options):
        self.error, self.ended = None, trio.Event()
        nursery.start_soon(self._run, fn, args, options)

    async def _run(self, fn, args, options):
        try:
            await fn(*args, **options)
        except ActgentError as error:
            self.error = error
        self.ended.set()


def stuck(failures=None, **options):
    """Return a clerk whose model never answers. Its failures are appended to `failures`."""

    async def never(_):
        await trio.sleep_forever()

    agent = BareAgent("clerk", llm=ScriptedLLM(never, keep=0), **options)
    if failures is not None:
        agent.on_session(lambda session: session.on_exception(failures.append) and None)
    return agent


def clerk():
    return BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok"))


async def _texts(agent, session_id):
    session = await agent.open_session(session_id)
    with trio.fail_after(60):
        await session.wait_idle()
    return [each.text for each in session.history]


@pytest.mark.parametrize("how", ["aclose", "interrupt", "drop", "cancelled", "urgent", "evict"])
async def test_evict_during_other_operations(open_node, id_in, how):
    """A concurrent close, interrupt or message raises `SessionMoved`, and the new owner answers all accepted messages."""
    failures = []
    async with open_node("one", take=[0]) as one, open_node("two") as two, trio.open_nursery() as nursery:
        agent, other = await one.start(stuck(failures)), await two.start(clerk())
        session = await agent.create_session("ada", "one", session_id=id_in(0))
        await session.chat("two")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await two.journal.acquire_partitions([0])
        with trio.CancelScope() as scope:
            calls = {
                "aclose": (session.aclose,),
                "interrupt": (session.interrupt, "enough"),
                "drop": (lambda: session.interrupt("enough", drop_queued=True),),
                "cancelled": (lambda: agent.run("three", session=session),),
                "urgent": (lambda: session.chat("three", priority=Priority.URGENT),),
                "evict": (one.evict, of(one, 0)),
            }
            caller = Caller(nursery, *calls[how])
            await trio.lowlevel.checkpoint()
            if how == "cancelled":
                scope.cancel()
        with trio.fail_after(60):
            await one.evict(of(one, 0))
            await caller.ended.wait()
        assert isinstance(caller.error, {"evict": type(None)}.get(how, SessionMoved))
        assert session.id not in agent._opener.running.sessions
        assert [each.kind for each in failures if each.kind == "moved"] == []
        assert await two.resume_acquired() == 1
        assert await _texts(other, session.id) == ["one", "ok", "two", "ok"]


async def test_eviction_releases_waiting_senders(open_node, id_in, until):
    """Senders that wait for a full inbox or a reply get `SessionMoved`, and the new owner answers their messages."""
    async with open_node("one", take=[0, 1]) as one, open_node("two") as two, trio.open_nursery() as nursery:
        agent = await one.start(stuck(inbox_capacity=2, max_concurrent_sessions=1))
        other = await two.start(clerk())
        busy = await agent.create_session("ada", "busy", session_id=id_in(1))
        first = await agent.create_session("ada", session_id=id_in(0))
        second = await agent.create_session("ada", session_id=id_in(0, nth=1))
        await first.chat("one", message_id="one")
        await second.chat("two", message_id="two")
        callers = [
            Caller(nursery, lambda: first.chat("three", message_id="three")),
            Caller(nursery, lambda: agent.run("one", session=first, message_id="one")),
            Caller(nursery, second.wait_idle),
        ]
        stays = Caller(nursery, lambda: busy.chat("waits", message_id="waits"))
        inbox = agent._opener.running.inbox
        await until(lambda: inbox.statistics().senders == 2)
        await two.journal.acquire_partitions([0])
        assert await one.evict(of(one, 0)) == 0
        with trio.fail_after(60):
            for each in callers:
                await each.ended.wait()
            await stays.ended.wait()
        assert [type(each.error) for each in callers] == [SessionMoved] * 3
        assert stays.error is None
        assert inbox.statistics().sessions == 1
        assert await two.resume_acquired() == 2
        moved = await other.open_session(first.id)
        await moved.chat("three", message_id="three")
        assert await _texts(other, first.id) == ["one", "ok", "three", "ok"]
        assert await _texts(other, second.id) == ["two", "ok"]
        one.stop("clerk")


async def test_turn_with_a_fenced_write_evicts_its_tree(open_node, id_in, until):
    """A turn whose write is fenced evicts its tree without `evict()`. Handlers get no failure, and other sessions continue."""
    failures, gates, gate = [], [], trio.Event()

    async def slow(_):
        gates.append(gate)
        await gate.wait()
        return "ok"

    agent = BareAgent("clerk", llm=ScriptedLLM(slow, keep=0))
    agent.on_session(lambda session: session.on_exception(failures.append) and None)
    async with open_node("one", take=[0, 1]) as one, open_node("two") as two, trio.open_nursery() as nursery:
        await one.start(agent)
        other = await two.start(clerk())
        session = await agent.create_session("ada", session_id=id_in(0))
        child = await agent.create_session("ada", parent=session)
        stays = await agent.create_session("ada", "stays", session_id=id_in(1))
        runs = [
            Caller(nursery, lambda each=each: agent.run("one", session=each)) for each in (session, child)
        ]
        await until(lambda: len(gates) == 3)
        await session.chat("two")
        await two.journal.acquire_partitions([0])
        gate.set()
        with trio.fail_after(60):
            for each in runs:
                await each.ended.wait()
            await stays.wait_idle()
        assert [type(each.error) for each in runs] == [SessionMoved] * 2
        assert failures == []
        assert agent._opener.running.restarts == 0
        assert {*agent._opener.running.sessions} == {stays.id}
        assert await two.resume_acquired() == 2
        assert await _texts(other, session.id) == ["one", "ok", "two", "ok"]
        assert await _texts(other, child.id) == ["one", "ok"]


async def test_fenced_turn_of_an_unshared_journal_fails():
    """With a journal that is not shared, a fenced turn fails and its handlers get a failure."""
    failures, gate = [], trio.Event()

    async def slow(_):
        await gate.wait()
        return "ok"

    agent = BareAgent("clerk", llm=ScriptedLLM(slow))
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "hi")
        session.on_exception(failures.append)
        await trio.testing.wait_all_tasks_blocked(0.02)
        await journal.acquire()
        gate.set()
        await session.wait_idle()
        assert [each.kind for each in failures] == ["journal"]


@pytest.mark.parametrize("kind", ["new", "known"])
async def test_eviction_cancels_a_running_session_handler(open_node, id_in, kind):
    """An eviction cancels a running `on_session` handler, and the session is complete in the new owner."""
    reached, session_id = trio.Event(), id_in(0)

    async def attach(_):
        reached.set()
        await trio.sleep_forever()

    async with open_node("two", take=[0]) as two, open_node("one") as one, trio.open_nursery() as nursery:
        agent, other = stuck(), await two.start(clerk())
        if kind == "known":
            await _texts(other, (await other.create_session("ada", "hi", session_id=session_id)).id)
            await two.evict(of(two, 0))
        agent.on_session(attach)
        await one.start(agent)
        await one.journal.acquire_partitions([0])
        opened = {
            "new": lambda: agent.create_session("ada", "hi", session_id=session_id),
            "known": lambda: agent.open_session(session_id),
        }
        caller = Caller(nursery, opened[kind])
        await reached.wait()
        await two.journal.acquire_partitions([0])
        with trio.fail_after(60):
            await one.evict(of(one, 0))
            await caller.ended.wait()
        assert isinstance(caller.error, SessionMoved)
        session = await other.ensure_session("ada", session_id)
        assert (await other.run("more", session=session)).text == "ok"
        assert [each.text for each in session.history][-2:] == ["more", "ok"]


async def test_a_returning_session_waits_for_the_end_of_its_eviction(open_node, id_in):
    """A session that returns is opened after its old turn has ended. The turn then calls the model again."""
    requests, started, cleaned = [], trio.Event(), trio.Event()

    async def slow(_):
        requests.append("begun")
        if len(requests) > 1:
            assert cleaned.is_set()
            return "ok"
        try:
            started.set()
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(10, shield=True):
                await cleaned.wait()

    async with open_node("one", take=[0]) as one, open_node("two") as two, trio.open_nursery() as nursery:
        agent = await one.start(BareAgent("clerk", llm=ScriptedLLM(slow, keep=0)))
        session = await agent.create_session("ada", "hi", session_id=id_in(0))
        await started.wait()
        await two.journal.acquire_partitions([0])
        evicted = Caller(nursery, one.evict, of(one, 0))
        await trio.testing.wait_all_tasks_blocked(0.02)
        await one.journal.acquire_partitions([0])
        taken, opened = Caller(nursery, one.resume_acquired), Caller(nursery, agent.open_session, session.id)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert not any(each.ended.is_set() for each in (evicted, taken, opened))
        cleaned.set()
        with trio.fail_after(60):
            for each in (evicted, taken, opened):
                await each.ended.wait()
                assert each.error is None
        assert await _texts(agent, session.id) == ["hi", "ok"]
        assert len(requests) == 2


async def test_moved_errors_come_after_all_sessions_of_a_tree_left(open_node, id_in, until):
    """The handlers of a root session get the moved error after the last child session is evicted."""
    received = []
    agent = BareAgent("clerk", llm=ScriptedLLM(lambda _: "ok", keep=0))
    async with open_node("one", take=[0]) as one:
        await one.start(agent)
        running = agent._opener.running
        running.lifecycle.eviction.on_evicted = running.runner.notify_moved
        root = await agent.create_session("ada", session_id=id_in(0))
        root.on_exception(lambda failure, session: received.append((failure.kind, session.id)))
        child = await agent.create_session("ada", session_id=f"{root.id}/c", parent=root)
        for each in (child, root):
            await each.chat("hi")
            await each.wait_idle()
        running.lifecycle.eviction.evict_tree(root._context.log)
        await until(lambda: received)
    assert received == [("moved", id_in(0))]
