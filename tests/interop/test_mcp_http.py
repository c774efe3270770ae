"""Agents as MCP tools at `/mcp` of a gateway: both revisions, tokens, owners, approvals and the end of the gateway."""

from contextlib import asynccontextmanager

import httpx2
import pytest
import trio

from actgent import Approve, BareAgent, Label, MCPServer, ScriptedLLM, Tool, ToolCall, open_runtime, tool
from tests.web.conftest import open_served

from .conftest import make_agents, runs

mcp = pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")
types = pytest.importorskip("mcp_types")
streamable = pytest.importorskip("mcp.client.streamable_http")

from actgent.interop.mcp import MCPCatalog, MCPProtocol, mcp_caller  # noqa: E402 - a module of an extra

MODES = ("legacy", "2026-07-28")
ACCEPT = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}


@pytest.fixture
async def gateway():
    runs["pay"] = 0
    async with open_served(agents=make_agents(), protocols=[MCPProtocol()]) as opened:
        yield opened


@asynccontextmanager
async def connected(served, mode="2026-07-28", token="ada", **options):
    headers = {"authorization": f"Bearer {served.tokens[token]}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        transport = streamable.streamable_http_client(f"{served.gateway.url}/mcp", http_client=http)
        async with mcp.Client(transport, mode=mode, **options) as client:
            yield client


async def approve(_context, _params):
    await trio.lowlevel.checkpoint()
    return types.ElicitResult(action="accept", content={"approve": True})


async def ask(client, message, **arguments):
    with trio.fail_after(60):
        return await client.call_tool("clerk", {"message": message, **arguments})


def text_of(result):
    return "".join(each.text for each in result.content)


@pytest.mark.parametrize("mode", MODES)
async def test_calls_and_approvals_work_over_http(gateway, mode):
    async with connected(gateway, mode, elicitation_callback=approve) as client:
        assert [each.name for each in (await client.list_tools()).tools] == ["clerk", "gpt-5-clerk"]
        assert text_of(await ask(client, "hello")) == "you said: hello"
        assert text_of(await ask(client, "please pay")) == "The result is in."
    assert runs["pay"] == 1


@pytest.mark.parametrize("mode", MODES)
async def test_decisions_take_the_scope_approve(gateway, mode):
    async with connected(gateway, mode, token="chatter", elicitation_callback=approve) as client:
        assert (await ask(client, "please pay")).is_error
    assert runs["pay"] == 0


async def test_sessions_belong_to_the_owner_of_the_token(gateway):
    async with connected(gateway) as client:
        await ask(client, "secret-canary", session_id="talk")
    async with connected(gateway, token="bob") as client:
        result = await ask(client, "hello", session_id="talk")
    assert result.is_error
    assert "secret-canary" not in str(result)
    async with gateway.client() as client:
        found = (await client.get("/v1/sessions/talk")).json()
    assert found["owner"] == "ada"


async def test_connection_of_another_owner_is_not_found(gateway):
    """A session id of the 2025 revision is bound to the token that opened it."""
    async with gateway.client() as client:
        opened = await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)
    found = {"mcp-session-id": opened.headers["mcp-session-id"], **ACCEPT}
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    async with gateway.client("bob") as client:
        assert (await client.post("/mcp", json=listing, headers=found)).status_code == 404
        assert (await client.delete("/mcp", headers=found)).status_code == 404
    async with gateway.client() as client:
        assert (await client.post("/mcp", json=listing, headers=found)).status_code == 200


async def test_requests_without_a_token_or_the_scope_are_rejected(gateway):
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx2.AsyncClient() as client:
        response = await client.post(f"{gateway.gateway.url}/mcp", json=request)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Bearer")
    async with gateway.client("reader") as client:
        assert (await client.post("/mcp", json=request)).status_code == 403


async def test_empty_object_is_an_invalid_request_and_not_unreadable_json(gateway):
    """The gateway forwarded `{}` as an empty body, so the client got a parse error for valid JSON."""
    async with gateway.client() as client:
        response = await client.post("/mcp", json={})
    assert response.status_code == 400
    assert response.json()["error"]["code"] != -32700


async def test_open_stream_ends_with_the_gateway():
    """A client of the 2025 revision holds a stream open."""
    async with trio.open_nursery() as nursery:
        ready = trio.Event()

        async def hold(served):
            async with served.client() as client, client.stream("GET", "/mcp", headers=found) as response:
                assert response.status_code == 200
                ready.set()
                async for _ in response.aiter_bytes():
                    pass

        with trio.fail_after(60):
            async with open_served(agents=make_agents(), protocols=[MCPProtocol()]) as served:
                async with served.client() as client:
                    opened = await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)
                found = {**ACCEPT, "mcp-session-id": opened.headers["mcp-session-id"]}
                nursery.start_soon(hold, served)
                await ready.wait()


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
async def test_agent_of_another_runtime_gets_the_label_of_the_turn(is_read, is_nested):
    """After an untrusted page, the calls of an agent or of its code make the session of the other agent untrusted."""

    @tool(untrusted=True, effect="pure")
    def page() -> str:
        """Read a page."""
        return "x"

    ask_clerk = ToolCall("clerk", {"message": "go", "session_id": "s"})
    calls = [ToolCall("page", {}), ask_clerk] if is_read else [ask_clerk]

    class Outer(Tool):
        """Make the calls of the agent."""

        name, description, calls_tools, parameters = "outer", "Run.", True, {"type": "object"}

        async def execute(self, arguments, context):
            for call in calls:
                await context.tools.call(call.name, call.arguments)
            return "ok"

    answers = [*([ToolCall("outer", {})] if is_nested else calls), "done"]
    clerk = BareAgent("clerk", llm=ScriptedLLM(["It is done."]))
    async with open_served(agents=[clerk], protocols=[MCPProtocol()]) as served:
        server = MCPServer(
            name="shop",
            url=f"{served.gateway.url}/mcp",
            headers={"authorization": f"Bearer {served.tokens['ada']}"},
            allow=["127.0.0.1"],
        ).labelled(trusted=("clerk",))
        caller = BareAgent("caller", llm=ScriptedLLM(answers), tools=[page, server, Outer()])
        with trio.fail_after(60):
            async with caller:
                reply = await caller.run("go")
            label = (await clerk.open_session("s")).label
    assert reply.text == "done"
    assert label == (Label({"mcp-client:ada"}) if is_read else Label())


async def test_agent_of_another_runtime_uses_tools_and_answers_their_questions(tmp_path):
    """A tool asks a question, the client program restarts, an approver answers, and the tool continues."""

    @tool
    async def greet() -> str:
        """Ask for a name."""
        form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        return f"Hello, {(await mcp_caller().ask('Your name?', form))['name']}"

    def make_caller(*answers):
        headers = {"authorization": f"Bearer {served.tokens['ada']}"}
        server = MCPServer(
            name="shop", url=f"{served.gateway.url}/mcp", headers=headers, allow=["127.0.0.1"], required=True
        )
        return BareAgent("caller", llm=ScriptedLLM(answers), tools=[server])

    url = f"sqlite:///{tmp_path}/caller.db"
    protocols = [MCPProtocol(catalog=MCPCatalog(tools=[greet]))]
    results = []
    async with open_served(agents=make_agents(), protocols=protocols) as served:
        with trio.fail_after(60):
            async with open_runtime(journal=url) as runtime:
                caller = await runtime.start(make_caller([ToolCall("greet", {})]))
                session = await caller.create_session("grace", "go", session_id="s")
                await session.wait_idle()
                (approval,) = await caller.approvals()
            async with open_runtime(journal=url) as runtime:
                caller = make_caller("done")
                caller.on_session(lambda opened: opened.on_tool_result(results.append))
                await runtime.start(caller)
                session = await caller.open_session("s")
                await session.answer(approval.id, Approve(content={"name": "Ada"}))
                await session.wait_idle()
    assert approval.question == "Your name?"
    assert [each.content for each in results] == ["Hello, Ada"]
