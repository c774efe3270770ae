"""Gateways on loopback with two owners, and clients with their tokens."""

from contextlib import asynccontextmanager

import attrs
import httpx2
import pytest

from actgent import BareAgent, ScriptedLLM, ToolCall, open_gateway, open_runtime, tool
from actgent.modes.modes import Modes
from actgent.web.bounds import GatewayLimits
from actgent.web.tokens import new_token

ALL = ("chat", "approve", "journal")


@tool(approval=True)
def deploy(place: str) -> str:
    """Deploy to a place."""
    return f"deployed to {place}"


def answer(chat):
    """Deploys where it is told to, and says the last words of everybody else again."""
    last = chat.messages[-1]
    results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
    said = "".join(part.text for part in last.parts if type(part).__name__ == "Text")
    if results:
        return f"done: {results[0].text}"
    return ToolCall("deploy", {"place": "mars"}) if "deploy" in said else f"you said: {said}"


@attrs.define
class Served:
    """A gateway that is open, with tokens of ada and bob, and of an admin."""

    gateway: object
    runtime: object
    tokens: dict

    @asynccontextmanager
    async def client(self, name="ada", **headers):
        async with httpx2.AsyncClient(
            base_url=self.gateway.url,
            headers={"authorization": f"Bearer {self.tokens[name]}", **headers},
            timeout=20,
        ) as client:
            yield client


def make_agents():
    clerk = BareAgent(
        name="clerk", llm=ScriptedLLM(answer), tools=[deploy], goal="help", modes=Modes(commands=False)
    )
    return [clerk, BareAgent(name="helper", llm=ScriptedLLM(["helped"] * 50))]


@asynccontextmanager
async def open_served(*, journal="memory:", agents=None, limits=None, **options):
    made = {
        name: new_token(name, owner=name, scopes=scopes)
        for name, scopes in {
            "ada": ALL,
            "bob": ALL,
            "reader": ("read",),
            "root": ("admin",),
            "service": ("chat", "impersonate:*"),
        }.items()
    }
    async with open_runtime(journal=journal) as runtime:
        for agent in make_agents() if agents is None else agents:
            await runtime.start(agent)
        given = {"bind": "127.0.0.1:0", "tokens": [token for _, token in made.values()], **options}
        async with open_gateway(runtime, limits=limits or GatewayLimits(grace=1), **given) as gateway:
            yield Served(gateway, runtime, {name: secret for name, (secret, _) in made.items()})


@pytest.fixture
def serving():
    """What opens a gateway with other options."""
    return open_served


@pytest.fixture
async def served():
    async with open_served() as opened:
        yield opened
