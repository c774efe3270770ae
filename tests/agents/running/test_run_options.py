"""`run` and `stream` with a sender, a priority, a timeout, and a message id that makes them idempotent."""

from functools import partial

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    DeadlineExceeded,
    DuplicateMessage,
    Failure,
    Interrupted,
    Label,
    ModelError,
    Priority,
    Reply,
    RouterAgent,
    ScriptedLLM,
    Sender,
    StepsAgent,
    Suspended,
    Token,
    ToolCall,
    open_runtime,
    tool,
)


@tool(approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


class Slow:
    """A model that answers when it is let go, with the number of its call."""

    def __init__(self):
        self.gate, self.calls, self.stopped = trio.Event(), 0, 0

    async def __call__(self, chat):
        self.calls += 1
        number = self.calls
        try:
            await self.gate.wait()
        except trio.Cancelled:
            self.stopped += 1
            raise
        return f"answer {number}"


@pytest.fixture
def slow():
    return Slow()


def agent_of(script, **options):
    return BareAgent("tutor", llm=ScriptedLLM(script), **options)


async def streamed(agent, *args, **options):
    async with agent.stream(*args, **options) as events:
        return [event async for event in events if not isinstance(event, Token)]


# --- who says it, and how urgent it is ---------------------------------------------------------


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_run_accepts_sender_and_priority(way):
    """The message in the record has them."""
    async with agent_of(lambda _: "ok") as agent:
        session = await agent.create_session("ada")
        options = {"session": session, "sender": Sender("clock", "system"), "priority": "high"}
        if way == "run":
            await agent.run("tick", **options)
        else:
            await streamed(agent, "tick", **options)
        message = session.history[0]
    assert (message.sender, message.priority) == (Sender("clock", "system"), Priority.HIGH)


@pytest.mark.parametrize("kind", [BareAgent, StepsAgent])
async def test_unknown_priorities_of_run_are_rejected(kind):
    """The error suggests the nearest priority, and no message is sent."""
    async with kind("tutor", llm=ScriptedLLM(["ok"])) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="'URGENT'"):
            await agent.run("go", session=session, priority="urgnet")
        with pytest.raises(ConfigurationError, match="'URGENT'"):
            await streamed(agent, "go", session=session, priority="urgnet")
        assert session.history == ()


async def test_urgent_run_stops_the_running_turn(slow):
    failures = []
    async with agent_of(slow) as agent:
        session = await agent.create_session("ada", "slow one")
        session.on_exception(failures.append)
        await trio.testing.wait_all_tasks_blocked()
        slow.gate.set()
        reply = await agent.run("now", session=session, priority="URGENT")
        assert reply.text.startswith("answer")
        assert session.history[-2].text == "now"


# --- timeout -----------------------------------------------------------------------------------


async def test_run_timeout_stops_its_turn(slow, autojump_clock):
    """The caller gets the error at the timeout, and the model call ends."""
    async with agent_of(slow) as agent:
        session = await agent.create_session("ada")
        started = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="5"):
            await agent.run("go", session=session, timeout=5)
        assert trio.current_time() - started == 5
        await session.wait_idle()
        assert (slow.stopped, session.status) == (1, "idle")


async def test_queued_run_times_out_and_never_begins(slow, autojump_clock):
    """Its message is not answered later."""
    async with agent_of(slow) as agent:
        session = await agent.create_session("ada", "first")
        with pytest.raises(DeadlineExceeded):
            await agent.run("second", session=session, timeout=5)
        slow.gate.set()
        await session.wait_idle()
        assert slow.calls == 1


@pytest.mark.parametrize("is_queued", [False, True])
async def test_stream_timeout_ends_with_a_failure(slow, autojump_clock, is_queued):
    """The last delivery has the reason; the turn stops or does not begin."""
    async with agent_of(slow) as agent:
        session = await agent.create_session("ada", "first" if is_queued else "")
        started = trio.current_time()
        [failure] = await streamed(agent, "go", session=session, timeout=5)
        assert isinstance(failure, Failure)
        assert (failure.kind, type(failure.error)) == ("deadline", DeadlineExceeded)
        assert trio.current_time() - started == 5
        slow.gate.set()
        await session.wait_idle()
        assert (slow.calls, slow.stopped) == ((1, 0) if is_queued else (1, 1))


async def test_an_answer_before_the_deadline_is_accepted(autojump_clock):
    """The timer of the deadline is removed."""
    async with agent_of(lambda _: "ok") as agent:
        assert (await agent.run("go", timeout=5)).text == "ok"
        [reply] = await streamed(agent, "go", timeout=5)
        assert reply.text == "ok"
        await trio.sleep(10)
        with pytest.raises(ConfigurationError, match="timeout"):
            await agent.run("go", timeout=-1)
        with pytest.raises(ConfigurationError, match="timeout"):
            await streamed(agent, "go", timeout="soon")


# --- said once -----------------------------------------------------------------------------------


async def test_repetition_of_an_ended_message_gets_the_same_reply():
    """The model is called once for any number of repetitions by run or stream; the record has the message once."""
    llm = ScriptedLLM(["one", "two"])
    async with BareAgent("tutor", llm=llm) as agent:
        session = await agent.create_session("ada")
        options = {"session": session, "message_id": "m1"}
        first = await agent.run("go", **options)
        assert await agent.run("go", **options) is first
        assert await streamed(agent, "go", **options) == [first]
        assert await session.chat("go", message_id="m1") == "m1"
        assert (len(llm.chats), len(session.history)) == (1, 2)
        assert (await agent.run("go", session=session, message_id="m2")).text == "two"


@tool(untrusted=True, effect="pure")
async def page() -> str:
    """Read a page."""
    return "text"


def _fail(_):
    raise ValueError("no")


LAST_ANSWERS = {"one": "one", "event": '{"messageType": "note", "content": "one"}', "error": _fail}


async def _outcome(agent, by, **options):
    """Return the last delivery of a run or a stream; a failure if it raises the error of the model."""
    try:
        return (
            await agent.run("go", **options) if by == "run" else (await streamed(agent, "go", **options))[-1]
        )
    except ModelError as error:
        return Failure(kind="model", error=error, message_id="m1")


@pytest.mark.parametrize("by", ["run", "stream"])
@pytest.mark.parametrize("answer", LAST_ANSWERS)
async def test_a_repetition_after_the_last_delivery_gets_the_outcome(by, answer):
    """A repetition during the handler of the last delivery gets the delivered reply with its label, or the error."""
    delivered, gate, found = trio.Event(), trio.Event(), []

    async def hold(_):
        delivered.set()
        await gate.wait()

    async def repeat():
        found.append(await _outcome(agent, by, session=session, message_id="m1"))

    kind = RouterAgent if answer == "event" else BareAgent
    llm = ScriptedLLM([ToolCall("page", {}), LAST_ANSWERS[answer]])
    async with kind("tutor", llm=llm, tools=[page]) as agent:
        session = await agent.create_session("ada")
        for attach in (session.on_conversation, session.on_event, session.on_exception):
            attach(hold)
        await session.chat("go", message_id="m1")
        await delivered.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(repeat)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
    (outcome,) = found
    if answer == "error":
        assert "ValueError: no" in str(outcome.error)
    else:
        expected = ("one", None) if answer == "one" else ("", "note")
        assert (outcome.text, outcome.message_type, outcome.label) == (*expected, Label({"page"}))


async def test_repetition_of_a_failed_message_gets_the_same_error():
    """The message does not run a second time."""

    def broken(_):
        raise ValueError("no")

    async with agent_of(broken) as agent:
        session = await agent.create_session("ada")
        for _ in range(2):
            with pytest.raises(ModelError, match="ValueError: no"):
                await agent.run("go", session=session, message_id="m1")
        [failure] = await streamed(agent, "go", session=session, message_id="m1")
        assert isinstance(failure.error.__cause__, ValueError)


@pytest.mark.parametrize("by", ["run", "stream", "chat"])
async def test_repetitions_join_running_and_queued_messages(slow, by):
    """Repetitions during the queue and during the turn get the same answer."""
    replies = []

    async def repeat(text):
        replies.append(await agent.run(text, session=session, message_id="m1"))

    async with agent_of(slow) as agent, trio.open_nursery() as nursery:
        session = await agent.create_session("ada", "first")
        if by == "chat":
            await session.chat("go", message_id="m1")
        elif by == "run":
            nursery.start_soon(repeat, "go")
        else:
            nursery.start_soon(streamed_to, replies, agent, session)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(repeat, "while it waits")
        await trio.testing.wait_all_tasks_blocked()
        slow.gate.set()
        slow.gate = trio.Event()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(repeat, "while it runs")
        await trio.testing.wait_all_tasks_blocked()
        slow.gate.set()
    assert [reply.text for reply in replies] == ["answer 2"] * (2 if by == "chat" else 3)
    assert slow.calls == 2
    assert [message.text for message in session.history] == ["first", "answer 1", "go", "answer 2"]


async def streamed_to(replies, agent, session):
    replies += [
        event
        for event in await streamed(agent, "go", session=session, message_id="m1")
        if isinstance(event, Reply)
    ]


@pytest.mark.parametrize("is_queued", [False, True])
async def test_a_cancelled_repetition_does_not_stop_the_turn(slow, is_queued):
    """Other callers, or the handlers of a chat, receive the answer nevertheless."""
    received = []
    async with agent_of(slow) as agent:
        session = await agent.create_session("ada", "first" if is_queued else "")
        session.on_conversation(lambda reply: received.append(reply.text))
        await session.chat("go", message_id="m1")
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0):
            await agent.run("go", session=session, message_id="m1")
        with pytest.raises(DeadlineExceeded):
            await agent.run("go", session=session, message_id="m1", timeout=0.01)
        [failure] = await streamed(agent, "go", session=session, message_id="m1", timeout=0.01)
        assert failure.kind == "deadline"
        slow.gate.set()
        await session.wait_idle()
    assert received[-1] == f"answer {len(received)}"
    assert slow.stopped == 0


async def test_a_cancelled_run_stays_stopped_for_its_repetition(slow):
    """The message was accepted and has ended as stopped. A repetition does not run it again."""
    async with agent_of(slow) as agent:
        session = await agent.create_session("ada")
        with trio.move_on_after(0.01):
            await agent.run("go", session=session, message_id="m1")
        await session.wait_idle()
        with pytest.raises(Interrupted):
            await agent.run("go", session=session, message_id="m1")
        assert slow.calls == 1


async def test_a_repeated_message_of_a_suspended_turn_raises_suspended():
    """The first call raised it as well, and the decision applies to both."""
    async with agent_of([ToolCall("pay", {}), "done"], tools=[pay]) as agent:
        session = await agent.create_session("ada")
        for _ in range(2):
            with pytest.raises(Suspended) as caught:
                await agent.run("go", session=session, message_id="m1")
        reply = await agent.resume({caught.value.ids[0]: Approve()})
        assert reply.text == "done"
        assert await agent.run("go", session=session, message_id="m1") == reply


async def test_rejected_message_can_be_sent_again(slow):
    """The suspended turn rejected the message, so its id is unused."""

    async def wish(chat):
        last = chat.messages[-1]
        if last.role == "user" and last.parts[0].text == "pay":
            await slow(chat)
            return ToolCall("pay", {})
        return "ok"

    async with agent_of(wish, tools=[pay]) as agent:
        session = await agent.create_session("ada", "pay")
        suspended = []

        async def ask():
            with pytest.raises(Suspended) as caught:
                await agent.run("go", session=session, message_id="m1")
            suspended.append(caught.value.ids)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
            slow.gate.set()
        [ids, same] = suspended
        assert ids == same
        await session.answer(ids[0], Approve())
        await session.wait_idle()
        assert (await agent.run("go", session=session, message_id="m1")).text == "ok"


async def test_repetition_after_a_restart_refers_to_the_history(tmp_path):
    """The reply is not stored for repetitions. The journal has only the fact that the message was answered."""
    url = f"sqlite:///{tmp_path}/x.db"
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(agent_of(["one"]))
        session = await agent.create_session("ada", session_id="s")
        await agent.run("go", session=session, message_id="m1")
    async with open_runtime(journal=url) as runtime:
        agent = await runtime.start(agent_of(["two"]))
        session = await agent.open_session("s")
        with pytest.raises(DuplicateMessage, match="history"):
            await agent.run("go", session=session, message_id="m1")
        assert session.history[-1].text == "one"


async def test_a_message_id_needs_a_session():
    """A new session has no earlier messages."""
    async with agent_of(["ok"]) as agent:
        with pytest.raises(ConfigurationError, match="session="):
            await agent.run("go", message_id="m1")


# --- two callers, one of whom is cancelled -------------------------------------------------------


class CancelAfter(trio.abc.Instrument):
    """Cancels a scope after so many steps of one task."""

    def __init__(self, steps):
        self.left, self.task, self.scope = steps, None, trio.CancelScope()

    def after_task_step(self, task):
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


@pytest.mark.parametrize("journal", [None, "memory:"], ids=["", "journal"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "repetition"])
async def test_a_caller_that_is_cancelled_at_any_step_leaves_the_other_with_an_end(journal, is_first):
    """The other gets the reply, or the error that the turn was stopped before it joined; a third caller gets the same."""
    for steps in range(1, 40):
        calls, ends = [], {}

        async def answer(chat, calls=calls):
            calls.append(1)
            await trio.lowlevel.checkpoint()
            return "ok"

        async with open_runtime(journal=journal) as runtime:
            agent = await runtime.start(agent_of(answer))
            session = await agent.create_session("ada")

            async def ask(name, agent=agent, session=session, ends=ends):
                try:
                    ends[name] = (await agent.run("go", session=session, message_id="m1")).text
                except Interrupted:
                    ends[name] = "interrupted"

            async def cancelled(ask=ask, steps=steps):
                canceller = CancelAfter(steps)
                canceller.task = trio.lowlevel.current_task()
                trio.lowlevel.add_instrument(canceller)
                with canceller.scope:
                    await ask("cancelled")
                trio.lowlevel.remove_instrument(canceller)

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancelled if is_first else partial(ask, "other"))
                    await trio.lowlevel.checkpoint()
                    nursery.start_soon(partial(ask, "other") if is_first else cancelled)
                await session.wait_idle()
                await ask("third")
            assert ends["third"] == ends["other"]
            assert ends["other"] == "ok" or is_first
            assert len(calls) <= 1
            assert session.status == "idle"
            statistics = agent._opener.running.inbox.statistics()
            assert (statistics.claimed, statistics.waiting) == (0, 0)
