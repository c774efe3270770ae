"""The stable prefix of the requests of fifty turns with mode changes, state writes and tool results."""

import itertools

import pytest
import trio

from actgent import BareAgent, FunctionTool, Modes, ToolCall, ToolResult, Toolset, tool
from actgent.testing import open_provider
from tests.agents.conftest import model_client

TURNS = 50
LEAST = 0.95
"""Minimum fraction of a request that is a prefix of the next request."""
MODES = ("plan", "act", "integration", "onboarding")
MARK = b'"cache_control":{"type":"ephemeral"}'
"""Anthropic's cache mark at the end of a cacheable prefix. It moves with the end and is not part of the prompt."""


@tool(thread=False)
def deploy(number: int) -> str:
    """Deploy something."""
    return f"deployed number {number}"


@tool(thread=False)
def get_time() -> str:
    """Tell the time."""
    return "noon"


def script(request):
    """Return the model's answer for a turn, chosen by the turn number in the message."""
    last = request.chat.messages[-1]
    text = "".join(getattr(part, "text", "") for part in last.parts)
    if last.role != "user" or "turn " not in text or any(isinstance(part, ToolResult) for part in last.parts):
        return "Very well, that is done now."
    number = int(text.split("turn ")[1].split()[0])
    calls = [
        ToolCall("set_mode", {"mode": MODES[number % 4]}, f"a{number}"),
        ToolCall("save_settings", {"settings": {f"key{number}": number}}, f"b{number}"),
        ToolCall("deploy", {"number": number}, f"c{number}"),
        ToolCall("get_agent_state", {}, f"d{number}"),
    ]
    return calls[: number % 5] or "Nothing to do."


def unmarked(body):
    return body.replace(b"," + MARK, b"").replace(MARK + b",", b"")


async def bodies_of(wire, modes, tools=(get_time, deploy), each_turn=None):
    """Run fifty turns. Return the request bodies, the number of mode changes and the number of state changes."""
    async with open_provider(script, keep=1000) as provider:
        llm = model_client(wire, provider)
        async with BareAgent("app", llm=llm, tools=list(tools), modes=modes) as agent:
            session = await agent.create_session("ada")
            for number in range(TURNS):
                if each_turn is not None:
                    each_turn(number)
                if number % 7 == 0:
                    await session.set_mode(MODES[number % 3], by="admin")
                await session.chat(f"turn {number} of this session")
                await session.wait_idle()
            changes, state = len(session.mode_changes), session.state.number
            notes = [m.causation_id for m in session.history if m.sender.name == "mode"]
            assert notes == [change.mark for change in session.mode_changes]
        await llm.aclose()
        assert not any(request.problems for request in provider.requests)
        return [request.body for request in provider.requests], changes, state


def shares(bodies):
    """Return for each request but the last the fraction that is a prefix of the next request."""
    return [common(*pair) / len(pair[0]) for pair in itertools.pairwise(bodies)]


def common(first, second):
    """Return the length of the common prefix of two texts in bytes."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == second[:middle] else (low, middle - 1)
    return low


@pytest.mark.parametrize("wire", ["openai", "openai-responses", "anthropic"])
async def test_request_prefix_is_stable(wire):
    """At least 95 % of the bytes of each request are an unchanged prefix of the next request."""
    modes = Modes(universal=[get_time], agent_may=MODES)
    bodies, changes, state_changes = await bodies_of(wire, modes)
    assert len(bodies) >= TURNS + 40
    assert changes >= 20
    assert state_changes >= changes + 10
    shared = shares([unmarked(body) for body in bodies])
    assert min(shared) >= LEAST
    assert min(shared) >= 0.999  # only the end of the message list differs


class Restless(Toolset):
    """A toolset whose tools are added, removed and changed."""

    name = "restless"

    async def run(self, publish):
        self.publish = publish
        publish([deploy])
        await trio.sleep_forever()

    def change(self, number):
        """Publish other tools in each fifth turn, and two turns later a tool with a changed description."""
        if number % 5 == 0:
            self.publish(
                [deploy, *(FunctionTool(f"tool_{n}", "One more.", get_time.func) for n in range(number))]
            )
        elif number % 5 == 2:
            self.publish(
                [FunctionTool("deploy", f"Deploy something, in turn {number}.", deploy.func, thread=False)]
            )


@pytest.mark.parametrize("wire", ["openai", "openai-responses", "anthropic"])
async def test_request_prefix_is_stable_while_toolsets_change(wire):
    """Tool changes are described at the end of the request, so that the earlier part stays unchanged."""
    modes = Modes(universal=[get_time], agent_may=MODES)
    restless = Restless()
    bodies, *_ = await bodies_of(wire, modes, [get_time, restless], restless.change)
    assert b"Further tools are available now" in bodies[-1]
    assert b"Tools that changed" in bodies[-1]
    assert min(shares([unmarked(body) for body in bodies])) >= LEAST


async def test_the_measure_sees_a_prompt_that_moves():
    """With the turn number in the system prompt the same measure is below the threshold."""
    modes = Modes(universal=[get_time], agent_may=MODES)
    bodies, *_ = await bodies_of("openai", modes)
    moving = [
        body.replace(b"You work in modes.", f"You are in turn {number}.".encode())
        for number, body in enumerate(bodies)
    ]
    assert min(shares(moving)) < LEAST
