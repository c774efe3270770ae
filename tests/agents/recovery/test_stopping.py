"""Results that callers received while an agent stops hold at the next start."""

from contextlib import nullcontext, suppress
from functools import partial

import pytest
import trio
import trio.testing

from actgent import (
    Approve,
    BareAgent,
    Mode,
    Modes,
    NotRunning,
    Reject,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import MessageAcceptedRecord
from actgent.runtime.sessions import session_table
from actgent.state.handoff_state import handed, handoff_in

STOPPED_BY = {
    "ctrl-c": lambda: pytest.RaisesGroup(KeyboardInterrupt, allow_unwrapped=True, flatten_subgroups=True),
    "stop": nullcontext,
}
"""Ctrl-C that is pressed while a turn's code runs, and `runtime.stop`: each stops the agent first, and others later."""
ENDS = {
    "interrupt": lambda session, _: session.interrupt(),
    "aclose": lambda session, _: session.aclose(),
    "unschedule": lambda session, known: session.unschedule(known[session.id]),
    "hand_back": lambda session, _: session.hand_back(),
    "set_mode": lambda session, _: session.set_mode("two"),
}

MODES = Modes(Mode("one"), Mode("two"))


@pytest.fixture
async def journal():
    async with MemoryJournal().running() as opened:
        yield opened


async def hang(chat):
    await trio.sleep_forever()


async def be_slow(failure):
    await trio.sleep(10)


async def stop_in_a_turn(journal, how, act):
    """Run a process that ends during the turn of a session with a slow handler; `act` is called repeatedly until then."""

    async def answer(chat):
        await trio.sleep(1)
        if how == "ctrl-c":
            raise KeyboardInterrupt
        runtime.stop("clerk")
        await hang(chat)

    with STOPPED_BY[how]():
        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(answer), modes=MODES))
            idle = await agent.create_session("ada", session_id="idle")
            session = await agent.create_session("ada", session_id="at work")
            for each in (session, idle):
                await each.schedule("later", after=1000)
                each.state.dispatch(partial(handed, agent="somebody else", note=""))
            session.on_exception(be_slow)
            await session.chat("first", message_id="first")
            await trio.sleep(0.95)
            for number in range(20):
                await trio.sleep(0.1)
                for each in (session, idle):
                    with suppress(NotRunning):
                        await act(each, f"{number} to {each.id}")


@pytest.mark.parametrize("how", STOPPED_BY)
async def test_message_accepted_during_shutdown_is_answered_after_a_restart(autojump_clock, journal, how):
    """If it was not accepted, it is rejected, so that its sender does not wait forever."""
    accepted = []

    async def say(session, text):
        await session.chat(text, message_id=text)
        accepted.append(text)

    await stop_in_a_turn(journal, how, say)
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["answered"], repeat=True)))
        texts = set()
        for name in ("idle", "at work"):
            session = await agent.open_session(name)
            await session.wait_idle()
            texts |= {each.text for each in session.history if each.sender.kind == "user"}
    assert texts == {"first", *accepted}


@pytest.mark.parametrize("what", ENDS)
async def test_session_closed_while_its_agent_stops_stays_closed(autojump_clock, journal, what):
    """If the close does not succeed, the closing caller receives NotRunning. After the stop, no session can be closed."""
    ended, known = set(), {}

    async def end(session, _):
        known[session.id] = known.get(session.id) or session.schedules[0].id
        await ENDS[what](session, known)
        ended.add(session.id)

    await stop_in_a_turn(journal, "stop", end)
    async with open_runtime(journal=journal) as runtime:
        states = {each: (await runtime.rebuild(each)).state for each in ("idle", "at work")}
    left = {
        "interrupt": set(await journal.unfinished("clerk")),
        "aclose": {each.session_id for each in await journal.sessions() if not each.closed},
        "unschedule": {each for each, due in await journal.due("clerk") if due},
        "hand_back": {each for each, state in states.items() if handoff_in(state).agent},
        "set_mode": {each for each, state in states.items() if MODES.mode_of(state) != "two"},
    }
    expected = set() if what == "aclose" else {"idle"}
    assert (ended, left[what]) == (expected, {"idle", "at work"} - expected)


async def test_stopping_agent_accepts_nothing_after_the_call(journal):
    """No task has run since the call, so no task of the agent has noticed the stop."""
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hi"])))
        session = await agent.create_session("ada", session_id="s")
        runtime.stop("clerk")
        with pytest.raises(NotRunning):
            await session.chat("too late")
    assert not any(isinstance(each, MessageAcceptedRecord) for each in await journal.load("s"))


async def test_a_session_receives_a_report_after_its_agent_was_stopped(autojump_clock, journal):
    """The end of the task does not close the session here.

    Otherwise the report would be lost and the session never erased.
    """
    may_end, received = trio.Event(), []

    @tool
    async def hand_on(context: ToolContext) -> str:
        """Hand the work on."""
        return await context.session.delegate("helper", "help")

    def answer(chat):
        received.append(chat.messages[-1].parts[0])
        return ToolCall("hand_on", {}) if len(received) == 1 else "thanks"

    async def help_slowly(_):
        await may_end.wait()
        return "helped"

    clerks = [BareAgent("clerk", llm=ScriptedLLM(answer), tools=[hand_on]) for _ in range(2)]
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(help_slowly)))
        assert str(await (await runtime.start(clerks[0])).run("go")) == "thanks"
        runtime.stop("clerk")
        await trio.sleep(1)
        may_end.set()
        await trio.sleep(60)
        await runtime.start(clerks[1])
        await trio.sleep(60)
        assert len(received) == 3
        assert "helped" in received[-1].text
        assert await journal.sessions() == []


class LateJournal(MemoryJournal):
    """Journal whose reads of records end only after its close."""

    def __init__(self):
        super().__init__()
        self.closed = trio.Event()

    async def _read_tails(self, keys):
        await self.closed.wait()
        return await super()._read_tails(keys)


async def test_open_session_during_the_close_of_the_journal_raises_not_running(autojump_clock):
    """A call that reads the journal while the journal closes reports the stop, and no move to another process."""
    journal, errors = LateJournal(), []

    async def open_late(agent):
        with pytest.raises(NotRunning) as raised:
            await agent.open_session("s0")
        errors.append(raised.value)

    async with trio.open_nursery() as nursery:
        async with journal.running():
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
                await agent.create_session("ada", session_id="s0")
            async with open_runtime(journal=journal) as runtime:
                agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
                nursery.start_soon(open_late, agent)
                await trio.testing.wait_all_tasks_blocked()
        journal.closed.set()
    assert len(errors) == 1


async def test_cancel_task_of_an_ended_agent_raises_not_running(autojump_clock, journal):
    """The task runs, and belongs to the next start of its parent's agent. Thus `cancel_task` cannot answer that it has ended."""
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        session = await clerk.create_session("ada", session_id="s0")
        await session.delegate("helper", "help", task_id="task")
        runtime.stop("clerk")
        await trio.sleep(1)
        with pytest.raises(NotRunning):
            await session.cancel_task("task")


class SlowJournal(MemoryJournal):
    """Journal whose reads and writes take time."""

    read_seconds = write_seconds = 0.0

    async def _write(self, rows, heads, epoch):
        await trio.sleep(self.write_seconds)
        await super()._write(rows, heads, epoch)

    async def _read_some(self, keys):
        await trio.sleep(self.read_seconds)
        return await super()._read_some(keys)

    async def _read_tails(self, keys):
        await trio.sleep(self.read_seconds)
        return await super()._read_tails(keys)


async def test_close_that_outlives_its_agent_is_not_recorded(autojump_clock):
    """After the stop, the journal gets the task's report for the next start. A later close record would leave it without an end."""

    async def close(session):
        with pytest.raises(NotRunning):
            await session.aclose()

    model = ScriptedLLM(["read the report"], repeat=True)
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        clerk = await runtime.start(BareAgent("clerk", llm=model))
        session = await clerk.create_session("ada", session_id="s0")
        await session.delegate("helper", "help", task_id="task")
        await trio.sleep(5)
        journal.write_seconds = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(close, session)
            await trio.sleep(0.1)
            runtime.stop("clerk")
        assert await journal.unfinished("clerk") == ["s0"]
        clerk = await runtime.start(BareAgent("clerk", llm=model))
        session = await clerk.open_session("s0")
        await session.wait_idle()
        assert [each.text for each in session.history][-1] == "read the report"
        assert await journal.unfinished("clerk") == []


async def help_after_five_seconds(chat):
    await trio.sleep(5)
    return "done"


@pytest.mark.parametrize("is_opened", [True, False])
@pytest.mark.parametrize("seconds", [1, 1.75, 2.15, 2.45, 2.65, 3])
async def test_report_to_a_starting_agent_is_answered(autojump_clock, seconds, is_opened):
    """The agent starts while the report is being written for its next start, and a caller may load the session."""
    model = ScriptedLLM(["read the report"], repeat=True)
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(help_after_five_seconds)))
        clerk = await runtime.start(BareAgent("clerk", llm=model))
        session = await clerk.create_session("ada", session_id="s0")
        await session.delegate("helper", "help", task_id="task")
        runtime.stop("clerk")
        await trio.sleep(4)
        journal.read_seconds, journal.write_seconds = 1, 1.7
        await trio.sleep(1 + seconds)
        again = BareAgent("clerk", llm=model)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.start, again)
            for _ in range(2):  # the agent has started, and has not read the journal yet
                await trio.lowlevel.checkpoint()
            if is_opened:
                await again.open_session("s0")
        await trio.sleep(100)
        assert await journal.unfinished("clerk") == []
        session = await again.open_session("s0")
        assert [each.text for each in session.history][1:] == ["read the report"]


@tool(effect="idempotent", approval=True)
async def book(order: str) -> str:
    """Book an order."""
    return "booked"


@pytest.mark.parametrize("call", ["resume", "wait_idle"])
async def test_calls_return_if_their_agent_stops_during_the_write_of_a_decision(autojump_clock, call):
    """The decision is recorded, so the next start resumes the turn. Until then, nothing else ends the wait of the caller."""
    orders = [ToolCall("book", {"order": "one"}), ToolCall("book", {"order": "two"})]
    returned = []

    async def decide(clerk, approval):
        with pytest.raises(NotRunning):
            await clerk.resume({approval.id: Approve()})
        returned.append("resume")

    async def decide_and_wait(session, approval):
        with suppress(NotRunning):
            await session.answer(approval, Approve())

    async def wait(session):
        await session.wait_idle()
        returned.append("wait_idle")

    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([orders, "done"]), tools=[book]))
        session = await clerk.create_session("ada", "go", session_id="s0")
        await session.wait_idle()
        journal.write_seconds = 1
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                for approval in session.approvals:
                    if call == "resume":
                        nursery.start_soon(decide, clerk, approval)
                    else:
                        nursery.start_soon(decide_and_wait, session, approval)
                await trio.sleep(0.1)
                nursery.start_soon(wait, session)
                await trio.sleep(0.1)
                runtime.stop("clerk")
        journal.write_seconds = 0
        assert set(returned) == {call, "wait_idle"}
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["done"]), tools=[book]))
        session = await clerk.open_session("s0")
        await session.wait_idle()
        assert session.history[-1].text == "done"


@pytest.mark.parametrize("call", ["interrupt", "aclose"])
async def test_calls_of_a_suspended_session_return_after_its_agent_has_ended(autojump_clock, journal, call):
    """The next start resumes the suspended turn. Until then, nothing can end it."""

    @tool(approval=True)
    async def sign() -> str:
        """Sign."""
        return "signed"

    async with open_runtime(journal=journal) as runtime:
        model = ScriptedLLM(lambda _: ToolCall("sign", {}))
        clerk = await runtime.start(BareAgent("clerk", llm=model, tools=[sign]))
        session = await clerk.create_session("ada", session_id="s0")
        await session.chat("go")
        await session.wait_idle()
        assert session.approvals
        runtime.stop("clerk")
        await trio.sleep(1)
        with trio.fail_after(60), pytest.raises(NotRunning):
            await ENDS[call](session, {})
    async with open_runtime(journal=journal) as runtime:
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "done"), tools=[sign]))
        (approval,) = await clerk.approvals()
        assert str(await clerk.resume({approval.id: Reject("no")})) == "done"


class SlowChildren(MemoryJournal):
    """Journal that takes a second to list the child sessions of a session."""

    async def _list_children(self, keys):
        await trio.sleep(1)
        return await super()._list_children(keys)


async def test_cancel_task_during_the_stop_of_its_agent_raises_not_running(autojump_clock):
    """The call reads the journal while the agent stops. Afterwards, the task belongs to the next start."""
    async with SlowChildren().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        session = await clerk.create_session("ada", session_id="s0")
        await session.delegate("helper", "help", task_id="task")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_later, runtime, "clerk")
            with pytest.raises(NotRunning):
                await session.cancel_task("task")


async def test_cancel_task_after_the_stop_of_its_own_agent_raises_not_running(autojump_clock, journal):
    """The task is only in the journal, and its agent would continue it. Thus `cancel_task` cannot answer that it has ended."""
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"], repeat=True)))
        session = await clerk.create_session("ada", session_id="s0")
        await session.delegate("helper", "help", task_id="task")
        runtime.stop("helper")
        await trio.sleep(1)
        with pytest.raises(NotRunning):
            await session.cancel_task("task")
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        assert await session.cancel_task("task")


async def stop_later(runtime, name):
    await trio.sleep(0.1)
    runtime.stop(name)


async def test_delegate_that_outlives_the_stop_of_its_agent_creates_no_task(autojump_clock):
    """The next start of the agent would not find the task of its session in memory."""
    async with SlowJournal().running() as journal, open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        session = await clerk.create_session("ada", session_id="s0")
        journal.read_seconds = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_later, runtime, "clerk")
            with pytest.raises(NotRunning):
                await session.delegate("helper", "help", task_id="task")
        assert [each.session_id for each in await journal.sessions()] == ["s0"]


async def test_child_of_a_turn_that_resumes_survives_the_stop_of_its_agent(autojump_clock):
    """The turn stops before it asks for its child session again. The next start of the agent receives the result."""
    helping = trio.Event()

    async def help_in_time(chat):
        await helping.wait()
        return "helped"

    def make_helper():
        return BareAgent("helper", llm=ScriptedLLM(help_in_time))

    def make_clerk(helper):
        model = ScriptedLLM(
            lambda chat: "done" if len(chat.messages) > 1 else ToolCall("helper", {"task": "t"})
        )
        return BareAgent("clerk", llm=model, tools=[helper.as_tool()])

    async with SlowJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            clerk = await runtime.start(make_clerk(make_helper()))
            await (await clerk.create_session("ada", session_id="s0")).chat("go")
            await trio.sleep(5)
        async with open_runtime(journal=journal) as runtime:
            helper = await runtime.start(make_helper())
            await trio.sleep(1)
            journal.write_seconds = 1
            await runtime.start(make_clerk(helper))
            runtime.stop("clerk")
            await trio.sleep(10)
            clerk = await runtime.start(make_clerk(helper))
            helping.set()
            session = await clerk.open_session("s0")
            await session.wait_idle()
            (result,) = [each for message in session.history for each in message.tool_results]
            assert (result.status, result.content) == ("success", "helped")


async def test_cancel_task_keeps_its_session_in_memory(autojump_clock, monkeypatch):
    """An idle session that would leave memory during the call stays, and thus finds its task of an earlier process."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)

    @tool(approval=True)
    async def sign() -> str:
        """Sign."""
        return "signed"

    def agents():
        helper = BareAgent("helper", llm=ScriptedLLM(lambda _: ToolCall("sign", {})), tools=[sign])
        return helper, BareAgent("clerk", llm=ScriptedLLM(["hello"]))

    results = []
    async with SlowChildren().running() as journal:
        for _ in range(2):
            async with open_runtime(journal=journal) as runtime:
                helper, clerk = [await runtime.start(each) for each in agents()]
                session = await clerk.ensure_session("ada", "s0")
                if not await helper.approvals():
                    await session.delegate("helper", "help", task_id="task")
                    await trio.sleep(5)
                    continue

                async def cancel(session=session):
                    results.append(await session.cancel_task("task"))

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel)
                    await trio.sleep(0.5)
                    await clerk.create_session("ada", session_id="s1")
                    await clerk.create_session("ada", session_id="s2")
    assert results == [True]


async def test_reloaded_session_finds_a_task_that_was_loaded_in_the_meantime(
    autojump_clock, journal, monkeypatch
):
    """A session leaves memory, its task of an earlier process is loaded, and the session is used again by its handle."""
    monkeypatch.setattr(session_table, "MAX_LOADED_IDLE", 1)
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        session = await clerk.create_session("ada", session_id="s0")
        await session.delegate("helper", "help", task_id="task")
    async with open_runtime(journal=journal) as runtime:
        clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["hello"])))
        session = await clerk.open_session("s0")
        for other in ("s1", "s2"):
            await clerk.create_session("ada", session_id=other)
        assert "s0" not in clerk._require_opener().running.sessions
        helper = await runtime.start(BareAgent("helper", llm=ScriptedLLM(hang)))
        await helper.open_session("task")
        assert await session.cancel_task("task")


async def test_session_of_a_stopped_agent_changes_nothing_after_the_next_start():
    """A session object from before a restart of its agent neither removes schedules nor changes the state. The new one does."""
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        former = await agent.create_session("ada", session_id="s")
        schedule = await former.schedule("Water the plants.", after=100)
        runtime.stop("clerk")
        await trio.testing.wait_all_tasks_blocked()
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM([])))
        session = await agent.open_session("s")
        with pytest.raises(NotRunning):
            await former.unschedule(schedule.id)
        with pytest.raises(NotRunning):
            former.state.dispatch([("language", "en")])
        assert former.history == ()
        assert (dict(former.state), dict(session.state)) == ({}, {})
        assert [each.id for each in session.schedules] == [schedule.id]
        session.state.dispatch([("language", "de")])
        assert await session.unschedule(schedule.id)
    assert dict(session.state) == {"language": "de"}
