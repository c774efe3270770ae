"""Agents from synchronous code: `with open_portal() as portal`."""

import inspect
import os
import signal
import threading
import traceback
from contextlib import suppress
from contextvars import ContextVar

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from actgent import (
    Approve,
    BareAgent,
    ConfigurationError,
    Fenced,
    Interrupted,
    NotRunning,
    PlanAgent,
    PortalClosed,
    Reply,
    ScriptedLLM,
    Suspended,
    ThreadsStillRunning,
    Token,
    ToolCall,
    UsageError,
    UserCodeExit,
    WouldDeadlock,
    open_portal,
    open_runtime,
    tool,
)
from actgent.portal.trio_thread import TrioThread

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


def clerk(*texts, **options):
    return BareAgent("clerk", llm=ScriptedLLM(list(texts) or ["Yes."], repeat=not texts), **options)


# --- calls and handlers ---------------------------------------------------------------------


def test_run_returns_a_reply():
    """The shortest program: one agent, one reply. After that the agent can run elsewhere."""
    agent = clerk()
    with open_portal() as portal:
        assert str(portal.start(agent).run("Hello")) == "Yes."

    async def elsewhere():
        async with agent:
            return (await agent.run("Hello")).text

    assert trio.run(elsewhere) == "Yes."


def test_output_type_is_validated():
    """`output=` works on the agent and on the call."""

    @attrs.frozen
    class Offer:
        item: str
        price: float

    with open_portal() as portal:
        agent = portal.start(
            clerk('{"item": "boat", "price": 7}', '{"item": "oar", "price": 1}', output=Offer)
        )
        assert agent.run("Offer").data == Offer("boat", 7)
        assert agent.run("Offer", output=Offer).data.item == "oar"


def test_handlers_receive_the_replies_of_a_session():
    """Handlers passed to create_session receive the first reply, handlers attached later the following ones.

    Sync handlers run in a thread.
    """
    received, threads = [], set()

    def hear(reply, session):
        received.append((session.id, reply.text))
        threads.add(threading.current_thread().name)

    with open_portal() as portal:
        agent = portal.start(clerk("one", "two", "three", "four"))
        session = agent.create_session("ada", "First", session_id="s", on_conversation=hear)
        session.wait_idle()
        session.chat("Second")
        session.wait_idle()
        session.remove_handler(hear)
        late = session.on_conversation(lambda reply: received.append(reply.text))
        session.chat("Third")
        session.wait_idle()
        assert callable(late)
        assert received == [("s", "one"), ("s", "two"), "three"]
        assert "actgent portal" not in threads
        assert threading.current_thread().name not in threads
        assert [message.text for message in session.history] == [
            "First",
            "one",
            "Second",
            "two",
            "Third",
            "three",
        ]
        assert (session.status, session.usage.input_tokens >= 0, session.approvals) == ("idle", True, ())
        assert agent.open_session("s", owner="ada").id == "s"
        assert agent.ensure_session("ada", "t").history == ()
        assert agent.run("More", session=session).text == "four"


def test_handlers_are_attached_for_a_block():
    """The handlers are removed after the block."""
    received = []
    with open_portal() as portal:
        session = portal.start(clerk()).create_session("ada")
        with session.listening(on_conversation=received.append):
            session.chat("Hello")
            session.wait_idle()
        session.chat("Hello")
        session.wait_idle()
    assert [reply.text for reply in received] == ["Yes."]


def test_handler_can_use_its_session():
    """Handlers run in threads. They can send messages and read the session.

    A handler that would wait for itself gets an error.
    """
    seen = []

    def hear(reply, session):
        if not seen:
            seen.append(session.history[-1].text)
            session.chat("And more")
            catch(seen, session.wait_idle)

    with open_portal() as portal:
        session = portal.start(clerk()).create_session("ada", "Hello", on_conversation=hear)
        session.wait_idle()
        assert len(session.history) == 4
    assert seen[0] == "Yes."
    assert [type(error) for error in seen[1:]] == [WouldDeadlock]


def test_async_handler_runs_on_trio():
    """The handler runs on trio, because a synchronous program has no event loop."""
    received = []

    async def hear(reply, session):
        await trio.lowlevel.checkpoint()
        received.append((threading.current_thread().name, type(session).__name__))

    with open_portal() as portal:
        session = portal.start(clerk()).create_session("ada", "Hello", on_conversation=hear)
        session.wait_idle()
    assert received == [("actgent portal", "Session")]


def test_agent_hooks_run_in_threads():
    """on_session, on_query and on_message are called in threads, with the portal's session objects."""
    received = []
    with open_portal() as portal:
        chats = []
        model = ScriptedLLM([lambda chat: chats.append(str(chat.messages)) or "Yes."], repeat=True)
        agent = portal.start(BareAgent("clerk", llm=model))
        agent.on_session(lambda session: received.append(type(session).__name__))
        agent.on_message(lambda message: received.append(message.text))

        @agent.on_query
        def add(message):
            return "it is raining"

        agent.run("Hello")
        agent.remove_hook(add)
        agent.run("Bye")
    assert received == ["PortalSession", "Hello", "Yes.", "PortalSession", "Bye", "Yes."]
    assert ["raining" in chat for chat in chats] == [True, False]


def test_session_properties_can_be_read_and_state_changed():
    """The properties of a session can be read, and its state can be changed."""
    with open_portal() as portal:
        session = portal.start(clerk()).create_session("ada")
        session.dispatch(("colour", "red"))
        assert session.state["colour"] == "red"
        schedule = session.schedule("water", after=3600)
        assert [each.id for each in session.schedules] == [schedule.id]
        assert session.unschedule(schedule.id)


def test_stream_is_iterated(chatty):
    """Tokens arrive one by one and in order, then the reply. The loop ends with the turn."""
    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=chatty(250)))
        with agent.stream("Hello") as events:
            received = list(events)
    assert [event.text for event in received if isinstance(event, Token)] == [f"{n} " for n in range(250)]
    assert isinstance(received[-1], Reply)


def test_slow_reader_slows_the_model(chatty):
    """The model is ahead of the reader by at most the buffered items."""
    model = chatty(10_000)
    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=model))
        with agent.stream("Hello") as events:
            next(events)
            portal.call(trio.testing.wait_all_tasks_blocked)
            assert model.said <= 300
            assert sum(isinstance(event, Token) for event in events) == 9_999


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_leaving_a_stream_early_stops_the_turn(slow, error):
    """The turn is stopped after a normal exit and after an exception, as on trio."""
    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=slow))
        with suppress(ZeroDivisionError), agent.stream("Hello"):
            assert slow.begun.wait(10)
            if error is not None:
                raise error
        assert slow.stopped.wait(10)


def test_approval_resumes_a_turn():
    """A call waits for an approval. A decision resumes the turn, and a stream follows it."""

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    answers = [ToolCall("pay", {"amount": 7}), "Done.", ToolCall("pay", {"amount": 8}), "Again."]
    with open_portal() as portal:
        agent = portal.start(clerk(*answers, tools=[pay]))
        session = agent.create_session("ada")
        with pytest.raises(Suspended) as caught:
            agent.run("Pay 7", session=session)
        assert [each.tool_name for each in portal.approvals()] == ["pay"]
        assert agent.resume({caught.value.ids[0]: Approve()}).text == "Done."
        session.chat("Pay 8")
        session.wait_idle()
        with agent.follow(session) as events:
            session.answer(session.approvals[0], Approve())
            assert [event.text for event in events if isinstance(event, Reply)] == ["Again."]


def test_journal_outlives_the_portal(tmp_path):
    """The next portal resumes the session. While one portal owns the journal, a second one is rejected."""
    url = f"sqlite:///{tmp_path}/agents.db"
    with open_portal(journal=url) as portal:
        portal.start(clerk("one")).create_session("ada", "First", session_id="s").wait_idle()
        with pytest.raises(Fenced, match="is owned by process"), open_portal(journal=url):
            pass
    with open_portal(journal=url) as portal, portal.starting():
        agent = portal.start(clerk("two"))
        session = agent.open_session("s")
        session.chat("Second")
        session.wait_idle()
        assert [message.text for message in session.history] == ["First", "one", "Second", "two"]
        portal.delete_session("s")


def test_any_trio_function_can_be_called():
    """`call` runs sync and async functions in trio's thread, and `read` reads any channel."""
    with open_portal() as portal:
        planner = PlanAgent("planner", llm=ScriptedLLM([]))
        portal.start(planner)
        assert portal.call(threading.current_thread).name == "actgent portal"
        assert isinstance(portal.call(trio.current_time), float)
        with portal.events() as events:
            portal.start(clerk()).run("Hello")
            assert next(events) is not None
        portal.ready()


def test_many_threads_use_one_portal():
    """Each thread gets its own answers."""

    def answer(chat):
        return chat.messages[-1].parts[0].text[::-1]

    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=ScriptedLLM([answer], repeat=True)))
        received = {}

        def ask(number):
            for each in range(10):
                received[number, each] = agent.run(f"{number}.{each}").text

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert received == {(n, e): f"{n}.{e}"[::-1] for n in range(20) for e in range(10)}


def test_run_sync_returns_a_reply():
    """run_sync opens an agent for one reply, repeatedly. Inside a portal it uses the running agent."""
    agent = clerk()
    assert [agent.run_sync("Hello").text for _ in range(2)] == ["Yes.", "Yes."]
    with pytest.raises(ConfigurationError, match="choose one of"):
        agent.run_sync("Hello", priority="now or never")
    with open_portal() as portal:
        portal.start(agent)
        assert agent.run_sync("Hello").text == "Yes."
    assert agent.run_sync("Hello").text == "Yes."


async def test_run_sync_raises_inside_trio():
    """The error names the alternatives. It is also raised for an agent of another thread."""
    agent = clerk()
    with pytest.raises(UsageError, match=r"await agent.run\("):
        agent.run_sync("Hello")
    async with agent:
        with pytest.raises(UsageError, match="cannot reach: start the agent"):
            await trio.to_thread.run_sync(agent.run_sync, "Hello")


# --- context and cancellation ------------------------------------------------------------------


def test_context_variables_reach_tools_and_handlers():
    """Tools and handlers have the context variables of the caller. Values set there do not return to the caller."""
    seen = []

    @tool
    def look() -> str:
        """Look."""
        seen.append(("tool", TENANT.get()))
        TENANT.set("changed")
        return "seen"

    @tool
    async def alook() -> str:
        """Look."""
        seen.append(("async tool", TENANT.get()))
        return "seen"

    answers = [ToolCall("look", {}), ToolCall("alook", {}), "Done."]
    with open_portal() as portal:
        agent = portal.start(clerk(*answers, tools=[look, alook]))
        session = agent.create_session(
            "ada", on_conversation=lambda _: seen.append(("handler", TENANT.get()))
        )
        token = TENANT.set("acme")
        try:
            session.chat("Look")
            session.wait_idle()
            assert TENANT.get() == "acme"
        finally:
            TENANT.reset(token)
    assert seen == [("tool", "acme"), ("async tool", "acme"), ("handler", "acme")]


def test_exceptions_keep_their_traceback():
    """The traceback shows where the error was raised on trio, and where the call was made."""

    def explode():
        raise ZeroDivisionError("there")

    async def explode_later():
        await trio.lowlevel.checkpoint()
        explode()

    with open_portal() as portal:
        for fn in (explode, explode_later):
            with pytest.raises(ZeroDivisionError) as caught:
                portal.call(fn)
            names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
            assert names[0] == "test_exceptions_keep_their_traceback"
            assert names[-1] == "explode"


def test_cancellation_of_another_trio_run_keeps_the_portal():
    """A cancelled thread of another trio run ends its call, and does not affect the portal."""
    kept = []

    async def keep():
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                kept.append(error)
                raise

    async def raise_later():
        await trio.lowlevel.checkpoint()
        raise kept[0]

    trio.run(keep)
    with open_portal() as portal:
        agent = portal.start(clerk())
        with pytest.raises(UserCodeExit, match="Cancelled"):
            portal.call(raise_later)
        with pytest.raises(trio.Cancelled), agent.stream("Hello?"):
            raise kept[0]
        with pytest.raises(trio.Cancelled), portal.starting():
            raise kept[0]
        assert agent.run("Still there?").text == "Yes."


def test_ctrl_c_right_after_sending_stops_the_turn(slow, monkeypatch):
    """The turn is also stopped if Ctrl-C arrives before the caller waits."""
    post, pressed = TrioThread._post, []

    def interrupted(self, fn, call):
        post(self, fn, call)
        if fn == self._begin and not pressed:
            pressed.append(True)
            assert slow.begun.wait(10)
            raise KeyboardInterrupt

    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=slow))
        monkeypatch.setattr(TrioThread, "_post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            agent.run("Hello")
        monkeypatch.undo()
        assert slow.stopped.wait(10)


def test_ctrl_c_stops_the_turn(slow):
    """The call raises KeyboardInterrupt when the turn has been stopped. The portal stays usable."""

    def press():
        slow.begun.wait(10)
        os.kill(os.getpid(), signal.SIGINT)

    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=slow))
        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt):
            agent.run("Hello")
        assert slow.stopped.wait(10)
        assert portal.call(trio.current_time)


# --- close ---------------------------------------------------------------------------------------


def test_closing_finishes_accepted_messages():
    """A normal exit of the block finishes accepted messages within the grace period, like a runtime's block."""
    received = []
    with open_portal() as portal:
        agent = portal.start(clerk())
        for number in range(20):
            agent.create_session(f"user {number}", "Hello", on_conversation=received.append)
    assert len(received) == 20


def test_pending_call_raises_when_the_portal_closes(slow):
    """A call of another thread that gets no result within the grace period raises PortalClosed, and so do later calls."""
    received = []
    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=slow, grace=0.0))
        forever = threading.Thread(target=catch, args=(received, lambda: portal.call(trio.sleep_forever)))
        asking = threading.Thread(target=catch, args=(received, lambda: agent.run("Hello")))
        forever.start()
        asking.start()
        assert slow.begun.wait(10)
    forever.join(10)
    asking.join(10)
    assert sorted(type(error).__name__ for error in received) == ["PortalClosed", "Stopped"]
    with pytest.raises(PortalClosed, match=r"the portal was closed: open another one with open_portal\(\)"):
        agent.run("Hello")
    with pytest.raises(PortalClosed):
        portal.events().__enter__()
    portal.close()


def catch(told, fn):
    try:
        fn()
    except Exception as error:  # noqa: BLE001 - the test checks the error
        told.append(error)


def test_stream_ends_with_its_portal(slow):
    """The reader gets an error. Exiting the stream's block after that has no effect."""
    portal = open_portal().open()
    agent = portal.start(BareAgent("clerk", llm=slow))
    with pytest.raises(PortalClosed), agent.stream("Hello") as events:  # noqa: PT012 - the exit of the block may raise too
        assert slow.begun.wait(10)
        portal.abort()
        next(events)


def test_exception_stops_the_agents_at_once(slow):
    """As after an exception in a runtime's block, the portal does not wait, and the exception is raised."""
    with pytest.raises(ZeroDivisionError), open_portal() as portal:  # noqa: PT012 - the exit of the block may raise too
        session = portal.start(BareAgent("clerk", llm=slow, grace=1000)).create_session("ada", "Hello")
        assert session.id
        assert slow.begun.wait(10)
        raise ZeroDivisionError
    assert slow.cancelled == 1


def test_error_of_the_runtime_is_raised():
    """At the end the error names a tool thread that does not return, as with a runtime."""
    release = threading.Event()

    @tool(timeout=0.01)
    def hang() -> str:
        """Hang."""
        release.wait(30)
        return ""

    with pytest.raises(ThreadsStillRunning, match="hang"), open_portal(thread_grace=0.0) as portal:
        portal.start(clerk(ToolCall("hang", {}), "Done.", tools=[hang])).run("Hello")
    release.set()


def test_error_on_opening_is_raised():
    """The failed portal leaves no thread."""
    with pytest.raises(ConfigurationError, match="durability"), open_portal(durability="none"):
        pass


def test_portal_can_be_opened_once():
    """Opening the same block again raises."""
    block = open_portal()
    with block:
        pass
    with pytest.raises(UsageError, match="already opened"), block:
        pass


# --- errors ---------------------------------------------------------------------------------------


async def test_portal_raises_inside_trio():
    """Opening a portal, and calling a portal of another thread, raise an error that names the alternative."""
    with pytest.raises(UsageError, match=r"use `async with open_runtime\(\) as runtime`"), open_portal():
        pass
    with pytest.raises(UsageError, match="open_runtime"):
        await open_portal()
    portal = await trio.to_thread.run_sync(open_portal().open)
    try:
        with pytest.raises(UsageError, match="await the agent or session itself"):
            portal.call(trio.current_time)
        assert await trio.to_thread.run_sync(portal.call, trio.current_time)
    finally:
        await trio.to_thread.run_sync(portal.close)


def test_portal_call_from_its_own_thread_raises():
    """An async tool would wait for itself. A sync tool runs in a thread, and may call the portal."""

    @tool
    async def wrong() -> str:
        """Ask."""
        return str(helper.run("Hello"))

    @tool
    def right() -> str:
        """Ask."""
        with pytest.raises(UsageError, match="close it after they return"):
            portal.close()
        return str(helper.run("Hello"))

    with open_portal() as portal:
        helper = portal.start(BareAgent("helper", llm=ScriptedLLM(["I help."], repeat=True)))
        agent = portal.start(
            clerk(ToolCall("wrong", {}), ToolCall("right", {}), "Done.", tools=[wrong, right])
        )
        session = agent.create_session("ada")
        agent.run("Hello", session=session)
        results = [message.tool_results[0] for message in session.history if message.tool_results]
    assert "await the agent or session itself" in results[0].text
    assert results[1].text == "I help."


def test_turns_of_two_portals_are_separate():
    """A tool of one portal that calls an agent of another portal is not part of a turn there."""
    with open_portal() as inner, open_portal() as outer:
        helper = inner.start(BareAgent("helper", llm=ScriptedLLM(["I help."], repeat=True)))

        @tool
        def ask() -> str:
            """Ask."""
            session = helper.create_session("eve", "Hello")
            session.wait_idle()
            return helper.run("Hello", session=session).text

        agent = outer.start(clerk(ToolCall("ask", {}), "Done.", tools=[ask]))
        assert agent.run("Hello").text == "Done."
        with pytest.raises(ConfigurationError, match="is already running"):
            outer.start(helper.inner)


def test_call_in_a_forked_process_raises():
    """A forked child has no portal thread: calls raise, and its exit does not hang."""
    with open_portal() as portal:
        agent = portal.start(clerk())
        receiving, sending = os.pipe()
        child = os.fork()
        if not child:  # the child: no pytest code may run in it
            try:
                agent.run("Hello")
            except PortalClosed as error:
                os.write(sending, str(error).encode())
            finally:
                portal.close()
                os._exit(0)
        os.close(sending)
        with os.fdopen(receiving, encoding="utf-8") as told:
            text = told.read()
        os.waitpid(child, 0)
        assert "belongs to the parent process" in text
        assert agent.run("Hello").text == "Yes."


def test_open_portal_has_the_options_of_open_runtime():
    """Each option of open_runtime is also an option of open_portal."""
    assert inspect.signature(open_portal).parameters == inspect.signature(open_runtime).parameters


def test_agent_errors_are_the_same_as_on_trio(slow):
    """An interrupted turn and a stopped agent raise the same errors as on trio."""
    received = []
    with open_portal() as portal:
        agent = portal.start(BareAgent("clerk", llm=slow))
        session = agent.create_session("ada")
        thread = threading.Thread(target=catch, args=(received, lambda: agent.run("Hello", session=session)))
        thread.start()
        assert slow.begun.wait(10)
        session.interrupt("enough")
        thread.join(10)
        portal.call(portal.runtime.stop, "clerk")
        portal.call(trio.testing.wait_all_tasks_blocked)
        with pytest.raises(NotRunning):
            agent.run("Hello")
    assert [type(error) for error in received] == [Interrupted]
