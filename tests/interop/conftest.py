"""Fixtures: a gateway with all outside protocols, and agents with a model that reacts to words of the last message."""

import pytest
import trio
import trio.lowlevel
from openai import OpenAI

from actgent import ApprovalRequest, BareAgent, ScriptedLLM, Text, ToolCall, ToolResult, Usage, tool
from actgent.interop import PROTOCOLS
from actgent.llm.model_interface import ModelResponse
from tests.web.conftest import open_served

USAGE = Usage(input_tokens=12, output_tokens=5)
OWN = ("add", "pay", "break_down", "read_result")
runs = {"pay": 0}
seen = []
"""Requests to the model."""


def answer(chat):
    """Call the tool that the last message names, or repeat the message.

    `where` calls the tools of the client.
    """
    seen.append(chat)
    last = chat.messages[-1]
    content = "".join(part.text for part in last.parts if isinstance(part, Text))
    theirs = [each for each in chat.tools if each.name not in OWN]
    if results := [part for part in last.parts if isinstance(part, ToolResult)]:
        text = f" {' '.join(each.text for each in results)}" if theirs else ""
        return ModelResponse(parts=(Text(f"The result is in.{text}"),), usage=USAGE)
    if theirs and ("where" in content or "weather" in content):
        calls = [
            ToolCall(each.name, dict.fromkeys(each.parameters.get("required", ()), "x")) for each in theirs
        ]
        own = [ToolCall("add", {"a": 1, "b": 2})] if "add" in content else []
        own += [ToolCall("pay", {"euros": 3})] if "pay" in content else []
        return ModelResponse(parts=(*calls, *own), stop="tool_calls", usage=USAGE)
    if "add" in content:
        calls = [Text("I add. "), *(ToolCall("add", {"a": number, "b": 3}) for number in range(2))]
        return ModelResponse(parts=tuple(calls), stop="tool_calls", usage=USAGE)
    if "pay" in content:
        return ModelResponse(parts=(ToolCall("pay", {"euros": 3}),), stop="tool_calls", usage=USAGE)
    if "break" in content:
        return ModelResponse(parts=(ToolCall("break_down", {}),), stop="tool_calls", usage=USAGE)
    if "fail" in content:
        raise RuntimeError("secret-canary")
    return ModelResponse(parts=(Text(f"you said: {content}"),), usage=USAGE)


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await trio.lowlevel.checkpoint()
    return a + b


@tool(approval=ApprovalRequest("Really pay?", timeout=3600))
async def pay(euros: int) -> str:
    """Pay an amount."""
    await trio.lowlevel.checkpoint()
    runs["pay"] += 1
    return f"paid {euros}"


@tool(effect="pure")
async def break_down() -> str:
    """Raise an error."""
    await trio.lowlevel.checkpoint()
    raise RuntimeError("secret-canary")


def make_agents():
    model = ScriptedLLM(answer, chunk=4)
    return [BareAgent(name, llm=model, tools=[add, pay, break_down]) for name in ("clerk", "gpt-5-clerk")]


@pytest.fixture
async def served():
    runs["pay"] = 0
    async with open_served(agents=make_agents(), protocols=PROTOCOLS) as opened:
        yield opened


@pytest.fixture
def chats():
    """Return the requests to the model during the test."""
    seen.clear()
    return seen


@pytest.fixture
def sdk(served):
    """Return a function that runs a function with an OpenAI client, in a thread."""

    async def call(function, token="ada"):
        def work():
            url = f"{served.gateway.url}/openai/v1"
            with OpenAI(base_url=url, api_key=served.tokens[token], max_retries=0) as client:
                return function(client)

        with trio.fail_after(60):
            return await trio.to_thread.run_sync(work)

    return call
