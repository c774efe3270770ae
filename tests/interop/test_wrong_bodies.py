"""Bodies with values of wrong types. Each protocol rejects them with a client error that names the field."""

import base64
import random

import pytest
import trio

from .mutations import mutate
from .test_ag_ui import asked as ag_ui_run
from .test_vercel import asked as vercel_chat

COUNT = 300
IMAGE = f"data:image/png;base64,{base64.b64encode(b'png').decode()}"
FUNCTION = {"name": "locate", "description": "Position.", "parameters": {"type": "object", "properties": {}}}
USER = {"role": "user", "content": "hello"}
CHAT = {
    "model": "clerk",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": IMAGE}},
                {"type": "file", "file": {"file_data": "AAAA", "filename": "a.pdf"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "locate", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Berlin"},
        USER,
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "locate"}},
    "response_format": {"type": "text"},
    "temperature": 1,
    "max_completion_tokens": 100,
    "stream": False,
    "stream_options": {"include_usage": True},
    "metadata": {"a": "b"},
    "n": 1,
    "store": False,
}
RESPONSE = {
    "model": "clerk",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "look"}]},
        {"type": "function_call", "call_id": "c1", "name": "locate", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Berlin"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": IMAGE},
                {"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"},
            ],
        },
    ],
    "instructions": "Be brief.",
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "auto",
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "temperature": 1.0,
    "max_output_tokens": 100,
    "stream": False,
    "background": False,
    "store": True,
    "metadata": {"a": "b"},
}
WRONG = [
    ("chat/completions", "messages", "x"),
    ("chat/completions", "messages", [5]),
    ("chat/completions", "messages", [{"role": "user", "content": [5]}]),
    ("chat/completions", "messages", [{"role": "user", "content": [{"type": "image_url", "image_url": 5}]}]),
    ("chat/completions", "messages", [{"role": "user", "content": [{"type": "file", "file": 5}]}]),
    ("chat/completions", "messages", [{"role": "assistant", "tool_calls": 5}, USER]),
    ("chat/completions", "tools", 5),
    ("chat/completions", "tools", [5]),
    ("chat/completions", "tool_choice", 3),
    ("chat/completions", "tool_choice", {"type": "function", "function": "locate"}),
    ("chat/completions", "response_format", "json_object"),
    ("chat/completions", "response_format", {"type": "json_schema", "json_schema": "x"}),
    ("chat/completions", "stream", "yes"),
    ("chat/completions", "stream_options", 5),
    ("chat/completions", "metadata", 3),
    ("chat/completions", "temperature", True),
    ("chat/completions", "max_tokens", "many"),
    ("responses", "input", 5),
    ("responses", "input", [5]),
    ("responses", "instructions", 5),
    ("responses", "previous_response_id", 5),
    ("responses", "tools", 5),
    ("responses", "text", "x"),
    ("responses", "text", {"format": "x"}),
    ("responses", "metadata", 3),
    ("responses", "reasoning", 3),
    ("responses", "background", "yes"),
    ("responses", "stream", 1),
    ("responses", "store", "no"),
]


@pytest.mark.parametrize(("address", "field", "value"), WRONG)
async def test_openai_names_the_field(served, address, field, value):
    body = {"model": "clerk", **({"messages": [USER]} if address != "responses" else {"input": "hello"})}
    async with served.client() as client:
        response = await client.post(f"/openai/v1/{address}", json={**body, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert error["message"]


async def send_all(served, address, bodies, check, **headers):
    """Send the bodies, and return their statuses."""
    statuses = set()
    async with served.client(**headers) as client:
        with trio.fail_after(120):
            for body, changes in bodies:
                response = await client.post(address, json=body)
                assert response.status_code < 500, (changes, response.text)
                check(response, changes)
                statuses.add(response.status_code)
    return statuses


@pytest.mark.parametrize(("address", "valid"), [("chat/completions", CHAT), ("responses", RESPONSE)])
async def test_mutated_openai_bodies_are_client_errors(served, address, valid):
    def check(response, changes):
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error["type"] == "invalid_request_error", changes
            assert error["message"], changes

    pick = random.Random(7)
    bodies = [(valid, ""), *(mutate(valid, pick) for _ in range(COUNT))]
    statuses = await send_all(served, f"/openai/v1/{address}", bodies, check)
    assert {200, 400} <= statuses


def has_problem(response, changes):
    if response.status_code >= 400:
        assert response.json()["title"], changes


def ag_ui_bodies(pick):
    """Runs with parts and tools, and runs that resume with decisions or results."""
    message = {
        "id": "m",
        "role": "user",
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}},
        ],
    }
    for index in range(COUNT):
        body = ag_ui_run(
            "", run_id=f"r{index}", thread_id=f"t{index}", tools=[FUNCTION], context=[], state={}
        )
        body["messages"] = [message]
        if index % 3 == 1:
            payload = {"approved": True, "editedArgs": {"euros": 1}}
            body["resume"] = [{"interruptId": "i.t1", "status": "resolved", "payload": payload}]
        if index % 3 == 2:
            body["messages"] = [{"id": "m2", "role": "tool", "toolCallId": "c1", "content": "x", "error": ""}]
        yield mutate(body, pick)


async def test_mutated_ag_ui_bodies_are_client_errors(served):
    statuses = await send_all(served, "/agui/clerk", ag_ui_bodies(random.Random(7)), has_problem)
    assert {200, 404, 422} <= statuses


def vercel_bodies(pick):
    """Messages with parts and tools, and answers with outputs and approvals."""
    for index in range(COUNT):
        body = {**vercel_chat("hello", f"m{index}", f"v{index}"), "tools": {"locate": {"inputSchema": {}}}}
        (message,) = body["messages"]
        message["parts"].append({"type": "file", "url": IMAGE, "mediaType": "image/png", "filename": "a.png"})
        if index % 3 == 1:
            tool = {"type": "dynamic-tool", "toolCallId": "c1", "toolName": "locate"}
            parts = [
                {**tool, "state": "output-available", "output": {"a": 1}},
                {**tool, "state": "output-error", "errorText": "x"},
                {
                    **tool,
                    "state": "approval-responded",
                    "approval": {"id": "a.v1", "approved": True, "reason": "x"},
                },
            ]
            body["messages"].append({"id": "m2", "role": "assistant", "parts": parts})
        yield mutate(body, pick)


async def test_mutated_vercel_bodies_are_client_errors(served):
    statuses = await send_all(served, "/vercel/clerk", vercel_bodies(random.Random(7)), has_problem)
    assert {200, 404, 422} <= statuses


def mcp_bodies(pick):
    version = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        "actgent/messageId": "m1",
    }
    for index in range(COUNT):
        arguments = {"message": "hello", "session_id": f"s{index}"}
        params = {
            "name": "clerk",
            "arguments": arguments,
            "_meta": {**meta, "actgent/messageId": f"m{index}"},
        }
        if index % 4 == 3:
            accepted = {"action": "accept", "content": {"approve": True}}
            params |= {"requestState": "x", "inputResponses": {"a": accepted}}
        yield mutate({"jsonrpc": "2.0", "id": index, "method": "tools/call", "params": params}, pick)


async def test_mutated_mcp_bodies_are_client_errors(served):
    pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")

    def check(response, changes):
        for text in response.text.splitlines():
            assert "Internal" not in text, (changes, text)

    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "clerk",
    }
    statuses = await send_all(served, "/mcp", mcp_bodies(random.Random(7)), check, **headers)
    assert {200, 400} <= statuses
