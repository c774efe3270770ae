"""The MCP conformance suite against `MCPServer` as the client, for both revisions.

The suite starts a program for each scenario. The program connects to a socket of this test, which runs the
client in this process. The client calls the listed tools with values of their schemas, and reads a resource
and a prompt. It answers questions with the defaults of their forms, and follows OAuth redirects without a
browser.
"""

import json
import re
import sys
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import trio

from actgent import MCPServer
from actgent.errors import ToolError
from actgent.support.user_code_calls import leaves
from tests.interop.node.npm import find_node

from .suite import MISSING, PROGRAM, SUITE, scenarios_of

pytest.importorskip("mcp", reason="pip install 'actgent[mcp]'")

HERE = Path(__file__).parent
SAMPLES = {"number": 5, "integer": 5, "string": "x", "boolean": True, "array": [], "object": {}}


def value_of(schema):
    """Return a value that matches the schema of an argument or field."""
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    return SAMPLES.get(kind, "x") if isinstance(kind, str) else "x"


def values_of(schema):
    return {name: value_of(each) for name, each in (schema or {}).get("properties", {}).items()}


async def answer_by_defaults(_question, schema):
    await trio.lowlevel.checkpoint()
    return values_of(schema)


async def sample(_messages, _system, _most):
    await trio.lowlevel.checkpoint()
    return "sampled"


class Browser:
    """A browser that opens the authorization URL and reads the redirect.

    The suite's server approves immediately.
    """

    def __init__(self):
        self.response = {}

    async def show(self, url):
        async with httpx2.AsyncClient(follow_redirects=False) as client:
            response = await client.get(url)
        query = parse_qs(urlsplit(response.headers["location"]).query)
        self.response = {name: values[0] for name, values in query.items()}

    async def receive(self):
        from mcp.shared.auth import AuthorizationCodeResult

        await trio.lowlevel.checkpoint()
        known = {name: self.response[name] for name in ("code", "state", "iss") if name in self.response}
        return AuthorizationCodeResult(**known)

    def prompt(self):
        from actgent.toolsets.mcp.oauth import LoginPrompt

        return LoginPrompt(
            redirect_uri="http://127.0.0.1:8765/callback", show=self.show, receive=self.receive
        )


async def attempt(call, *arguments):
    """Await the call. Return None if it raises `ToolError`, which many scenarios expect."""
    try:
        return await call(*arguments)
    except ToolError:
        return None


async def exercise(link, context):
    tools = await link.tools()
    calls = context.get("toolCalls") or [
        {"name": tool.name, "arguments": values_of(tool.input_schema)} for tool in tools
    ]
    for call in calls:
        await attempt(link.call, call["name"], call.get("arguments", {}))
    if link.has_resources and (resources := await link.resources()):
        await attempt(link.read, resources[0]["uri"])
    if link.has_prompts and (prompts := await attempt(link.prompts)):
        arguments = {each["name"]: "x" for each in prompts[0]["arguments"]}
        await attempt(link.prompt, prompts[0]["name"], arguments)


async def play(asked, tokens):
    """Run the client of a scenario."""
    context = json.loads(asked.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    login, options = None, {}
    if asked["MCP_CONFORMANCE_SCENARIO"].startswith("auth/"):
        login, options["oauth"] = Browser().prompt(), {"tokens": tokens}
        if "client_id" in context:
            options["oauth"] |= {name: context[name] for name in ("client_id", "client_secret")}
        else:
            options["oauth"]["client_metadata_url"] = "https://conformance-test.local/client-metadata.json"
    server = MCPServer(url=asked["url"], name="suite", sampling=sample, answers=answer_by_defaults, **options)
    async with server.connected(login) as link:
        await exercise(link, context)


async def serve(tmp_path, stream):
    """Run the client for a started program, and send the text of the failure; empty after a success."""
    received = b""
    while not received.endswith(b"\n"):
        received += await stream.receive_some(65_536)
    request = json.loads(received)
    failure = ""
    try:
        await play(request, tmp_path / f"{request['MCP_CONFORMANCE_SCENARIO'].replace('/', '-')}.json")
    except Exception as error:  # noqa: BLE001 - the suite judges the requests; in some scenarios login must fail
        failure = "\n".join(map(repr, leaves(error)))
    try:
        await stream.send_all(failure.encode())
        await stream.aclose()
    except trio.BrokenResourceError:
        return


@pytest.mark.skipif(not SUITE.is_dir(), reason=MISSING)
@pytest.mark.parametrize(("revision", "count"), [("2025-11-25", 18), ("2026-07-28", 32)])
async def test_mcp_client_conforms_to_the_suite(tmp_path, revision, count):
    """Each required scenario of the suite passes."""
    if (node := find_node()) is None:
        pytest.skip("the suite needs Node 22 or later")
    path = tmp_path / "clients"
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listening.bind(str(path))
    listening.listen(100)
    listener = trio.SocketListener(listening)
    starter = f"{sys.executable} -I -S {HERE / 'start_client.py'} {path}"
    command = [node, str(PROGRAM), "client", "--command", starter]
    command += ["--requirements", revision, "-o", str(tmp_path / "results"), "--timeout", "60000"]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, partial(serve, tmp_path), [listener]))
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, cwd=tmp_path
            )
            nursery.cancel_scope.cancel()
    report = done.stdout.decode()
    passed = set(re.findall(r"^✓ (\S+): ", report, re.MULTILINE))
    required = scenarios_of(revision, "client")
    assert len(required) == count
    assert required <= passed, report
