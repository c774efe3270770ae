"""The number of Python calls of a turn: it is the same on each run, so a loss of speed shows in CI."""

import sys
from pathlib import Path

import pytest

import actgent
from actgent import LLM, BareAgent, Text, ToolCall, tool
from actgent.llm.base import ModelResponse

PACKAGE = str(Path(actgent.__file__).parent)
COUNT = 50
"""Turns that are counted, after as many that are not."""
CALLS = {"new session": 121.0, "same session": 103.0, "tool call": 228.0}
"""Calls of functions of the package for each turn. Change a figure together with the cause, and name the cause in the commit."""


class Adding(LLM):
    """Asks for a sum if it has tools, and answers at once."""

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
