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
    """For all kinds and repeated registrations; the others run, and removing an unknown handler is no error."""
    heard, others = [], []
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        session.on_conversation(heard.append)
        session.on_conversation(others.append)
        session.on_conversation(heard.append)
        session.on_token(heard.append)
        await say(session)
        assert len(heard) == 3
        session.remove_handler(heard.append)
        session.remove_handler(print)
        await say(session)
    assert len(heard) == 3
    assert len(others) == 2


async def test_without_token_handlers_answers_are_not_streamed():
    """Removing the last handler ends the streaming."""
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
    heard = []
    async with agent_of() as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        def first(_):
            heard.append("first")
            session.remove_handler(first)
            session.remove_handler(second)

        @session.on_conversation
        def second(_):
            heard.append("second")

        @session.on_conversation
        def third(_):
            heard.append("third")

        await say(session)
        await say(session)
    assert heard == ["first", "third", "third"]


async def test_handler_attached_during_dispatch_starts_with_the_next_delivery():
    """A handler that attaches itself again during a dispatch therefore does not loop."""
    heard = []
    async with agent_of() as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        def again(_):
            heard.append(1)
            if len(heard) < 10:
                session.on_conversation(again)

        await say(session)
        assert len(heard) == 1
        await say(session)
    assert len(heard) == 3


async def test_a_handler_may_be_removed_while_an_earlier_one_waits():
    """By another task, as for a closed connection."""
    heard, gate, entered = [], trio.Event(), trio.Event()
    async with agent_of() as agent:
        session = await agent.create_session("ada")

        @session.on_conversation
        async def slow(_):
            entered.set()
            await gate.wait()

        session.on_conversation(heard.append)
        await session.chat("hi")
        await entered.wait()
        session.remove_handler(heard.append)
        gate.set()
        await session.wait_idle()
    assert heard == []


async def test_listening_lasts_as_long_as_its_block():
    """A thousand connections leave nothing behind, and the same handler of another connection stays."""
    heard = []
    async with agent_of() as agent:
        session = await agent.create_session("ada")
        session.on_conversation(heard.append)
        for _ in range(1000):
            with session.listening(on_conversation=heard.append, on_exception=heard.append) as listened:
                assert listened is session
        await say(session)
        assert len(heard) == 1
        with session.listening(on_conversation=heard.append):
            with session.listening(on_conversation=heard.append):
                await say(session)
            assert len(heard) == 4
            await say(session)
    assert len(heard) == 6


async def test_listening_attaches_all_or_nothing():
    """A wrong handler among right ones leaves none of them attached."""
    heard = []

    def wrong(_):
        yield

    async with agent_of() as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="wrong"):
            session.listening(on_conversation=heard.append, on_token=wrong).__enter__()
        await say(session)
    assert heard == []


async def test_hooks_of_an_agent_are_removed_by_one_call():
    """`on_session`, `on_query` and `on_message`; also from inside of one that runs before."""
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
async def test_generators_are_refused_as_handlers_and_hooks(function):
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
    """A wrapper hides it until it is called."""
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
    heard = []

    @types.coroutine
    def old(reply):
        heard.append(reply.text)
        yield from trio.lowlevel.checkpoint().__await__()  # noqa: ASYNC105 - what `await` does

    async with agent_of() as agent:
        session = await agent.create_session("ada")
        session.on_conversation(old)
        await say(session)
    assert heard == ["ok"]


def test_tools_and_their_hooks_are_no_generators():
    """Nor are subscribers of a state."""

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


async def test_subscribers_of_a_state_are_functions_that_run():
    """An async or a generator function would be called and nothing would happen."""

    async def coroutine(_):
        pass

    async with agent_of() as agent:
        session = await agent.create_session("ada")
        for function in (gen, agen, coroutine):
            with pytest.raises(UsageError, match="subscribe"):
                session.state.subscribe(function)
