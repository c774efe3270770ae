"""The agent that the A2A compatibility kit tests. The start of a message id selects the answer of the agent.

`python -m tests.interop.a2a.fixture_server` prints its URL and serves until Ctrl-C. The kit sends no token,
and repeats a message id in many messages, because the id only selects the answer. The program therefore adds
the token of the gateway to each request, and a number to each message id.
"""

import itertools
import json
from contextlib import asynccontextmanager
from functools import partial

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from actgent import (
    ApprovalRequired,
    File,
    GatewayLimits,
    Instruction,
    Refusal,
    ScriptedLLM,
    SimpleAgent,
    Text,
    ToolCall,
    ToolResult,
    Webhook,
    new_webhook_secret,
    open_gateway,
    open_runtime,
    tool,
)
from actgent.interop import A2AProtocol
from actgent.llm.model_interface import ModelResponse

INSTRUCTIONS = [
    Instruction("Greeting", "A short answer that needs no task.", {"text": "<the text>"}),
    Instruction("Count", "Structured data.", {"key": "<a word>", "count": "<a number>"}),
]
OPEN_SECONDS = 4
"""Seconds for which a task stays open for a second subscriber."""


def typed(kind, content):
    return json.dumps({"messageType": kind, "content": content})


def text(content):
    return typed("DIRECT_RESPONSE", content)


FILE = File(media_type="text/plain", data=b"tck", name="output.txt")
ANSWERS = {
    "tck-complete-task": text("Hello from TCK"),
    "tck-artifact-text": text("Generated text content"),
    "tck-artifact-file-url": File(
        media_type="text/plain", url="https://example.com/output.txt", name="output.txt"
    ),
    "tck-artifact-file": FILE,
    "tck-artifact-data": typed("Count", {"key": "value", "count": 42}),
    "tck-message-response": typed("Greeting", {"text": "Direct message response"}),
    "tck-input-required": ToolCall("ask", {}),
    "tck-stream-001": text("Stream hello from TCK"),
    "tck-stream-003": text("Stream task lifecycle"),
    "tck-stream-ordering-001": text("Ordered output"),
    "tck-stream-artifact-text": text("Streamed text content"),
    "tck-stream-artifact-file": FILE,
    "tck-stream-artifact-chunked": text("chunk-1 chunk-2"),
}


@tool
def ask() -> str:
    """Ask the user."""
    raise ApprovalRequired("Which one?")


async def answer(chat):
    """Return the answer that the id of the user's message selects."""
    results = [part for message in chat.messages for part in message.parts if isinstance(part, ToolResult)]
    if results:
        more = "history message" in results[-1].text
        return ToolCall("ask", {}) if more else text("Hello from TCK")
    content = "".join(part.text for part in chat.messages[-1].parts)  # the id comes from `on_query`
    if "tck-reject-task" in content:
        raise Refusal("rejected")
    if "test-resubscribe-message-id" in content:
        await trio.sleep(OPEN_SECONDS)
    found = next((ANSWERS[each] for each in ANSWERS if each in content), text("Hello"))
    return ModelResponse(parts=(found if not isinstance(found, str) else Text(found),))


def add_number(body, number):
    """Make the id of the message in a request unique."""
    try:
        request = json.loads(body)
        message = request.get("params", request)["message"]
        message["messageId"] = f"{message['messageId']}-{number}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return body
    return json.dumps(request).encode()


def make_app(gateway):
    numbers = itertools.count()

    async def app(scope, receive, send):
        if scope["type"] != "http":
            await gateway.app(scope, receive, send)
            return
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
        body = add_number(body, next(numbers))
        changed = (b"content-length", b"transfer-encoding")
        headers = [each for each in scope["headers"] if each[0] not in changed]
        headers += [
            (b"authorization", f"Bearer {gateway.key}".encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        first = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_changed():
            return first.pop() if first else await receive()

        await gateway.app({**scope, "headers": headers}, receive_changed, send)

    return app


@asynccontextmanager
async def serve_fixture(**options):
    """Serve the agent on loopback. Yield the URL of the gateway. `options` are those of `A2AProtocol`."""
    limits = GatewayLimits(rate=1_000, burst=1_000)
    webhook = Webhook(None, secrets=new_webhook_secret(), allow=["127.0.0.1", "localhost"])
    protocols = [A2AProtocol(message_types=["Greeting"], **options)]
    async with open_runtime(journal="memory:") as runtime:
        model = ScriptedLLM(answer, chunk=8)
        agent = SimpleAgent("tck", llm=model, tools=[ask], instructions=INSTRUCTIONS)
        agent.on_query(lambda message: message.id)
        await runtime.start(agent)
        async with (
            open_gateway(
                runtime, bind=None, protocols=protocols, dashboard=False, limits=limits, notify=[webhook]
            ) as gateway,
            trio.open_nursery() as nursery,
        ):
            config = Config()
            config.bind = ["127.0.0.1:0"]
            config.accesslog = config.errorlog = None
            urls = await nursery.start(partial(serve, make_app(gateway), config, mode="asgi"))
            yield urls[0]
            nursery.cancel_scope.cancel()


async def main():
    async with serve_fixture() as url:
        print(url, flush=True)  # noqa: T201 - for a manual run of the kit
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
