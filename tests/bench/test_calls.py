"""The number of Python calls of a turn. It is the same on each run, so a loss of speed shows in CI."""

import itertools
import sys
from pathlib import Path

import pytest

import actgent
from actgent import LLM, BareAgent, Policy, Text, ToolCall, open_runtime, tool
from actgent.actors.actor import Actor
from actgent.actors.actor_system import open_system
from actgent.llm.model_interface import ModelResponse

PACKAGE = str(Path(actgent.__file__).parent)
COUNT = 50
"""Turns that are counted, after as many that are not."""
CALLS = {"new session": 98.6, "same session": 87.3, "tool call": 188.0}
"""Calls of functions of the package for each turn. Change a figure together with the cause, and name the cause in the commit.

Calls without a journal yield after a millisecond, so that a turn makes up to 3 calls more on a slow machine.
"""


class Adding(LLM):
    """A model that requests a sum if it has tools, and otherwise answers."""

    name = "test:adding"

    async def complete(self, chat, *, on_text=None):
        if chat.tools and chat.messages[-1].role != "tool":
            return ModelResponse(parts=(ToolCall("add", {"a": 2, "b": 3}, id="call_1"),), stop="tool_calls")
        return ModelResponse(parts=(Text("This is an answer."),))


@tool(thread=False)
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


async def say(agent, session):
    session = session or await agent.create_session("ada")
    await session.chat("Hello")
    await session.wait_idle()


async def count_calls(agent, *, is_one_session):
    """Return the number of calls of functions of the package for each turn."""
    found = 0

    def count(frame, event, _):
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    async with agent:
        session = await agent.create_session("ada") if is_one_session else None
        for _ in range(COUNT):
            await say(agent, session)
        former = sys.getprofile()
        sys.setprofile(count)
        try:
            for _ in range(COUNT):
                await say(agent, session)
        finally:
            sys.setprofile(former)
    return found / COUNT


@pytest.mark.parametrize("workload", CALLS)
async def test_a_policy_adds_few_calls(workload):
    """A trusted turn with a policy makes at most 3 % more calls of functions of the package than without."""
    tools, is_one = [add] if workload == "tool call" else [], workload == "same session"
    with_policy = BareAgent("a", llm=Adding(), tools=tools, policy=Policy())
    calls = await count_calls(with_policy, is_one_session=is_one)
    usual = await count_calls(BareAgent("a", llm=Adding(), tools=tools), is_one_session=is_one)
    assert calls <= usual * 1.03


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the figures are those of Python 3.11")
@pytest.mark.parametrize("workload", CALLS)
async def test_a_turn_makes_no_more_calls_than_before(workload):
    """At most 3 % more calls of functions of the package than the stored figure."""
    agent = BareAgent("a", llm=Adding(), tools=[add] if workload == "tool call" else [])
    calls = await count_calls(agent, is_one_session=workload == "same session")
    stored = CALLS[workload]
    assert calls <= stored * 1.03, (
        f"a turn ({workload}) makes {calls:.1f} Python calls, and made {stored:.1f}: remove calls from its path, or store the "
        f"new figure in CALLS of {Path(__file__).name} and say why in the commit"
    )
    assert calls >= stored * 0.97, (
        f"a turn ({workload}) makes only {calls:.1f} calls: store this figure in CALLS"
    )


# --- other workloads of the benchmark ------------------------------------------------------

OTHER_CALLS = {
    "W1 ask": 34.0,
    "W1 tell": 25.6,
    "W6 idle agent": 151.0,
    "agent per request": 506.0,
    "W7 durable turn": 319.5,
    "W9 chunk": 20.0,
    "@tool": 94.0,
}
"""Calls of functions of the package for each operation, in the thread of trio."""


class Chunked(LLM):
    """A model that streams an answer in chunks."""

    name = "test:chunked"

    async def complete(self, chat, *, on_text=None):
        for _ in range(COUNT):
            await on_text("chunk", 0)
        return ModelResponse(parts=(Text("chunk" * COUNT),))


class Echo(Actor):
    """An actor that answers with its message."""

    async def receive(self, payload):
        return payload


class Counter:
    """Counts calls of functions of the package, after a first run that is not counted."""

    def __init__(self):
        self.found = 0

    def see(self, frame, event, _):
        self.found += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    async def count(self, run):
        await run()
        former = sys.getprofile()
        sys.setprofile(self.see)
        try:
            await run()
        finally:
            sys.setprofile(former)
        return self.found / COUNT


async def count_asks(counter):
    async with open_system() as system:
        echo = await system.spawn(Echo)

        async def ask():
            for number in range(COUNT):
                assert await echo.ask(number) == number

        return await counter.count(ask)


async def count_tells(counter):
    async with open_system() as system:
        echo = await system.spawn(Echo)

        async def tell():
            for number in range(COUNT):
                await echo.tell(number)
            await echo.wait_idle()

        return await counter.count(tell)


async def count_idle_agents(counter):
    names = map(str, itertools.count())
    async with open_runtime() as runtime:

        async def start():
            for _ in range(COUNT):
                await runtime.start(BareAgent(next(names), llm=Adding(), tools=[add]))

        return await counter.count(start)


async def count_agents_per_request(counter):
    async def serve():
        for _ in range(COUNT):
            async with BareAgent("a", llm=Adding(), prompt="Be brief.") as agent:
                assert (await agent.run("Hello")).text

    return await counter.count(serve)


async def count_durable_turns(counter):
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("a", llm=Adding()))
        session = await agent.create_session("ada")

        async def take_turns():
            for _ in range(COUNT):
                await say(agent, session)

        return await counter.count(take_turns)


async def count_chunks(counter):
    async with BareAgent("a", llm=Chunked()) as agent:

        async def stream():
            async with agent.stream("Hello") as deliveries:
                texts = [each.text async for each in deliveries]
            assert len(texts) > COUNT

        return await counter.count(stream)


async def count_tools(counter):
    async def declare():
        for _ in range(COUNT):
            tool(thread=False)(new_function())

    return await counter.count(declare)


def new_function():
    """Return a new function, whose signature no other function has compiled."""

    def multiply(a: int, b: int = 2) -> int:
        """Multiply two integers."""
        return a * b

    return multiply


OPERATIONS = {
    "W1 ask": count_asks,
    "W1 tell": count_tells,
    "W6 idle agent": count_idle_agents,
    "agent per request": count_agents_per_request,
    "W7 durable turn": count_durable_turns,
    "W9 chunk": count_chunks,
    "@tool": count_tools,
}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the figures are those of Python 3.11")
@pytest.mark.parametrize("workload", OTHER_CALLS)
async def test_an_operation_makes_as_many_calls_as_before(workload, autojump_clock):
    """The number is within 3 % of the stored one. More is a loss of speed; fewer must be stored."""
    calls = await OPERATIONS[workload](Counter())
    assert calls == pytest.approx(OTHER_CALLS[workload], rel=0.03), (
        f"{workload}: {calls:.2f} Python calls, and {OTHER_CALLS[workload]:.2f} before: remove calls, or store the new figure in "
        f"OTHER_CALLS of {Path(__file__).name} and say why in the commit"
    )
