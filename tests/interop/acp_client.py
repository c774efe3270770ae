"""An ACP client for tests.

It sends requests over a stream, collects updates, and checks all lines against the schema.
"""

import json
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from actgent.interop import serve_acp

try:
    from acp import schema
except ImportError:  # the lines are not checked without the development extra
    schema = None

RESULTS = {
    "initialize": "InitializeResponse",
    "session/new": "NewSessionResponse",
    "session/load": "LoadSessionResponse",
    "session/resume": "ResumeSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/close": "CloseSessionResponse",
    "session/delete": "DeleteSessionResponse",
    "session/prompt": "PromptResponse",
}
CALLS = {
    "session/update": "SessionNotification",
    "session/request_permission": "RequestPermissionRequest",
    "elicitation/create": "CreateFormSessionElicitationRequest",
}
CWD = "/srv/ada/project"


class Refused(Exception):
    """An error response of the agent."""

    def __init__(self, error):
        super().__init__(error["code"], error["message"])
        self.code, self.text = error["code"], error["message"]


def check(model, value):
    """Check that a value matches a model of the schema and has no other fields."""
    if schema is not None:
        read = getattr(schema, model).model_validate(value)
        assert json.loads(read.model_dump_json(by_alias=True, exclude_unset=True)) == value


@attrs.define
class Client:
    """The client end of a connection."""

    send_stream: object
    receive_stream: object
    lines: list = attrs.field(factory=list)
    """All messages from the agent."""
    arrived: object = attrs.field(factory=trio.lowlevel.ParkingLot)
    decide: object = None
    """Async function that answers requests of the agent; None leaves them open."""
    methods: dict = attrs.field(factory=dict)
    nursery: object = None

    async def read(self):
        buffer = b""
        async for chunk in self.receive_stream:
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                self.take(json.loads(line))
        self.arrived.unpark_all()

    def take(self, message):
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            check(CALLS[message["method"]], message["params"])
            if "id" in message and self.decide is not None:
                self.nursery.start_soon(self.respond, message)
        elif "error" in message:
            check("AgentErrorMessage", {key: message[key] for key in ("id", "error")})
        else:
            check(RESULTS[self.methods[message["id"]]], message["result"])
        self.lines.append(message)
        self.arrived.unpark_all()

    async def respond(self, message):
        await self.send(id=message["id"], result=await self.decide(message["params"]))

    async def send(self, **message):
        await self.send_raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def send_raw(self, data):
        await self.send_stream.send_all(data)

    async def start(self, method, **params):
        """Send a request, and return its id."""
        request_id = len(self.methods) + 100
        self.methods[request_id] = method
        await self.send(id=request_id, method=method, params=params)
        return request_id

    async def until(self, found):
        """Wait for a message of the agent for which the function returns True, and return it."""
        with trio.fail_after(60):
            while (message := next(filter(found, self.lines), None)) is None:
                await self.arrived.park()
        return message

    async def result(self, request_id):
        message = await self.until(lambda each: each.get("id") == request_id and "method" not in each)
        if "error" in message:
            raise Refused(message["error"])
        return message["result"]

    async def ask(self, method, **params):
        return await self.result(await self.start(method, **params))

    async def new(self):
        return (await self.ask("session/new", cwd=CWD, mcpServers=[]))["sessionId"]

    async def load(self, session_id):
        return await self.ask("session/load", sessionId=session_id, cwd=CWD, mcpServers=[])

    async def start_prompt(self, session_id, text):
        return await self.start(
            "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}]
        )

    async def prompt(self, session_id, text):
        return await self.result(await self.start_prompt(session_id, text))

    async def permission(self):
        """Wait for a permission request."""
        return await self.until(lambda each: each.get("method") == "session/request_permission")

    def updates(self, kind=None):
        found = [each["params"]["update"] for each in self.lines if each.get("method") == "session/update"]
        return [each for each in found if kind in (None, each["sessionUpdate"])]

    def text(self, kind="agent_message_chunk"):
        return "".join(each["content"]["text"] for each in self.updates(kind))


def selecting(option):
    async def decide(_params):
        await trio.lowlevel.checkpoint()
        return {"outcome": {"outcome": "selected", "optionId": option}}

    return decide


@asynccontextmanager
async def connected(runtime, agent, **options):
    """Yield a client of a served agent after `initialize`."""
    to_agent, agent_in = trio.testing.memory_stream_one_way_pair()
    agent_out, from_agent = trio.testing.memory_stream_one_way_pair()
    async with trio.open_nursery() as nursery:
        client = Client(to_agent, from_agent, nursery=nursery, **options)

        async def serve():
            await serve_acp(runtime, agent, agent_in, agent_out)
            await agent_out.aclose()

        nursery.start_soon(serve)
        nursery.start_soon(client.read)
        await client.ask("initialize", protocolVersion=1, clientCapabilities={})
        yield client
        await to_agent.aclose()
