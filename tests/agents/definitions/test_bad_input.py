"""Invalid configuration and invalid calls raise typed errors that name the argument."""

import pytest

from actgent import (
    Agent,
    BareAgent,
    ConfigurationError,
    DuplicateTool,
    Instruction,
    ReActAgent,
    RouterAgent,
    ScriptedLLM,
    Sender,
    SessionClosed,
    open_runtime,
    tool,
)
from actgent.protocols.bare_text_protocol import Bare


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def llm():
    return ScriptedLLM(lambda _: "ok")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": ""}, "name"),
        ({"name": "  "}, "name"),
        ({"name": None}, "name"),
        ({"llm": None}, "llm"),
        ({"llm": ""}, "provider|unknown model"),
        ({"llm": "gpt-5.2"}, "openai:"),
        ({"llm": "nobody:model"}, "openai:"),
        ({"llm": "openai:"}, "openai:"),
        ({"models": {"planner": "gpt"}}, "openai:"),
        ({"tools": [lambda: 1]}, "@tool"),
        ({"tools": add}, "tools="),
        ({"protocol": Bare}, "protocol="),
        ({"max_concurrent_sessions": 0}, "max_concurrent_sessions"),
        ({"inbox_capacity": 0}, "inbox_capacity"),
        ({"session_inbox_capacity": -1}, "session_inbox_capacity"),
        ({"urgent_inbox_capacity": 0}, "urgent_inbox_capacity"),
        ({"instructions": [Instruction("creation", tool="nowhere")]}, "nowhere"),
        ({"output": object()}, "object"),
        ({"limits": {"model_calls": 3}}, "limits="),
        ({"grace": -1}, "grace"),
        ({"handler_timeout": "30"}, "handler_timeout"),
        ({"on_busy": "wait"}, "on_busy"),
        ({"role": 7}, "role"),
        ({"max_concurrent_sessions": "many"}, "max_concurrent_sessions"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"memory": 5}, "memory"),
        ({"models": 5}, "models"),
        ({"instructions": [5]}, "instructions"),
        ({"types": [5]}, "types"),
        ({"capabilities": [7]}, "capabilities"),
    ],
)
def test_a_wrong_argument_is_named_when_the_agent_is_made(options, expected, no_keys):
    """The constructor raises `ConfigurationError` with the name of the invalid argument."""
    with pytest.raises(ConfigurationError, match=expected):
        BareAgent(**{"name": "a", "llm": llm(), **options})


def test_duplicate_tool_is_rejected():
    """Two tools of one name raise `DuplicateTool`."""
    with pytest.raises(DuplicateTool, match="add"):
        BareAgent("a", llm=llm(), tools=[add, add])


@pytest.mark.parametrize("kind", [Agent, ReActAgent, RouterAgent])
def test_an_unknown_argument_is_rejected(kind):
    """An unknown argument raises a `TypeError` that names the argument."""
    with pytest.raises(TypeError, match="modle"):
        kind("a", llm=llm(), modle="x")


def test_route_to_a_value_that_is_not_an_agent_is_rejected():
    """A route to a value that is not an agent raises an error that names the route."""
    with pytest.raises(ConfigurationError, match="billing"):
        RouterAgent("desk", llm=llm(), routes={"billing": "clerk"})
    with pytest.raises(ConfigurationError, match="routes"):
        RouterAgent("desk", llm=llm(), routes=["clerk"])


async def test_running_agent_cannot_be_started_again():
    """Starting a running agent again raises an error and leaves it running. A closed agent can start again."""
    agent = BareAgent("a", llm=llm())
    async with agent:
        with pytest.raises(ConfigurationError, match="already"):
            async with agent:
                pass
        async with open_runtime() as runtime:
            with pytest.raises(ConfigurationError, match="already"):
                await runtime.start(agent)
        assert str(await agent.run("hi")) == "ok"
    async with agent:
        assert str(await agent.run("hi")) == "ok"


async def test_runtime_rejects_values_that_are_not_agents():
    """Starting a value that is not an agent raises an error, and the runtime stays usable."""
    async with open_runtime() as runtime:
        with pytest.raises(ConfigurationError, match="'tutor'"):
            await runtime.start("tutor")
        agent = await runtime.start(BareAgent("tutor", llm=llm()))
        assert str(await agent.run("hi")) == "ok"


async def test_second_agent_of_a_name_is_rejected():
    """A second agent of the same name is rejected, and the first keeps running."""
    first, second = BareAgent("a", llm=llm()), BareAgent("a", llm=llm())
    async with open_runtime() as runtime:
        await runtime.start(first)
        with pytest.raises(ConfigurationError, match="'a'"):
            await runtime.start(second)
        assert str(await first.run("hi")) == "ok"
    async with second:
        assert str(await second.run("hi")) == "ok"


async def test_rejected_messages_leave_other_sessions_usable():
    """Rejected messages of one session leave the other sessions usable."""
    async with BareAgent("a", llm=llm()) as agent:
        good = await agent.create_session("ada")
        bad = await agent.create_session("bob")
        with pytest.raises(TypeError):
            await bad.chat(5)
        with pytest.raises((TypeError, ConfigurationError)):
            await bad.chat("hi", 5)
        await bad.aclose()
        with pytest.raises(SessionClosed):
            await bad.chat("hi")
        assert str(await agent.run("hi", session=good)) == "ok"


@pytest.mark.parametrize("seconds", [-1, float("nan"), "soon"])
async def test_enqueue_timeout_has_to_be_a_number_of_seconds(seconds):
    """An `enqueue_timeout` that is not a number of at least 0 raises an error."""
    async with BareAgent("a", llm=llm()) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="enqueue_timeout"):
            await session.chat("hi", enqueue_timeout=seconds)


@pytest.mark.parametrize("priority", [7, None, 2.5])
async def test_priority_of_another_type_is_rejected(priority):
    """A priority that is neither a text nor a `Priority` raises an error."""
    async with BareAgent("a", llm=llm()) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match="priority"):
            await session.chat("hi", priority=priority)
        assert session.status == "idle"


@pytest.mark.parametrize(
    ("say", "expected"),
    [
        (lambda _, session: session.chat("hi", ""), "sender"),
        (lambda _, session: session.chat("hi", message_id=""), "message_id"),
        (lambda _, session: session.chat("hi", message_id=5), "message_id"),
        (lambda agent, _: agent.create_session("ada", session_id=""), "session_id"),
        (lambda agent, _: agent.create_session("ada", parent="s"), "parent"),
        (lambda agent, _: agent.run("hi", session="s"), "session"),
        (lambda agent, _: agent.run("hi", max_tokens=0), "max_tokens"),
        (lambda agent, _: agent.ref.ask("hi", deadline="soon"), "deadline"),
    ],
)
async def test_invalid_chat_arguments_are_rejected_by_their_names(say, expected):
    """The error names the argument, and the session stays usable."""
    async with BareAgent("a", llm=llm()) as agent:
        session = await agent.create_session("ada")
        with pytest.raises(ConfigurationError, match=expected):
            await say(agent, session)
        assert str(await agent.run("hi", session=session)) == "ok"


@pytest.mark.parametrize(("name", "kind"), [("", "user"), (" ", "user"), (5, "user"), ("ada", "boss")])
def test_a_sender_has_a_name_and_a_kind(name, kind):
    """An empty or non-text name and an unknown kind of sender raise an error."""
    with pytest.raises(ConfigurationError, match="sender"):
        Sender(name, kind)
