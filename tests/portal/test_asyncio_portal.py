"""Agents from asyncio: `async with open_portal() as portal`."""

import _thread
import asyncio
import inspect
import threading
import traceback
from contextvars import ContextVar

import pytest
import trio
import trio.lowlevel
import trio.testing

from actgent import (
    Approve,
    BareAgent,
    Failure,
    ModelResponse,
    PortalClosed,
    Reply,
    ScriptedLLM,
    Suspended,
    Text,
    Token,
    ToolCall,
    Usage,
    UsageError,
    WouldDeadlock,
    open_portal,
    tool,
)

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
PATIENCE = 20
"""Seconds after which a test that hangs fails."""


def in_asyncio(test):
    """Run a test on asyncio, and assert that it leaves no task."""

    async def run(*args, **options):
        await asyncio.wait_for(test(*args, **options), PATIENCE)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def run_all(*args, **options):
        asyncio.run(run(*args, **options), debug=True)

    run_all.__signature__ = inspect.signature(test)
    run_all.__name__, run_all.__doc__ = test.__name__, test.__doc__
    return run_all


def clerk(*texts, **options):
    return BareAgent("clerk", llm=ScriptedLLM(list(texts) or ["Yes."], repeat=not texts), **options)


async def happened(event):
    """Wait for a thread event."""
    assert await asyncio.to_thread(event.wait, 10)


# --- calls and handlers ---------------------------------------------------------------------


@in_asyncio
async def test_run_returns_a_reply():
    """The shortest program: one portal, one agent, one reply."""
    async with open_portal() as portal:
        agent = await portal.start(clerk())
        assert (await agent.run("Hello")).text == "Yes."


@in_asyncio
async def test_portal_can_be_opened_without_a_block():
    """In a notebook, `await` opens the portal and `aclose` closes it."""
    portal = await open_portal()
    agent = await portal.start(clerk())
    assert (await agent.run("Hello")).text == "Yes."
    await portal.aclose()
    await portal.aclose()
    with pytest.raises(PortalClosed):
        await agent.run("Hello")


@in_asyncio
async def test_handlers_run_on_the_event_loop():
    """Sync handlers run in the loop's thread, async handlers as asyncio tasks. The turn waits for them, in order."""
    loop, received = asyncio.get_running_loop(), []

    async def hear(reply, session):
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        received.append((session.id, reply.text, len(await session.history())))

    def hear_now(reply):
        assert asyncio.get_running_loop() is loop
        received.append(reply.text)

    async with open_portal() as portal:
        agent = await portal.start(clerk("one", "two", "three"))
        session = await agent.create_session("ada", "First", session_id="s", on_conversation=hear)
        await session.wait_idle()
        session.on_conversation(hear_now)
        await session.chat("Second")
        await session.wait_idle()
        session.remove_handler(hear)
        session.remove_handler(hear_now)
        async with session.listening(on_conversation=received.append):
            await session.chat("Third")
            await session.wait_idle()
        assert [str(each) if isinstance(each, Reply) else each for each in received] == [
            ("s", "one", 2),
            ("s", "two", 4),
            "two",
            "three",
        ]


@in_asyncio
async def test_hooks_may_await_asyncio():
    """Hooks may await asyncio. Session properties are read by async methods."""
    chats = []
    yes = ModelResponse(parts=(Text("Yes."),), usage=Usage(input_tokens=3, output_tokens=7))
    model = ScriptedLLM([lambda chat: chats.append(str(chat.messages)) or yes], repeat=True)
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("clerk", llm=model))
        opened = []

        @agent.on_query
        async def add(message):
            await asyncio.sleep(0)
            return "it is raining"

        @agent.on_session
        async def note(session):
            opened.append((type(session).__name__, await session.status()))

        session = await agent.ensure_session("ada", "s")
        await session.dispatch(("colour", "red"))
        await session.chat("Hello")
        await session.wait_idle()
        assert (await session.state())["colour"] == "red"
        assert [await session.approvals(), await session.schedules()] == [(), ()]
        assert (await session.usage()).output_tokens == 7
        assert opened == [("AsyncPortalSession", "idle")]
        assert "raining" in chats[0]


@in_asyncio
async def test_exception_of_a_handler_is_a_failure():
    """As on trio, the failure contains the raised exception."""
    failures = []

    async def explode(reply):
        raise ZeroDivisionError("there")

    async with open_portal() as portal:
        agent = await portal.start(clerk())
        session = await agent.create_session(
            "ada", "Hello", on_conversation=explode, on_exception=failures.append
        )
        await session.wait_idle()
    (failure,) = failures
    assert isinstance(failure, Failure)
    assert isinstance(failure.error.__cause__, ZeroDivisionError)


@in_asyncio
async def test_handler_waiting_for_itself_raises():
    """The turn waits for the handler, but not for a task that the handler starts."""
    received, tasks = [], []

    async def hear(reply, session):
        try:
            await session.wait_idle()
        except WouldDeadlock as error:
            received.append(error)
        tasks.append(asyncio.create_task(session.wait_idle()))

    async with open_portal() as portal:
        agent = await portal.start(clerk())
        session = await agent.create_session("ada", "Hello", on_conversation=hear)
        await session.wait_idle()
        await asyncio.gather(*tasks)
    assert len(received) == len(tasks) == 1


@in_asyncio
async def test_slow_handler_is_cancelled_on_its_loop():
    """The handler is cancelled at `handler_timeout`."""
    cancelled, failures = asyncio.Event(), []

    async def hear(reply):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with open_portal() as portal:
        agent = await portal.start(clerk(handler_timeout=0.05))
        session = await agent.create_session(
            "ada", "Hello", on_conversation=hear, on_exception=failures.append
        )
        await cancelled.wait()
        await session.wait_idle()
    assert "handler_timeout" in str(failures[0].error)


def test_handler_of_a_closed_loop_is_a_failure():
    """The turn continues without the handler, and the failure names the reason."""
    kept, received, failures = [], [], []

    async def attach(portal):
        agent = await portal.start(clerk())
        kept.append(await agent.create_session("ada", on_conversation=received.append))

    async def chat(portal):
        (session,) = kept
        session.on_exception(failures.append)
        await session.chat("Hello")
        await session.wait_idle()
        await portal.aclose()

    async def open_one():
        return await open_portal()

    portal = asyncio.run(open_one())
    asyncio.run(attach(portal))
    asyncio.run(chat(portal))
    assert received == []
    assert "asyncio event loop of this handler is closed" in str(failures[0].error)


@in_asyncio
async def test_stream_is_iterated(chatty):
    """`async with` and `async for`: tokens in order, then the reply."""
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("clerk", llm=chatty(250)))
        async with agent.stream("Hello") as events:
            received = [event async for event in events]
    assert [event.text for event in received if isinstance(event, Token)] == [f"{n} " for n in range(250)]
    assert isinstance(received[-1], Reply)


@in_asyncio
async def test_slow_reader_slows_the_model(chatty):
    """The model is ahead of the reader by at most the buffered items."""
    model = chatty(10_000)
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("clerk", llm=model))
        async with agent.stream("Hello") as events:
            await anext(events)
            await portal.call(trio.testing.wait_all_tasks_blocked)
            assert model.said <= 300
            rest = [event async for event in events if isinstance(event, Token)]
            assert len(rest) == 9_999


@in_asyncio
async def test_cancelled_read_loses_no_delivery(slow):
    """Each read has a timeout. All deliveries arrive in order, however often the timeout expires."""
    go_on = threading.Semaphore(0)

    class Stepwise(type(slow)):
        async def complete(self, chat, *, on_text=None):
            for number in range(20):
                await trio.to_thread.run_sync(go_on.acquire)
                await on_text(f"{number} ", 0)
            return ModelResponse(parts=(Text("".join(f"{n} " for n in range(20))),))

    received = []
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("clerk", llm=Stepwise()))
        async with agent.stream("Hello") as events:
            for number in range(20):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(events), 0.005)
                go_on.release()
                received.append((await anext(events)).text)
                assert number + 1 == len(received)
    assert received == [f"{n} " for n in range(20)]


@in_asyncio
async def test_approval_resumes_a_turn():
    """A call waits for an approval. A decision resumes the turn, and a stream follows it."""

    @tool(approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    answers = [ToolCall("pay", {"amount": 7}), "Done.", ToolCall("pay", {"amount": 8}), "Again."]
    async with open_portal() as portal:
        agent = await portal.start(clerk(*answers, tools=[pay]))
        session = await agent.create_session("ada")
        with pytest.raises(Suspended) as caught:
            await agent.run("Pay 7", session=session)
        assert [each.tool_name for each in await portal.approvals()] == ["pay"]
        assert (await agent.resume({caught.value.ids[0]: Approve()})).text == "Done."
        await session.chat("Pay 8")
        await session.wait_idle()
        async with agent.follow(session) as events:
            await session.answer((await session.approvals())[0], Approve())
            assert [event.text async for event in events if isinstance(event, Reply)] == ["Again."]


@in_asyncio
async def test_many_tasks_use_one_portal():
    """Each task gets its own answer."""
    model = ScriptedLLM([lambda chat: chat.messages[-1].parts[0].text[::-1]], repeat=True)
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("clerk", llm=model))
        replies = await asyncio.gather(*(agent.run(f"{number:04}") for number in range(500)))
    assert [reply.text for reply in replies] == [f"{number:04}"[::-1] for number in range(500)]


# --- context and cancellation ------------------------------------------------------------------


@in_asyncio
async def test_context_variables_reach_tools_and_handlers():
    """Tools and handlers have the context variables of the calling task."""
    seen = {}

    @tool
    async def look(name: str) -> str:
        """Look."""
        await trio.lowlevel.checkpoint()
        seen[name] = [TENANT.get()]
        return name

    async def hear(reply):
        seen[reply.text].append(TENANT.get())

    def answer(chat):
        part = chat.messages[-1].parts[0]
        return ToolCall("look", {"name": part.text}) if isinstance(part, Text) else part.content

    async with open_portal() as portal:
        model = ScriptedLLM([answer], repeat=True)
        agent = await portal.start(BareAgent("clerk", llm=model, tools=[look]))

        async def ask(name):
            TENANT.set(name)
            session = await agent.create_session(name, name, on_conversation=hear)
            await session.wait_idle()
            return TENANT.get()

        assert await asyncio.gather(ask("acme"), ask("ajax")) == ["acme", "ajax"]
    assert seen == {"acme": ["acme", "acme"], "ajax": ["ajax", "ajax"]}


@in_asyncio
async def test_exceptions_keep_their_traceback():
    """The traceback shows where the error was raised on trio, and where it was awaited."""

    async def explode():
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("there")

    async with open_portal() as portal:
        with pytest.raises(ZeroDivisionError) as caught:
            await portal.call(explode)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[0] == "test_exceptions_keep_their_traceback"
    assert names[-1] == "explode"


@in_asyncio
async def test_cancelling_a_task_stops_its_turn(slow):
    """The task is cancelled by a timeout or by `cancel`.

    The turn has been stopped when the task continues.
    """
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("clerk", llm=slow))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await agent.run("Hello")
        await happened(slow.stopped)
        task = asyncio.create_task(agent.run("Hello"))
        slow.begun.clear()
        await happened(slow.begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await portal.call(trio.testing.wait_all_tasks_blocked)
        assert slow.cancelled == 2


@in_asyncio
async def test_cancelling_a_task_in_a_stream_stops_its_turn(slow):
    """The task is cancelled while it reads the stream."""
    async with open_portal() as portal:
        agent = await portal.start(BareAgent("clerk", llm=slow))

        async def read():
            async with agent.stream("Hello") as events:
                async for event in events:
                    raise AssertionError(event)

        task = asyncio.create_task(read())
        await happened(slow.begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await happened(slow.stopped)


@in_asyncio
async def test_call_cancelled_at_any_step_leaves_nothing():
    """The task is cancelled after any number of loop steps, from before the message is sent to after the call's end.

    The next call works.
    """
    async with open_portal() as portal:
        for steps in range(60):
            task = asyncio.create_task(portal.call(trio.sleep, 0))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert isinstance(await portal.call(trio.current_time), float)


# --- close ---------------------------------------------------------------------------------------


@in_asyncio
async def test_pending_call_raises_when_the_portal_closes(slow):
    """Calls and readers get a clear error."""
    portal = await open_portal()
    agent = await portal.start(BareAgent("clerk", llm=slow, grace=0.0))
    waiting = [asyncio.create_task(portal.call(trio.sleep_forever)) for _ in range(3)]
    asking = asyncio.create_task(agent.run("Hello"))
    await happened(slow.begun)
    await portal.aclose()
    told = await asyncio.gather(*waiting, asking, return_exceptions=True)
    assert [type(error).__name__ for error in told] == ["PortalClosed"] * 3 + ["Stopped"]


@in_asyncio
async def test_cancelled_close_stops_at_once(slow):
    """The close stops the agents at once, whatever grace period they have."""
    portal = await open_portal()
    agent = await portal.start(BareAgent("clerk", llm=slow, grace=1000))
    await agent.create_session("ada", "Hello")
    await happened(slow.begun)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await portal.aclose()
    assert slow.cancelled == 1


@in_asyncio
async def test_cancelled_open_leaves_no_thread():
    """The fixture of these tests checks it."""
    for steps in range(5):
        task = asyncio.create_task(open_portal()._open())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().aclose()


def test_ctrl_c_in_asyncio_run_closes_the_portal(slow):
    """Asyncio cancels the main task.

    The turn is stopped, the portal is closed, and KeyboardInterrupt is raised.
    """

    async def main():
        async with open_portal() as portal:
            agent = await portal.start(BareAgent("clerk", llm=slow, grace=1000))
            asyncio.get_running_loop().call_later(0.2, _thread.interrupt_main)
            await agent.run("Hello")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert slow.cancelled == 1


@in_asyncio
async def test_portal_serves_event_loops_of_other_threads():
    """Each call is answered on the loop from which it came."""
    async with open_portal() as portal:
        agent = await portal.start(clerk())

        def elsewhere():
            return asyncio.run(wait_for(agent.run("Hello"))).text

        async def wait_for(work):
            return await work

        assert await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(5))) == ["Yes."] * 5


# --- errors ---------------------------------------------------------------------------------------


async def test_async_portal_requires_asyncio():
    """Awaiting the portal in trio or without an event loop raises."""
    kept = []

    async def open_one():
        kept.append(await open_portal())

    await trio.to_thread.run_sync(lambda: asyncio.run(open_one()))
    (portal,) = kept
    with pytest.raises(UsageError, match="needs a running asyncio event loop"):
        await portal.call(trio.current_time)

    async def close():
        await portal.aclose()

    await trio.to_thread.run_sync(lambda: asyncio.run(close()))
