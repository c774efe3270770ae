"""Handlers: their calls, their arguments, and their failures."""

import functools
import logging
import time

import pytest
import trio

from actgent import (
    BareAgent,
    HandlerFailed,
    InboxFull,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    WouldDeadlock,
    tool,
)


class Ear:
    """Callables of every kind that a handler may be."""

    def __init__(self):
        self.got = []

    def one(self, reply):
        self.got.append((reply,))

    def two(self, reply, session):
        self.got.append((reply, session))

    def optional(self, reply, session=None):
        self.got.append((reply, session))

    def many(self, *args):
        self.got.append(args)

    def one_and_many(self, reply, *rest, flag=False):
        self.got.append((reply, *rest))

    async def coroutine(self, reply, session):
        await trio.lowlevel.checkpoint()
        self.got.append((reply, session))

    def __call__(self, reply, session):
        self.got.append((reply, session))


def shouted(handler):
    """A decorator as people write them."""

    @functools.wraps(handler)
    def wrapper(*args, **options):
        return handler(*args, **options)

    return wrapper


CASES = {
    "method": (lambda ear: ear.one, 1),
    "method with session": (lambda ear: ear.two, 2),
    "default": (lambda ear: ear.optional, 1),
    "args": (lambda ear: ear.many, 1),
    "one and args": (lambda ear: ear.one_and_many, 1),
    "async": (lambda ear: ear.coroutine, 2),
    "callable": (lambda ear: ear, 2),
    "builtin": (lambda ear: ear.got.append, 0),
    "lambda": (lambda ear: lambda reply: ear.got.append((reply,)), 1),
    "lambda with session": (lambda ear: lambda reply, session: ear.got.append((reply, session)), 2),
    "partial that leaves one": (lambda ear: functools.partial(Ear.one, ear), 1),
    "partial that leaves two": (lambda ear: functools.partial(Ear.two, ear), 2),
    "wrapped": (lambda ear: shouted(ear.two), 2),
}


@pytest.mark.parametrize("case", CASES)
async def test_handlers_with_two_parameters_get_the_session(make, case):
    """The session is the second argument if two positional parameters have no default."""
    build, count = CASES[case]
    ear = Ear()
    agent, _ = make("hello")
    async with agent:
        session = await agent.create_session("ada", "hi")
        handler = build(ear)
        assert session.on_conversation(handler) is handler
        await session.wait_idle()
    (got,) = ear.got
    if count:
        assert str(got[0]) == "hello"
        assert got[1:] in (((session,)) if count == 2 else (), (None,), ())
        assert (session in got[1:]) is (count == 2)


async def test_print_can_be_a_handler(make, capsys):
    """This is the first example of the contract."""
    agent, _ = make("hello")
    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_conversation(print)
        await session.wait_idle()
    assert capsys.readouterr().out == "hello\n"


async def test_handler_that_is_not_callable_is_rejected(make):
    """The error is raised at the registration."""
    agent, _ = make("hello")
    async with agent:
        session = await agent.create_session("ada")
        with pytest.raises(TypeError, match="handler"):
            session.on_conversation("print")


async def test_several_handlers_of_a_kind_run_in_order_of_registration(make):
    """Each handler, sync or async, ends before the next begins."""
    agent, _ = make("hello")
    order = []
    async with agent:
        session = await agent.create_session("ada", "hi")

        @session.on_conversation
        def first(reply):
            order.append("first")

        @session.on_conversation
        async def second(reply):
            await trio.testing.wait_all_tasks_blocked()
            order.append("second")

        session.on_conversation(lambda _: order.append("third"))
        await session.wait_idle()
    assert order == ["first", "second", "third"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_raising_handler_is_a_failure_and_the_next_handler_runs(make, listen, is_async):
    """The error names the handler and has its cause. The turn is answered nevertheless."""
    agent, _ = make("hello", "again")

    def broken(reply):
        raise LookupError("lost")

    async def broken_later(reply):
        await trio.lowlevel.checkpoint()
        raise LookupError("lost")

    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_conversation(broken_later if is_async else broken)
        received = listen(session)
        await session.wait_idle()
        await session.chat("more")
        await session.wait_idle()
    failure, reply, *_ = received
    assert (failure.kind, str(reply)) == ("handler", "hello")
    assert isinstance(failure.error, HandlerFailed)
    assert isinstance(failure.error.__cause__, LookupError)
    assert "broken" in str(failure.error)
    assert failure.message_id == session.history[0].id
    assert len(received) == 4


async def test_a_handler_of_failures_that_raises_is_only_logged(make, listen, caplog):
    """No further handler can be notified of its error; the next handler of failures is called."""
    agent, _ = make(LookupError("lost"), "fine")
    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_exception(lambda _: 1 / 0)
        received = listen(session)
        await session.wait_idle()
        await session.chat("again")
        await session.wait_idle()
    assert [getattr(item, "kind", "reply") for item in received] == ["model", "reply"]
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_async_handler_is_cancelled_at_its_timeout(autojump_clock, listen):
    """The timeout is a separate failure, and the other handlers run."""
    agent = BareAgent("a", llm=ScriptedLLM(["hello"]))
    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_conversation(lambda _: trio.sleep(31))  # noqa: ASYNC105 - awaited by the session
        received = listen(session)
        began = trio.current_time()
        await session.wait_idle()
    assert trio.current_time() - began == pytest.approx(30)
    assert [getattr(item, "kind", "reply") for item in received] == ["handler", "reply"]
    assert "handler_timeout" in str(received[0].error)


async def test_handler_timeout_is_an_option_of_the_agent(autojump_clock, listen):
    agent = BareAgent("a", llm=ScriptedLLM(["hello"]), handler_timeout=2)
    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_conversation(lambda _: trio.sleep_forever())  # noqa: ASYNC105 - awaited by the session
        received = listen(session)
        await session.wait_idle()
    assert trio.current_time() == pytest.approx(2)
    assert received[0].kind == "handler"


async def test_blocking_sync_handler_is_logged_within_two_seconds(make, caplog):
    """The blocked event loop cannot report the handler, but the watchdog thread can."""
    agent, _ = make("hello")
    named_after = []

    def sleepy(reply):
        began = time.monotonic()
        while time.monotonic() - began < 2.5 and not named_after:
            time.sleep(0.02)
            if any("sleepy" in record.getMessage() for record in caplog.records):
                named_after.append(time.monotonic() - began)

    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_conversation(sleepy)
        await session.wait_idle()
    assert named_after
    assert named_after[0] < 2


async def test_a_handler_cannot_wait_for_its_own_session(make):
    """`wait_idle` and `run` would wait for the turn that they are called from."""
    agent, _ = make("hello")
    errors = []
    async with agent:
        session = await agent.create_session("ada", "hi")

        @session.on_conversation
        async def wait(reply):
            for waiting in (session.wait_idle, functools.partial(agent.run, "x", session=session)):
                try:
                    await waiting()
                except WouldDeadlock as error:
                    errors.append(error)

        await session.wait_idle()
    assert len(errors) == 2
    assert session.id in str(errors[0])


async def test_a_handler_may_wait_for_another_session(make):
    """Only a wait for the handler's own turn is a deadlock."""
    agent, _ = make(lambda chat: chat.messages[-1].parts[0].text)
    seen = []
    async with agent:
        other = await agent.create_session("bob", "other")
        session = await agent.create_session("ada", "hi")

        @session.on_conversation
        async def wait(reply):
            await other.wait_idle()
            seen.append((await agent.run("inner")).text)

        await session.wait_idle()
    assert seen == ["inner"]


async def test_background_task_of_a_handler_may_wait_for_the_turn(make, nursery):
    """A task in the user's own nursery is not part of the turn, even if a handler started it."""
    agent, _ = make("hello")
    ended = trio.Event()

    async def wait(session):
        await session.wait_idle()
        ended.set()

    async with agent:
        session = await agent.create_session("ada", "hi")
        session.on_conversation(lambda _: nursery.start_soon(wait, session))
        with trio.fail_after(60):
            await ended.wait()


async def test_handler_may_chat_without_waiting_for_a_slot(make):
    """The message of the handler is next. A full inbox raises at once, because the handler would wait for itself."""
    agent, _ = make(lambda _: "ok", session_inbox_capacity=2)
    seen = []
    async with agent:
        session = await agent.create_session("ada", "hi")

        @session.on_conversation
        async def say_more(reply):
            if seen:
                return
            for text in ("one", "two", "three"):
                try:
                    await session.chat(text)
                    seen.append(text)
                except InboxFull:
                    seen.append("full")

        await session.wait_idle()
    assert seen == ["one", "two", "full"]
    assert [m.text for m in session.history] == ["hi", "ok", "one", "ok", "two", "ok"]


async def _use(session, seen):
    try:
        await session.wait_idle()
    except WouldDeadlock:
        seen.append("deadlock")
    for text in ("one", "two"):
        try:
            await session.chat(text)
            seen.append(text)
        except InboxFull:
            seen.append("full")


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("kind", ["async", "thread", "task"])
async def test_tool_cannot_wait_for_its_own_session(make, kind, others):
    """The turn waits for the tool, whether the tool runs alone or concurrently."""
    seen = []

    @tool
    async def asking(context: ToolContext) -> str:
        """Ask."""
        await _use(context.session, seen)
        return "asked"

    @tool
    def threaded(context: ToolContext) -> str:
        """Ask from a thread."""
        trio.from_thread.run(_use, context.session, seen)
        return "asked"

    @tool
    async def nested(context: ToolContext) -> str:
        """Ask from a separate task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_use, context.session, seen)
        return "asked"

    @tool
    async def other() -> str:
        """Do nothing."""
        return "done"

    used = {"async": asking, "thread": threaded, "task": nested}[kind]
    calls = [ToolCall(used.name, {}), *[ToolCall("other", {})] * others]
    agent, _ = make(calls, "a", "b", tools=[used, other], session_inbox_capacity=1)
    async with agent:
        session = await agent.create_session("ada", "hi")
        with trio.fail_after(60):
            await session.wait_idle()
    assert seen == ["deadlock", "one", "full"]
    assert [m.text for m in session.history if m.text] == ["hi", "a", "one", "b"]
