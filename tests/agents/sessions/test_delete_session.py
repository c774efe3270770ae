"""Sessions that are erased."""

import contextlib
from functools import partial

import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, SessionClosed, SessionNotFound, ToolCall, open_runtime, tool
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_wrappers import WrappedJournal
from actgent.journal.record_types import CancellationRecord, SessionCreatedRecord
from actgent.messages import Sender
from actgent.testing import FaultyJournal


def agent_of(script, **options):
    return BareAgent("a", llm=ScriptedLLM(script, repeat=True, delay=options.pop("delay", 0)), **options)


async def ids(journal):
    """Return the ids of all sessions in the journal."""
    return [summary.session_id for summary in await journal.sessions()]


async def test_deleted_session_cannot_be_opened():
    """The session and its children cannot be opened. Other sessions stay."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_of(["hi"]))
        session = await agent.create_session("ada", "hello", session_id="s")
        child = await agent.create_session("ada", "hello", session_id="child", parent=session)
        other = await agent.create_session("ada", "hello", session_id="other")
        for each in (session, child, other):
            await each.wait_idle()
        await runtime.delete_session("s")
        assert await ids(journal) == ["other"]
        with pytest.raises(SessionNotFound):
            await agent.open_session("s")
        with pytest.raises(SessionClosed):
            await session.chat("still there?")
        await other.chat("and you?")
        await other.wait_idle()
        await runtime.delete_session("never was")
        assert await ids(journal) == ["other"]


async def test_delete_stops_a_running_turn(autojump_clock):
    """Writes of the turn do not restore the session, in this run or the next."""
    failures = []
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of(["hi"], delay=60))
            session = await agent.create_session("ada", "hello", session_id="s")
            session.on_exception(failures.append)
            await session.chat("more")
            await trio.sleep(1)
            await runtime.delete_session("s")
            await trio.sleep(1)
            assert await ids(journal) == []
        assert len(failures) == 2
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent_of(["hi"]))
            assert await ids(journal) == []


async def test_unopened_session_can_be_deleted():
    """The session is from an earlier run."""
    async with MemoryJournal().running() as journal:
        for _ in range(2):
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(agent_of(["hi"]))
                if await ids(journal):
                    await runtime.delete_session("s")
                    assert await ids(journal) == []
                else:
                    await agent.create_session("ada", "hello", session_id="s")


class _EndingJournal(MemoryJournal):
    """A journal that runs a callback just before it erases a session."""

    meanwhile = None

    async def delete(self, session_id, *, agent=None):
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            await trio.testing.wait_all_tasks_blocked()
        await super().delete(session_id, agent=agent)


async def test_session_cannot_be_opened_during_its_deletion():
    """Otherwise it would continue in memory, and the journal would have its records without the beginning."""
    async with _EndingJournal().running() as journal, trio.open_nursery() as nursery:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of(["hi"]))
            await agent.create_session("ada", session_id="s")
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of(["hi"]))
            received = []

            async def say():
                with pytest.raises(SessionNotFound):
                    await (await agent.open_session("s")).chat("hello")
                received.append("not found")

            journal.meanwhile = lambda: nursery.start_soon(say)
            await runtime.delete_session("s")
            await trio.testing.wait_all_tasks_blocked()
            assert received == ["not found"]
            assert await ids(journal) == []


@pytest.mark.parametrize("is_new", [True, False])
async def test_session_can_be_deleted_while_its_handlers_wait(autojump_clock, is_new):
    """The handlers may wait forever before its first message; a caller that creates or opens the session gets SessionClosed."""
    async with MemoryJournal().running() as journal:
        if not is_new:
            async with open_runtime(journal=journal) as runtime:
                await (await runtime.start(agent_of(["hi"]))).create_session("ada", session_id="s")
        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            agent, deleted = await runtime.start(agent_of(["hi"])), trio.Event()

            async def attach(session):
                await deleted.wait()

            async def use():
                with pytest.raises(SessionClosed):
                    await (await agent.ensure_session("ada", "s")).chat("more")

            agent.on_session(attach)
            nursery.start_soon(use)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(60):
                await runtime.delete_session("s", agent="a")
                deleted.set()
            await trio.sleep(60)
            assert await ids(journal) == []
            again = await agent.create_session("ada", "hello", session_id="s")
            await again.wait_idle()
            assert again.history[-1].text == "hi"


async def test_delete_during_a_close_erases_the_session():
    """Both calls return, in any order in which trio resumes them."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_of(["hi"]))
        for number in range(40):
            session = await agent.create_session("ada", session_id=f"s{number}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.aclose)
                if number % 2:
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(partial(runtime.delete_session, session.id, agent="a"))
        assert await ids(journal) == []


async def test_cancelled_deletion_closes_the_children_before_the_session(autojump_clock):
    """A crash leaves no closed parent of an open child: nothing would close that child later."""
    states = []

    class Noting(MemoryJournal):
        async def _write(self, rows, heads, epoch):
            await trio.sleep(1)
            await super()._write(rows, heads, epoch)
            states.append({head.session_id: head.closed for head in self._stored_heads.values()})

    slow = BareAgent("slow", llm=ScriptedLLM(["ok"], delay=1000))
    async with Noting().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_of(["hi"]))
        await runtime.start(slow)
        parent = await agent.create_session("ada", session_id="parent")
        await parent.delegate("slow", "work", task_id="child")
        await trio.sleep(10)
        with trio.move_on_after(0.1):
            await runtime.delete_session("parent", agent="a")
        await trio.sleep(60)
        assert states[-1] == {"parent": True, "child": True}
        assert {"parent": True, "child": False} not in states


async def test_a_tool_cannot_delete_its_own_session():
    """The tool would wait for itself; it gets an error and the turn continues."""
    runtimes = []

    @tool
    async def forget_me() -> str:
        """Delete."""
        await runtimes[0].delete_session("s")
        return "deleted"

    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        runtimes.append(runtime)
        agent = await runtime.start(agent_of([ToolCall("forget_me", {}), "done"], tools=[forget_me]))
        session = await agent.create_session("ada", "forget me", session_id="s")
        results = []
        session.on_tool_result(results.append)
        await session.wait_idle()
        assert "delete_session()" in results[0].error
        assert await ids(journal) == ["s"]


async def test_tool_cannot_delete_an_ancestor_session():
    """No session of the tree is closed."""
    runtimes = []

    @tool
    async def forget_all() -> str:
        """Delete."""
        await runtimes[0].delete_session("root")
        return "deleted"

    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        runtimes.append(runtime)
        agent = await runtime.start(agent_of([ToolCall("forget_all", {}), "done"], tools=[forget_all]))
        root = await agent.create_session("ada", session_id="root")
        below = await agent.create_session("ada", session_id="below", parent=root)
        results = []
        below.on_tool_result(results.append)
        await below.chat("forget all")
        await below.wait_idle()
        assert "delete_session()" in results[0].error
        assert (root.status, below.status) == ("idle", "idle")
        assert await ids(journal) == ["root", "below"]


class SlowBelow(WrappedJournal):
    """A journal that lists child sessions slowly, and looks for child sessions without a parent after each erasure."""

    def __init__(self, inner):
        super().__init__(inner)
        self.orphans = []

    async def delete(self, session_id, *, agent=None):
        await super().delete(session_id, agent=agent)
        found = {(each.agent, each.session_id): each.parent for each in await super().sessions()}
        self.orphans += [key for key, parent in found.items() if parent and tuple(parent) not in found]

    async def children_of(self, keys):
        found = await super().children_of(keys)
        await trio.sleep(10)
        return found


@pytest.mark.parametrize(("above", "seconds"), [("root", 15), ("below", 5)])
async def test_child_created_during_a_deletion_is_deleted(autojump_clock, above, seconds):
    """Another caller opens a session of the tree meanwhile. The child is deleted before its parent, so that a crash leaves no orphan."""
    async with MemoryJournal().running() as inner:
        async with open_runtime(journal=inner) as runtime:
            agent = await runtime.start(agent_of(["hi"]))
            root = await agent.create_session("ada", "hello", session_id="root")
            await (await agent.create_session("ada", "hello", session_id="below", parent=root)).wait_idle()
        journal = SlowBelow(inner)
        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            agent = await runtime.start(agent_of(["hi"]))
            nursery.start_soon(runtime.delete_session, "root")
            await trio.sleep(seconds)
            opened = await agent.open_session(above)
            made = await agent.create_session("ada", "hello", session_id="made", parent=opened)
            await (await agent.create_session("ada", "hello", session_id="last", parent=made)).wait_idle()
            await trio.sleep(300)
            assert await ids(inner) == []
            assert journal.orphans == []
            with pytest.raises(SessionClosed):
                await made.chat("still there?")


class SlowToLoad(WrappedJournal):
    """A journal that returns loaded sessions slowly."""

    seconds = 1

    async def load_tail(self, session_id, *, agent):
        tail, seconds = await super().load_tail(session_id, agent=agent), self.seconds
        await trio.sleep(seconds)
        return tail


@pytest.mark.parametrize("by_handler", [False, True])
async def test_session_opened_during_a_deletion_is_erased(autojump_clock, by_handler):
    """This holds also if another session is opened.

    A write would make a session without a first record, which cannot be opened and blocks its id.
    """
    async with MemoryJournal().running() as inner:
        async with open_runtime(journal=inner) as runtime:
            await (await (await runtime.start(agent_of(["hi"]))).create_session("ada", session_id="s")).chat(
                "a"
            )
        async with open_runtime(journal=SlowToLoad(inner)) as runtime, trio.open_nursery() as nursery:
            agent = await runtime.start(agent_of(["hi"]))

            async def go_on():
                session = await agent.open_session("s")
                with pytest.raises(SessionClosed):
                    await session.chat("more")

            @agent.on_session
            async def forget_former(session):
                if session.id == "new":
                    await runtime.delete_session("s")

            nursery.start_soon(go_on)
            await trio.sleep(0.5)
            if by_handler:
                await agent.create_session("ada", session_id="new")
            await runtime.delete_session("new" if by_handler else "s")
            assert await ids(inner) == []
            await trio.sleep(10)
            assert await ids(inner) == []
            await agent.create_session("ada", session_id="s")


class SlowToErase(WrappedJournal):
    """Takes a second before it erases a session."""

    async def delete(self, session_id, *, agent=None):
        await trio.sleep(1)
        await super().delete(session_id, agent=agent)


@pytest.mark.parametrize("first", ["delete", "start"])
async def test_agent_started_during_a_deletion_gets_nothing_of_the_session(autojump_clock, first):
    """Its model receives nothing of the deleted session, and no record returns to the journal."""
    texts = []

    async def answer(chat):
        texts.append(chat.messages[-1].parts[0].text)
        await trio.sleep(60)
        return "hi"

    def make():
        return BareAgent("a", llm=ScriptedLLM(answer, keep=0), grace=0)

    async with MemoryJournal().running() as inner:
        with trio.move_on_after(5):
            async with open_runtime(journal=inner) as runtime:
                agent = await runtime.start(make())
                await (await agent.create_session("ada", session_id="s")).chat("secret")
                await trio.sleep_forever()
        assert texts == ["secret"]
        async with open_runtime(journal=SlowToErase(inner)) as runtime, trio.open_nursery() as nursery:
            if first == "start":
                nursery.start_soon(runtime.start, make())
                await trio.lowlevel.checkpoint()
                nursery.start_soon(partial(runtime.delete_session, "s", agent="a"))
            else:
                nursery.start_soon(partial(runtime.delete_session, "s", agent="a"))
                await trio.sleep(0.5)
                nursery.start_soon(runtime.start, make())
            await trio.sleep(0.9)
            at_last = len(texts)
            await trio.sleep(100)
            assert await ids(inner) == []
        if first == "delete":
            assert texts == ["secret"]
        assert len(texts) == at_last
        async with open_runtime(journal=inner) as runtime:
            await runtime.start(make())
            assert await ids(inner) == []


async def test_message_to_a_deleted_new_session_does_not_restore_it(autojump_clock):
    """The session's first step is written slowly; a message that waits for that does not bring the session back."""

    async def slow(_):
        await trio.sleep(1)

    async with FaultyJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_of(["hi"]))
        refused = []

        @agent.on_session
        async def speak(session):
            nursery.start_soon(say, session)
            nursery.start_soon(say, session)
            await trio.sleep(0.1)
            nursery.start_soon(partial(runtime.delete_session, "s", agent="a"))

        async def say(session):
            try:
                await session.chat("hello")
            except SessionClosed:
                refused.append(session.id)

        journal.fault = slow
        async with trio.open_nursery() as nursery:
            with contextlib.suppress(SessionClosed):
                await agent.create_session("ada", session_id="s")
        await trio.sleep(60)
        assert await ids(journal) == []
        assert refused


async def test_delete_waits_for_two_concurrent_loads(autojump_clock):
    """One of the tasks loads the session because it opens another one, so it does not wait for the first task."""
    async with MemoryJournal().running() as inner:
        async with open_runtime(journal=inner) as runtime:
            agent = await runtime.start(agent_of(["hi"]))
            await (await agent.create_session("ada", session_id="s")).chat("a")
        journal = SlowToLoad(inner)
        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            agent = await runtime.start(agent_of(["hi"]))
            opened = []

            @agent.on_session
            async def look(session):
                if session.id == "new":
                    opened.append(await agent.open_session("s"))

            async def first():
                with contextlib.suppress(SessionNotFound, SessionClosed):
                    session = await agent.open_session("s")
                    await session.chat("more")

            journal.seconds = 0.3
            nursery.start_soon(first)
            await trio.sleep(0.1)
            journal.seconds = 0.05
            await agent.create_session("ada", session_id="new")
            await runtime.delete_session("s", agent="a")
            await trio.sleep(10)
            assert await ids(inner) == ["new"]


async def test_journal_rejects_records_of_an_erased_session():
    """A step that does not begin a session is rejected if the session does not exist, and its caller gets the error."""
    async with MemoryJournal().running() as journal:
        epoch = await journal.acquire()
        owner = Sender("ada")
        opened = Entry(
            session_id="s", agent="a", records=(SessionCreatedRecord(owner=owner, created_at=1.0),)
        )
        later = Entry(session_id="s", agent="a", records=(CancellationRecord(message_id="m"),), follows=True)
        await journal.commit(opened, epoch=epoch)
        await journal.commit(later, epoch=epoch)
        await journal.delete("s", agent="a")
        with pytest.raises(SessionNotFound):
            await journal.commit(later, epoch=epoch)
        journal.enqueue_write(later, epoch=epoch)
        assert await ids(journal) == []
        await journal.commit(opened, epoch=epoch)
        assert len(await journal.load("s", agent="a")) == 1


async def test_state_change_does_not_restore_a_deleted_session():
    """A program holds a session over a stop of its agent; the session is deleted, and then its state changes."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_of(["hi"]))
        session = await agent.create_session("ada", "hello", session_id="s")
        await session.wait_idle()
        runtime.stop("a")
        await runtime.delete_session("s", agent="a")
        with contextlib.suppress(Exception):
            session.state.dispatch(("set", {"x": 1}))
        assert await ids(journal) == []
