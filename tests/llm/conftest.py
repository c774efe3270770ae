"""Provider clients over an in-memory transport: real SDKs without sockets."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from actgent.llm.clients.anthropic import Anthropic
from actgent.llm.clients.openai import OpenAI
from actgent.llm.clients.openai_responses import OpenAIResponses
from actgent.llm.http.base_provider_client import Remote
from actgent.llm.retry_policy import Retry

KEY = "sk-secret-0123456789"
VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_BASE_URL",
    "LLM_API_KEY",
    "LLM_PROVIDER_URL",
)
CLIENTS = {"openai": OpenAI, "openai-responses": OpenAIResponses, "anthropic": Anthropic}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """Remove the machine's provider keys and addresses from the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=sorted(CLIENTS))
def dialect(request) -> str:
    """Run the test for each of the three wire formats."""
    return str(request.param)


class Wire:
    """An in-memory transport: records the requests and sends the given replies."""

    def __init__(self, replies: list[Any]) -> None:
        self._replies = replies
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> Any:
        self.requests.append(request)
        reply = self._replies[min(len(self.requests), len(self._replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply(request) if callable(reply) else httpx2.Response(**reply)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]


@pytest.fixture
async def connect():
    """`connect(dialect, *replies, **options)` returns a client and its wire; the last reply repeats."""
    opened: list[httpx2.AsyncClient] = []

    def open_client(
        dialect: str, *replies: Any, model: str = "model-1", **options: Any
    ) -> tuple[Remote, Wire]:
        wire = Wire(list(replies))
        client = httpx2.AsyncClient(transport=httpx2.MockTransport(wire))
        opened.append(client)
        options = {"api_key": KEY, "retry": Retry(attempts=1), **options}
        return CLIENTS[dialect](model, http_client=client, **options), wire

    yield open_client
    for client in opened:
        await client.aclose()


@pytest.fixture
def said() -> Callable[..., dict[str, Any]]:
    """`said(dialect, text=..., calls=..., stop=..., stream=...)` returns the HTTP reply of a model answer."""
    return reply_of


@pytest.fixture
def sse() -> Callable[..., dict[str, Any]]:
    """`sse(event, ...)` returns the HTTP reply that streams these events."""
    return stream_reply


def reply_of(dialect: str, text: str = "Hello.", *, calls=(), stop: str | None = None, stream: bool = False):
    body = _BODIES[dialect](text, calls, stop)
    if not stream:
        return {"status_code": 200, "json": body}
    return stream_reply(*_EVENTS[dialect](body))


def stream_reply(*events: dict[str, Any], done: bool = True) -> dict[str, Any]:
    """Return a reply that streams these events."""
    frames = [f"data: {json.dumps(event)}\n\n" for event in events]
    if done and events and "choices" in events[0]:
        frames.append("data: [DONE]\n\n")
    return {
        "status_code": 200,
        "headers": {"content-type": "text/event-stream"},
        "content": "".join(frames).encode(),
    }


def _chat_body(text, calls, stop):
    wire = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    message = {"role": "assistant", "content": text or None, **({"tool_calls": wire} if wire else {})}
    finish = {"length": "length", "filter": "content_filter"}.get(
        stop or "", "tool_calls" if calls else "stop"
    )
    usage = {
        "prompt_tokens": 30,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 20},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "answer-1", "model": "model-1", "choices": [choice], "usage": usage}


def _chat_events(body):
    head = {"id": body["id"], "model": body["model"]}
    choice = body["choices"][0]
    message = choice["message"]
    for letter in message["content"] or "":
        yield {**head, "choices": [{"index": 0, "delta": {"content": letter}, "finish_reason": None}]}
    for index, call in enumerate(message.get("tool_calls", ())):
        first = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield {**head, "choices": [{"index": 0, "delta": {"tool_calls": [first]}}]}
        for letter in call["function"]["arguments"]:
            piece = {"index": index, "function": {"arguments": letter}}
            yield {**head, "choices": [{"index": 0, "delta": {"tool_calls": [piece]}}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield {**head, "choices": [], "usage": body["usage"]}


def _responses_body(text, calls, stop):
    output = [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    ]
    output += [
        {
            "type": "function_call",
            "id": f"fc_{call_id}",
            "call_id": call_id,
            "name": name,
            "arguments": arguments,
        }
        for call_id, name, arguments in calls
    ]
    usage = {
        "input_tokens": 30,
        "output_tokens": 7,
        "input_tokens_details": {"cached_tokens": 20},
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    body = {"id": "answer-1", "model": "model-1", "status": "completed", "output": output, "usage": usage}
    reason = {"length": "max_output_tokens", "filter": "content_filter"}.get(stop or "")
    return {**body, "status": "incomplete", "incomplete_details": {"reason": reason}} if reason else body


def _responses_events(body):
    yield {"type": "response.created", "response": {**body, "status": "in_progress", "output": []}}
    for item in body["output"]:
        for content in item.get("content", ()):
            for letter in content["text"]:
                yield {"type": "response.output_text.delta", "delta": letter}
    yield {"type": f"response.{body['status']}", "response": body}


def _message_body(text, calls, stop):
    content = [{"type": "text", "text": text}] if text else []
    for call_id, name, arguments in calls:
        content.append({"type": "tool_use", "id": call_id, "name": name, "input": _object_or_text(arguments)})
    reason = {"length": "max_tokens", "filter": "refusal"}.get(
        stop or "", "tool_use" if calls else "end_turn"
    )
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 0,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 3},
    }
    return {
        "id": "answer-1",
        "type": "message",
        "model": "model-1",
        "content": content,
        "stop_reason": reason,
        "usage": usage,
    }


def _object_or_text(arguments):
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def _message_events(body):
    yield {"type": "message_start", "message": {**body, "content": [], "stop_reason": None}}
    for index, block in enumerate(body["content"]):
        is_text = block["type"] == "text"
        yield {
            "type": "content_block_start",
            "index": index,
            "content_block": {**block, "text": ""} if is_text else {**block, "input": {}},
        }
        written = block["input"] if isinstance(block.get("input"), str) else json.dumps(block.get("input"))
        for letter in block["text"] if is_text else written:
            delta = (
                {"type": "text_delta", "text": letter}
                if is_text
                else {"type": "input_json_delta", "partial_json": letter}
            )
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": body["stop_reason"]},
        "usage": {"output_tokens": 7},
    }
    yield {"type": "message_stop"}


_BODIES = {"openai": _chat_body, "openai-responses": _responses_body, "anthropic": _message_body}
_EVENTS = {"openai": _chat_events, "openai-responses": _responses_events, "anthropic": _message_events}
