"""Agents whose protocol puts the text for the user into JSON: clients of other products receive only this text."""

import json

import httpx2
import mcp
import pytest

from actgent import ReActAgent, ScriptedLLM, SimpleAgent, StepsAgent, open_gateway, open_runtime, tool
from actgent.interop import PROTOCOLS
from actgent.interop.mcp import make_mcp_server

from .acp_client import connected

TEXT = "Good day, Ada."
AGENTS = {
    "simple": (SimpleAgent, {"messageType": "DIRECT_RESPONSE", "content": TEXT}),
    "react": (
        ReActAgent,
        {
            "primary_action": {
                "response_purpose": "DIRECT_RESPONSE",
                "response_description": TEXT,
                "response_content": TEXT,
            }
        },
    ),
    "steps": (StepsAgent, {"final_answer": TEXT}),
}
HEADERS = {"a2a-version": "1.0"}
USER = {"role": "user", "content": "hello"}
REQUESTS = {
    "chat": ("/openai/v1/chat/completions", {"model": "clerk", "messages": [USER]}),
    "chat stream": ("/openai/v1/chat/completions", {"model": "clerk", "messages": [USER], "stream": True}),
    "responses": ("/openai/v1/responses", {"model": "clerk", "input": "hello"}),
    "responses stream": ("/openai/v1/responses", {"model": "clerk", "input": "hello", "stream": True}),
    "ag-ui": ("/agui/clerk", {"threadId": "t1", "runId": "r1", "messages": [{"id": "1", **USER}]}),
    "ag-ui with other messages": (
        "/agui/clerk",
        {"threadId": "t1", "runId": "r2", "messages": [{"id": "0", **USER}, {"id": "2", **USER}]},
    ),
    "vercel": (
        "/vercel/clerk",
        {
            "id": "c1",
            "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}],
        },
    ),
    "a2a": (
        "/a2a/clerk",
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendStreamingMessage",
            "params": {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}},
        },
    ),
}


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@pytest.fixture(params=AGENTS)
async def clerk(request):
    """Yield a runtime and an agent whose model answers each message with the JSON of the agent's protocol."""
    kind, answer = AGENTS[request.param]
    agent = kind("clerk", llm=ScriptedLLM([json.dumps(answer)], repeat=True, chunk=8), tools=[add])
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        yield runtime, agent


async def test_answers_over_http_have_no_json_of_the_protocol(clerk):
    """Streams and complete answers of all protocols have the text, and no text is discarded."""
    runtime, _ = clerk
    async with (
        open_gateway(runtime, bind="127.0.0.1:0", protocols=PROTOCOLS) as gateway,
        httpx2.AsyncClient(base_url=gateway.url, timeout=60) as client,
    ):
        for name, (path, body) in REQUESTS.items():
            headers = {"authorization": f"Bearer {gateway.key}", **HEADERS}
            answer = await client.post(path, json=body, headers=headers)
            assert answer.status_code == 200, (name, answer.text)
            for word in ("messageType", "primary_action", "final_answer", "reset-step", '"incomplete"'):
                assert word not in answer.text, (name, answer.text)
            assert "Good" in answer.text, name


async def test_result_of_an_mcp_call_has_the_text(clerk):
    runtime, _ = clerk
    async with mcp.Client(make_mcp_server(runtime)) as client:
        result = await client.call_tool("clerk", {"message": "hello", "session_id": "s1"})
    assert [each.text for each in result.content] == [TEXT]


async def test_acp_client_gets_the_text_live_and_as_history(clerk):
    runtime, agent = clerk
    async with connected(runtime, agent) as client:
        session_id = await client.new()
        await client.prompt(session_id, "hello")
        assert client.text() == TEXT
    async with connected(runtime, agent) as client:
        await client.load(session_id)
        assert client.text() == TEXT


async def test_tool_call_in_the_text_of_an_answer_is_not_shown():
    """An answer with a tool call as JSON has no text for the user."""
    call = {"messageType": "TOOL_INVOCATION", "content": {"name": "add", "parameters": {"a": 1, "b": 2}}}
    lines = [json.dumps(each) for each in (call, AGENTS["simple"][1])]
    agent = SimpleAgent("clerk", llm=ScriptedLLM(lines), tools=[add])
    async with open_runtime(journal="memory:") as runtime:
        await runtime.start(agent)
        async with connected(runtime, agent) as client:
            await client.prompt(await client.new(), "1 + 2?")
            assert client.text() == TEXT
