"""Removal of handlers and hooks, and rejection of functions that would never run."""

import functools
import types

import pytest
import trio

from actgent import (
    AgentBuilder,
    BareAgent,
    ConfigurationError,
    FunctionTool,
    HandlerFailed,
    ScriptedLLM,
    Tool,
    UsageError,
)
from actgent.tools.state_tools import StateTool
from actgent.tools.tool_interface import ToolHooks


def agent_of(**options):
    return BareAgent("tutor", llm=ScriptedLLM(lambda _: "ok"), **options)


async def say(session, text="hi"):
    await session.chat(text)
    await session.wait_idle()


# --- removing --------------------------------------------------------------------------------


async def test_a_removed_handler_is_not_called():
    """This holds for all kinds and repeated registrations.

    Other handlers run, and removing an unknown handler is no error.
    """
    received, others = [], []
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        session.on_conversation(received.append)
        session.on_conversation(others.append)
        session.on_conversation(received.append)
        session.on_token(received.append)
        await say(session)
        assert len(received) == 3
        session.remove_handler(received.append)
        session.remove_handler(print)
        await say(session)
    assert len(received) == 3
    assert len(others) == 2


async def test_without_token_handlers_answers_are_not_streamed():
    """Removing the last token handler ends the streaming."""
    streamed = []

    class Watched(ScriptedLLM):
        async def complete(self, chat, *, on_text=None):
            streamed.append(on_text is not None)
            return await super().complete(chat, on_text=on_text)

    async with BareAgent("tutor", llm=Watched(lambda _: "ok")) as agent:
        session = await agent.create_session("ada")
        session.on_token(print)
        session.remove_handler(print)
        await say(session)
    assert streamed == [False]


async def test_a_handler_that_is_removed_during_a_dispatch_is_not_called_in_it():
    """A handler that removes the next one or itself does not affect the others."""
    received = []
    async with agent_of() as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        def first(_):
            received.append("first")
            session.remove_handler(first)
            session.remove_handler(second)

        @session.on_conversation
        def second(_):
            received.append("second")

        @session.on_conversation
        def third(_):
            received.append("third")

        await say(session)
        await say(session)
    assert received == ["first", "third", "third"]


async def test_handler_attached_during_dispatch_starts_with_the_next_delivery():
    """A handler that attaches itself again during a dispatch therefore does not loop."""
    received = []
    async with agent_of() as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        def again(_):
            received.append(1)
            if len(received) < 10:
                session.on_conversation(again)

        await say(session)
        assert len(received) == 1
        await say(session)
    assert len(received) == 3


async def test_a_handler_may_be_removed_while_an_earlier_one_waits():
    """Another task removes it, as for a closed connection."""
    received, gate, entered = [], trio.Event(), trio.Event()
    async with agent_of() as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        async def slow(_):
            entered.set()
            await gate.wait()

        session.on_conversation(received.append)
        await session.chat("hi")
        await entered.wait()
        session.remove_handler(received.append)
        gate.set()
        await session.wait_idle()
    assert received == []


async def test_listeners_are_removed_when_their_block_exits():
    """A thousand connections leave no handler, and the same handler of another connection stays."""
    received = []
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        session.on_conversation(received.append)
        for _ in range(1000):
            with session.listening(on_conversation=received.append, on_exception=received.append) as listened:
                assert listened is session
        await say(session)
        assert len(received) == 1
        with session.listening(on_conversation=received.append):
            with session.listening(on_conversation=received.append):
                await say(session)
            assert len(received) == 4
            await say(session)
    assert len(received) == 6


async def test_listening_attaches_all_or_nothing():
    """A wrong handler among right ones leaves none of them attached."""
    received = []

    def wrong(_):
        yield

    async with agent_of() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="wrong"):
            session.listening(on_conversation=received.append, on_token=wrong).__enter__()
        await say(session)
    assert received == []


async def test_hooks_of_an_agent_are_removed_by_one_call():
    """The hooks are those of `on_session`, `on_query` and `on_message`. An earlier hook may remove a later one."""
    called = []

    def hook(*_):
        called.append("hook")

    def remover(*_):
        called.append("remover")
        agent.remove_hook(hook)

    agent = agent_of()
    for attach in (agent.on_session, agent.on_query, agent.on_message):
        attach(remover)
        attach(hook)
        async with agent:
            await say(await agent.create_session("ada"))
        assert "hook" not in called
        assert "remover" in called
        agent.remove_hook(remover)
        called.clear()
    async with agent:
        await say(await agent.create_session("ada"))
    assert called == []


# --- functions that nothing runs -----------------------------------------------------------------


def gen(_):
    yield


async def agen(_):
    yield


class Gen:
    def method(self, _):
        yield

    def __call__(self, _):
        yield


GENERATORS = {
    "function": gen,
    "async function": agen,
    "method": Gen().method,
    "object": Gen(),
    "partial": functools.partial(gen),
    "partial of an object": functools.partial(Gen()),
}
HANDLERS = ["conversation", "event", "tool_result", "exception", "routing", "token", "approval"]


@pytest.mark.parametrize("function", GENERATORS.values(), ids=GENERATORS)
async def test_generators_are_rejected_as_handlers_and_hooks(function):
    """A call would only create a generator, which would never run."""
    agent = agent_of()
    for attach in (agent.on_session, agent.on_query, agent.on_message):
        with pytest.raises(ConfigurationError, match="generator"):
            attach(function)
    with pytest.raises(ConfigurationError, match="generator"):
        AgentBuilder("x").on_query(function).build(llm=ScriptedLLM(["ok"]))
    async with agent:
        session = await agent.create_session("ada")
        for kind in HANDLERS:
            with pytest.raises(ConfigurationError, match="generator"):
                getattr(session, f"on_{kind}")(function)
        session.state.subscribe(print)
    with pytest.raises(ConfigurationError):
        agent_of(approval=function)


async def test_a_generator_returned_by_a_handler_is_an_error():
    """A wrapper hides the generator until the wrapper is called."""
    failures = []
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: gen([reply]))
        session.on_exception(failures.append)
        await say(session)
    [failure] = failures
    assert isinstance(failure.error, HandlerFailed)
    assert "generator" in str(failure.error)


async def test_coroutines_made_of_generators_are_handlers():
    """`types.coroutine` makes an awaitable of a function with `yield`."""
    received = []

    @types.coroutine
    def old(reply):
        received.append(reply.text)
        yield from trio.lowlevel.checkpoint().__await__()  # noqa: ASYNC105 - what `await` does

    async with agent_of() as agent:
        session = await agent.create_session("ada")
        session.on_conversation(old)
        await say(session)
    assert received == ["ok"]


def test_generators_are_rejected_as_tools_and_tool_hooks():
    """Subscribers of a state cannot be generators either."""

    class Yields(Tool):
        name, description, parameters = "t", "T.", {"type": "object"}

        async def execute(self, arguments, context):
            yield

    with pytest.raises(ConfigurationError, match="generator"):
        agent_of(tools=[Yields()])
    with pytest.raises(ConfigurationError, match="generator"):
        FunctionTool("t", "T.", lambda: 1, hooks=ToolHooks(on_start=gen))

    def state_function(state, args):
        yield

    with pytest.raises(ConfigurationError, match="generator"):
        StateTool("t", "T.", state_function)


async def test_async_state_subscribers_are_rejected():
    """Calling an async or a generator function would have no effect."""

    async def coroutine(_):
        pass

    async with agent_of() as agent:
        session = await agent.create_session("ada")
        for function in (gen, agen, coroutine):
            with pytest.raises(UsageError, match="subscribe"):
                session.state.subscribe(function)
