"""Servers that deviate from the protocol: a call has its result, or fails at once with the reason of the server."""

import json
import sys
from pathlib import Path

import pytest
import trio

from actgent import BareAgent, MCPServer, ScriptedLLM, ToolCall, ToolContext, open_toolset
from actgent.errors import OutcomeUnknown, ToolError

SERVER = str(Path(__file__).parent / "odd_server.py")
OK = '"result": {"content": [{"type": "text", "text": "ok"}]}'
ANSWER = f'{{"jsonrpc": "2.0", "id": %ID%, {OK}}}'
INFO = {"name": "odd", "version": "1"}
TOOL = {"name": "act", "inputSchema": {"type": "object"}}


def odd(line, **results):
    methods = json.dumps({name.replace("_", "/"): result for name, result in results.items()})
    return MCPServer(name="odd", command=sys.executable, args=[SERVER, line, methods])


async def outcome(tools):
    """Return the result of the tool `act`, or the type and text of its error."""
    act = next(tool for tool in tools() if tool.name == "act")
    with trio.fail_after(60):
        try:
            return await act.execute({}, ToolContext())
        except (ToolError, OutcomeUnknown) as error:
            return f"{type(error).__name__}: {error}"


async def outcome_of(server):
    async with open_toolset(server) as tools:
        return await outcome(tools)


def result_line(result):
    return f'{{"jsonrpc": "2.0", "id": %ID%, "result": {json.dumps(result)}}}\n'


MESSAGES = {
    "no revision": (f'{{"id": %ID%, {OK}}}\n', "ok"),
    "revision 1.0": (f'{{"jsonrpc": "1.0", "id": %ID%, {OK}}}\n', "ok"),
    "id is a float": (f'{{"jsonrpc": "2.0", "id": %ID%.0, {OK}}}\n', "ok"),
    "batch": (f'[{{"jsonrpc": "2.0", "method": "notifications/x", "params": [1]}}, {ANSWER}]\n', "ok"),
    "byte order mark": (f"\ufeff{ANSWER}\n", "ok"),
    "invalid UTF-8": (f"{ANSWER}\n".replace("ok", "caf\udce9"), "caf\ufffd"),
    "log lines": (f'listening\n{{"id": %ID%, "level": "info"}}\n{ANSWER}\n', "ok"),
    "no result": ('{"jsonrpc": "2.0", "id": %ID%, "result": null}\n', "the response has no result object"),
    "error is a text": ('{"jsonrpc": "2.0", "id": %ID%, "error": "disk full"}\n', "ToolError: the call failed: disk full"),
    "error without a code": ('{"jsonrpc": "2.0", "id": %ID%, "error": {"message": "full"}}\n', "failed: full"),
    "error without an id": ('{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "bad"}}\n', "ToolError: the call failed: bad"),
    "code is a text": ('{"jsonrpc": "2.0", "id": %ID%, "error": {"code": "E1", "message": "full"}}\n', "failed: full"),
    "nested too deeply": (f'{{"jsonrpc": "2.0", "id": %ID%, "result": {"[" * 5000}{"]" * 5000}}}\n', "nested too deeply"),
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
async def test_odd_message_has_an_outcome_at_once(name):
    """A call does not wait for its timeout if the server answers it by an invalid message."""
    line, expected = MESSAGES[name]
    assert expected in await outcome_of(odd(line))


RESULTS = {
    "no content": ({"structuredContent": {"a": 1}}, '{"a":1}'),
    "content is null": ({"content": None, "structuredContent": {"a": 1}}, '{"a":1}'),
    "other members": ({"toolResult": "ok"}, '{"toolResult": "ok"}'),
    "content is a text": ({"content": "ok"}, "ok"),
    "texts": ({"content": ["a", "b"]}, "a\nb"),
    "no type": ({"content": [{"text": "ok"}]}, "ok"),
    "unknown type": ({"content": [{"type": "video", "id": 7}, {"type": "text", "text": "ok"}]}, '{"type": "video", "id": 7}\nok'),
    "wrong annotations": ({"content": [{"type": "text", "text": "ok", "annotations": {"priority": 7}}]}, "ok"),
    "no MIME type": ({"content": [{"type": "image", "data": "aGk="}, {"type": "resource_link", "uri": "a:b"}]}, "[resource a:b: a:b]"),
    "structured list": ({"content": [], "structuredContent": [1, 2]}, "[1, 2]"),
    "null flags": ({"content": [{"type": "text", "text": "ok"}], "isError": None, "_meta": []}, "ok"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
async def test_odd_result_keeps_its_content(name):
    """The tool ran, so the model reads all content that can be read."""
    result, expected = RESULTS[name]
    value = await outcome_of(odd(result_line(result)))
    assert (value[1] if isinstance(value, list) else value) == expected


@pytest.mark.parametrize(
    "other",
    [
        None,
        {"inputSchema": {"type": "object"}},
        {**TOOL, "name": 7},
        {**TOOL, "name": "b", "description": 5},
        {**TOOL, "name": "b", "icons": [{}], "_meta": []},
        {**TOOL, "name": "b", "annotations": "x"},
        {"name": "b", "inputSchema": {"type": "object", "properties": [], "required": None}},
    ],
    ids=repr,
)
async def test_odd_tool_does_not_hide_other_tools(other):
    """An invalid member of a tool is ignored. A tool without a name is left out."""
    listed = {"tools": [TOOL, other], "nextCursor": 5}
    async with open_toolset(odd(f"{ANSWER}\n", tools_list=listed)) as tools:
        has_name = isinstance(other, dict) and other.get("name") == "b"
        assert [tool.name for tool in tools()] == ["act", "b"][: 1 + has_name]
        assert await outcome(tools) == "ok"


@pytest.mark.parametrize("cursor", ["", "again"])
async def test_cursor_that_repeats_ends_the_list(cursor, caplog):
    """An empty cursor ends the list, as does one that the client has used."""
    async with open_toolset(odd("", tools_list={"tools": [TOOL], "nextCursor": cursor})) as tools:
        assert len(tools()) == 1
    assert "too many" not in caplog.text


@pytest.mark.parametrize(
    "handshake", [{}, {"serverInfo": {"name": 5}, "capabilities": {"tools": True}, "instructions": ["a"]}]
)
async def test_odd_handshake_is_accepted(handshake):
    """Only the protocol revision is required."""
    hello = {"protocolVersion": "2025-06-18", **handshake}
    assert await outcome_of(odd(f"{ANSWER}\n", initialize=hello)) == "ok"


async def test_message_without_a_final_newline_is_read():
    """A server that exits after an incomplete line has answered the call."""
    llm = ScriptedLLM([[ToolCall("act", {})], "done"])
    results = []
    async with BareAgent("clerk", llm=llm, tools=[odd(ANSWER)]) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(results.append)
        await agent.run("go", session=session)
    assert [result.status for result in results] == ["success"]


# --- over HTTP ------------------------------------------------------------------------------------


class OddHTTP:
    """An MCP server over HTTP whose answers to calls are scripted, each a function of the request's id."""

    def __init__(self, *answers, capabilities=("tools",), session=""):
        self.answers, self.capabilities, self.session = list(answers), capabilities, session
        self.calls = 0

    def __call__(self, request):
        if request["method"] != "POST":
            return 405, {}, b""
        message = json.loads(request["body"])
        method, number = message["method"], message.get("id")
        if number is None:
            return 202, {}, b""
        if method == "tools/call":
            self.calls += 1
            return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(number)
        offered = {name: {} for name in self.capabilities}
        hello = {"protocolVersion": "2025-06-18", "capabilities": offered, "serverInfo": INFO}
        results = {"initialize": hello}
        if "tools" in self.capabilities:
            results["tools/list"] = {"tools": [TOOL]}
        headers = {"Mcp-Session-Id": self.session} if self.session and method == "initialize" else {}
        known = results.get(method)
        rest = {"error": {"code": -32601, "message": "unknown"}} if known is None else {"result": known}
        return json_reply(number, headers, **rest)


def json_reply(number, headers=None, **members):
    return (
        200,
        {"Content-Type": "application/json", **(headers or {})},
        json.dumps({"jsonrpc": "2.0", "id": number, **members}).encode(),
    )


def ok(text="ok"):
    return {"content": [{"type": "text", "text": text}]}


def status(code, body=b"", kind="text/plain", **headers):
    return lambda _: (
        code,
        {"Content-Type": kind, **{k.replace("_", "-"): v for k, v in headers.items()}},
        body,
    )


def body(text, kind="application/json"):
    """Answer with a text in which `%ID%` is the id of the request."""
    return lambda number: (200, {"Content-Type": kind}, os_bytes(text.replace("%ID%", str(number))))


def os_bytes(text):
    return text.encode("utf-8", "surrogateescape")


def events(*texts):
    return body("".join(f"data: {text}\n\n" for text in texts), "text/event-stream")


def raw(data):
    """Answer with raw bytes, and close the connection."""
    return lambda _: lambda stream: stream.send_all(data)


OTHER = ANSWER.replace("%ID%", "9%ID%").replace("ok", "other")
HTTP_ANSWERS = {
    "no content type": (body(ANSWER, ""), "ok"),
    "text/plain": (body(ANSWER, "text/plain"), "ok"),
    "invalid UTF-8": (body(ANSWER.replace("ok", "caf\udce9")), "caf\ufffd"),
    "surrogate": (events(ANSWER.replace("ok", "cut \\ud83d")), "cut \ufffd"),
    "batch": (body(f"[{ANSWER}]"), "ok"),
    "another id": (body(OTHER), "not a JSON-RPC response to the request"),
    "empty": (status(200), "ToolError: the call failed: the response is not a JSON-RPC response to the request: HTTP 200"),
    "HTML": (status(200, b"<html>", "text/html"), "HTTP 200 OK: text/html"),
    "401": (status(401, b"no token"), "HTTP 401 Unauthorized: no token"),
    "429": (status(429, Retry_After="7"), "HTTP 429 Too Many Requests; retry after 7"),
    "502 in HTML": (status(502, b"<html>x</html>", "text/html"), "HTTP 502 Bad Gateway: text/html"),
    "500 in JSON": (status(500, b'{"detail": "disk full"}', "application/json"), "disk full"),
    "other response first": (events(OTHER, ANSWER), "ok"),
    "invalid event first": (events("[DONE]", ANSWER), "ok"),
    "event with an error without an id": (events('{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "bad"}}'), "ToolError: the call failed: bad"),
    "error without an id": (body('{"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "bad"}}'), "ToolError: the call failed: bad"),
    "event without an end": (body(f"data: {ANSWER}", "text/event-stream"), "ok"),
    "event of 2 MB": (events(ANSWER.replace("ok", "x" * 2_000_000)), "x" * 2_000_000),
    "stream without a response": (events(), "OutcomeUnknown: the connection to the MCP server was lost"),
    "truncated": (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"), "OutcomeUnknown: "),
    "not HTTP": (raw(b"SSH-2.0\r\n\r\n"), "OutcomeUnknown: "),
    "closed": (raw(b""), "OutcomeUnknown: the connection to the MCP server was lost while the call ran: Server disconnected"),
}  # fmt: skip


@pytest.mark.parametrize("name", HTTP_ANSWERS)
async def test_odd_http_answer_affects_one_call(server, name):
    """The error has the HTTP status and the text of the server. The connection stays usable."""
    answer, expected = HTTP_ANSWERS[name]
    server.answer = OddHTTP(answer, lambda number: json_reply(number, result=ok("next")))
    async with open_toolset(MCPServer(url=f"{server.url}/mcp", name="odd")) as tools:
        assert expected in await outcome(tools)
        assert await outcome(tools) == "next"


async def test_call_whose_stream_ends_after_the_session_is_not_repeated(server):
    """The server loses the session while a call runs and ends the stream of the call: its outcome is unknown.

    Another call was rejected with 404 before.
    """
    rejected = trio.Event()

    def run(_):
        async def write(stream):
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: running\n\n")
            await rejected.wait()

        return write

    def refuse(_):
        rejected.set()
        return 404, {}, b""

    server.answer = odd_http = OddHTTP(
        run, refuse, lambda number: json_reply(number, result=ok()), session="s1"
    )
    outcomes = []
    async with open_toolset(MCPServer(url=f"{server.url}/mcp", name="odd")) as tools:

        async def act():
            outcomes.append(await outcome(tools))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(act)
            while not odd_http.calls:  # noqa: ASYNC110 - the server counts
                await trio.sleep(0.01)
            nursery.start_soon(act)
    assert sorted(text.partition(":")[0] for text in outcomes) == ["OutcomeUnknown", "ok"]
    assert odd_http.calls == 3


async def test_server_with_prompts_only_has_no_tools(server):
    """The server rejects the request for its tools, which it does not offer."""
    server.answer = OddHTTP(capabilities=("prompts",))
    async with open_toolset(MCPServer(url=f"{server.url}/mcp", name="odd")) as tools:
        assert len(tools()) == 0
