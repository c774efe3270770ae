"""Trees that are closed when only their roots are in memory, as after a restart."""

from contextlib import nullcontext, suppress

import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, ToolCall, handoff, open_runtime, tool
from actgent.errors import JournalFailed, NotRunning, SessionClosed
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_wrappers import WrappedJournal


@tool(approval=True)
async def deploy() -> str:
    """Deploy."""
    return "deployed"


def make_agents():
    """Return the agents of one process and the failures that their handlers receive."""
    llm = ScriptedLLM(
        lambda chat: ToolCall("deploy", {}) if chat.messages[-1].parts[0].text == "go" else "ok"
    )
    agents, received = [BareAgent(name, llm=llm, tools=[deploy]) for name in ("clerk", "helper")], []

    def attach(session):
        session.on_exception(lambda failure: received.append((failure.kind, session.id, failure.message_id)))
        session.on_approval(lambda _: None)

    agents[1].on_session(attach)
    return (*agents, received)


async def make_tree(journal):
    """A root with two sessions below it, and a last one below one of those: one waits for people, one has a date, one is closed."""
    clerk, helper, _ = make_agents()
    async with open_runtime(journal=journal) as runtime:
        for agent in (clerk, helper):
            await runtime.start(agent)
        root = await clerk.create_session("ada", "hello", session_id="root")
        waits = await helper.create_session("ada", session_id="waits", parent=root)
        await waits.chat("go", message_id="m1")
        closed = await clerk.create_session("ada", session_id="closed", parent=root)
        last = await helper.create_session("ada", session_id="last", parent=waits)
        await last.schedule("look", after=3600)
        for each in (root, waits, closed, last):
            await each.wait_idle()
        await closed.aclose()


async def open_ones(journal):
    """Return the ids of sessions that the next start would resume."""
    page = await journal.page()
    return sorted(each.session_id for each in page if not each.closed)


async def test_tree_of_an_earlier_process_is_closed(autojump_clock):
    """Waiting callers get its end, and none of its schedules fires.

    Nothing of the tree runs after a further restart.
    """
    async with MemoryJournal().running() as journal:
        await make_tree(journal)
        assert await open_ones(journal) == ["last", "root", "waits"]
        clerk, helper, heard = make_agents()
        async with open_runtime(journal=journal) as runtime:
            for agent in (helper, clerk):
                await runtime.start(agent)
            root = await clerk.open_session("root")
            await root.aclose()
            assert await open_ones(journal) == []
            assert not await journal.due("helper")
            assert [each for each in heard if each[1] == "waits"] == [("stopped", "waits", "m1")]
            assert await runtime.approvals() == ()
        await trio.sleep(4000)
        assert await open_ones(journal) == []


async def test_task_stopped_after_a_restart_ends_with_its_child_sessions(autojump_clock):
    """Some of the child sessions are only in the journal."""
    async with MemoryJournal().running() as journal:
        clerk, helper, _ = make_agents()
        async with open_runtime(journal=journal) as runtime:
            for agent in (clerk, helper):
                await runtime.start(agent)
            root = await clerk.create_session("ada", session_id="root")
            task_id = await root.delegate("helper", "go", task_id="t1")
            await (await helper.open_session("t1")).wait_idle()
            below = await helper.open_session("t1")
            last = await clerk.create_session("ada", "hello", session_id="last", parent=below)
            await last.wait_idle()
        clerk, helper, _ = make_agents()
        async with open_runtime(journal=journal) as runtime:
            for agent in (clerk, helper):
                await runtime.start(agent)
            assert await (await clerk.open_session("root")).cancel_task(task_id)
            assert await open_ones(journal) == ["root"]


async def test_session_of_a_missing_agent_stays_open(autojump_clock, caplog):
    """The log names it. Its child sessions are closed."""
    async with MemoryJournal().running() as journal:
        await make_tree(journal)
        clerk, _, _ = make_agents()
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(clerk)
            await (await clerk.open_session("root")).aclose()
            assert await open_ones(journal) == ["last", "waits"]
    assert [each.message for each in caplog.records if "stays open" in each.message]


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_session_that_fails_to_load_stays_open(autojump_clock, caplog, is_cancelled):
    """The failure is a bug in `on_session`. The agent keeps running, even if no caller waits for the close."""
    async with MemoryJournal().running() as journal:
        await make_tree(journal)
        clerk, helper, _ = make_agents()

        @helper.on_session
        def fail(session):
            if session.id == "waits":
                raise KeyError("a bug")

        async with open_runtime(journal=journal) as runtime:
            await runtime.start(clerk)
            root = await clerk.open_session("root")
            await runtime.start(helper)
            with trio.CancelScope() as scope:
                if is_cancelled:
                    scope.cancel()
                await root.aclose()
            await trio.sleep(60)
            assert await open_ones(journal) == ["waits"]
    assert not [each.message for each in caplog.records if "restarts" in each.message]
    assert [each.message for each in caplog.records if "waits stays open" in each.message]


@pytest.mark.parametrize("then", ["stays away", "starts again", "is erased"])
@pytest.mark.parametrize("works", [True, False])
async def test_session_of_a_stopped_agent_is_closed_by_its_next_start(autojump_clock, works, then):
    """If the stopped agent wrote the close, a session that was erased meanwhile would reappear without its beginning."""
    llm = ScriptedLLM(["ok"], repeat=True, delay=1000 if works else 0)
    clerk, *helpers = (BareAgent(name, llm=llm, grace=0) for name in ("clerk", "helper", "helper"))
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        for agent in (clerk, helpers[0]):
            await runtime.start(agent)
        root = await clerk.create_session("ada", session_id="root")
        await helpers[0].create_session("ada", "hello", session_id="below", parent=root)
        await trio.sleep(1)
        runtime.stop("helper")
        await trio.sleep(1)
        if then == "starts again":
            await runtime.start(helpers[1])
        elif then == "is erased":
            await runtime.delete_session("below", agent="helper")
        await root.aclose()
        assert await open_ones(journal) == (["below"] if then == "stays away" else [])
        there = {each.session_id for each in await journal.sessions()}
        assert there == ({"root"} if then == "is erased" else {"root", "below"})


class FailsToErase(WrappedJournal):
    """Erases nothing."""

    async def delete(self, session_id, *, agent=None):
        raise JournalFailed("the disk is away")


@pytest.mark.parametrize("is_held", [True, False])
async def test_session_that_could_not_be_erased_can_be_closed(autojump_clock, is_held):
    """The session stays open in the journal until its children are closed, so a crash leaves no closed parent of open children."""
    async with MemoryJournal().running() as inner:
        await make_tree(inner)
        clerk, helper, _ = make_agents()
        async with open_runtime(journal=FailsToErase(inner)) as runtime:
            for agent in (clerk, helper):
                await runtime.start(agent)
            root = await clerk.open_session("root")
            held = runtime.agents.opener("clerk").running.lifecycle.kept(root._context)
            with held if is_held else nullcontext(), pytest.raises(JournalFailed):
                await runtime.delete_session("root")
            assert await open_ones(inner) == ["last", "root", "waits"]
            await root.aclose()
            assert await open_ones(inner) == []


class Counting(WrappedJournal):
    """A journal that counts queries for child sessions."""

    asked = 0

    async def children(self, agent, session_id):
        self.asked += 1
        return await super().children(agent, session_id)

    async def children_of(self, keys):
        self.asked += 1
        return await super().children_of(keys)


async def test_close_makes_one_query_per_tree_level():
    """Closing makes one query per level. Erasing makes one for each session without children, and two for each other one."""
    async with MemoryJournal().running() as inner:
        agent = make_agents()[0]
        async with open_runtime(journal=inner) as runtime:
            await runtime.start(agent)
            root = await agent.create_session("ada", "hello", session_id="root")
            for number in range(20):
                child = await agent.create_session("ada", "hello", session_id=f"c{number}", parent=root)
                last = await agent.create_session("ada", "hello", session_id=f"l{number}", parent=child)
                await last.wait_idle()
        agent, journal = make_agents()[0], Counting(inner)
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent)
            await (await agent.open_session("root")).aclose()
            assert await open_ones(inner) == []
            assert journal.asked == 3
            await runtime.delete_session("root", agent=agent.name)
            assert await inner.page() == []
            assert journal.asked == 3 + 20 + 2 * 21


class SlowToRead(WrappedJournal):
    """A journal that reads the helper's sessions slowly."""

    async def head(self, agent, session_id):
        if agent == "helper":
            await trio.sleep(1)
        return await super().head(agent, session_id)

    async def load_tail(self, session_id, *, agent):
        if agent == "helper":
            await trio.sleep(1)
        return await super().load_tail(session_id, agent=agent)


async def test_close_is_durable_while_a_call_keeps_the_session(autojump_clock):
    """The call delegates a task and gets an error. A crash before that leaves the session closed."""
    refused = []
    async with MemoryJournal().running() as inner:
        clerk, helper, _ = make_agents()
        async with open_runtime(journal=SlowToRead(inner)) as runtime, trio.open_nursery() as nursery:
            for agent in (clerk, helper):
                await runtime.start(agent)
            root = await clerk.create_session("ada", session_id="root")

            async def delegate():
                try:
                    await root.delegate("helper", "look", task_id="t1")
                except SessionClosed as error:
                    refused.append(error)

            nursery.start_soon(delegate)
            await trio.testing.wait_all_tasks_blocked()
            await root.aclose()
            assert await open_ones(inner) == []
            assert not refused
        assert len(refused) == 1
        records = await inner.load("root", agent="clerk")
        assert [type(each).__name__ for each in records] == ["SessionCreatedRecord", "SessionClosedRecord"]


class SlowBelow(WrappedJournal):
    """A journal that lists child sessions slowly."""

    async def children_of(self, keys):
        await trio.sleep(5)
        return await super().children_of(keys)


async def test_a_cancelled_close_is_completed(autojump_clock):
    """Sessions in memory are closed at the call, and the others later."""
    async with MemoryJournal().running() as inner:
        await make_tree(inner)
        clerk, helper, heard = make_agents()
        async with open_runtime(journal=SlowBelow(inner)) as runtime:
            for agent in (helper, clerk):
                await runtime.start(agent)
            root = await clerk.open_session("root")
            with trio.move_on_after(1):
                await root.aclose()
            assert await open_ones(inner) == ["last", "root", "waits"]
            await trio.sleep(60)
            assert await open_ones(inner) == []
            assert ("stopped", "waits", "m1") in heard


async def test_interrupted_close_can_be_repeated(autojump_clock):
    """The parent session is closed last: its end is in the journal after those of all descendants."""
    async with MemoryJournal().running() as inner:
        await make_tree(inner)
        clerk, helper, _ = make_agents()
        open_at_a_look = []
        async with open_runtime(journal=SlowBelow(inner)) as runtime, trio.open_nursery() as nursery:
            for agent in (helper, clerk):
                await runtime.start(agent)
            root = await clerk.open_session("root")
            nursery.start_soon(root.aclose)
            while not open_at_a_look or open_at_a_look[-1]:
                open_at_a_look.append(await open_ones(inner))
                await trio.sleep(0.5)
        assert all("root" in each for each in open_at_a_look if each)
        assert ["last", "root", "waits"] in open_at_a_look


class FailsBelow(WrappedJournal):
    """A journal that fails for some time to list child sessions, or to read the last one."""

    works, fails_to_load = False, False

    async def children_of(self, keys):
        if not (self.works or self.fails_to_load):
            raise JournalFailed("the disk is away")
        return await super().children_of(keys)

    async def load_tail(self, session_id, *, agent):
        if self.fails_to_load and session_id == "last" and not self.works:
            raise JournalFailed("the disk is away")
        return await super().load_tail(session_id, agent=agent)


@pytest.mark.parametrize("fails_to_load", [True, False])
async def test_a_close_resumes_after_a_journal_failure(autojump_clock, fails_to_load):
    """The parent stays open in the journal until then, so that no child session stays open forever."""
    async with MemoryJournal().running() as inner:
        await make_tree(inner)
        clerk, helper, heard = make_agents()
        journal = FailsBelow(inner)
        journal.fails_to_load = fails_to_load
        async with open_runtime(journal=journal) as runtime:
            for agent in (helper, clerk):
                await runtime.start(agent)
            root = await clerk.open_session("root")
            with pytest.raises(JournalFailed):
                await root.aclose()
            await trio.sleep(60)
            assert {"last", "root"} <= {*await open_ones(inner)}
            journal.works = True
            await trio.sleep(60)
            assert await open_ones(inner) == []
            assert ("stopped", "waits", "m1") in heard


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_failed_close_can_be_repeated_after_a_restart(autojump_clock, is_cancelled):
    """The parent session is open, whichever of its children are closed."""
    async with MemoryJournal().running() as inner:
        await make_tree(inner)
        clerk, helper, _ = make_agents()
        journal = FailsBelow(inner)
        journal.fails_to_load = True
        async with open_runtime(journal=journal) as runtime:
            for agent in (helper, clerk):
                await runtime.start(agent)
            root = await clerk.open_session("root")
            with trio.move_on_after(1) as scope, suppress(JournalFailed):
                if is_cancelled:
                    scope.cancel()
                await root.aclose()
            await trio.sleep(10)
        assert await open_ones(inner) == ["last", "root"]
        clerk, helper, _ = make_agents()
        async with open_runtime(journal=inner) as runtime:
            for agent in (helper, clerk):
                await runtime.start(agent)
            await (await clerk.open_session("root")).aclose()
        assert await open_ones(inner) == []


@pytest.mark.parametrize("is_new", [True, False])
async def test_cancelled_close_is_completed_although_its_agent_ends(autojump_clock, is_new):
    """This happens in the `finally` of a program that is stopped.

    If no child stays open, no next start opens the session.
    """
    async with MemoryJournal().running() as journal:
        for is_last in (True,) if is_new else (False, True):
            clerk = make_agents()[0]
            async with open_runtime(journal=journal) as runtime:
                await runtime.start(clerk)
                root = await clerk.ensure_session("ada", "root")
                if is_last:
                    with trio.CancelScope() as scope:
                        scope.cancel()
                        await root.aclose()
                    assert scope.cancelled_caught
        assert await open_ones(journal) == []


class FailsToWrite(WrappedJournal):
    """Writes nothing for a time."""

    works = True

    async def commit(self, entry, *, epoch, durable=True):
        if not self.works:
            raise JournalFailed("the disk is away")
        await super().commit(entry, epoch=epoch, durable=durable)


async def test_task_is_stopped_in_all_agents_despite_a_journal_failure(autojump_clock):
    """No agent continues the task, and no result is reported."""
    async with MemoryJournal().running() as inner:
        journal, llm = FailsToWrite(inner), ScriptedLLM(["done"], repeat=True, delay=3600)
        agents = [BareAgent(name, llm=llm) for name in ("clerk", "left", "right")]
        async with open_runtime(journal=journal) as runtime:
            for agent in agents:
                await runtime.start(agent)
            root = await agents[0].create_session("ada", session_id="root")
            for name in ("left", "right"):
                await root.delegate(name, "go", task_id="t1")
            await trio.sleep(1)
            journal.works = False
            with pytest.raises(JournalFailed):
                await root.cancel_task("t1")
            journal.works = True
            await trio.sleep(60)
            assert await open_ones(inner) == ["root"]


@pytest.mark.parametrize("by", ["parent", "task"])
async def test_a_close_waits_until_a_session_is_restored(autojump_clock, by):
    """The messages from before the restart end before the record of the close, also if an `on_session` function is slow."""
    async with MemoryJournal().running() as journal:
        llm = ScriptedLLM(["ok"], repeat=True, delay=1000)
        clerk, *helpers = (BareAgent(name, llm=llm, grace=0) for name in ("clerk", "helper", "helper"))
        async with open_runtime(journal=journal) as runtime:
            for agent in (clerk, helpers[0]):
                await runtime.start(agent)
            root = await clerk.create_session("ada", session_id="root")
            await root.delegate("helper", "go", task_id="t1")
            await trio.sleep(1)
            runtime.stop("helper")
            await trio.sleep(1)

            @helpers[1].on_session
            async def take_time(_):
                await trio.sleep(100)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.start, helpers[1])
                await trio.sleep(1)
                assert runtime.agents.opener("helper").running.sessions["t1"].opening_task
                assert await root.cancel_task("t1") if by == "task" else await root.aclose() is None
                records = await journal.load("t1", agent="helper")
                assert [type(each).__name__ for each in records][-2:] == [
                    "MessageEndRecord",
                    "SessionClosedRecord",
                ]


async def test_on_session_may_close_its_session_with_unfinished_messages(autojump_clock):
    """The record of the close comes after the end of these messages."""
    async with MemoryJournal().running() as journal:
        llm = ScriptedLLM(["ok"], repeat=True, delay=1000)
        first, second = (BareAgent("clerk", llm=llm, grace=0) for _ in range(2))
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(first)
            await first.create_session("ada", "hello", session_id="root")
            await trio.sleep(1)
        second.on_session(lambda session: session.aclose())
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(second)
            await trio.sleep(1)
            records = await journal.load("root", agent="clerk")
            assert [type(each).__name__ for each in records][-2:] == [
                "MessageEndRecord",
                "SessionClosedRecord",
            ]


async def test_a_close_during_the_end_of_the_runtime_is_refused(autojump_clock):
    """The agent has no work, so it stops without a cancellation. The close of its suspended session is not recorded."""
    errors = []
    async with MemoryJournal().running() as journal:
        await make_tree(journal)
        _, helper, _ = make_agents()

        async def close(session):
            try:
                await session.aclose()
            except NotRunning as error:
                errors.append(error)

        async with trio.open_nursery() as nursery, open_runtime(journal=journal) as runtime:
            await runtime.start(helper)
            session = await helper.open_session("waits")
            nursery.start_soon(close, session)
        assert errors
        assert "waits" in await open_ones(journal)


class NotesCloses(WrappedJournal):
    """A journal that lists the sessions in the order of their closes."""

    def __init__(self, inner):
        super().__init__(inner)
        self.closed = []

    def note(self, entry):
        if any(type(each).__name__ == "SessionClosedRecord" for each in entry.records):
            self.closed.append(entry.session_id)

    async def commit(self, entry, *, epoch, durable=True):
        self.note(entry)
        await super().commit(entry, epoch=epoch, durable=durable)

    def enqueue_write(self, entry, *, epoch):
        self.note(entry)
        super().enqueue_write(entry, epoch=epoch)


@pytest.mark.parametrize("ends", ["answered", "past its deadline"])
async def test_session_of_a_task_is_closed_after_its_children(autojump_clock, ends):
    """A crash between the two records leaves no open session below a closed one, which no later call would close."""
    async with MemoryJournal().running() as inner:
        journal = NotesCloses(inner)
        billing = BareAgent("billing", llm=ScriptedLLM(["paid"], delay=0 if ends == "answered" else 1000))
        desk = BareAgent(
            "desk", llm=ScriptedLLM([ToolCall("handoff_to_billing", {})]), tools=[handoff(billing)]
        )
        clerk = BareAgent("clerk", llm=ScriptedLLM(["ok"], repeat=True))
        async with open_runtime(journal=journal) as runtime:
            for agent in (clerk, desk):
                await runtime.start(agent)
            root = await clerk.create_session("ada", session_id="root")
            await root.delegate("desk", "go", task_id="t1", deadline=100)
            await trio.sleep(200)
            assert journal.closed == ["t1/handoff/1", "t1"]
            assert await open_ones(inner) == ["root"]


async def test_session_of_a_task_is_closed_although_the_agent_of_a_child_is_stopped(autojump_clock):
    """The child session stays open for the next start of its agent."""
    async with MemoryJournal().running() as journal:
        llm = ScriptedLLM(["ok"], repeat=True, delay=100)
        clerk, helper, other = (BareAgent(name, llm=llm, grace=0) for name in ("clerk", "helper", "other"))
        async with open_runtime(journal=journal) as runtime:
            for agent in (clerk, helper, other):
                await runtime.start(agent)
            root = await clerk.create_session("ada", session_id="root")
            await root.delegate("helper", "go", task_id="t1")
            parent = await helper.open_session("t1")
            await other.create_session("ada", session_id="below", parent=parent)
            runtime.stop("other")
            await trio.sleep(300)
            assert await open_ones(journal) == ["below", "root"]
