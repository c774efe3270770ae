"""Automatic erasure of sessions from the journal."""

from datetime import timedelta

import pytest
import trio
import trio.testing

from actgent import BareAgent, ScriptedLLM, Suspended, ToolCall, ToolContext, open_runtime, tool
from actgent.approvals import Approve
from actgent.errors import ConfigurationError, JournalFailed, SessionClosed, SessionNotFound
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.journal_interface import Entry
from actgent.journal.record_types import (
    DeliveryRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    StateChangeRecord,
)
from actgent.messages import Sender
from actgent.runtime.session_erasure import Retention
from actgent.testing import CrashingJournal

DAY = 86_400.0


def agent_of(answer=None, name="clerk", **options):
    return BareAgent(name, llm=ScriptedLLM(answer or ["yes"], repeat=not callable(answer)), **options)


async def ids_in(journal):
    return {each.session_id for each in await journal.sessions()}


# --- sessions for one question ---------------------------------------------------------------


async def test_sessions_of_run_leave_the_journal(autojump_clock):
    """Sessions of `run`, `stream` and `tell` without a session are erased; named sessions stay."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of())
            kept = await agent.create_session("ada", "hello", session_id="kept")
            for _ in range(250):
                await agent.run("hello")
            async with agent.stream("hello") as events:
                async for _ in events:
                    pass
            await agent.ref.tell("hello")
            await trio.sleep(5)
            assert await ids_in(journal) == {"kept"}
            await agent.run("hello", session=kept)
            await agent.run("at the end")
        assert await ids_in(journal) == {"kept"}
        assert journal._stored_rows.keys() == {journal._stored_heads["clerk", "kept"].series}


async def test_suspended_run_is_erased_after_its_end(autojump_clock):
    """This holds over a restart."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    def answer(chat):
        return "done" if chat.messages[-1].role == "tool" else [ToolCall("pay", {})]

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of(answer, tools=[pay]))
            with pytest.raises(Suspended):
                await agent.run("go")
            await trio.sleep(100)
        assert len(await ids_in(journal)) == 1
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of(answer, tools=[pay]))
            (approval,) = await agent.approvals()
            assert str(await agent.resume({approval.id: Approve()})) == "done"
            await trio.sleep(5)
            assert await ids_in(journal) == set()


async def test_run_is_erased_after_the_report_of_its_task(autojump_clock):
    """Its child sessions are erased as well."""
    may_end = trio.Event()

    async def slow(chat):
        await may_end.wait()
        return "helped"

    @tool
    async def hand_on(context: ToolContext) -> str:
        """Hand the work on."""
        return await context.session.delegate("helper", "help")

    def answer(chat):
        message = chat.messages[-1]
        is_first = message.role == "user" and message.parts[0].text == "go"
        return [ToolCall("hand_on", {})] if is_first else "thanks"

    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(agent_of(answer, tools=[hand_on]))
        await runtime.start(agent_of(slow, "helper"))
        assert str(await agent.run("go")) == "thanks"
        await trio.sleep(100)
        assert len(await ids_in(journal)) == 2
        may_end.set()
        await trio.sleep(5)
        assert await ids_in(journal) == set()


@pytest.mark.parametrize("writes", range(1, 12))
async def test_interrupted_retention_is_completed_at_the_next_start(autojump_clock, writes):
    """After a crash at any write, the run resumes, or the rest of the session is erased."""
    async with MemoryJournal().running() as journal:
        dying = CrashingJournal(journal, writes)
        async with trio.open_nursery() as nursery:

            async def live():
                async with open_runtime(journal=dying) as runtime:
                    agent = await runtime.start(agent_of())
                    await agent.run("hello")
                    await trio.sleep(10)

            nursery.start_soon(live)
            with trio.move_on_after(5):
                await dying.died.wait()
            nursery.cancel_scope.cancel()
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(agent_of())
            await trio.sleep(5)
            assert await ids_in(journal) == set()


# --- old sessions ------------------------------------------------------------------------------


async def test_other_sessions_are_never_erased(autojump_clock):
    """They may have any age."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of())
            await agent.create_session("ada", "hello", session_id="idle")
            closed = await agent.create_session("ada", "hello", session_id="closed")
            await closed.wait_idle()
            await closed.aclose()
            await trio.sleep(1000 * DAY)
        assert await ids_in(journal) == {"idle", "closed"}


async def test_old_sessions_are_erased_with_their_children(autojump_clock):
    """Closed and idle sessions have separate times; a session in use or with pending work in its tree stays."""
    async with MemoryJournal().running() as journal:
        retention = Retention(closed=timedelta(days=1), idle=10 * DAY)
        async with open_runtime(journal=journal, retention=retention) as runtime:
            agent = await runtime.start(agent_of())
            sessions = {}
            for name in ("closed", "idle", "scheduled", "below"):
                sessions[name] = await agent.create_session("ada", "hello", session_id=name)
                below = sessions[name]
                for depth in (1, 2):
                    below = await agent.create_session(
                        "ada", "hi", session_id=f"{name}/{depth}", parent=below
                    )
                await below.wait_idle()
            await sessions["closed"].aclose()
            await sessions["scheduled"].schedule("wake up", after=30 * DAY)
            await below.schedule("wake up", after=30 * DAY)
            await trio.sleep(2 * DAY)
            others = {f"{name}{tail}" for name in ("idle", "scheduled", "below") for tail in ("", "/1", "/2")}
            assert await ids_in(journal) == others
            await trio.sleep(10 * DAY)
            assert await ids_in(journal) == {each for each in others if not each.startswith("idle")}
            assert sessions["idle"].status == "closed"
            with pytest.raises(SessionClosed):
                await sessions["idle"].chat("hello?")
            with pytest.raises(SessionNotFound):
                await agent.open_session("idle")
            again = await agent.ensure_session("ada", "idle")
            assert again.history == ()
            assert str(await agent.run("new", session=again)) == "yes"
        assert journal.statistics.erased == 6


async def test_working_and_suspended_sessions_are_retained(autojump_clock):
    """Retention keeps sessions with a running turn, a suspended turn, or queued messages."""

    @tool(approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def answer(chat):
        text = chat.messages[-1].parts[0].text
        if text == "work":
            await trio.sleep(100 * DAY)
        return [ToolCall("pay", {})] if text == "pay" else "yes"

    async with (
        MemoryJournal().running() as journal,
        open_runtime(journal=journal, retention=Retention(idle=60), thread_grace=0) as runtime,
    ):
        agent = await runtime.start(agent_of(answer, tools=[pay], grace=0))
        for name in ("work", "pay"):
            await agent.create_session("ada", name, session_id=name)
        await agent.create_session("ada", "other", session_id="other")
        await trio.sleep(100)
        assert await ids_in(journal) == {"work", "pay"}


class Counting(MemoryJournal):
    """A journal that counts queries for child sessions."""

    asked = 0

    async def children_of(self, keys):
        self.asked += 1
        return await super().children_of(keys)


async def test_retention_makes_one_query_per_tree_level(autojump_clock):
    """The tree may have any number of sessions. It is erased completely while its sessions are held, or not at all."""
    async with (
        Counting().running() as journal,
        open_runtime(journal=journal, retention=Retention(idle=60)) as runtime,
    ):
        agent = await runtime.start(agent_of())
        root = await agent.create_session("ada", "hello", session_id="root")
        for number in range(20):
            child = await agent.create_session("ada", "hello", session_id=f"c{number}", parent=root)
            last = await agent.create_session("ada", "hello", session_id=f"l{number}", parent=child)
            await last.wait_idle()
        with runtime.agents.opener("clerk").marked_as_opening("l7"):
            await trio.sleep(200)
            assert len(await ids_in(journal)) == 41
        journal.asked = 0
        await trio.sleep(200)
        assert await ids_in(journal) == set()
        assert journal.asked == 3


class Slow(MemoryJournal):
    """A journal that runs a callback just before it erases."""

    meanwhile = None

    async def erase_trees(self, roots, **options):
        if self.meanwhile is not None:
            await self.meanwhile()
        return await super().erase_trees(roots, **options)


@pytest.mark.parametrize("what", ["open", "open inside", "chat", "state", "ensure", "held"])
async def test_opening_during_the_erasure_raises_session_not_found(autojump_clock, what):
    """The open waits for the erasure. Records written before the erasure decision are never erased."""
    received = []

    async with Slow().running() as journal:
        async with open_runtime(journal=journal, retention=Retention(idle=60)) as runtime:
            agent = await runtime.start(agent_of())
            session = await agent.create_session("ada", "hello", session_id="s")
            await session.wait_idle()
            if what != "held":
                agent._opener.running.sessions._unload(agent._opener.running.sessions["s"])

            async def look_for_former(new):
                if new.id == "other":
                    with pytest.raises(SessionNotFound):
                        await agent.open_session("s")
                    received.append("not found")

            agent.on_session(look_for_former)

            async def act():
                if what == "open inside":
                    await (await agent.create_session("ada", session_id="other")).schedule("look", after=DAY)
                elif what in ("open", "ensure"):
                    with pytest.raises(SessionNotFound) if what == "open" else trio.CancelScope():
                        found = await (
                            agent.open_session("s") if what == "open" else agent.ensure_session("ada", "s")
                        )
                        received.append(found.history)
                elif what in ("chat", "held"):
                    with pytest.raises(SessionClosed):
                        await session.chat("now")
                    received.append("refused")
                else:
                    session.state.dispatch(("n", 1))

            async with trio.open_nursery() as nursery:

                async def meanwhile():
                    journal.meanwhile = None
                    nursery.start_soon(act)
                    await trio.testing.wait_all_tasks_blocked()

                if what in ("open", "open inside", "ensure"):
                    del session
                journal.meanwhile = meanwhile
                await trio.sleep(100)
            left = await ids_in(journal)
        assert left - {"other"} == set()
        told = {"ensure": [()], "chat": ["refused"], "held": ["refused"], "open inside": ["not found"]}
        assert received == told.get(what, [])


async def test_session_changed_before_the_erasure_is_kept():
    """The storage checks the session again. A changed session stays and continues with its state."""
    async with (
        Slow().running() as journal,
        open_runtime(journal=journal, retention=Retention(idle=0)) as runtime,
    ):
        agent = await runtime.start(agent_of())
        session = await agent.create_session("ada", "hello", session_id="s")
        await session.wait_idle()
        await journal.commit(Entry(session_id="s", agent="clerk", records=()), epoch=journal.epoch_of("s"))

        async def write():
            journal.meanwhile = None
            session.state.dispatch(("n", 1))
            entry = Entry(session_id="s", agent="clerk", records=(DeliveryRecord(ids=("x",)),))
            await journal.commit(entry, epoch=journal.epoch_of("s"))

        journal.meanwhile = write
        await runtime._sweeper._erase_old()
        assert journal.meanwhile is None
        assert await ids_in(journal) == {"s"}
        await session.chat("still there?")
        await session.wait_idle()
        assert session.history[-1].text == "yes"
        changed = [each for each in await journal.load("s") if isinstance(each, StateChangeRecord)]
        assert [each.changes for each in changed] == [{"n": 1}]


class Doubtful(MemoryJournal):
    """Erases, and fails at the very end of that; then it is away for some calls."""

    away = None

    async def _erase_trees(self, *args):
        gone = await super()._erase_trees(*args)
        if gone and self.away is not None:
            raise JournalFailed("it is done")
        return gone

    async def _read_heads(self, keys):
        if self.away:
            self.away -= 1
            raise JournalFailed("it is away")
        return await super()._read_heads(keys)


@pytest.mark.parametrize("away", [0, 1])
async def test_expired_session_stays_deleted_after_a_journal_error(autojump_clock, away):
    """Otherwise new records would be written without the beginning of the session."""
    async with (
        Doubtful().running() as journal,
        open_runtime(journal=journal, retention=Retention(idle=60)) as runtime,
    ):
        agent = await runtime.start(agent_of())
        session = await agent.create_session("ada", "hello", session_id="s")
        below = await agent.create_session("ada", "hello", session_id="below", parent=session)
        await below.wait_idle()
        journal.away = away
        await trio.sleep(100)
        journal.away = None
        assert await ids_in(journal) == set()
        for each in (session, below):
            with pytest.raises(SessionClosed):
                await each.chat("still there?")
        with pytest.raises(SessionNotFound):
            await agent.open_session("s")
        again = await agent.ensure_session("ada", "s")
        assert str(await agent.run("new", session=again)) == "yes"


async def test_open_child_of_a_closed_session_is_unloaded_with_it(autojump_clock):
    """The agent of the child did not run during the close. A tree with a session in use stays loaded."""
    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            clerk, helper = await runtime.start(agent_of()), await runtime.start(agent_of(name="helper"))
            root = await clerk.create_session("ada", session_id="root")
            await helper.create_session("ada", session_id="below", parent=root)
        async with open_runtime(journal=journal) as runtime:
            await (await (await runtime.start(agent_of())).open_session("root")).aclose()
        async with open_runtime(journal=journal, retention=Retention(closed=60)) as runtime:
            helper = await runtime.start(agent_of(name="helper"))
            with runtime.agents.opener("helper").marked_as_opening("below"):
                await trio.sleep(100)
                assert await ids_in(journal) == {"root", "below"}
            below = await helper.open_session("below")
            await trio.sleep(100)
            assert await ids_in(journal) == set()
            with pytest.raises(SessionClosed):
                await below.chat("still there?")
            assert await ids_in(journal) == set()


class AwayAtFirst(MemoryJournal):
    """A journal that fails several times to list the sessions to erase."""

    away = 2

    async def _list_to_erase(self, limit):
        if self.away:
            self.away -= 1
            raise JournalFailed("it is away")
        return await super()._list_to_erase(limit)


async def test_retention_retries_after_a_journal_failure_at_the_start(autojump_clock):
    """The runtime works meanwhile, also without retention. Then ended sessions are erased."""
    async with AwayAtFirst().running() as journal:
        records = (
            SessionCreatedRecord(owner=Sender("ada"), created_at=1.0, transient=True),
            SessionClosedRecord(erase=True),
        )
        epoch = await journal.acquire()
        await journal.commit(Entry(session_id="over", agent="clerk", records=records), epoch=epoch)
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of())
            await trio.sleep(30)
            assert await ids_in(journal) == {"over"}
            await trio.sleep(200)
            assert await ids_in(journal) == set()
            assert str(await agent.run("hello")) == "yes"


@pytest.mark.parametrize("wrong", [-1, "day", True, float("inf")])
def test_invalid_retention_times_are_rejected(wrong):
    """The error names the argument."""
    with pytest.raises(ConfigurationError, match="Retention"):
        Retention(idle=wrong)
