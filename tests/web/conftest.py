"""Gateways on loopback with two owners, and clients with their tokens."""

import json
import re
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs
import httpx2
import jsonschema_rs
import pytest

from actgent import BareAgent, ScriptedLLM, ToolCall, open_gateway, open_runtime, tool
from actgent.actors import Actor
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.web.access_tokens import new_token
from actgent.web.gateway_limits import GatewayLimits
from actgent.web.routes.endpoint_table import ENDPOINTS
from actgent.web.routes.openapi import document_of

ALL = ("chat", "approve", "journal")
OWNERS = {"chatter": "ada", "auditor": "ada", "watcher": "ada"}
"""Owners of the tokens whose name differs from their owner."""


@tool(approval=True)
def deploy(place: str) -> str:
    """Deploy to a place."""
    return f"deployed to {place}"


def answer(chat):
    """Call `deploy` if the message contains "deploy". Otherwise, repeat the message or the tool result."""
    last = chat.messages[-1]
    results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
    text = "".join(part.text for part in last.parts if type(part).__name__ == "Text")
    if results:
        return f"done: {results[0].text}"
    return ToolCall("deploy", {"place": "mars"}) if "deploy" in text else f"you said: {text}"


@attrs.define
class Served:
    """An open gateway with tokens of ada, bob and an admin."""

    gateway: object
    runtime: object
    tokens: dict

    @asynccontextmanager
    async def client(self, name="ada", **headers):
        async with httpx2.AsyncClient(
            base_url=self.gateway.url,
            headers={"authorization": f"Bearer {self.tokens[name]}", **headers},
            timeout=120,
            event_hooks={"response": [check_answer]},
        ) as client:
            yield client


@cache
def find_document():
    """Return the OpenAPI document in which components accept no unknown fields, and its operations by path pattern."""
    document = json.loads(json.dumps(document_of(ENDPOINTS)))
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    patterns = [
        (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), operations)
        for path, operations in document["paths"].items()
    ]
    return document["components"], patterns


@cache
def find_validator(schema):
    """Return the validator of a schema that is passed as JSON text."""
    return jsonschema_rs.validator_for({**json.loads(schema), "components": find_document()[0]})


async def check_answer(answer):
    """Compare each JSON response of the gateway with the OpenAPI document. Responses outside of the document are not checked."""
    components, patterns = find_document()
    path = answer.request.url.raw_path.partition(b"?")[0].decode()
    found = [operations for pattern, operations in patterns if pattern.fullmatch(path)]
    operation = found[0].get(answer.request.method.lower()) if found else None
    media = answer.headers.get("content-type", "")
    if operation is None or media not in ("application/json", "application/problem+json"):
        return
    await answer.aread()
    responses = operation["responses"]
    response = responses.get(str(answer.status_code), responses["default"])
    if "$ref" in response:
        response = components["responses"][response["$ref"].rpartition("/")[2]]
    schema = response["content"][media]["schema"]
    for error in find_validator(json.dumps(schema)).iter_errors(answer.json()):
        pytest.fail(f"{answer.request.method} {path} {answer.status_code}: {error}")


def make_agents(**streaming):
    """Return the agents of a gateway. `streaming` has options of the clerk's model, such as `chunk=`."""
    llm = ScriptedLLM(answer, **streaming)
    clerk = BareAgent(name="clerk", llm=llm, tools=[deploy], goal="help", modes=Modes(commands=False))
    return [clerk, BareAgent(name="helper", llm=ScriptedLLM(["helped"] * 50))]


@asynccontextmanager
async def open_served(*, journal="memory:", agents=None, limits=None, index=False, **options):
    made = {
        name: new_token(name, owner=OWNERS.get(name, name), scopes=scopes)
        for name, scopes in {
            "ada": ALL,
            "bob": ALL,
            "reader": ("read",),
            "chatter": ("chat",),
            "watcher": ("read",),
            "auditor": ("journal", "read"),
            "root": ("admin",),
            "service": ("chat", "impersonate:*"),
        }.items()
    }
    async with open_runtime(journal=journal, index=index) as runtime:
        for agent in make_agents() if agents is None else agents:
            await runtime.start(agent)
        settings = {"bind": "127.0.0.1:0", "tokens": [token for _, token in made.values()], **options}
        async with open_gateway(runtime, limits=limits or GatewayLimits(grace=1), **settings) as gateway:
            yield Served(gateway, runtime, {name: secret for name, (secret, _) in made.items()})


@attrs.define
class Receiver:
    """A webhook receiver that stores each request. `behave` returns the status of the response, "hang" or "die"."""

    url: str = ""
    got: list = attrs.field(factory=list)
    """Headers and bodies of the accepted requests."""
    tried: list = attrs.field(factory=list)
    """The ids of all requests."""
    behave: object = staticmethod(lambda *_: 200)
    release: threading.Event = attrs.field(factory=threading.Event)
    """Set to end the hanging requests."""

    def bodies(self, event=None):
        return [body for _, body in self.got if event in (None, body["type"])]


def make_handler(receiver):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            raw = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.tried.append(headers["webhook-id"])
            answer = receiver.behave(receiver, json.loads(raw))
            if answer == "hang":
                receiver.release.wait(60)
            if answer in ("hang", "die"):
                self.close_connection = True
                return
            status, *more = answer if isinstance(answer, tuple) else (answer,)
            if 200 <= status < 300:
                receiver.got.append((headers | {"raw": raw}, json.loads(raw)))
            self.send_response(status)
            for name, value in more:
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    return Handler


@contextmanager
def open_receiver(behave=None):
    receiver = Receiver()
    if behave is not None:
        receiver.behave = behave
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(receiver))
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def receiving():
    """Return the function that opens a webhook receiver on loopback, in a thread."""
    return open_receiver


@pytest.fixture
def serving():
    """Return the function that opens a gateway with chosen options."""
    return open_served


@pytest.fixture
async def served():
    async with open_served() as opened:
        yield opened


@pytest.fixture
async def ada(served):
    """Yield a client of the owner ada with a session `s1` of the clerk."""
    async with served.client() as client:
        await client.put("/v1/sessions/s1", json={"agent": "clerk"})
        yield client


class Parser(Actor):
    """An actor that parses numbers once it is repaired."""

    is_repaired = False

    async def receive(self, payload):
        return 7 if self.is_repaired else int(payload)
