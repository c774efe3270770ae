"""Fixtures: agents in this process, and agents behind a gateway on loopback."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from actgent import (
    LLM,
    BareAgent,
    GatewayLimits,
    ModelError,
    ModelResponse,
    ScriptedLLM,
    Text,
    ToolCall,
    Usage,
    connect,
    open_gateway,
    open_runtime,
    tool,
)
from actgent.web.access_tokens import new_token

LIMITS = GatewayLimits(rate=100_000, burst=100_000, requests=1000, messages=10_000, grace=1)


@tool(approval=True, effect="once")
async def deploy(place: str) -> str:
    """Deploy to a place."""
    return f"deployed to {place}"


@tool(effect="pure")
async def recite(length: int) -> str:
    """Recite a long text."""
    return "x" * length


def answer(chat):
    """Call the tool that the last message names, repeat the message, or return the tool result."""
    last = chat.messages[-1]
    results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
    text = "".join(part.text for part in last.parts if isinstance(part, Text))
    if results:
        return f"done: {results[0].content[:20]}"
    if text.startswith("fail"):
        raise ModelError("the model is down")
    name, _, argument = text.partition(" ")
    if name == "deploy":
        return ToolCall("deploy", {"place": argument})
    return ToolCall("recite", {"length": int(argument)}) if name == "recite" else f"you said: {text}"


class Counting(LLM):
    """A model that streams the result of `answer` word by word, and reports token usage."""

    name = "counting"

    async def complete(self, chat, on_text=None):
        said = answer(chat)
        if said == "you said: wait":
            await trio.sleep_forever()
        if isinstance(said, ToolCall):
            return ModelResponse(
                parts=(said,), stop="tool_use", usage=Usage(input_tokens=10, output_tokens=2)
            )
        for word in said.split(" "):
            if on_text is not None:
                await on_text(f"{word} ", 0)
        return ModelResponse(parts=(Text(said + " "),), usage=Usage(input_tokens=7, output_tokens=3))


def make_agent(name="clerk", **options):
    return BareAgent(name, llm=Counting(), tools=[deploy, recite], **options)


@attrs.define
class Served:
    """An open gateway, its runtime, and a token of the user ada."""

    gateway: object
    runtime: object
    token: str
    url: str

    def connect(self, **options):
        return connect(**{"url": self.url, "token": self.token, **options})


@asynccontextmanager
async def open_served(*agents, journal="memory:", scopes=("chat", "approve"), limits=LIMITS, index=False):
    token, known = new_token("ada", owner="ada", scopes=scopes)
    async with open_runtime(journal=journal, index=index) as runtime:
        for agent in agents or [make_agent(), BareAgent("helper", llm=ScriptedLLM(["helped"], repeat=True))]:
            await runtime.start(agent)
        settings = {"tokens": [known], "hosts": ["127.0.0.1"], "limits": limits}
        async with open_gateway(runtime, bind="127.0.0.1:0", **settings) as gateway:
            yield Served(gateway, runtime, token, gateway.url)


@pytest.fixture
def serving():
    """Return a context manager that opens a gateway with other agents or options."""
    return open_served


@pytest.fixture
async def served():
    async with open_served() as opened:
        yield opened


@pytest.fixture
async def clerk(served):
    """Yield the agent of a connected client."""
    async with served.connect() as client:
        yield client.agent("clerk")
