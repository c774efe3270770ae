"""Variants of requests that real clients send to the endpoints of other products' protocols."""

import base64
import json

import pytest
import trio

from .test_ag_ui import asked as ag_ui_run
from .test_vercel import asked as vercel_chat

URL = f"data:image/png;base64,{base64.b64encode(b'png').decode()}"
USER = {"role": "user", "content": "hello"}
PICTURE = {"type": "image_url", "image_url": {"url": URL}}
FUNCTION = {"name": "locate", "parameters": {"type": "object", "properties": {}}}


def calls(*ids):
    made = [{"id": each, "type": "function", "function": {"name": "look", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(content, call_id="a"):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


async def complete(served, messages=(USER,), **fields):
    async with served.client() as client:
        body = {"model": "clerk", "messages": list(messages), **fields}
        return await client.post("/openai/v1/chat/completions", json=body)


def parts_of(chat):
    return [[type(part).__name__ for part in message.parts] for message in chat.messages]


# --- OpenAI -----------------------------------------------------------------------------------------

MESSAGES = {
    "an empty system text": ([{"role": "system", "content": ""}, USER], [["Text"]]),
    "a system text of null": ([{"role": "developer", "content": None}, USER], [["Text"]]),
    "an empty text next to a picture": (
        [{"role": "user", "content": [{"type": "text", "text": ""}, PICTURE]}],
        [["Image"]],
    ),
    "a picture in an earlier message": (
        [{"role": "user", "content": [{"type": "text", "text": "look"}, PICTURE]}, calls("a"), result("ok"), USER],
        [["Text", "Image"], ["ToolCall"], ["ToolResult"], ["Text"]],
    ),
    "a refusal as a part": (
        [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER],
        [["Text"], ["Text"], ["Text"]],
    ),
    "a refusal as a field": (
        [USER, {"role": "assistant", "content": None, "refusal": "No."}, USER],
        [["Text"], ["Text"], ["Text"]],
    ),
    "a result of null": (
        [USER, calls("a"), result(None), USER],
        [["Text"], ["ToolCall"], ["ToolResult"], ["Text"]],
    ),
    "results in another order": (
        [USER, calls("a", "b"), result("2", "b"), result("1", "a"), USER],
        [["Text"], ["ToolCall", "ToolCall"], ["ToolResult", "ToolResult"], ["Text"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "parts"), MESSAGES.values(), ids=MESSAGES)
async def test_messages_reach_the_model(served, chats, messages, parts):
    """Empty texts are omitted. Pictures and refusals of earlier messages are not lost."""
    response = await complete(served, messages)
    assert response.status_code == 200, response.text
    assert parts_of(chats[0]) == parts


async def test_picture_in_an_earlier_tool_result(served, chats):
    """The result keeps its text and its picture."""
    content = [{"type": "text", "text": "a map"}, PICTURE]
    assert (await complete(served, [USER, calls("a"), result(content), USER])).status_code == 200
    found = chats[0].messages[2].parts[0]
    assert (found.content, [each.data for each in found.media]) == ("a map", [b"png"])


NEUTRAL = {"modalities": ["text"], "stop": [], "logit_bias": {}, "top_logprobs": None, "foo": 1, "top_p": 0.5}


async def test_neutral_parameters_are_ignored(served):
    """Unknown parameters, and values that mean the default, do not reject a request."""
    assert (await complete(served, **NEUTRAL)).status_code == 200


REJECTED = {
    "modalities": ["text", "audio"],
    "logit_bias": {"5": -100},
    "top_logprobs": 3,
    "conversation": "conv_1",
    "prompt": {"id": "pmpt_1"},
    "max_tool_calls": 1,
    "parallel_tool_calls": "no",
    "max_completion_tokens": 0,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}},
}


@pytest.mark.parametrize(("name", "value"), REJECTED.items())
async def test_parameters_that_change_the_meaning_are_rejected(served, name, value):
    """A parameter is never ignored silently if the answer would be another one."""
    response = await complete(served, **{name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


ORDERS = {
    "missing": [USER, calls("a", "b"), result("1"), USER],
    "twice": [USER, calls("a"), result("1"), result("2"), USER],
    "without a call": [USER, result("1"), USER],
}


@pytest.mark.parametrize("messages", ORDERS.values(), ids=ORDERS)
async def test_results_that_match_no_call_name_the_field(served, messages):
    """The error has OpenAI's form and names `messages`."""
    response = await complete(served, messages)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    "part", [{"type": "file", "file": {"file_id": "f"}}, {"type": "input_image", "file_id": "f"}]
)
async def test_uploaded_files_are_named_in_the_error(served, part):
    """The error says that file ids are not supported."""
    response = await complete(served, [{"role": "user", "content": [part]}])
    assert response.status_code == 400
    assert "file_id is not supported" in response.json()["error"]["message"]


async def test_one_call_at_a_time_is_an_instruction(served, chats):
    """`parallel_tool_calls: false` reaches the model, and is in the response."""
    body = {"model": "clerk", "input": "hello", "tools": [{"type": "function", **FUNCTION}]}
    async with served.client() as client:
        answered = await client.post("/openai/v1/responses", json={**body, "parallel_tool_calls": False})
    assert answered.json()["parallel_tool_calls"] is False
    assert "at most one tool" in chats[0].system


async def test_a_failed_turn_is_not_sent_again_by_sdks(served):
    """OpenAI's SDKs retry errors of the server, unless this header forbids it."""
    response = await complete(served, [{"role": "user", "content": "fail"}])
    assert response.status_code == 503
    assert response.headers["x-should-retry"] == "false"


# --- error formats ----------------------------------------------------------------------------------

FORMATS = [
    ("GET", "/openai/v1/embeddings", 404, "error.message"),
    ("DELETE", "/openai/v1/models", 405, "error.message"),
    ("GET", "/openai/v1/models/", 404, "error.message"),
    ("PUT", "/a2a/clerk/v1/tasks", 405, "error.details"),
    ("GET", "/a2a/clerk", 405, "error.code"),
    ("GET", "/a2a/clerk/v1/nowhere", 404, "error.code"),
    ("PUT", "/mcp", 405, "error.code"),
    ("GET", "/v1/nowhere", 404, "detail"),
]


@pytest.mark.parametrize(("verb", "path", "status", "member"), FORMATS)
async def test_unknown_paths_and_methods_have_the_format_of_the_protocol(served, verb, path, status, member):
    """Each client can read the error."""
    async with served.client() as client:
        response = await client.request(verb, path)
    assert response.status_code == status
    found = response.json()
    for name in member.split("."):
        found = found[name]
    assert found


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {}, 400, -32700),
        (b"[]", {}, 400, -32600),
        (b"{}", {"authorization": "Bearer x"}, 401, -32600),
        (b"{}", {"content-type": "text/plain"}, 415, -32600),
    ],
)
async def test_mcp_requests_that_the_gateway_rejects(served, content, headers, status, code):
    """The error is one of JSON-RPC, also before the transport."""
    sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    async with served.client() as client:
        response = await client.post("/mcp", content=content, headers=sent)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("www-authenticate" in response.headers) == (status == 401)


async def test_head_of_mcp_logs_no_error(served, caplog):
    """A health check with HEAD gets the status of the transport, without a traceback in the log."""
    async with served.client() as client:
        assert (await client.head("/mcp")).status_code in (400, 405)
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


# --- AG-UI and Vercel -------------------------------------------------------------------------------

AG_UI = {
    "an empty text": [{"type": "text", "text": ""}, {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}}],
    "binary data": [{"type": "binary", "mimeType": "image/png", "data": "AAAA"}],
    "a binary URL": [{"type": "binary", "mimeType": "image/png", "url": "https://a.test/b.png"}],
}  # fmt: skip


@pytest.mark.parametrize("content", AG_UI.values(), ids=AG_UI)
async def test_parts_of_ag_ui(served, chats, content):
    """An empty text is omitted. The type `binary` of earlier revisions is accepted."""
    body = ag_ui_run(content)
    async with served.client() as client:
        assert (await client.post("/agui/clerk", json=body)).status_code == 200
    assert parts_of(chats[0])[-1] == ["Image"]


async def test_parts_of_vercel(served, chats):
    """Parts that the client library also omits from the prompt are omitted."""
    file = {"type": "file", "mediaType": "image/png", "url": URL}
    parts = [{"type": "step-start"}, {"type": "text", "text": ""}, file, {"type": "data-page", "data": {}}]
    body = vercel_chat("")
    body["messages"][0]["parts"] = parts
    async with served.client() as client:
        response = await client.post("/vercel/clerk", json=body)
    assert response.status_code == 200, response.text
    assert parts_of(chats[0])[-1] == ["Image"]


# --- connections ------------------------------------------------------------------------------------


async def exchange(served, request):
    """Send raw bytes, and return all that the server sends before it closes the connection."""
    host, _, port = served.gateway.url.rpartition("/")[2].partition(":")
    received = b""
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(request.replace("HOST", f"{host}:{port}").encode())
        with trio.fail_after(60):
            async for data in stream:
                received += data
    return received


@pytest.mark.parametrize(
    ("version", "extra"), [("1.0", ""), ("1.0", "Connection: close\r\n"), ("1.1", "Connection: close\r\n")]
)
async def test_stream_ends_with_the_connection(served, version, extra):
    """Clients of HTTP/1.0 know the end of a stream only by the close of the connection."""
    body = json.dumps({"model": "clerk", "messages": [USER], "stream": True})
    head = f"Host: HOST\r\nAuthorization: Bearer {served.tokens['ada']}\r\nContent-Type: application/json\r\n{extra}"
    path = "/openai/v1/chat/completions"
    request = f"POST {path} HTTP/{version}\r\n{head}Content-Length: {len(body)}\r\n\r\n{body}"
    assert b"data: [DONE]" in await exchange(served, request)


@pytest.mark.parametrize("line", ["OPTIONS *", "CONNECT a:443"])
async def test_targets_without_a_path_are_unknown(served, line):
    """The server answers with a client error, without a traceback in the log."""
    received = await exchange(served, f"{line} HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 404")
