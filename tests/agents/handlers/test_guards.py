"""Guards of messages, concurrent with the model call, and of answers, before their delivery."""

import asyncio
import threading

import pytest
import trio
import trio.testing

from actgent import (
    AgentBuilder,
    ApprovalRequest,
    Approve,
    BareAgent,
    ConfigurationError,
    Edit,
    GuardrailTripped,
    HandlerFailed,
    Image,
    LimitReached,
    Limits,
    ModelError,
    Refuse,
    Reject,
    Reply,
    Respond,
    ScriptedLLM,
    SimpleAgent,
    Suspended,
    ToolCall,
    UsageError,
    open_portal,
    open_runtime,
    tool,
)


@pytest.fixture(params=["none", "memory", "sqlite"])
def journal(request, tmp_path):
    """Without a journal, and with each kind that needs no server."""
    return {"none": None, "memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/agents.db"}[request.param]


class Slow:
    """A model that answers when it is let, and knows whether it was cancelled."""

    def __init__(self, text="Hello."):
        self.text, self.asked, self.go, self.cancelled = text, trio.Event(), trio.Event(), False
        self.llm = ScriptedLLM(self.answer)

    async def answer(self, chat):
        self.asked.set()
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled = True
            raise
        return self.text


# --- messages -----------------------------------------------------------------------------------------


async def test_rejected_message_cancels_the_model_call(journal, listen):
    """No handler receives an answer, the record has none, and the next message is answered."""
    slow = Slow()
    agent = BareAgent("clerk", llm=slow.llm)

    @agent.guard
    async def polite(message):
        await slow.asked.wait()
        return Refuse("be polite") if "fool" in message.text else None

    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "You fool")
        received = listen(session, tokens=True)
        await session.wait_idle()
        assert slow.cancelled
        assert [(each.kind, str(each.error)) for each in received] == [
            ("guard", f"the guard {polite.__qualname__} rejected it: be polite")
        ]
        assert [message.text for message in session.history] == ["You fool"]
        slow.go.set()
        assert str(await agent.run("Please", session=session)) == "Hello."


async def test_an_answer_is_held_until_the_guard_agrees(journal, listen):
    """The model may finish before the guard. Until then no token, reply or record of its answer exists."""
    agreed, done = trio.Event(), trio.Event()
    agent = BareAgent("clerk", llm=ScriptedLLM(["Hello there, Ada."], chunk=3))

    @agent.guard
    async def patient(message):
        done.set()
        await agreed.wait()

    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "Hello")
        received = listen(session, tokens=True)
        await done.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert received == []
        assert len(session.history) == 1
        agreed.set()
        await session.wait_idle()
        assert "".join(str(each.text) for each in received[:-1]) == received[-1].text == "Hello there, Ada."


async def test_guard_and_model_run_concurrently(autojump_clock):
    """A turn takes as long as the longer of the two."""

    async def answer(chat):
        await trio.sleep(3)
        return "Hello."

    agent = BareAgent("clerk", llm=ScriptedLLM(answer))

    @agent.guard
    async def slow(message):
        await trio.sleep(2)

    async with agent:
        started = trio.current_time()
        await agent.run("Hello")
        assert trio.current_time() - started == pytest.approx(3)


async def test_each_message_is_guarded_once(journal):
    """Tool results and the model's own text are not guarded; each of several collected messages is."""
    looked = []

    @tool
    def add(a: int) -> int:
        """Add."""
        return a

    agent = BareAgent("clerk", llm=ScriptedLLM([[ToolCall("add", {"a": 1})], "1."]), tools=[add])

    @agent.guard
    def look(message, session):
        looked.append((session.id, message.text))

    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", session_id="s")
        assert str(await agent.run("1?", session=session)) == "1."
    assert looked == [("s", "1?")]


async def test_all_collected_messages_are_guarded():
    """One rejected message rejects all messages that are answered with it."""
    looked, slow = [], Slow()
    agent = BareAgent("clerk", llm=slow.llm, on_busy="collect")

    @agent.guard
    def look(message):
        looked.append(message.text)
        return Refuse("no") if message.text == "two" else None

    async with agent:
        session = await agent.create_session("ada", "one")
        failures = []
        session.on_exception(failures.append)
        await slow.asked.wait()
        for text in ("two", "three"):
            await session.chat(text)
        slow.go.set()
        await session.wait_idle()
        assert looked == ["one", "two"]
        assert [failure.kind for failure in failures] == ["guard", "guard"]


@pytest.mark.parametrize("wrong", ["raises", "returns", "hangs"])
async def test_a_failing_guard_rejects_the_answer(wrong, autojump_clock):
    """An unguarded answer is not delivered, and the error names the guard."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["Hello."]), handler_timeout=5)

    @agent.guard
    async def broken(message):
        if wrong == "hangs":
            await trio.sleep_forever()
        if wrong == "raises":
            raise KeyError("x")
        return "some text"

    async with agent:
        with pytest.raises(HandlerFailed, match="broken"):
            await agent.run("Hello")


async def test_an_error_of_the_model_ends_the_guard(autojump_clock):
    """The caller gets it at once."""
    ended = []

    def fail(chat):
        raise LookupError("no model")

    agent = BareAgent("clerk", llm=ScriptedLLM(fail))

    @agent.guard
    async def slow(message):
        try:
            await trio.sleep(20)
        finally:
            ended.append(trio.current_time())

    async with agent:
        started = trio.current_time()
        with pytest.raises(ModelError, match="no model"):
            await agent.run("Hello")
        assert ended == [started]


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_interruption_ends_guard_and_model_call(how, autojump_clock):
    """The next message has a separate turn and a separate guard call."""
    looked, slow = [], Slow()
    agent = BareAgent("clerk", llm=slow.llm)

    @agent.guard
    async def look(message):
        looked.append(message.text)
        if message.text == "one":
            await trio.sleep_forever()

    async with agent:
        session = await agent.create_session("ada")
        if how == "cancel":
            with trio.move_on_after(1):
                await agent.run("one", session=session)
        else:
            await session.chat("one")
            await slow.asked.wait()
            await session.interrupt()
        await session.wait_idle()
        slow.go.set()
        assert str(await agent.run("two", session=session)) == "Hello."
        assert slow.cancelled
        assert looked == ["one", "two"]


async def test_cancelled_model_call_counts_as_usage(autojump_clock):
    """The provider may bill a cancelled call."""
    slow = Slow()
    agent = BareAgent("clerk", llm=slow.llm)

    @agent.guard
    async def never(message):
        await slow.asked.wait()
        return Refuse("no")

    async with agent:
        session = await agent.create_session("ada", limits=Limits(model_calls=1))
        with pytest.raises(GuardrailTripped):
            await agent.run("Hello", session=session)
        with pytest.raises(LimitReached):
            await agent.run("Hello", session=session)


# --- answers -------------------------------------------------------------------------------------------


async def test_an_answer_guard_rejects_or_replaces(journal, listen):
    """Handlers, waiting callers and followers receive the guard's result, and no token of any other text."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["The code is 1234.", "It is secret.", "Hello."] * 2, chunk=4))

    @agent.guard(on="answer")
    def discreet(reply):
        if "secret" in reply.text:
            return Refuse("it tells a secret")
        return reply.text.replace("1234", "****") if "1234" in reply.text else None

    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada")
        received = listen(session, tokens=True)
        assert str(await agent.run("Code?", session=session)) == "The code is ****."
        with pytest.raises(GuardrailTripped, match="it tells a secret"):
            await agent.run("Secret?", session=session)
        assert str(await agent.run("Hello", session=session)) == "Hello."
        assert [getattr(each, "text", "") or each.kind for each in received] == [
            "The code is ****.",
            "guard",
            "Hello.",
        ]
        read = []
        async with agent.stream("Code?", session=session) as deliveries:
            read = [each async for each in deliveries]
        assert [each.text for each in read] == ["The code is ****."]


async def test_answer_guards_run_in_order():
    """Each guard gets the result of the one before. A removed guard is not called."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["a"], repeat=True))
    first = agent.guard(lambda reply: reply.text + "b", on="answer")
    agent.guard(lambda reply: reply.text + "c", on="answer")
    async with agent:
        assert str(await agent.run("x")) == "abc"
        agent.remove_hook(first)
        assert str(await agent.run("x")) == "ac"


async def test_events_of_a_rejected_answer_are_not_delivered(listen):
    """Events precede the reply in the answer, and wait for the guard's decision about it."""
    text = '{"messageType": "conversation", "content": "Hello"}'
    agent = SimpleAgent("clerk", llm=ScriptedLLM([text]))
    agent.guard(lambda _: Refuse("no"), on="answer")
    async with agent:
        session = await agent.create_session("ada", "x")
        received = listen(session)
        await session.wait_idle()
        assert [type(each).__name__ for each in received] == ["Failure"]


# --- crashes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("on", ["message", "answer"])
async def test_guard_decision_survives_a_crash(mortal, on, refuses):
    """After a crash at any write the next process applies a written decision without a new guard call."""
    deaths = 0
    for steps in range(1, 12):
        requests, ends, written = [], [], []

        def guard(thing, requests=requests):
            requests.append(thing)
            if refuses:
                return Refuse("no")
            return "Other words." if on == "answer" else None

        async def life(journal, ends=ends, guard=guard, written=written):
            async with open_runtime(journal=journal) as runtime:
                agent = BareAgent("clerk", llm=ScriptedLLM(["Hello."], repeat=True))
                agent.guard(guard, on=on)

                @agent.on_session
                def attach(session):
                    session.on_conversation(lambda reply: ends.append(reply.text))
                    session.on_exception(lambda failure: ends.append(failure.kind))

                await runtime.start(agent)
                session = await agent.ensure_session("ada", "s")
                if not session.history and not session._context.pending:
                    await session.chat("Hello", message_id="m")
                await session.wait_idle()

        async with mortal().running() as journal:
            died = await journal.live(life, steps=steps)
            records = await journal.load("s", agent="clerk") if await journal.agents_with_session("s") else ()
            decided = sum(type(record).__name__ == "GuardDecisionRecord" for record in records)
            before = len(requests)
            await journal.live(life)
            deaths += died
            assert decided <= 1
            if decided:
                assert len(requests) == before == 1
            expected = "guard" if refuses else "Other words." if on == "answer" else "Hello."
            assert set(ends) - {"stopped"} == {expected}  # the dying process may still say so
    assert deaths >= 4


# --- inputs ---------------------------------------------------------------------------------------------


def hidden(message):
    """Hide card numbers; a message about weapons is refused."""
    if "weapon" in message.text:
        return Refuse("no weapons")
    return message.text.replace("4111", "****") if "4111" in message.text else None


async def test_an_input_guard_keeps_text_out_of_model_and_journal(tmp_path):
    """The record has the replacement, and the journal file does not contain the original text."""
    llm = ScriptedLLM(["Hello.", "Bye."])
    path = tmp_path / "agents.db"
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm))
        agent.guard(hidden, on="input")
        session = await agent.create_session("ada", "card 4111", session_id="s")
        await session.wait_idle()
        await agent.run(["again 4111", Image(media_type="image/png", data=b"png")], session=session)
        messages = [message for message in session.history if message.sender.kind == "user"]
        assert [message.text for message in messages] == ["card ****", "again ****"]
        assert isinstance(messages[1].parts[1], Image)
    assert all("4111" not in repr(chat.messages) for chat in llm.chats)
    assert all(b"4111" not in file.read_bytes() for file in tmp_path.iterdir())


async def test_message_rejected_by_an_input_guard_is_not_accepted():
    """The sender gets the error, and a session with this first message is not created."""
    llm = ScriptedLLM(["Hello."])
    async with BareAgent("clerk", llm=llm) as agent:
        agent.guard(hidden, on="input")
        session = await agent.create_session("ada")
        with pytest.raises(GuardrailTripped, match="no weapons"):
            await session.chat("a weapon")
        with pytest.raises(GuardrailTripped, match="no weapons"):
            await agent.create_session("ada", "a weapon", session_id="w")
        with pytest.raises(GuardrailTripped, match="no weapons"):
            await agent.run("a weapon", session=session)
        assert (session.history, session.status) == ((), "idle")
        assert "w" not in agent._opener.running.sessions
        agent.remove_hook(hidden)
        assert str(await agent.run("a weapon", session=session)) == "Hello."


@pytest.mark.parametrize("answer", [7, ["text"]])
async def test_a_failing_input_guard_rejects_the_message(answer):
    """An input guard fails closed as other guards do. The error names its return value or exception."""
    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        agent.guard(lambda _: answer, on="input")
        with pytest.raises(HandlerFailed, match="must return None, a string or Refuse"):
            await agent.run("Hello")
    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        agent.guard(lambda message: message.nothing, on="input")
        with pytest.raises(HandlerFailed, match="nothing"):
            await agent.run("Hello")


@pytest.mark.parametrize("raised", [SystemExit(2), asyncio.CancelledError(), GeneratorExit()])
async def test_a_failing_input_guard_keeps_the_agent_running(raised):
    """An exception that is not an `Exception`, e.g. SystemExit of argparse, fails only its call."""

    def leave(message):
        raise raised

    async with BareAgent("clerk", llm=ScriptedLLM([])) as agent:
        agent.guard(leave, on="input")
        with pytest.raises(HandlerFailed, match=type(raised).__name__):
            await agent.run("Hello")


def test_async_input_guard_is_rejected():
    """An async guard could not decide before the message is accepted.

    The error names the kind of guard that can wait.
    """

    async def slow(message):
        await trio.sleep(1)

    with pytest.raises(ConfigurationError, match="on='message'"):
        BareAgent("clerk", llm=ScriptedLLM([])).guard(slow, on="input")


# --- how they are attached ------------------------------------------------------------------------------


def test_invalid_guard_is_rejected():
    """The error names the problem."""
    agent = BareAgent("clerk", llm=ScriptedLLM([]))
    with pytest.raises(ConfigurationError, match="did you mean 'answer'"):
        agent.guard(print, on="answers")
    with pytest.raises(ConfigurationError, match=r"guard\(\)"):
        agent.guard(7)


async def test_a_builder_attaches_guards_of_each_kind():
    """Agents of the new builder have the guards, and the earlier builder has none."""
    plain = AgentBuilder("clerk").llm(ScriptedLLM(["code 1234"], repeat=True))
    guarded = plain.guard(hidden, on="input").guard(lambda reply: reply.text.replace("1", "*"), on="answer")
    async with guarded.build() as agent:
        assert str(await agent.run("4111")) == "code *234"
        with pytest.raises(GuardrailTripped):
            await agent.run("weapon")
    async with plain.build() as agent:
        assert str(await agent.run("weapon")) == "code 1234"


def test_portal_agents_have_guards():
    """All three kinds work in synchronous code. Guards of messages and answers are called in the portal's threads."""
    threads = []

    def no_weather(message):
        threads.append(threading.current_thread())
        return Refuse("no weather") if "weather" in message.text else None

    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=ScriptedLLM(["code 1234"], repeat=True)))
        agent.guard(no_weather)
        agent.guard(on="answer")(lambda reply: reply.text.replace("1", "*"))
        agent.guard(hidden, on="input")
        assert str(agent.run("Hello")) == "code *234"
        with pytest.raises(GuardrailTripped, match="no weather"):
            agent.run("the weather?")
        with pytest.raises(GuardrailTripped, match="no weapons"):
            agent.run("a weapon")
        assert all(thread is not portal.thread for thread in threads)
        assert len(threads) == 2
        agent.remove_hook(no_weather)
        assert str(agent.run("the weather?")) == "code *234"


# --- guards that ask a person -----------------------------------------------------------------------------


def asking(on, question="Is this fine?"):
    """Return an agent with a guard that asks about each message or answer of Bob, and the requests of its model."""
    llm = ScriptedLLM(["code 1234"], repeat=True)
    agent = BareAgent("clerk", llm=llm)
    agent.guard(lambda _: ApprovalRequest(question), on=on)
    return agent, llm


@pytest.mark.parametrize("on", ["message", "answer"])
async def test_guard_may_request_an_approval(on, journal, listen):
    """No handler receives the answer before the decision. An approved answer is delivered unchanged."""
    agent, llm = asking(on)
    async with open_runtime(journal=journal) as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", "my code?")
        received, approvals = listen(session, tokens=True), []
        session.on_approval(approvals.append)
        await session.wait_idle()
        assert (session.status, received) == ("suspended", [])
        (approval,) = await agent.approvals()
        assert approvals == [approval]
        text = "my code?" if on == "message" else "code 1234"
        assert (approval.question, approval.arguments) == ("Is this fine?", {"text": text})
        with pytest.raises(UsageError, match="Approve, Reject or Respond"):
            await session.answer(approval, Edit({"text": "x"}))
        await session.answer(approval, Approve())
        await session.wait_idle()
        assert str([item for item in received if isinstance(item, Reply)][-1]) == "code 1234"
        assert (session.status, session.approvals) == ("idle", ())
        assert [message.text for message in session.history] == ["my code?", "code 1234"]
        with pytest.raises(Suspended):
            await agent.run("again?", session=session)  # each message is asked about
    assert len(llm.chats) <= (4 if on == "message" else 2)


@pytest.mark.parametrize("on", ["message", "answer"])
async def test_rejected_guard_approval_rejects_the_answer(on):
    """The rejection has the approver's reason. An expired approval rejects the answer as well."""
    agent, _ = asking(on)
    async with agent:
        session = await agent.create_session("ada", "my code?")
        with pytest.raises(Suspended) as waiting:
            await agent.run("x", session=await agent.create_session("bob"))
        with pytest.raises(GuardrailTripped, match="not today"):
            await agent.resume({waiting.value.ids[0]: Reject("not today")})
        await session.interrupt()
        await session.wait_idle()
        assert session.approvals == await agent.approvals() == ()


async def test_an_approver_replaces_the_answer():
    """The approver's response is the answer; the record keeps the model's text."""
    agent, _ = asking("answer")
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(Suspended) as waiting:
            await agent.run("my code?", session=session)
        assert str(await agent.resume({waiting.value.ids[0]: Respond("I may not say.")})) == "I may not say."
        assert session.history[-1].text == "code 1234"


async def test_expired_guard_approval_rejects_the_message(autojump_clock):
    """The deadline is that of the approval request."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["Hello."], repeat=True))
    agent.guard(lambda _: ApprovalRequest("Fine?", timeout=5), on="answer")
    failures = []
    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_exception(failures.append)
        await session.wait_idle()
        await trio.sleep(6)
        await session.wait_idle()
    assert [failure.kind for failure in failures] == ["guard"]
    assert "in time" in str(failures[0].error)


@pytest.mark.parametrize("on", ["message", "answer"])
async def test_guard_approval_survives_a_crash_at_each_write(on, mortal, autojump_clock):
    """The next process lists the approval, and delivers the answer after it is approved."""
    suspensions = 0
    for steps in range(1, 10):
        received = []

        async def life(journal, received=received):
            nonlocal suspensions
            async with open_runtime(journal=journal) as runtime:
                agent, _ = asking(on)
                agent.on_session(lambda session: session.on_conversation(received.append))
                await runtime.start(agent)
                session = await agent.ensure_session("ada", "s")
                await session.chat("my code?", message_id="m")
                await session.wait_idle()
                for approval in session.approvals:
                    suspensions += 1
                    await session.answer(approval, Approve())
                await session.wait_idle()

        async with mortal().running() as journal:
            await journal.live(life, steps=steps)
            await journal.live(life)
            async with open_runtime(journal=journal) as runtime:
                agent, _ = asking(on)
                await runtime.start(agent)
                session = await agent.open_session("s")
                assert [message.text for message in session.history] == ["my code?", "code 1234"]
                assert (session.status, session.approvals) == ("idle", ())
        assert {str(reply) for reply in received} == {"code 1234"}
    assert suspensions > 9
