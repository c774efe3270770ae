"""A session that no caller received leaves no trace, and one that is requested twice is created once."""

import gc
from contextlib import nullcontext
from functools import partial

import pytest
import trio
import trio.testing

from actgent import BareAgent, InboxFull, ScriptedLLM, open_runtime
from actgent.errors import ActgentError, JournalFailed, SessionExists, SessionNotFound
from actgent.runtime.sessions import session_table
from tests.agents.slow_journal import SlowJournal

JOURNALS = pytest.mark.parametrize("journal", [None, "memory:"])
STEPS = 12
"""More than any call here takes."""


class StiffJournal(SlowJournal):
    """A slow journal that rejects erasures while it is stiff."""

    is_stiff = False

    async def _erase(self, *args):
        if self.is_stiff:
            raise JournalFailed("no")
        await super()._erase(*args)


async def pause(_):
    await trio.lowlevel.checkpoint()


def attended(name="a", **options):
    """Return an agent whose new sessions run a slow handler."""
    agent = BareAgent(name, llm=ScriptedLLM(["ok"], repeat=True), **options)
    agent.on_session(pause)
    return agent


def known(agent):
    """The sessions that an agent has in memory, and those that it has half made."""
    opener = agent._opener
    return sorted(opener.running.sessions), list(opener._pending_opens)


async def said_in(session):
    await session.wait_idle()
    return [message.text for message in session.history if message.sender.kind == "user"]


# --- nobody got it ---------------------------------------------------------------------------


CALLS = {
    "create": lambda agent, key: agent.create_session("ada", session_id=key),
    "create with words": lambda agent, key: agent.create_session("ada", "hello", session_id=key),
    "ensure": lambda agent, key: agent.ensure_session("ada", key),
}


@JOURNALS
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_cancelled_call_leaves_its_id_free(call, journal, cancelled_at):
    """The call may be cancelled at any step.

    Memory and journal have nothing of it, and the next call creates the session.
    """
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(attended())
        for step in range(STEPS):
            key = f"s{step}"
            if not await cancelled_at(step, partial(call, agent, key)):
                assert key not in known(agent)[0]
                assert known(agent)[1] == []
                assert runtime.journal is None or not await runtime.journal.load(key)
                session = await call(agent, key)
                assert (await agent.run("hi", session=session)).text == "ok"
                assert await said_in(session) in (["hi"], ["hello", "hi"])


@JOURNALS
@pytest.mark.parametrize("fails", ["times out", "is refused"])
async def test_first_message_rejected_by_a_full_inbox_leaves_no_session(fails, journal, autojump_clock):
    """The id is free."""

    async def create(**options):
        with trio.move_on_after(1 if fails == "times out" else 60):
            await agent.create_session("zoe", "hello", session_id="z")

    async with open_runtime(journal=journal) as runtime:
        llm = ScriptedLLM(["ok"], repeat=True, delay=100)
        agent = await runtime.start(
            BareAgent("a", llm=llm, inbox_capacity=1, max_concurrent_sessions=1, grace=1000)
        )
        for name in ("x", "y"):
            await agent.create_session(name, "hello", session_id=name)
        if fails == "is refused":
            with pytest.raises(InboxFull):
                await create()
        else:
            await create()
        with pytest.raises(SessionNotFound):
            await agent.open_session("z")
        assert known(agent) == (["x", "y"], [])
        await trio.sleep(100)
        await agent.create_session("zoe", "hello", session_id="z")


@JOURNALS
async def test_a_handler_that_fails_leaves_no_session(journal):
    """Its changes of the session's state are dropped as well."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(attended())

        @agent.on_session
        def fail(session):
            session.state.dispatch(("seen", True))
            if not agent._hooks.listeners:
                agent.on_message(print)
                raise ValueError

        with pytest.raises(ValueError):
            await agent.create_session("ada", session_id="s")
        assert known(agent) == ([], [])
        assert runtime.journal is None or not await runtime.journal.load("s")
        agent.remove_hook(print)
        agent.remove_hook(fail)
        assert (await agent.create_session("ada", session_id="s")).state.get("seen") is None


USES = {
    "open": (lambda _, agent, key: agent.open_session(key), None),
    "ensure": (lambda _, agent, key: agent.ensure_session("ada", key), None),
    "create": (lambda _, agent, key: agent.create_session("ada", session_id=key), SessionExists),
    "fork": (lambda runtime, _, key: runtime.fork("former", new_id=key), SessionExists),
}


@pytest.mark.parametrize(("use", "refusal"), USES.values(), ids=USES)
async def test_task_of_a_session_handler_detects_a_wait_cycle(use, refusal, autojump_clock):
    """The task waits for its own session, or two sessions wait for each other."""
    async with open_runtime(journal="memory:") as runtime:
        agent, came = await runtime.start(attended()), []
        await agent.create_session("ada", session_id="former")

        @agent.on_session
        async def go_round(session):
            async def act(key):
                with pytest.raises(refusal) if refusal else nullcontext():
                    await use(runtime, agent, key)
                came.append(session.id)

            await trio.sleep(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(act, {"x": "y", "y": "x"}.get(session.id, session.id))

        with trio.fail_after(60):
            await agent.create_session("ada", session_id="alone")
            async with trio.open_nursery() as nursery:
                for key in ("x", "y"):
                    nursery.start_soon(partial(agent.create_session, "ada", session_id=key))
        assert sorted(came) == ["alone", "x", "y"]


@pytest.mark.parametrize("fate", ["erased", "not erased", "not erased by this process"])
async def test_a_call_cancelled_during_the_write_frees_its_id(fate, autojump_clock):
    """The session is erased at once, or by the next caller with the id in any process."""
    async with StiffJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(attended())
            journal.is_slow, journal.is_stiff = True, fate != "erased"
            with trio.move_on_after(0.5) as limit:
                await agent.create_session("ada", "hello", session_id="s")
            assert limit.cancelled_caught
            await trio.sleep(5)
            journal.is_slow = journal.is_stiff = False
            assert bool(await journal.load("s")) is (fate != "erased")
            if fate != "not erased by this process":
                session = await agent.create_session("bob", session_id="s")
                assert await said_in(session) == []
                return
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(attended())
            with pytest.raises(SessionNotFound):
                await agent.open_session("s")
            session = await agent.ensure_session("bob", "s")
            assert await said_in(session) == []


@JOURNALS
async def test_a_cancelled_question_leaves_no_session(journal, cancelled_at):
    """`run`, `stream`, `ask` or `tell` may be cancelled at any step before the message is accepted."""

    async def read():
        async with agent.stream("hi") as events:
            async for _ in events:
                pass

    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(attended())
        for call in (
            lambda: agent.run("hi"),
            read,
            lambda: agent.ref.ask("hi"),
            lambda: agent.ref.tell("hi"),
        ):
            for step in range(STEPS):
                await cancelled_at(step, call)
                await trio.testing.wait_all_tasks_blocked()
                assert known(agent) == ([], [])


# --- two who want it -------------------------------------------------------------------------


@JOURNALS
@pytest.mark.parametrize("call", ["create", "ensure"])
async def test_a_second_caller_waits_for_the_first(call, journal, cancelled_at):
    """If the first caller is cancelled, the second creates the session.

    Otherwise it gets the session or the error of the first.
    """
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(attended())
        for step in range(2 * STEPS):
            key, second, errors = f"s{step}", [], []
            async with trio.open_nursery() as nursery:

                async def get(key=key, second=second, errors=errors):
                    try:
                        second.append(await CALLS[call](agent, key))
                    except ActgentError as error:
                        errors.append(error)

                nursery.start_soon(cancelled_at, step, partial(CALLS[call], agent, key))
                nursery.start_soon(get)
            assert known(agent)[1] == []
            session = await agent.open_session(key)
            assert second in ([session], [])
            assert [type(each).__name__ for each in errors] == ["SessionExists"] * (1 - len(second))
            assert call == "create" or second == [session]


# --- tasks -----------------------------------------------------------------------------------


@JOURNALS
@pytest.mark.parametrize("callers", [1, 2])
async def test_task_that_is_delegated_again_runs_once(callers, journal, cancelled_at):
    """The first call is cancelled at any step, also while the second one waits for it."""
    done = []

    def answer(chat):
        done.append(chat.messages[-1].parts[0].text)
        return "42"

    async with open_runtime(journal=journal) as runtime:
        lead = await runtime.start(BareAgent("lead", llm=ScriptedLLM(["noted"], repeat=True)))
        worker = await runtime.start(BareAgent("worker", llm=ScriptedLLM(answer)))
        worker.on_session(pause)
        for step in range(2 * STEPS):
            session = await lead.create_session("ada")
            give = partial(session.delegate, "worker", f"task {step}", task_id=f"t{step}")
            async with trio.open_nursery() as nursery:
                if callers == 2:
                    nursery.start_soon(give)
                is_given = await cancelled_at(step, give)
            if callers == 1 and not is_given:
                assert session.children == ()
                assert await give() == f"t{step}"
            while session.children:
                await trio.lowlevel.checkpoint()
            await session.wait_idle()
            texts = [message.text for message in session.history if message.sender.kind == "agent"]
            assert texts == [f"Task t{step} was done by agent 'worker':\n42"]
            assert done.count(f"task {step}") == 1


# --- asleep ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["delegate", "schedule", "aclose", "unschedule"])
async def test_session_in_use_is_not_evicted(call, monkeypatch, autojump_clock):
    """Any number of other sessions may be used, and the caller may hold no reference."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 2)
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        agent = await runtime.start(attended())
        await runtime.start(attended("worker"))
        session = await agent.create_session("ada", session_id="s")
        planned = await session.schedule("later", after=1000)
        others = [await agent.create_session("u", session_id=f"u{number}") for number in range(2)]

        async def do(session):
            if call == "delegate":
                await session.delegate("worker", "compute", task_id="t")
            elif call == "schedule":
                await session.schedule("soon", after=5, key="k")
            elif call == "unschedule":
                await session.unschedule(planned.id)
            else:
                await session.aclose()

        async with trio.open_nursery() as nursery:
            journal.is_slow = call != "aclose"
            nursery.start_soon(do, session)
            del session
            await trio.lowlevel.checkpoint()
            for _ in range(6):
                for other in others:
                    other._agent.sessions.mark_idle(other._context)
                gc.collect()
                await trio.lowlevel.checkpoint()
        journal.is_slow = False
        await trio.sleep(10)
        if call == "aclose":
            with pytest.raises(ActgentError):
                await agent.open_session("s")
            assert "s" not in agent._opener.running.sessions
            return
        session = await agent.open_session("s")
        await session.wait_idle()
        texts = [message.text for message in session.history if message.sender.kind in ("agent", "system")]
        assert [each.splitlines()[0] for each in texts] == {
            "delegate": ["Task t was done by agent 'worker':"],
            "schedule": ["Running scheduled task: soon"],
            "unschedule": [],
        }[call]
        assert len(session.schedules) == (0 if call == "unschedule" else 1)


# --- series of calls -------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["create", "chat"])
async def test_a_series_of_calls_lets_other_tasks_run(call, autojump_clock):
    """Other tasks run after at most 16 new sessions or messages, although the virtual time does not advance."""
    runs = 0

    async def count_runs():
        nonlocal runs
        while True:
            await trio.lowlevel.checkpoint()
            runs += 1

    async with BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)) as agent, trio.open_nursery() as nursery:
        sessions = [await agent.create_session("ada") for _ in range(160)]
        nursery.start_soon(count_runs)
        runs_before = runs
        for session in sessions:
            await (agent.create_session("ada") if call == "create" else session.chat("hi"))
        assert runs - runs_before >= 5
        nursery.cancel_scope.cancel()


async def test_each_call_of_a_series_can_be_cancelled():
    """Calls that do not yield to other tasks still raise in a cancelled scope, and leave no session."""
    async with BareAgent("a", llm=ScriptedLLM(["ok"], repeat=True)) as agent:
        session = await agent.create_session("ada")
        for number in range(40):
            with trio.CancelScope() as scope:
                scope.cancel()
                await (agent.create_session("ada") if number % 2 else session.chat("hi"))
            assert scope.cancelled_caught
        assert len(known(agent)[0]) == 1
        assert await said_in(session) == []
