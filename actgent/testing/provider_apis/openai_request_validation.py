"""Validation of requests as OpenAI does it in both of its APIs: errors with status 400.

Source: the API reference, and observed errors.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from .transcript_rules import (
    Problems,
    TranscriptTurn,
    adjacent_pairs,
    in_range,
    merged,
    no_prefill,
    objects,
    required,
    tool_name,
    unique_names,
)

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_USER_BLOCKS = ("text", "image_url", "input_audio", "video_url", "file")
_SUBSTITUTES = ("tool_calls", "function_call", "refusal", "audio")
"""Fields that an assistant message may have instead of content."""
_CALLS = ("function_call", "custom_tool_call")
_SHOWN = ("input_text", "input_image", "input_file")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_MAX_CALL_ID = 40
_MAX_RESPONSES_CALL_ID = 64


# --- chat completions --------------------------------------------------------------------


def check_chat_request(body: Mapping[str, Any]) -> Problems:
    """Yield the errors for which OpenAI rejects the body of a chat completions request."""
    yield from required(body, "model", "messages")
    yield from in_range(body, "temperature", 0, 2)
    if body.get("stream_options") is not None and not body.get("stream"):
        yield "stream_options: only allowed when stream is enabled"
    if body.get("tools") is not None:
        yield from _tools(body["tools"], is_nested=True)
    if body.get("messages") is not None:
        yield from check_chat_messages(body["messages"])


def check_chat_messages(messages: object) -> Problems:
    """Yield the errors for which OpenAI rejects the messages of a chat completions request."""
    items, wrong = objects("messages", messages)
    yield from wrong
    for location, item in items:
        yield from _chat_message(location, item)
    turns = merged((_chat_turn(location, item) for location, item in items), roles=("tool",))
    yield from adjacent_pairs(turns)
    yield from no_prefill(turns)


def _chat_message(location: str, item: Mapping[str, Any]) -> Problems:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        yield f"{location}.role: {role!r} is not one of {', '.join(_ROLES)}"
    if role == "tool" and not isinstance(item.get("tool_call_id"), str):
        yield f"{location}.tool_call_id: field required"
    if content is None and not (role == "assistant" and any(item.get(field) for field in _SUBSTITUTES)):
        yield f"{location}.content: expected a string or an array, got null"
    elif content is not None and not isinstance(content, str):
        yield from _blocks(f"{location}.content", content, is_user=role == "user")
    if item.get("tool_calls") is not None:
        yield from _chat_calls(f"{location}.tool_calls", item["tool_calls"], is_said=role == "assistant")


def _blocks(location: str, content: object, *, is_user: bool) -> Problems:
    blocks, wrong = objects(location, content)
    yield from wrong
    allowed = _USER_BLOCKS if is_user else ("text", "refusal")
    for place, block in blocks:
        if block.get("type") not in allowed:
            yield f"{place}.type: {block.get('type')!r} is not one of {', '.join(allowed)}"
        elif block["type"] == "text" and not isinstance(block.get("text"), str):
            yield f"{place}.text: field required"


def _chat_calls(location: str, calls: object, *, is_said: bool) -> Problems:
    if not is_said:
        yield f"{location}: only an assistant message has tool calls"
    found, wrong = objects(location, calls)
    yield from wrong
    for place, call in found:
        yield from _call_id(f"{place}.id", call.get("id"), _MAX_CALL_ID)
        function = call.get("function")
        if isinstance(function, dict):
            yield from tool_name(f"{place}.function.name", function.get("name"))
            yield from _arguments(f"{place}.function.arguments", function.get("arguments"))
        elif call.get("type") != "custom":
            yield f"{place}.function: field required"


def _call_id(location: str, key: object, limit: int) -> Problems:
    if not isinstance(key, str) or not key:
        yield f"{location}: field required"
    elif len(key) > limit:
        yield f"{location}: string too long, {len(key)} characters where {limit} are allowed"


def _arguments(location: str, arguments: object) -> Problems:
    if not isinstance(arguments, str):
        yield f"{location}: expected a string with JSON in it, got {type(arguments).__name__}"


def _chat_turn(location: str, item: Mapping[str, Any]) -> TranscriptTurn:
    calls = item.get("tool_calls") or ()
    results = (item.get("tool_call_id"),) if item.get("role") == "tool" else ()
    return TranscriptTurn(location, str(item.get("role")), tuple(_ids(calls, "id")), tuple(map(str, results)))


def _ids(items: object, field: str) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield str(item.get(field))


def _tools(tools: object, *, is_nested: bool) -> Problems:
    found, wrong = objects("tools", tools)
    yield from wrong
    functions = [(place, tool) for place, tool in found if tool.get("type") == "function"]
    if is_nested:
        functions = [(f"{place}.function", _function_of_tool(tool)) for place, tool in functions]
    for place, function in functions:
        yield from tool_name(f"{place}.name", function.get("name"))
        yield from _schema(f"{place}.parameters", function.get("parameters"))
    yield from unique_names(function.get("name") for _, function in functions)


def _function_of_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, dict) else {}


def _schema(location: str, schema: object) -> Problems:
    """Check the parameters of a tool, whose path is `location`: they must be missing or the JSON Schema of an object."""
    if schema and (not isinstance(schema, dict) or schema.get("type") != "object"):
        yield f'{location}: schema must be a JSON Schema of "type": "object"'


# --- responses ---------------------------------------------------------------------------


def check_responses_request(body: Mapping[str, Any]) -> Problems:
    """Yield the errors for which OpenAI rejects the body of a responses request."""
    yield from required(body, "model")
    yield from in_range(body, "temperature", 0, 2)
    if body.get("tools"):
        yield from _tools(body["tools"], is_nested=False)
    is_continued = bool(body.get("previous_response_id") or body.get("conversation"))
    if body.get("input") is not None:
        yield from check_responses_input(body["input"], is_continued=is_continued)
    elif not is_continued:
        yield "input: field required"


def check_compaction(body: Mapping[str, Any]) -> Problems:
    """Yield the errors for which OpenAI rejects a compaction request. Its conversation may end with an assistant message."""
    value = body.get("input")
    asked = {"role": "user", "content": "Compact it."}
    yield from check_responses_request(
        {**body, "input": [*value, asked]} if isinstance(value, list) else body
    )


def check_responses_input(value: object, *, is_continued: bool = False) -> Problems:
    """Yield the errors for which OpenAI rejects the input of a responses request.

    Args:
        value: The input: a text or a list of items.
        is_continued: True if the request continues a stored response, which may contain the calls of the results.
    """
    if isinstance(value, str):
        return
    items, wrong = objects("input", value)
    yield from wrong
    for location, item in items:
        yield from _responses_item(location, item)
    yield from _responses_pairs(items, is_continued=is_continued)
    yield from _reasoning_has_output(items)
    yield from no_prefill([TranscriptTurn(location, str(item.get("role"))) for location, item in items])


def _responses_item(location: str, item: Mapping[str, Any]) -> Problems:
    kind = item.get("type", "message")
    if kind == "message":
        yield from _responses_message(location, item)
    elif kind in _CALLS + _RESULTS:
        yield from _call_id(f"{location}.call_id", item.get("call_id"), _MAX_RESPONSES_CALL_ID)
    if kind == "function_call":
        yield from tool_name(f"{location}.name", item.get("name"))
        yield from _arguments(f"{location}.arguments", item.get("arguments"))
    elif kind in _RESULTS:
        yield from _output(f"{location}.output", item.get("output"))


def _output(location: str, output: object) -> Problems:
    if isinstance(output, str):
        return
    blocks, wrong = objects(location, output)
    yield from wrong
    for place, block in blocks:
        if block.get("type") not in _SHOWN:
            yield f"{place}.type: {block.get('type')!r} is not one of {', '.join(_SHOWN)}"


def _responses_message(location: str, item: Mapping[str, Any]) -> Problems:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        yield f"{location}.role: {role!r} is not one of user, assistant, system, developer"
    if isinstance(content, str):
        return
    blocks, wrong = objects(f"{location}.content", content)
    yield from wrong
    allowed = (
        ("output_text", "refusal")
        if role == "assistant"
        else ("input_text", "input_image", "input_file", "input_audio")
    )
    for place, block in blocks:
        if block.get("type") not in allowed:
            yield f"{place}.type: {block.get('type')!r} is not one of {', '.join(allowed)}"


def _responses_pairs(items: list[tuple[str, Mapping[str, Any]]], *, is_continued: bool) -> Problems:
    """Check that every tool call has exactly one output after it."""
    waiting: dict[str, str] = {}
    answered: set[str] = set()
    for location, item in items:
        key = str(item.get("call_id"))
        if item.get("type") in _CALLS:
            if key in waiting or key in answered:
                yield f"{location}: two calls with the id {key}"
            waiting[key] = location
        elif item.get("type") in _RESULTS:
            if waiting.pop(key, None) is None and (key in answered or not is_continued):
                yield f"{location}: no tool call found for the output with call_id {key}"
            answered.add(key)
    for key, location in waiting.items():
        yield f"{location}: no tool output found for the call {key}"


def _reasoning_has_output(items: list[tuple[str, Mapping[str, Any]]]) -> Problems:
    """Check that each reasoning item is followed by the output that it led to."""
    ends: tuple[str, Mapping[str, Any]] = ("", {})
    for (location, item), (_, after) in itertools.pairwise([*items, ends]):
        if item.get("type") == "reasoning" and (
            not after or after.get("role") in ("user", "system", "developer")
        ):
            yield f"{location}: a reasoning item without the item that has to follow it"
