"""An MCP server over streamable HTTP that loses its sessions, as after a redeployment."""

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio

from actgent import BareAgent, MCPServer, ScriptedLLM, ToolCall, ToolResult
from actgent.llm.model_interface import ModelResponse


class Server(ThreadingHTTPServer):
    """An MCP server that records its requests."""

    daemon_threads = True

    def __init__(self, refusal=404):
        super().__init__(("127.0.0.1", 0), Handler)
        self.refusal = refusal
        self.sessions, self.asked, self.ran = set(), [], []
        self.going = threading.Event()
        self.forgets_at_once = False
        self.more = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/mcp"

    @property
    def begun(self):
        return self.asked.count("initialize")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=None, **heads):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            **heads,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply(405)

    def do_DELETE(self):
        self.reply(404)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, session, server = request.get("method"), self.headers.get("mcp-session-id"), self.server
        server.asked.append(method)
        head = {"jsonrpc": "2.0", "id": request.get("id")}
        if method == "initialize":
            assert session is None
            session = f"s{len(server.asked)}"
            server.sessions.add(session)
            said = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "w", "version": "1"},
            }
            return self.reply(200, {**head, "result": said}, mcp_session_id=session)
        if session not in server.sessions:
            return self.reply(
                server.refusal,
                {**head, "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}},
            )
        if "id" not in request:
            return self.reply(202)
        if method == "tools/list":
            if server.forgets_at_once:
                server.sessions.clear()
            tools = [
                {"name": name, "inputSchema": {"type": "object"}} for name in ("quick", "slow")
            ] + server.more
            return self.reply(200, {**head, "result": {"tools": tools}})
        if method == "tools/call":
            server.ran.append(request["params"]["name"])
            if request["params"]["name"] == "slow":
                server.going.set()
                time.sleep(3)
            return self.reply(200, {**head, "result": {"content": [{"type": "text", "text": "done"}]}})
        return self.reply(200, {**head, "error": {"code": -32601, "message": "Method not found"}})


class SlowHandler(Handler):
    """A server of only revision 2026-07-28 that answers its first request late."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, head = request.get("method"), {"jsonrpc": "2.0", "id": request.get("id")}
        self.server.asked.append(method)
        if method == "initialize":
            return self.reply(400, {**head, "error": {"code": -32022, "message": "unsupported revision"}})
        if len(self.server.asked) == 1:
            time.sleep(1)
        cached = {"ttlMs": 0, "cacheScope": "private"}
        results = {
            "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **cached},
            "tools/list": {"tools": [{"name": "quick", "inputSchema": {"type": "object"}}], **cached},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        if (result := results.get(method)) is None:
            return self.reply(202)
        with suppress(BrokenPipeError):  # the client no longer waits for the first answer
            self.reply(200, {**head, "result": {"resultType": "complete", **result}})
        return None


async def test_slow_server_keeps_the_new_revision(server, monkeypatch):
    """After a late answer, the client does not assume an earlier revision."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.2)
    server.RequestHandlerClass = SlowHandler
    async with agent_with(server, {"One.": ToolCall("quick", {}, id="1")}) as agent:
        ((status, text),) = await heard_of(agent, "ada", "One.")
    assert status == "success"
    assert "done" in text
    assert server.asked[:2] == ["server/discover", "server/discover"]
    assert "initialize" not in server.asked


@pytest.fixture
def server():
    """Yield a new server."""
    made = Server()
    yield made
    made.shutdown()
    made.server_close()


def agent_with(server, calls):
    def answer(chat):
        if chat.messages[-1].role == "tool" or any(
            isinstance(part, ToolResult) for part in chat.messages[-1].parts
        ):
            return "ok"
        return ModelResponse(parts=(calls[chat.messages[-1].parts[0].text],))

    llm = ScriptedLLM(answer)
    return BareAgent("clerk", llm=llm, tools=[MCPServer(url=server.url, name="w", required=True)])


async def heard_of(agent, session_id, *texts):
    received = []
    session = await agent.create_session(session_id)
    session.on_tool_result(received.append)
    for text in texts:
        await agent.run(text, session=session)
    return [(each.status, each.text) for each in received]


@pytest.mark.parametrize("refusal", [404, 400])
async def test_an_expired_session_is_reopened_and_the_call_repeated(server, refusal):
    """The server rejected the call, so the client repeats it in a new session.

    It runs once, and the model sees no error.
    """
    server.refusal = refusal
    calls = {text: ToolCall("quick", {}, id=text) for text in ("One.", "Two.", "Three.")}
    async with agent_with(server, calls) as agent:
        first = await heard_of(agent, "ada", "One.")
        server.sessions.clear()
        rest = await heard_of(agent, "bob", "Two.", "Three.")
    assert [status for status, _ in first + rest] == ["success"] * 3
    assert all("done" in text for _, text in first + rest)
    assert server.begun == 2
    assert server.ran == ["quick"] * 3


async def test_a_call_under_way_when_the_session_ends_has_an_unknown_outcome(server):
    """A running call has an unknown outcome. A call that the server rejected runs once in the new session."""
    calls = {"ada": ToolCall("slow", {}, id="a"), "bob": ToolCall("quick", {}, id="b")}
    received = {}
    async with agent_with(server, calls) as agent, trio.open_nursery() as nursery:

        async def run(name):
            received[name] = await heard_of(agent, name, name)

        nursery.start_soon(run, "ada")
        await trio.to_thread.run_sync(server.going.wait)
        server.sessions.clear()
        await run("bob")
    assert received["bob"] == [("success", received["bob"][0][1])]
    assert received["ada"][0][0] == "outcome_unknown"
    assert server.ran == ["slow", "quick"]
    assert server.begun == 2


async def test_server_that_loses_every_session_is_lost(server):
    """The client does not reconnect in a loop without a pause."""
    async with agent_with(server, {"One.": ToolCall("quick", {}, id="c")}) as agent:
        server.sessions.clear()
        server.forgets_at_once = True
        ((status, _),) = await heard_of(agent, "ada", "One.")
        await trio.sleep(0.5)
    assert status == "error"
    assert server.begun < 6


async def test_invalid_tool_does_not_remove_other_tools(server, caplog):
    """The SDK rejects a complete list for one invalid schema.

    Here only the invalid tool is withheld and logged.
    """
    place = {"$ref": "#/$defs/P", "$defs": {"P": {"type": "object", "properties": {"x": {"type": "string"}}}}}
    server.more = [
        {"name": "list", "inputSchema": {"type": "array", "items": {"type": "string"}}},
        {"name": "text", "inputSchema": {"type": "string"}},
        {"name": "none", "inputSchema": {}},
        {"name": "place", "inputSchema": place},
        {"name": "maybe", "inputSchema": {"type": ["object", "null"], "properties": {"a": {"type": "array"}}}},
        {"name": "any", "inputSchema": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}}},
        {"name": "said", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}},
    ]  # fmt: skip
    async with agent_with(server, {"One.": ToolCall("said", {}, id="c")}) as agent:
        offered = {tool.name for tool in agent.tools}
        ((status, _),) = await heard_of(agent, "ada", "One.")
    assert {"quick", "slow", "none", "place", "maybe", "any", "said"} <= offered
    assert not {"list", "text"} & offered
    assert "the tool list of an MCP server is left out" in caplog.text
    assert status == "success"
