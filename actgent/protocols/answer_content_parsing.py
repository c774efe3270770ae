"""Parsing of an answer's content: tool calls that are written as text, and instructions that are mapped to a tool."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from actgent.errors import EmptyAnswer, ParseError
from actgent.errors.text_escaping import quoted
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Event, Medium, ToolCall
from actgent.structured_output.answer_type_schemas import schema_check
from actgent.structured_output.extract_json import loads, remove_thinking, strip_code_fence

from .protocol_interface import (
    MESSAGE_TYPE,
    CallTools,
    ClassificationType,
    Outcome,
    SendReply,
    describes_whole_answer,
    member_names,
)
from .text_tool_calls import ARGUMENTS, IDS, CallFormat, check_keys, find_arguments, stray_arguments_reason

DIRECT_RESPONSE = "DIRECT_RESPONSE"
TOOL_INVOCATION = "TOOL_INVOCATION"
_TEXT_FIELDS = ("content", "text", "message")
_INVOCATION = CallFormat(("name",), f'{TOOL_INVOCATION} needs {{"name": "<tool>", "parameters": {{...}}}}')
_CALL_KEYS = frozenset((*IDS, "type", "index", "function"))
_FUNCTION_KEYS = frozenset(("name", *ARGUMENTS)) - {"parameters"}
"""Keys of a called function; `parameters` marks the description of a function instead."""
_MESSAGE_KEYS = frozenset((*IDS, "type", "index", "role", "tool_calls", "reasoning_content", "refusal"))
_TYPED_KEYS = frozenset(("messageType", "content"))


def answer_text(text: str) -> str:
    """Return the text of an answer without the reasoning in `<think>` tags.

    Raises:
        EmptyAnswer: No text remains.
    """
    shown = remove_thinking(text)
    if not shown.strip():
        raise EmptyAnswer("the answer is empty", text)
    return shown


def is_media_only(answer: ModelResponse) -> bool:
    """Return True if a model answer has images or files and no text."""
    return any(isinstance(part, Medium) for part in answer.parts) and not answer.text.strip()


def misspelled_key_reason(value: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    """Return an error text if a key of an answer's object has another letter case than a known key, such as `Plan` for `plan`.

    Return None otherwise. If such a key were ignored, a plan would lack its list or a step its calls. `names` maps
    lower-case names to the correct names.
    """
    for key in value:
        name = names.get(key.lower())
        if name is not None and name != key:
            return f"write {name!r}, not {key!r}"
    return None


# --- native calls in the text ------------------------------------------------------


def parse_encoded_calls(text: str) -> CallTools | None:
    """Parse an answer text that consists only of tool calls in the provider's format; return None for any other text.

    Accepted forms are an array of `{"id", "type": "function", "function": {"name", "arguments"}}`, and an object with this array
    as `tool_calls`. Also accepted are calls between special tokens that the inference server failed to parse. The calls must be
    the whole text, apart from a code fence, because calls within prose may be an example.
    """
    if text.lstrip().startswith(_CALL_TOKENS) or "</think" in text:
        marked = _parse_marked_calls(remove_thinking(text).strip())
        if marked:
            return CallTools(marked)
    if '"function"' not in text:
        return None
    try:
        value = loads(strip_code_fence(remove_thinking(text)))
        calls = [_parse_encoded_call(item) for item in _call_entries(value)]
    except ParseError:
        return None
    whole = [call for call in calls if call is not None]
    if not whole or len(whole) < len(calls) or _has_stray_arguments(value, whole):
        return None
    return CallTools(whole)


_DEEPSEEK = "<\uff5ctool\u2581call{}\uff5c>"
_CALL_FORMATS = (
    ("<tool_call>", "</tool_call>", re.compile(r"(?P<object>.*)", re.DOTALL)),  # Hermes, Qwen
    (
        _DEEPSEEK.format("\u2581begin"),
        _DEEPSEEK.format("\u2581end"),
        re.compile(
            r"function<\uff5ctool\u2581sep\uff5c>(?P<name>\S+)\s+```json\s(?P<arguments>.*)```\s*", re.DOTALL
        ),
    ),
)
"""Formats of tool calls with special tokens: opening token, closing token, and pattern of the call in between."""
_LIST_TOKENS = (_DEEPSEEK.format("s\u2581begin"), _DEEPSEEK.format("s\u2581end"))
_CALL_TOKENS = (*(opening for opening, _, _ in _CALL_FORMATS), _LIST_TOKENS[0])


def _parse_marked_calls(text: str) -> list[ToolCall] | None:
    """Parse a text that consists of tool calls between special tokens; return None if a call is incomplete or invalid."""
    text = text.removeprefix(_LIST_TOKENS[0]).removesuffix(_LIST_TOKENS[1]).strip()
    for opening, closing, pattern in _CALL_FORMATS:
        if text.startswith(opening):
            spans = [span.strip() for span in text.split(opening)[1:]]
            if not all(span.endswith(closing) for span in spans):
                return None
            calls = [_parse_marked_call(pattern.fullmatch(span.removesuffix(closing))) for span in spans]
            whole = [call for call in calls if call is not None]
            return whole if len(whole) == len(calls) else None
    return None


def _parse_marked_call(match: re.Match[str] | None) -> ToolCall | None:
    if match is None:
        return None
    found = match.groupdict()
    try:
        value = (
            loads(found["object"]) if "object" in found else {**found, "arguments": loads(found["arguments"])}
        )
    except ParseError:
        return None
    if not isinstance(value, dict) or value.keys() - {"name", *ARGUMENTS}:
        return None
    return _parse_complete_call(value)


def _parse_complete_call(value: Mapping[str, Any]) -> ToolCall | None:
    """Convert an object with a tool name and arguments to a tool call; return None if the arguments are not an object."""
    try:
        call = _INVOCATION.read(value)
    except ParseError:
        return None
    is_whole = value.keys() & set(ARGUMENTS) and isinstance(call.arguments, dict)
    return ToolCall(call.name, call.arguments, native=False) if is_whole else None


def _call_entries(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = value.get("tool_calls")
    return value if isinstance(value, list) else []


def _has_stray_arguments(value: Any, calls: Sequence[ToolCall]) -> bool:
    """Return True if the object around provider-format calls has other members that may be arguments of the calls."""
    if not isinstance(value, dict):
        return False
    envelope_keys = _MESSAGE_KEYS | {"content"} if isinstance(value.get("content"), str) else _MESSAGE_KEYS
    are_bare = not all(call.arguments for call in calls)
    return (
        stray_arguments_reason(value, "tool_calls", envelope_keys=envelope_keys, are_bare=are_bare)
        is not None
    )


def _parse_encoded_call(item: Any) -> ToolCall | None:
    if not isinstance(item, dict) or item.get("type") != "function":
        return None
    function, call_id = item.get("function"), item.get("id")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        return None
    if function.keys() - _FUNCTION_KEYS:
        return None  # the object describes a function instead of calling it
    check_keys(item, _CALL_KEYS, function["name"])
    return ToolCall(
        name=function["name"],
        arguments=_decode_arguments(find_arguments(function, function["name"])),
        provider_id=call_id if isinstance(call_id, str) else None,
        native=False,
    )


def _decode_arguments(arguments: Any) -> Mapping[str, Any] | str:
    """Decode the arguments of a tool call to an object.

    Text that is not a JSON object is returned unchanged: the call then fails.
    """
    if isinstance(arguments, Mapping):
        return arguments
    if arguments is None or arguments == "":
        return {}
    try:
        decoded = loads(arguments)
    except (ParseError, AttributeError):
        return str(arguments)
    return decoded if isinstance(decoded, dict) else str(arguments)


# --- calls in the format of a protocol ----------------------------------------------------------


def invocation_reason(content: Any, *envelopes: tuple[Mapping[str, Any], Collection[str]]) -> str | None:
    """Return an error text if the content of a TOOL_INVOCATION answer is neither a valid call nor a list of valid calls.

    Arguments of a call outside of the content are also an error. Return None if there is no error.

    Args:
        content: The call, or the list of calls.
        envelopes: The objects around the content, each with the keys that the protocol defines for it.
    """
    calls = content if isinstance(content, list) else [content]
    if not calls:
        return f"{TOOL_INVOCATION} must name a tool"
    return _INVOCATION.calls_reason(calls, *((TOOL_INVOCATION, *envelope) for envelope in envelopes))


def to_call_tools(content: Any) -> CallTools:
    """Convert the content of a TOOL_INVOCATION answer to tool calls. `invocation_reason` must have accepted the content."""
    calls = content if isinstance(content, list) else [content]
    written = map(_INVOCATION.read, calls)
    return CallTools([ToolCall(call.name, call.arguments, native=False) for call in written])


# --- instructions -----------------------------------------------------------------------------


def outcomes_of_type(kind: ClassificationType, data: Any, text: str | None) -> list[Outcome]:
    """Convert an answer of the type `kind` to outcomes: a reply if the answer has text, otherwise an event with its data.

    If the type has a tool, the outcomes are the event, the reply if there is text, and the tool call.
    """
    reply: list[Outcome] = []
    if text:
        reply = [SendReply(text=text, data=None if isinstance(data, str) else data, message_type=kind.name)]
    event = Event(name=kind.name, data=data)
    if kind.tool is None:
        return reply or [event]
    return [event, *reply, CallTools([_call_of_instruction(kind.tool, kind, data)])]


def _call_of_instruction(tool: str, kind: ClassificationType, data: Any) -> ToolCall:
    """Build the call of the tool that an instruction is mapped to. The arguments are the data of the answer.

    Data that does not fit the schema becomes a string argument, which the validation of the call rejects.
    """
    if schema_mismatch_reason(kind, data) is not None:
        return ToolCall(tool, data if isinstance(data, str) else json.dumps(data), native=False, mapped=True)
    arguments = data if isinstance(data, dict) else {"content": data}
    return ToolCall(tool, arguments, native=False, mapped=True)


def schema_mismatch_reason(kind: ClassificationType, data: Any) -> str | None:
    """Return an error text if the data of an answer does not fit the schema of the type `kind`, else None.

    `data` never contains `messageType`; it is added if the schema describes the whole answer.
    """
    if not kind.schema:
        return None
    if describes_whole_answer(kind.schema) and isinstance(data, dict):
        data = {MESSAGE_TYPE: kind.name, **data}
    return schema_check(kind.schema)(data)


def type_mismatch_reason(value: dict[str, Any], kind: ClassificationType) -> str | None:
    """Return an error text if an answer `{"messageType", "content", ...}` does not match its type; None if it matches.

    Content that is only text is accepted.
    """
    if reason := _other_type_reason(value.get("content"), kind):
        return reason
    value = _without_repeated_name(value, kind)
    content, data = value.get("content"), matching_data(value, kind)
    if (isinstance(content, str) and content.strip()) or data not in (None, ""):
        if data is not None and data is not content:
            return None
        return _misplaced_argument_reason(kind, content, value) or stray_instruction_reason(
            kind, content, value, _TYPED_KEYS
        )
    whole = describes_whole_answer(kind.schema) or "content" not in value
    reason = schema_mismatch_reason(kind, _members(value) if whole else content)
    return f"content of {kind.name!r}: {reason or 'it is empty'}"


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in value.items() if name != MESSAGE_TYPE}


def _without_repeated_name(value: dict[str, Any], kind: ClassificationType) -> dict[str, Any]:
    """Remove the `messageType` in the content of a typed answer if it only repeats the type's name."""
    content = value.get("content")
    if not isinstance(content, dict) or content.get(MESSAGE_TYPE) != kind.name:
        return value
    return content if describes_whole_answer(kind.schema) else {**value, "content": _members(content)}


def _other_type_reason(content: Any, kind: ClassificationType) -> str | None:
    """Return an error text if the `messageType` in an answer's content names another type, else None."""
    inner = content.get(MESSAGE_TYPE) if isinstance(content, dict) else None
    if inner is None or inner == kind.name:
        return None
    return f"the answer names two types, {kind.name!r} and {inner!r:.200}: name exactly one"


def _misplaced_argument_reason(
    kind: ClassificationType, content: Any, value: Mapping[str, Any]
) -> str | None:
    """Return an error text if the object around the content has an argument of the type's tool that the content does not repeat.

    Return None if there is no such argument, or if the type has no tool.
    """
    if kind.tool is None or not isinstance(content, dict) or describes_whole_answer(kind.schema):
        return None
    known = content.keys() | (member_names(kind.schema) or frozenset())
    for key in value.keys() & known - _TYPED_KEYS:
        if key not in content or content[key] != value[key]:
            return f"{quoted(key)} is outside of the content of {kind.name!r}: put it into the content"
    return None


def stray_instruction_reason(
    kind: ClassificationType, content: Any, envelope: Mapping[str, Any], envelope_keys: Collection[str]
) -> str | None:
    """Return an error text if arguments of an instruction's tool may be outside of the answer's content, else None.

    `envelope` is the object around the content, and `envelope_keys` are the keys that the protocol defines for it.
    """
    if kind.tool is None:
        return None
    return stray_arguments_reason(
        envelope, f"the content of {kind.name}", envelope_keys=envelope_keys, are_bare=not content
    )


def matching_data(value: dict[str, Any], kind: ClassificationType) -> Any:
    """Return the part of a typed answer that matches the schema of the type; None if no part matches.

    The part is the answer's `content`, or all members of the answer except `messageType`.
    """
    value = _without_repeated_name(value, kind)
    members = _members(value)
    content = value.get("content", members)
    if not kind.schema:
        return content
    candidates = (members, content) if describes_whole_answer(kind.schema) else (content, members)
    return next((data for data in candidates if schema_mismatch_reason(kind, data) is None), None)


def infer_type(content: Any, kinds: Sequence[ClassificationType]) -> ClassificationType | None:
    """Return the type whose schema fits the content of an answer without a type name; None for text, or if no type fits.

    The match must be unambiguous: every other type has a schema that rejects the data, and describes none of
    its members.

    Raises:
        ParseError: A type fits, but the model may have intended another type.
    """
    if isinstance(content, str):
        return None
    fits = [kind for kind in kinds if kind.schema and schema_mismatch_reason(kind, content) is None]
    if fits and any(_may_be(kind, content) for kind in kinds if kind is not fits[0]):
        raise missing_type_error(kinds)
    return fits[0] if fits else None


def missing_type_error(kinds: Sequence[ClassificationType]) -> ParseError:
    """Return the error for an answer that does not name its type, although it must."""
    return ParseError(
        f'the answer does not name its type: write "{MESSAGE_TYPE}" with one of {join_type_names(kinds)}'
    )


def _may_be(kind: ClassificationType, content: Any) -> bool:
    """Return True if the model may have meant this message type with an answer that names no type and does not match the schema.

    The result is True if the type has no schema, if the schema does not list all members, or if the schema describes a member of
    the answer.
    """
    if not kind.schema or not isinstance(content, dict) or not content:
        return True
    names = member_names(kind.schema)
    return names is None or not names.isdisjoint(content) or schema_mismatch_reason(kind, content) is None


def join_type_names(kinds: Sequence[ClassificationType]) -> str:
    """Join the names of answer types by commas, for error texts."""
    return ", ".join(kind.name for kind in kinds)


def text_in(content: Any) -> str | None:
    """Return the text in an answer's content: the content itself, or its member `content`, `text` or `message`.

    Return None without text.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return next((content[name] for name in _TEXT_FIELDS if isinstance(content.get(name), str)), None)
    return None


def find_type(kinds: Sequence[ClassificationType], name: str) -> ClassificationType | None:
    """Return the answer type with this name; None if no answer type has the name."""
    return next((kind for kind in kinds if kind.name == name), None)
