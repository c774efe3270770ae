"""Validation of requests as Anthropic does it: errors with status 400. Source: the API reference, and observed errors."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
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
    unique_calls,
    unique_names,
)

_ROLES = ("user", "assistant", "system")
_IN_RESULTS = ("text", "image", "document", "search_result")
"""Block types that a tool result may contain."""
_CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_BREAKPOINTS = 4


def check_anthropic_request(body: Mapping[str, Any]) -> Problems:
    """Yield the errors for which Anthropic rejects a request body."""
    yield from required(body, "model", "max_tokens", "messages")
    yield from in_range(body, "temperature", 0, 1)
    yield from in_range(body, "max_tokens", 1, 10_000_000)
    yield from _thinking_setting(body)
    if body.get("tools"):
        yield from _tools(body["tools"])
    if isinstance(body.get("system"), list):
        yield from _blocks("system", body["system"], allowed=("text",))
    if body.get("messages") is not None:
        yield from check_anthropic_messages(body["messages"])
    if (count := _breakpoints(body)) > _MAX_BREAKPOINTS:
        yield f"a maximum of {_MAX_BREAKPOINTS} blocks with cache_control may be provided, found {count}"


def check_anthropic_messages(messages: object) -> Problems:
    """Yield the errors for which Anthropic rejects the messages of a request."""
    items, wrong = objects("messages", messages)
    yield from wrong
    if items and items[0][1].get("role") != "user":
        yield f"{items[0][0]}: the first message must use the user role"
    for location, item in items:
        yield from _message(location, item)
    turns = merged((_turn(location, item) for location, item in items), roles=("user", "assistant"))
    yield from _results_first(items)
    yield from adjacent_pairs(turns)
    yield from unique_calls(turns)
    if not (items and _is_paused(items[-1][1])):
        yield from no_prefill(turns)


def _thinking_setting(body: Mapping[str, Any]) -> Problems:
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    if body.get("temperature") not in (None, 1, 1.0):
        yield "temperature: may only be set to 1 when thinking is enabled"
    budget, limit = thinking.get("budget_tokens"), body.get("max_tokens")
    if isinstance(budget, int) and isinstance(limit, int) and budget >= limit:
        yield "max_tokens: must be greater than thinking.budget_tokens"


def _message(location: str, item: Mapping[str, Any]) -> Problems:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        yield f"{location}.role: {role!r} is not one of user, assistant"
    if isinstance(content, str):
        yield from _check_not_blank(f"{location}.content", content, is_said=role == "assistant")
    else:
        yield from _blocks(f"{location}.content", content, is_said=role == "assistant")


def _blocks(
    location: str, content: object, *, allowed: tuple[str, ...] | None = None, is_said: bool = False
) -> Problems:
    blocks, wrong = objects(location, content)
    yield from wrong
    for place, block in blocks:
        if not isinstance(block.get("type"), str) or (allowed and block["type"] not in allowed):
            yield f"{place}.type: {block.get('type')!r} is no type of a block here"
        else:
            yield from _block(place, block, is_said=is_said)


def _block(location: str, block: Mapping[str, Any], *, is_said: bool) -> Problems:
    match block["type"]:
        case "text":
            yield from _check_not_blank(f"{location}.text", block.get("text"), is_said=is_said)
        case "thinking" if not isinstance(block.get("signature"), str):
            yield f"{location}.signature: field required"
        case "tool_use":
            yield from _call(location, block)
        case "tool_result" if not isinstance(block.get("tool_use_id"), str):
            yield f"{location}.tool_use_id: field required"
        case "tool_result" if isinstance(block.get("content"), list) and block["content"]:
            allowed = ("text",) if block.get("is_error") else _IN_RESULTS
            yield from _blocks(f"{location}.content", block["content"], allowed=allowed)


def _check_not_blank(location: str, text: object, *, is_said: bool) -> Problems:
    """Check that a text is not blank. A text of the model (`is_said`) may consist of white space.

    `location` is the path of the text in the request, for the error.
    """
    if not isinstance(text, str):
        yield f"{location}: field required"
    elif not (text if is_said else text.strip()):
        yield f"{location}: text content must be non-empty and contain non-whitespace text"


def _call(location: str, block: Mapping[str, Any]) -> Problems:
    key = block.get("id")
    if not isinstance(key, str) or not _CALL_ID.fullmatch(key):
        yield f"{location}.id: {key!r} does not match ^{_CALL_ID.pattern}$"
    if not isinstance(block.get("input"), dict):
        yield f"{location}.input: an object is required"
    yield from tool_name(f"{location}.name", block.get("name"))


def _results_first(items: Sequence[tuple[str, Mapping[str, Any]]]) -> Problems:
    """Check that tool results come first among consecutive user messages."""
    for _, group in itertools.groupby(items, key=lambda placed: placed[1].get("role")):
        placed = list(group)
        kinds = [kind == "tool_result" for _, item in placed for kind in _kinds(item.get("content"))]
        if kinds != sorted(kinds, reverse=True):
            yield f"{placed[0][0]}.content: tool_result blocks must come first, text after them"


def _kinds(content: object) -> Iterator[object]:
    for block in content if isinstance(content, list) else [{"type": "text"}]:
        yield block.get("type") if isinstance(block, dict) else None


def _turn(location: str, item: Mapping[str, Any]) -> TranscriptTurn:
    content = item.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    calls = tuple(str(block.get("id")) for block in blocks if block.get("type") == "tool_use")
    results = tuple(str(block.get("tool_use_id")) for block in blocks if block.get("type") == "tool_result")
    return TranscriptTurn(location, str(item.get("role")), calls, results)


def _is_paused(item: Mapping[str, Any]) -> bool:
    """Return True if an assistant message may be the last one because it stopped with `pause_turn`."""
    return "server_tool_use" in _kinds(item.get("content"))


def _tools(tools: object) -> Problems:
    found, wrong = objects("tools", tools)
    yield from wrong
    for place, tool in found:
        yield from tool_name(f"{place}.name", tool.get("name"))
        if tool.get("type") in (None, "custom"):
            yield from _schema(f"{place}.input_schema", tool.get("input_schema"))
    yield from unique_names(tool.get("name") for _, tool in found)


def _schema(location: str, schema: object) -> Problems:
    if not isinstance(schema, dict):
        yield f"{location}: field required"
    elif schema.get("type") != "object":
        yield f'{location}.type: must be "object"'


def _breakpoints(value: object) -> int:
    """Return the number of blocks with `cache_control` in a request body, without blocks inside tool results and calls."""
    if isinstance(value, list):
        return sum(map(_breakpoints, value))
    if not isinstance(value, dict):
        return 0
    inside = (value.get(field) for field in ("tools", "system", "messages", "content"))
    return bool(value.get("cache_control")) + sum(map(_breakpoints, inside))
