"""What an answer's text wants done: tool calls written as text, and instructions with a tool of their own."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from actgent.errors import EmptyAnswer, ParseError
from actgent.errors.printable import quoted
from actgent.messages import Event, ToolCall
from actgent.structured.extract import loads, unfenced, visible
from actgent.structured.schemas import schema_check

from .base import (
    MESSAGE_TYPE,
    CallTools,
    ClassificationType,
    Outcome,
    Say,
    is_whole_answer,
    member_names,
)
from .calls import ARGUMENTS, IDS, CallForm, arguments_in, check_keys, stray_arguments

DIRECT_RESPONSE = "DIRECT_RESPONSE"
TOOL_INVOCATION = "TOOL_INVOCATION"
_TEXT_FIELDS = ("content", "text", "message")
_INVOCATION = CallForm(("name",), f'{TOOL_INVOCATION} needs {{"name": "<tool>", "parameters": {{...}}}}')
_BESIDE_FUNCTION = frozenset((*IDS, "type", "index", "function"))
_IN_FUNCTION = frozenset(("name", *ARGUMENTS)) - {"parameters"}
"""A function with `parameters` is described, not called."""
_IN_MESSAGE = frozenset((*IDS, "type", "index", "role", "tool_calls", "reasoning_content", "refusal"))
_IN_TYPED = frozenset(("messageType", "content"))


def answer_text(text: str) -> str:
    """The text of an answer without thoughts.

    Raises:
        EmptyAnswer: there is none.
    """
    shown = visible(text)
    if not shown.strip():
        raise EmptyAnswer("the answer is empty", text)
    return shown


def misspelt(value: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    """Explain a member that has a known name in another case, None if there is none.

    Passed over, a plan without its list or a step without its calls would be left. `names` are by their lower case.
    """
    for key in value:
        name = names.get(key.lower())
        if name is not None and name != key:
            return f"write {name!r}, not {key!r}"
    return None


# --- native calls that stand in the text ------------------------------------------------------


def encoded_calls(text: str) -> CallTools | None:
    """The provider's own form of tool calls, where a model wrote it as its text; None for any other text.

    That is an array of `{"id", "type": "function", "function": {"name", "arguments"}}`, or an object with such
    `tool_calls`, or calls between the marks that its server should have read, and nothing beside it but a fence:
    among prose it would be an example.
    """
    if text.lstrip().startswith(_MARKS) or "</think" in text:
        marked = _marked_calls(visible(text).strip())
        if marked:
            return CallTools(marked)
    if '"function"' not in text:
        return None
    try:
        value = loads(unfenced(visible(text)))
        calls = [_encoded_call(item) for item in _entries(value)]
    except ParseError:
        return None
    whole = [call for call in calls if call is not None]
    if not whole or len(whole) < len(calls) or _is_stray_beside(value, whole):
        return None
    return CallTools(whole)


_DEEPSEEK = "<\uff5ctool\u2581call{}\uff5c>"
_FORMS = (
    ("<tool_call>", "</tool_call>", re.compile(r"(?P<object>.*)", re.DOTALL)),  # Hermes, Qwen
    (
        _DEEPSEEK.format("\u2581begin"),
        _DEEPSEEK.format("\u2581end"),
        re.compile(
            r"function<\uff5ctool\u2581sep\uff5c>(?P<name>\S+)\s+```json\s(?P<arguments>.*)```\s*", re.DOTALL
        ),
    ),
)
"""What opens a call, what closes it, and what stands between."""
_FRAME = (_DEEPSEEK.format("s\u2581begin"), _DEEPSEEK.format("s\u2581end"))
_MARKS = (*(opening for opening, _, _ in _FORMS), _FRAME[0])


def _marked_calls(text: str) -> list[ToolCall] | None:
    """The calls of a text that is nothing but marked calls, each of them whole."""
    text = text.removeprefix(_FRAME[0]).removesuffix(_FRAME[1]).strip()
    for opening, closing, form in _FORMS:
        if text.startswith(opening):
            spans = [span.strip() for span in text.split(opening)[1:]]
            if not all(span.endswith(closing) for span in spans):
                return None
            calls = [_marked_call(form.fullmatch(span.removesuffix(closing))) for span in spans]
            whole = [call for call in calls if call is not None]
            return whole if len(whole) == len(calls) else None
    return None


def _marked_call(match: re.Match[str] | None) -> ToolCall | None:
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
    return _whole_call(value)


def _whole_call(value: Mapping[str, Any]) -> ToolCall | None:
    """A call that names its arguments, an object; None for anything else."""
    try:
        call = _INVOCATION.read(value)
    except ParseError:
        return None
    is_whole = value.keys() & set(ARGUMENTS) and isinstance(call.arguments, dict)
    return ToolCall(call.name, call.arguments, native=False) if is_whole else None


def _entries(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = value.get("tool_calls")
    return value if isinstance(value, list) else []


def _is_stray_beside(value: Any, calls: Sequence[ToolCall]) -> bool:
    """Return True if the message round encoded calls holds what may be their arguments."""
    if not isinstance(value, dict):
        return False
    known = _IN_MESSAGE | {"content"} if isinstance(value.get("content"), str) else _IN_MESSAGE
    are_bare = not all(call.arguments for call in calls)
    return stray_arguments(value, "tool_calls", known=known, are_bare=are_bare) is not None


def _encoded_call(item: Any) -> ToolCall | None:
    if not isinstance(item, dict) or item.get("type") != "function":
        return None
    function, given = item.get("function"), item.get("id")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        return None
    if function.keys() - _IN_FUNCTION:
        return None  # a function that is described, not called
    check_keys(item, _BESIDE_FUNCTION, function["name"])
    return ToolCall(
        name=function["name"],
        arguments=_arguments(arguments_in(function, function["name"])),
        provider_id=given if isinstance(given, str) else None,
        native=False,
    )


def _arguments(given: Any) -> Mapping[str, Any] | str:
    """The decoded object; what is none stays text, so that the call is answered with an error."""
    if isinstance(given, Mapping):
        return given
    if given is None or given == "":
        return {}
    try:
        decoded = loads(given)
    except (ParseError, AttributeError):
        return str(given)
    return decoded if isinstance(decoded, dict) else str(given)


# --- calls in the form of a protocol ----------------------------------------------------------


def invocation_reason(content: Any) -> str | None:
    """Explain what is wrong with the content of a TOOL_INVOCATION, None if nothing: one call, or a list of them."""
    calls = content if isinstance(content, list) else [content]
    if not calls:
        return f"{TOOL_INVOCATION} does not name a tool"
    return next(filter(None, map(_INVOCATION.reason, calls)), None)


def beside_invocation(content: Any, envelope: Mapping[str, Any], known: Collection[str]) -> str | None:
    """Explain arguments round a TOOL_INVOCATION's content that it does not hold, None if there are none.

    `known` are the keys that the protocol asks for in that object.
    """
    are_bare = _INVOCATION.is_bare(content if isinstance(content, list) else [content])
    return stray_arguments(envelope, TOOL_INVOCATION, known=known, are_bare=are_bare)


def invocation(content: Any) -> CallTools:
    """The calls of a content that `invocation_reason` found right."""
    calls = content if isinstance(content, list) else [content]
    written = map(_INVOCATION.read, calls)
    return CallTools([ToolCall(call.name, call.arguments, native=False) for call in written])


# --- instructions -----------------------------------------------------------------------------


def classified(kind: ClassificationType, data: Any, text: str | None) -> list[Outcome]:
    """Return the outcomes of an answer of a known type: its text as a conversation, data without text as an event.

    A type with a tool gives its event, then its text, then the call of the tool.
    """
    said: list[Outcome] = []
    if text:
        said = [Say(text=text, data=None if isinstance(data, str) else data, message_type=kind.name)]
    event = Event(name=kind.name, data=data)
    if kind.tool is None:
        return said or [event]
    return [event, *said, CallTools([_mapped_call(kind.tool, kind, data)])]


def _mapped_call(tool: str, kind: ClassificationType, data: Any) -> ToolCall:
    """Return the call of an instruction's tool. Data that does not fit the schema stays text, so the tool never runs."""
    if form_reason(kind, data) is not None:
        return ToolCall(tool, data if isinstance(data, str) else json.dumps(data), native=False, mapped=True)
    arguments = data if isinstance(data, dict) else {"content": data}
    return ToolCall(tool, arguments, native=False, mapped=True)


def form_reason(kind: ClassificationType, data: Any) -> str | None:
    """Explain why data does not have the form of a type; None if it has.

    `data` never contains `messageType`. For a schema that describes the whole answer, the type's name is added first.
    """
    if not kind.schema:
        return None
    if is_whole_answer(kind.schema) and isinstance(data, dict):
        data = {MESSAGE_TYPE: kind.name, **data}
    return schema_check(kind.schema)(data)


def misfit(value: dict[str, Any], kind: ClassificationType) -> str | None:
    """Explain what is wrong with the data in `{"messageType", "content", ...}`; None if nothing. Text alone is accepted."""
    if reason := _second_type(value.get("content"), kind):
        return reason
    value = _without_repeated_name(value, kind)
    content, data = value.get("content"), fitting(value, kind)
    if (isinstance(content, str) and content.strip()) or data not in (None, ""):
        if data is not None and data is not content:
            return None
        return _second_value(kind, content, value) or beside_instruction(kind, content, value, _IN_TYPED)
    whole = is_whole_answer(kind.schema) or "content" not in value
    reason = form_reason(kind, _members(value) if whole else content)
    return f"content of {kind.name!r}: {reason or 'it is empty'}"


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: member for name, member in value.items() if name != MESSAGE_TYPE}


def _without_repeated_name(value: dict[str, Any], kind: ClassificationType) -> dict[str, Any]:
    """Return a typed answer whose content does not repeat the type's name, which is no data."""
    content = value.get("content")
    if not isinstance(content, dict) or content.get(MESSAGE_TYPE) != kind.name:
        return value
    return content if is_whole_answer(kind.schema) else {**value, "content": _members(content)}


def _second_type(content: Any, kind: ClassificationType) -> str | None:
    """Explain that the content of a typed answer names another type; None if it does not."""
    inner = content.get(MESSAGE_TYPE) if isinstance(content, dict) else None
    if inner is None or inner == kind.name:
        return None
    return f"the answer names two types, {kind.name!r} and {inner!r:.200}: name exactly one"


def _second_value(kind: ClassificationType, content: Any, value: Mapping[str, Any]) -> str | None:
    """Explain that a member of the content has another value outside of the content; None if no member has."""
    if kind.tool is None or not isinstance(content, dict) or is_whole_answer(kind.schema):
        return None
    known = content.keys() | (member_names(kind.schema) or frozenset())
    for key in value.keys() & known - _IN_TYPED:
        if key not in content or content[key] != value[key]:
            return f"{quoted(key)} is outside of the content of {kind.name!r}: put it into the content"
    return None


def beside_instruction(
    kind: ClassificationType, content: Any, envelope: Mapping[str, Any], known: Collection[str]
) -> str | None:
    """Explain arguments round the content that an instruction's tool runs with, None if there are none.

    `known` are the keys that the protocol asks for in that object.
    """
    if kind.tool is None:
        return None
    return stray_arguments(envelope, f"the content of {kind.name}", known=known, are_bare=not content)


def fitting(value: dict[str, Any], kind: ClassificationType) -> Any:
    """Return the data of a typed answer that has the form of the type; None if no part of the answer has.

    The data is the answer's `content`, or all members of the answer except `messageType`.
    """
    value = _without_repeated_name(value, kind)
    members = _members(value)
    content = value.get("content", members)
    if not kind.schema:
        return content
    candidates = (members, content) if is_whole_answer(kind.schema) else (content, members)
    return next((data for data in candidates if form_reason(kind, data) is None), None)


def only_type(content: Any, kinds: Sequence[ClassificationType]) -> ClassificationType | None:
    """Return the type of data that names no type; None if the data has the form of no type.

    A type is taken only if the answer cannot be meant as any other type: every other type has a schema, the
    schema does not accept the data, and the data has no member that the other schema describes.

    Raises:
        ParseError: The data has the form of a type, and may be meant as another type.
    """
    if isinstance(content, str):
        return None
    fits = [kind for kind in kinds if kind.schema and form_reason(kind, content) is None]
    if fits and any(_may_be(kind, content) for kind in kinds if kind is not fits[0]):
        raise unnamed(kinds)
    return fits[0] if fits else None


def unnamed(kinds: Sequence[ClassificationType]) -> ParseError:
    """Return the error for an answer that has to name its type."""
    return ParseError(
        f'the answer does not name its type: write "{MESSAGE_TYPE}" with one of {known_names(kinds)}'
    )


def _may_be(kind: ClassificationType, content: Any) -> bool:
    """Return True if data without a type's name may be meant as an answer of this type, even a faulty one."""
    if not kind.schema or not isinstance(content, dict) or not content:
        return True
    names = member_names(kind.schema)
    return names is None or not names.isdisjoint(content) or form_reason(kind, content) is None


def known_names(kinds: Sequence[ClassificationType]) -> str:
    """Return the names of types as errors list them."""
    return ", ".join(kind.name for kind in kinds)


def text_of(content: Any) -> str | None:
    """The words of a content: itself, or the member that carries them; None if it has none."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return next((content[name] for name in _TEXT_FIELDS if isinstance(content.get(name), str)), None)
    return None


def named(kinds: Sequence[ClassificationType], name: str) -> ClassificationType | None:
    """The type of this name, None if there is none."""
    return next((kind for kind in kinds if kind.name == name), None)
