"""Streams of outside protocols and their access tokens: revocation, and the limit of open streams."""

from contextlib import suppress

import httpx2
import pytest
import trio

from actgent import BareAgent, GatewayLimits, ScriptedLLM
from actgent.interop import PROTOCOLS
from actgent.web import access_tokens
from actgent.web.access_tokens import new_token, write_tokens
from tests.web.conftest import open_served

from .test_resumption import STREAMS

HEADERS = {"a2a-version": "1.0", "accept": "application/json, text/event-stream"}
MCP_HEADERS = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "clerk"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL = {"name": "clerk", "arguments": {"message": "wait"}, "_meta": META}
MCP = {"mcp": ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL})}
REQUESTS = {**STREAMS, **MCP}


@pytest.mark.parametrize("name", REQUESTS)
async def test_stream_ends_when_its_token_is_revoked(name, tmp_path, monkeypatch):
    """The client gets no more of the answer. A stream counts toward the limit of open streams, whatever it accepts."""
    monkeypatch.setattr(access_tokens, "POLL_INTERVAL_SECONDS", 0.1)
    requested = trio.Event()

    async def never(_):
        requested.set()
        await trio.sleep_forever()

    (secret, token), file = new_token("a", owner="a", scopes=("chat",)), tmp_path / "tokens.toml"
    write_tokens(file, [token])
    path, body = REQUESTS[name]
    limits = GatewayLimits(streams=1, grace=1)
    agents = [BareAgent("clerk", llm=ScriptedLLM(never))]
    headers = {"authorization": f"Bearer {secret}", **HEADERS, **(MCP_HEADERS if name == "mcp" else {})}
    async with (
        open_served(agents=agents, protocols=PROTOCOLS, tokens=file, limits=limits) as served,
        httpx2.AsyncClient(base_url=served.gateway.url, headers=headers, timeout=60) as client,
    ):

        async def read():
            with suppress(httpx2.RemoteProtocolError):
                response = await client.post(path, json=body)
                assert response.status_code == 500  # the response had not begun

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                await requested.wait()
                assert (await client.post(path, json=body)).status_code == 429
                write_tokens(file, [])
