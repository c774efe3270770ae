"""Interruption and URGENT messages in every phase of a turn."""

import threading
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import pytest
import trio

from actgent import LLM, BareAgent, Limits, Priority, ScriptedLLM, SimpleAgent, ToolCall, open_runtime, tool
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text
from actgent.testing import FaultyJournal, assert_no_leaks, assert_valid_transcript


def last_text(chat):
    return "".join(getattr(part, "text", "") for part in chat.messages[-1].parts)


async def never(chat):
    await trio.sleep_forever()


def hear(session):
    """Record the values that the session's handlers receive, in order."""
    log = []
    session.on_conversation(lambda reply: log.append(reply.text))
    session.on_exception(lambda failure: log.append(failure.kind))
    session.on_tool_result(lambda result: log.append(result.status))
    return log


@attrs.define(eq=False)
class Stage:
    """A point at which a turn is held: `reached` is set when the turn arrives, `go` releases it."""

    reached: trio.Event = attrs.field(factory=trio.Event)
    go: trio.Event = attrs.field(factory=trio.Event)
    thread_go: threading.Event = attrs.field(factory=threading.Event)
    cancelled: int = 0

    async def hold(self):
        self.reached.set()
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise

    def hold_thread(self):
        trio.from_thread.run_sync(self.reached.set)
        self.thread_go.wait(10)


class Model(LLM):
    """A model that acts as the first message of a session says, and answers everything else."""

    name = "test:model"

    def __init__(self, stage, first):
        self.stage = stage
        self.first = first
        self.chats = []

    async def complete(self, chat, *, on_text=None):
        self.chats.append(chat)
        assert_valid_transcript(chat)
        if len(self.chats) > 1:
            await trio.lowlevel.checkpoint()
            return ModelResponse(parts=(Text(f"re: {last_text(chat)}"),))
        if callable(self.first):
            return await self.first(self.stage, on_text)
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=tuple(self.first), stop="tool_calls")


async def in_call(stage, on_text):
    await stage.hold()


async def streaming(stage, on_text):
    await on_text("Once upon", 0)
    await on_text(" a time", 0)
    await stage.hold()


@asynccontextmanager
async def held(phase):
    """Return an agent with a session whose first turn is held in `phase`."""
    stage = Stage()

    @tool
    async def wait() -> str:
        await stage.hold()
        return "done"

    @tool(effect="pure")
    async def look() -> str:
        await stage.hold()
        return "done"

    @tool(exclusive=True)
    async def wait_alone() -> str:
        await stage.hold()
        return "done"

    @tool
    def wait_in_thread() -> str:
        stage.hold_thread()
        return "done"

    @tool(thread=False)
    def quick() -> str:
        return "quick"

    @tool(retries=3, retry_on=ValueError, retry_delay=1000)
    async def again() -> str:
        stage.reached.set()
        raise ValueError("not yet")

    first = {
        "model": in_call,
        "streaming": streaming,
        "tool": [ToolCall("wait", {})],
        "pure tool": [ToolCall("look", {})],
        "thread": [ToolCall("wait_in_thread", {})],
        "alone": [ToolCall("quick", {}), ToolCall("wait_alone", {}), ToolCall("quick", {})],
        "side by side": [ToolCall("quick", {}), ToolCall("wait", {}), ToolCall("look", {})],
        "retry": [ToolCall("again", {})],
        "handler": [ToolCall("quick", {})],
    }[phase]
    model = Model(stage, first)
    agent = BareAgent(name="a", llm=model, tools=[wait, look, wait_alone, wait_in_thread, quick, again])
    async with agent:
        session = await agent.create_session("ada")
        if phase == "streaming":
            session.on_token(lambda _: None)
        log = hear(session)
        if phase == "handler":

            @session.on_tool_result
            async def hold(result):
                await stage.hold()

        await session.chat("begin")
        await stage.reached.wait()
        try:
            yield session, model, stage, log
        finally:
            stage.thread_go.set()


PHASES = {
    "model": [],
    "streaming": [],
    "tool": ["outcome_unknown"],
    "pure tool": ["cancelled"],
    "thread": ["outcome_unknown"],
    "alone": ["success", "outcome_unknown", "cancelled"],
    "side by side": ["success", "outcome_unknown", "cancelled"],
    "retry": ["outcome_unknown"],
}
"""The statuses of the calls of a turn that was stopped there."""


@pytest.mark.parametrize("phase", PHASES)
async def test_interrupt_stops_a_turn_in_every_phase(phase):
    """The message ends as interrupted, each call has one result, and no model call follows."""
    async with assert_no_leaks(), held(phase) as (session, model, _, log):
        with trio.fail_after(60):
            await session.interrupt("enough")
        assert log == [*PHASES[phase], "interrupted"]
        assert session.status == "idle"
        assert len(model.chats) == 1
        await session.chat("and now?")
        await session.wait_idle()
        assert log[len(PHASES[phase]) + 1 :] == ["re: and now?"]


@pytest.mark.parametrize("phase", PHASES)
async def test_an_urgent_message_stops_a_turn_and_is_answered_next(phase):
    """Queued messages follow it; the stopped message ends as interrupted."""
    async with assert_no_leaks(), held(phase) as (session, model, _, log):
        await session.chat("later")
        await session.chat("soon", priority="high")
        with trio.fail_after(60):
            await session.chat("stop!", priority=Priority.URGENT)
            await session.wait_idle()
        assert log == [*PHASES[phase], "interrupted", "re: stop!", "re: soon", "re: later"]
        assert len(model.chats) == 4


async def test_partial_text_stays_in_the_record_marked_as_cut():
    """The received part is an assistant message, and the next request is valid with it."""
    async with held("streaming") as (session, model, _, _):
        await session.interrupt()
        cut = [message for message in session.history if message.cut]
        assert [(message.text, message.sender.kind) for message in cut] == [("Once upon a time", "assistant")]
        await session.chat("go on")
        await session.wait_idle()
    assert_valid_transcript(model.chats[-1])


@pytest.mark.parametrize("how", ["interrupt", "urgent"])
async def test_a_handler_is_never_cancelled(how):
    """The turn ends after its handler. The caller of interrupt() waits for that."""
    async with held("handler") as (session, model, stage, log), trio.open_nursery() as nursery:
        if how == "urgent":
            await session.chat("stop!", priority=Priority.URGENT)
        else:
            nursery.start_soon(session.interrupt, "enough")
        await trio.testing.wait_all_tasks_blocked()
        assert (stage.cancelled, log) == (0, ["success"])
        stage.go.set()
        await session.wait_idle()
        assert stage.cancelled == 0
        assert log == ["success", "interrupted", *(["re: stop!"] if how == "urgent" else [])]
        assert len(model.chats) == (2 if how == "urgent" else 1)


@pytest.mark.parametrize("how", ["interrupt", "urgent"])
async def test_a_token_handler_is_never_cancelled(how):
    """The handler runs inside of the model call, which stops as soon as the handler has ended."""
    stage = Stage()

    async def stream(stage, on_text):
        await on_text("Once", 0)
        await on_text(" upon", 0)
        await trio.sleep_forever()

    model = Model(stage, stream)
    async with BareAgent(name="a", llm=model) as agent, trio.open_nursery() as nursery:
        session = await agent.create_session("ada")
        log, tokens = hear(session), []

        @session.on_token
        async def slow(token):
            await stage.hold()
            tokens.append(token.text)

        await session.chat("begin")
        await stage.reached.wait()
        if how == "urgent":
            await session.chat("stop!", priority=Priority.URGENT)
        else:
            nursery.start_soon(session.interrupt, "enough")
        await trio.testing.wait_all_tasks_blocked()
        assert (stage.cancelled, log) == (0, [])
        stage.go.set()
        await session.wait_idle()
        assert stage.cancelled == 0
        assert tokens[0] == "Once"
        assert " upon" not in tokens
        assert log == ["interrupted", *(["re: stop!"] if how == "urgent" else [])]


async def test_queued_turn_can_be_interrupted_before_its_start():
    """Directly after `chat`, before the task of the turn ran, the model is not called."""
    model = ScriptedLLM(["answer"], repeat=True)
    async with BareAgent(name="a", llm=model) as agent:
        session = await agent.create_session("ada", "first")
        log = hear(session)
        await session.interrupt()
        assert (log, model.chats, session.status) == (["interrupted"], [], "idle")
        with trio.CancelScope() as scope:
            scope.cancel()
            with pytest.raises(trio.Cancelled):
                await session.chat("never taken")
        await session.wait_idle()
        assert log == ["interrupted"]


async def test_an_urgent_message_right_after_the_first_is_answered_alone():
    """The first message is stopped before the model call."""
    model = ScriptedLLM(lambda chat: f"re: {last_text(chat)}")
    async with BareAgent(name="a", llm=model) as agent:
        session = await agent.create_session("ada", "first")
        log = hear(session)
        await session.chat("stop!", priority=Priority.URGENT)
        await session.wait_idle()
    assert log == ["interrupted", "re: stop!"]
    assert len(model.chats) == 1


async def test_interrupt_can_drop_queued_messages():
    """Each dropped message, including URGENT ones, ends as interrupted and never reaches the model."""
    async with held("model") as (session, model, _, log):
        failures = []
        session.on_exception(lambda failure: failures.append(failure.message_id))
        ids = [await session.chat(f"queued {number}") for number in range(3)]
        await session.interrupt(drop_queued=True)
        assert log == ["interrupted"] * 4
        assert failures[1:] == ids
        assert session.status == "idle"
        await session.chat("after")
        await session.wait_idle()
        assert (log[4:], len(model.chats)) == (["re: after"], 2)


@pytest.mark.parametrize("with_journal", [False, True])
@pytest.mark.parametrize("second", ["message", "all", "close"])
@pytest.mark.parametrize("first", ["message", "all"])
async def test_two_callers_stop_one_queued_message(first, second, with_journal, autojump_clock):
    """Both callers return, the message has one failure, and the running turn continues."""

    async def disk(_):
        await trio.sleep(0.2)

    async def stop(session, how):
        if how == "close":
            await session.aclose()
        elif how == "all":
            await session.interrupt(drop_queued=True)
        else:
            await session.interrupt(message_id="m1")

    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(FaultyJournal().running()) if with_journal else None
        runtime = await stack.enter_async_context(open_runtime(journal=journal))
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["Yes."], repeat=True, delay=10)))
        session = await agent.create_session("ada")
        failures = []
        session.on_exception(lambda failure: failures.append((failure.message_id, failure.kind)))
        await session.chat("First", message_id="m0")
        await trio.sleep(1)
        await session.chat("Second", message_id="m1")
        if journal is not None:
            journal.fault = disk
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for how in (first, second, "message"):
                    nursery.start_soon(stop, session, how)
                    await trio.sleep(0.05)
    assert [each for each in failures if each[0] == "m1"] in ([("m1", "interrupted")], [("m1", "stopped")])


async def test_a_cancelled_interrupt_still_ends_the_dropped_messages():
    """Each dropped message ends although the caller of `interrupt` is cancelled."""
    async with held("handler") as (session, _, stage, log):
        await session.chat("queued")
        with trio.move_on_after(0) as scope:
            await session.interrupt(drop_queued=True)
        assert scope.cancelled_caught
        stage.go.set()
        await session.wait_idle()
        assert log == ["success", "interrupted", "interrupted"]


async def test_a_cancelled_aclose_still_ends_queued_messages():
    """The session is closed nevertheless, and its messages end as stopped."""
    async with held("handler") as (session, _, stage, log):
        await session.chat("queued")
        with trio.move_on_after(0) as scope:
            await session.aclose()
        assert scope.cancelled_caught
        stage.go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["success", "interrupted", "stopped"]
        assert session.status == "closed"


@pytest.mark.parametrize("where", ["tool", "tool handler", "reply handler", "exception handler"])
async def test_a_session_can_interrupt_itself(where):
    """The session does not wait for its own end, and no further model call follows."""

    @tool
    async def stop() -> str:
        if where == "tool":
            await session.interrupt("from the tool")
        return "done"

    model = ScriptedLLM([ToolCall("stop", {}), "answer", "next"])

    async def interrupt(_, session):
        await session.interrupt(f"from the {where}")

    async with BareAgent(name="a", llm=model, tools=[stop]) as agent:
        session = await agent.create_session("ada")
        log = hear(session)
        if where == "tool handler":
            session.on_tool_result(interrupt)
        elif where == "reply handler":
            session.on_conversation(interrupt)
        elif where == "exception handler":
            session.on_exception(interrupt)
        with trio.fail_after(60):
            await session.chat("begin")
            await session.wait_idle()
    expected = {
        "tool": ["outcome_unknown", "interrupted"],
        "tool handler": ["success", "interrupted"],
        "reply handler": ["success", "answer"],
        "exception handler": ["success", "answer"],
    }
    assert log == expected[where]


async def test_output_retry_can_be_stopped():
    """The second model call of a turn is stopped like the first."""
    stage = Stage()

    async def second(chat):
        await stage.hold()

    model = ScriptedLLM(["no JSON at all {", second, "here {", "still {", "nothing {"])
    async with SimpleAgent(name="a", llm=model) as agent:
        session = await agent.create_session("ada", "begin")
        log = hear(session)
        await stage.reached.wait()
        await session.chat("stop!", priority=Priority.URGENT)
        await session.wait_idle()
    assert log[0] == "interrupted"
    assert session.status == "idle"
    assert "stop!" in str(model.chats[2].messages[-1])
    for chat in model.chats:
        assert_valid_transcript(chat)


@pytest.mark.parametrize("phase", PHASES)
async def test_aclose_stops_a_turn_in_every_phase(phase):
    """The running message ends as interrupted, queued ones as stopped. Further messages are rejected."""
    async with assert_no_leaks(), held(phase) as (session, model, _, log):
        await session.chat("queued")
        await session.aclose()
        assert log == [*PHASES[phase], "interrupted", "stopped"]
        assert session.status == "closed"
        assert len(model.chats) == 1
        await session.aclose()


async def test_aclose_closes_the_whole_tree():
    """A child with a slow handler does not delay the end of its siblings or its parent."""
    release, stopped = trio.Event(), []

    async def wait(chat):
        try:
            await trio.sleep_forever()
        finally:
            stopped.append(last_text(chat))

    async with BareAgent(name="a", llm=ScriptedLLM(wait)) as agent, trio.open_nursery() as nursery:
        parent = await agent.create_session("ada", "parent")
        children = [
            await agent.create_session("ada", f"child {number}", parent=parent) for number in range(3)
        ]
        grandchild = await agent.create_session("ada", "grandchild", parent=children[1])

        @children[0].on_exception
        async def slow(failure):
            await release.wait()

        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(parent.aclose)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(stopped) == ["child 0", "child 1", "child 2", "grandchild", "parent"]
        release.set()
        await parent.aclose()
    assert [s.status for s in (parent, *children, grandchild)] == ["closed"] * 5
    assert parent.children == ()


async def test_a_session_can_close_itself():
    """A handler closes it: the turn ends, and the handler does not wait for itself."""
    async with BareAgent(name="a", llm=ScriptedLLM(["answer"], repeat=True)) as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        async def close(reply, session):
            await session.aclose()

        with trio.fail_after(60):
            await session.chat("begin")
            await session.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        assert session.status == "closed"


async def test_urgent_messages_do_not_stop_each_other():
    """They are answered in their order."""
    stage, calls = Stage(), []

    async def answer(chat):
        calls.append(last_text(chat))
        await stage.hold()
        return f"re: {calls[-1]}"

    async with BareAgent(name="a", llm=ScriptedLLM(answer)) as agent:
        session = await agent.create_session("ada")
        log = hear(session)
        await session.chat("urgent 1", priority=Priority.URGENT)
        await stage.reached.wait()
        await session.chat("urgent 2", priority=Priority.URGENT)
        await session.chat("normal")
        await trio.testing.wait_all_tasks_blocked()
        assert (log, stage.cancelled) == ([], 0)
        stage.go.set()
        await session.wait_idle()
    assert log == ["re: urgent 1", "re: urgent 2", "re: normal"]


async def test_interrupt_stops_an_urgent_message():
    """Only other URGENT messages do not stop it."""
    async with held("model") as (session, _, _, log):
        await session.interrupt()
    async with BareAgent(name="a", llm=ScriptedLLM(never)) as agent:
        session = await agent.create_session("ada")
        log = hear(session)
        await session.chat("now", priority=Priority.URGENT)
        await trio.testing.wait_all_tasks_blocked()
        await session.interrupt()
        assert log == ["interrupted"]


async def test_urgent_message_stops_only_its_own_session():
    gate = trio.Event()

    async def answer(chat):
        if "wait" in last_text(chat):
            await gate.wait()
        return f"re: {last_text(chat)}"

    async with BareAgent(name="a", llm=ScriptedLLM(answer)) as agent:
        sessions = [await agent.create_session("ada", f"wait {number}") for number in range(5)]
        logs = [hear(session) for session in sessions]
        await trio.testing.wait_all_tasks_blocked()
        await sessions[2].chat("stop!", priority=Priority.URGENT)
        await sessions[2].wait_idle()
        gate.set()
        for session in sessions:
            await session.wait_idle()
    assert logs[2] == ["interrupted", "re: stop!"]
    assert [log for log in logs if log is not logs[2]] == [[f"re: wait {n}"] for n in (0, 1, 3, 4)]


async def test_a_cancelled_run_stops_its_turn_and_its_session():
    """No caller waits for the answer, so no model call continues."""
    stage = Stage()
    model = Model(stage, in_call)
    async with assert_no_leaks(), BareAgent(name="a", llm=model) as agent:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent.run, "begin")
                await stage.reached.wait()
                scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert stage.cancelled == 1
        assert not agent._opener.running.sessions


async def test_leaving_a_stream_stops_its_turn():
    """The model generates no further tokens."""
    stage = Stage()
    async with BareAgent(name="a", llm=Model(stage, streaming)) as agent:
        async with agent.stream("begin") as events:
            assert (await events.receive()).text == "Once upon"
            await stage.reached.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert stage.cancelled == 1
        assert not agent._opener.running.sessions


async def test_a_reader_that_interrupts_does_not_wait_for_itself():
    """The end of the turn is delivered, although the answer has more tokens than the stream holds."""

    async def flood(stage, on_text):
        while True:
            await on_text("x", 0)

    async with BareAgent(name="a", llm=Model(Stage(), flood)) as agent:
        session = await agent.create_session("ada")
        with trio.fail_after(60):
            async with agent.stream("begin", session=session) as events:
                await trio.testing.wait_all_tasks_blocked()
                await session.interrupt()
                rest = [event async for event in events]
    assert rest[-1].kind == "interrupted"


async def test_a_cancelled_ask_stops_the_asked_agent(autojump_clock):
    """A deadline of the caller that passes also ends the work."""
    stage = Stage()
    async with BareAgent(name="a", llm=Model(stage, in_call)) as agent:
        with pytest.raises(TimeoutError):
            await agent.ref.ask("begin", deadline=2)
        await trio.testing.wait_all_tasks_blocked()
        assert stage.cancelled == 1
        assert not agent._opener.running.sessions


async def test_model_timeout_is_not_an_interruption(autojump_clock):
    """It ends the message as a model failure."""
    async with BareAgent(name="a", llm=ScriptedLLM(never), limits=Limits(model_timeout=3)) as agent:
        session = await agent.create_session("ada", "begin")
        log = hear(session)
        await session.wait_idle()
    assert log == ["model"]


async def test_interrupt_during_a_drain_ends_the_turn_as_interrupted(autojump_clock):
    """A handler interrupts the turn while the block exits. The turn does not end as stopped."""
    async with BareAgent(name="a", llm=ScriptedLLM(never)) as agent:
        slow = await agent.create_session("ada", "one")
        log = hear(slow)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def stop():
                await trio.sleep(2)
                await slow.interrupt()

            await trio.lowlevel.checkpoint()
    assert log == ["interrupted"]


@pytest.mark.parametrize("first", ["interrupt", "stop"])
async def test_an_interruption_and_the_end_of_the_block_at_the_same_moment(first):
    """Two reasons to stop cause one end: the message fails once, and waiting callers are resumed."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                async with BareAgent(name="a", llm=ScriptedLLM(never)) as agent:
                    session = await agent.create_session("ada", "begin")
                    log = hear(session)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(session.interrupt)
                    if first == "interrupt":
                        session._context.turn.interrupt("both")
                    scope.cancel()
                    session._context.turn.interrupt("both")
                    await trio.lowlevel.checkpoint()
    assert log in (["interrupted"], ["stopped"])
    assert session._context.pending == 0
