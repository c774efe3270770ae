"""The loopback provider against recordings of the real providers: events, errors and accepted requests."""

import contextlib
import json

import pytest

from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text, Thinking, ToolCall
from actgent.testing import check_transcript
from actgent.testing.provider_apis import (
    AnthropicMessagesAPI,
    MalformedRequest,
    OpenAIChatAPI,
    OpenAIResponsesAPI,
    ProviderRequest,
)

DIALECTS = {
    dialect.path: dialect for dialect in (OpenAIChatAPI(), OpenAIResponsesAPI(), AnthropicMessagesAPI())
}
UNRECORDED = {
    ".content_block.signature",
    ".content_block.caller",
    ".content_block.caller.type",
    ".content_block.citations",
    ".delta.container",
    ".delta.stop_details",
    ".message.container",
    ".message.stop_details",
    ".message.usage.inference_geo",
    ".message.usage.output_tokens_details",
    ".message.usage.output_tokens_details.thinking_tokens",
    ".message.usage.server_tool_use",
    ".usage.output_tokens_details",
    ".usage.output_tokens_details.thinking_tokens",
    ".usage.server_tool_use",
}
"""Fields in the API reference and the SDK types only, because the recordings are older."""


@pytest.fixture(scope="module")
def rows(recorded_rows):
    """Return all recorded exchanges of the three wire formats."""
    return [row for row in recorded_rows("recordings.jsonl") if row["endpoint"] in DIALECTS]


def recorded_events(row):
    """Return the data of each recorded event, and `[DONE]` unchanged."""
    lines = (line for line in "".join(row["sse"]).splitlines() if line.startswith("data:"))
    return [event_data(line[5:].strip()) for line in lines]


def event_data(text):
    return text if text == "[DONE]" else json.loads(text)


def own_events(row, answer):
    """Return the data of each event that the loopback provider sends for the same request and answer."""
    dialect = DIALECTS[row["endpoint"]]
    request = ProviderRequest(
        number=1, dialect=dialect, path=dialect.path, headers={}, body=b"", json=row["request"] or {}
    )
    text = b"".join(dialect.events(answer, request, chunk=8)).decode()
    return [
        event_data(line[6:])
        for line in text.replace("event: ping", "").split("\n")
        if line.startswith("data: ")
    ]


def kind(event):
    """Return the kind of an event without its content."""
    if event == "[DONE]":
        return event
    if "type" in event:
        block = event.get("content_block") or event.get("item") or event.get("delta") or {}
        return (event["type"], block.get("type") if isinstance(block, dict) else None)
    if not event["choices"]:
        return "usage"
    choice = event["choices"][0]
    if choice["finish_reason"]:
        return "finish"
    delta = {key for key, value in choice["delta"].items() if value and key not in ("role", "refusal")}
    return ("delta", *sorted(delta)) if delta else None


def sequence(events):
    """Return the kinds of events in order. Repetitions count once; pings and empty deltas are left out."""
    kinds = [kind(event) for event in events]
    kinds = [one for one in kinds if one is not None and one != ("ping", None)]
    return [one for index, one in enumerate(kinds) if index == 0 or kinds[index - 1] != one]


def chat_answer(events):
    """Return the answer that the deltas of a chat completion contain."""
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]
    deltas = [choice["delta"] for choice in choices]
    calls = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls") or ()):
        name, arguments = calls.get(piece["index"], ("", ""))
        function = piece["function"]
        calls[piece["index"]] = (name or function["name"], arguments + (function.get("arguments") or ""))
    text = "".join(delta.get("content") or "" for delta in deltas)
    stop = {"stop": "end", "content_filter": "filter"}.get(
        choices[-1]["finish_reason"], choices[-1]["finish_reason"]
    )
    parts = [Text(text)] if text else []
    return ModelResponse(parts=(*parts, *(ToolCall(*call) for call in calls.values())), stop=stop)


def block_answer(events):
    """Return the answer that the blocks of an Anthropic stream contain."""
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    texts = [""] * len(starts)
    for event in (event for event in events if event["type"] == "content_block_delta"):
        texts[event["index"]] += event["delta"].get("text") or event["delta"].get("partial_json") or ""
    parts = [block_part(block, text) for block, text in zip(starts, texts, strict=True)]
    return ModelResponse(parts=tuple(parts), stop="tool_calls" if starts[-1]["type"] == "tool_use" else "end")


def block_part(block, text):
    match block["type"]:
        case "text":
            return Text(text)
        case "tool_use":
            return ToolCall(block["name"], json.loads(text or "{}"))
        case "thinking":
            return Thinking("so", "anthropic", {"type": "thinking", "thinking": "so", "signature": "x"})
        case _:
            return Thinking("", "anthropic", block)


def item_answer(events):
    """Return the answer in the last event of a response."""
    parts = [item_part(item) for item in events[-1]["response"]["output"]]
    return ModelResponse(parts=tuple(parts))


def item_part(item):
    match item["type"]:
        case "message":
            return Text(item["content"][0]["text"])
        case "function_call":
            return ToolCall(item["name"], item["arguments"])
        case _:
            return Thinking("", "openai-responses", item)


READERS = {"/v1/chat/completions": chat_answer, "/v1/messages": block_answer, "/v1/responses": item_answer}


def is_comparable(row, events):
    """Return True if a row is a complete recording of the provider itself and has only supported parts."""
    features = set(row["features"])
    if row["provider"] not in ("openai", "anthropic") or row["origin"] != "recorded":
        return False
    if features & {
        "n_choices",
        "citations",
        "server_tool",
        "audio",
        "logprobs",
        "custom_tool",
        "legacy_functions",
    }:
        return False
    return bool(row["request"]) and not any(
        "error" in event for event in events if event != "[DONE]" and event
    )


@pytest.mark.parametrize("endpoint", READERS)
def test_streams_have_the_recorded_order_of_events(rows, endpoint):
    """For the same answer, the events have the order of the recorded events."""
    compared = 0
    for row in (row for row in rows if row["endpoint"] == endpoint and "sse" in row):
        events = recorded_events(row)
        if is_comparable(row, events):
            compared += 1
            ours = own_events(row, READERS[endpoint](events))
            assert sequence(ours) == sequence(events), row["id"]
    assert compared >= 5


@pytest.mark.parametrize("endpoint", READERS)
def test_events_have_no_field_that_was_never_recorded(rows, endpoint):
    """Each field of an event is in some recorded event of the same kind."""
    known, ours = {}, {}
    for row in (row for row in rows if row["endpoint"] == endpoint and "sse" in row):
        events = recorded_events(row)
        if is_comparable(row, events):
            collect(known, events)
            collect(ours, own_events(row, READERS[endpoint](events)))
    assert {name: left for name, fields in ours.items() if (left := fields - known[name] - UNRECORDED)} == {}


def collect(fields, events):
    """Return the names of all fields by the type of event. Fields of nested objects have their path."""
    for event in events:
        if event != "[DONE]":
            name = event.get("type", "chunk")
            fields.setdefault(name, set()).update(paths(event, ""))


def paths(value, path):
    """Yield the path of every key in a value. Keys in the arguments or schema of a tool are data, not fields."""
    if isinstance(value, list) and value:
        value = {"[]": value[-1]}
    if isinstance(value, dict) and not path.endswith((".tools", ".input", ".parameters", ".metadata")):
        for key, item in value.items():
            yield f"{path}.{key}"
            yield from paths(item, f"{path}.{key}")


def test_recorded_accepted_requests_are_accepted(rows):
    """Every request that a provider answered is valid, except those that end with a message of the model."""
    checked = 0
    for row in rows:
        if row["status"] == 200 and row["request"] and row["provider"] in ("openai", "anthropic"):
            problems = check_transcript(row["request"], DIALECTS[row["endpoint"]].name)
            assert [problem for problem in problems if "prefill" not in problem] == [], row["id"]
            checked += 1
    assert checked > 100


def test_every_accepted_request_can_be_read(rows):
    """The neutral form of each recorded request has its messages, tools and system text."""
    for row in rows:
        if row["status"] == 200 and row["request"]:
            chat = DIALECTS[row["endpoint"]].read(row["request"])
            assert chat.messages, row["id"]
            assert all(message.parts or message.role == "assistant" for message in chat.messages), row["id"]


def places(value, path=()):
    """Yield the path to every value in a request."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def broken(body, path, junk):
    """Return a request with an invalid value at one path."""
    if not path:
        return junk
    key, rest = path[0], path[1:]
    copied = body.copy()
    copied[key] = broken(body[key], rest, junk)
    return copied


@pytest.mark.parametrize("junk", [None, 7, "", [], {}, "x", [None], [[]], [{}]], ids=repr)
def test_malformed_request_raises_no_exception(rows, junk):
    """With an invalid value at any path, a recorded request is reported or accepted. Check and parser raise no exception."""
    for row in rows[::4]:
        body = {key: value for key, value in (row["request"] or {}).items() if key != "tools"}
        for path in list(places(body))[:60]:
            asked = broken(body, path, junk)
            dialect = DIALECTS[row["endpoint"]]
            if not check_transcript(asked, dialect.name):
                request = ProviderRequest(
                    number=1, dialect=dialect, path=dialect.path, headers={}, body=b"", json=asked
                )
                with contextlib.suppress(MalformedRequest):
                    assert request.chat.messages is not None


def test_errors_have_the_recorded_form(rows):
    """An error body has the fields that the provider sent with the same status."""
    for row in rows:
        if row["status"] == 200 or row["provider"] not in ("openai", "anthropic"):
            continue
        body = DIALECTS[row["endpoint"]].error(row["status"], code=row["body"]["error"].get("code")).body
        assert set(body["error"]) == set(row["body"]["error"]), row["id"]
        assert set(body) <= set(row["body"]), row["id"]
        if row["status"] in (401, 404, 429, 529):
            assert body["error"]["type"] == row["body"]["error"]["type"], row["id"]
