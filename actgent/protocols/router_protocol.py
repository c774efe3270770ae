"""The `router` protocol: answer the user, or route an action to another agent."""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from actgent.errors import ParseError
from actgent.errors.text_escaping import quoted, shown
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Event, Route, ToolCall
from actgent.structured_output.extract_json import extract_only, loads, parse_partial_json, strip_code_fence

from .answer_content_parsing import (
    answer_text,
    find_type,
    matching_data,
    outcomes_of_type,
    parse_encoded_calls,
    text_in,
    type_mismatch_reason,
)
from .partial_answers import PartialAnswer, follow_strings
from .prompt_rendering import TYPES, WHO
from .protocol_interface import MESSAGE_TYPE, ClassificationType, Outcome, Protocol, SendReply, TurnView

_FORMAT = """\

Decide who answers. Answer with exactly one JSON object and nothing else:
{"top_level_intent": "CONVERSATION", "response": "<the text that the user reads>"}
{"top_level_intent": "ACTION", "second_level_intent": "<one of the actions below>", "data": {...}, "response": "<text>"}

CONVERSATION: you answer yourself. ACTION: the named agent continues with `data`; `response` may inform the user.
The actions:
"""
Kinds = Sequence[ClassificationType]
_ENVELOPE = frozenset({"top_level_intent", "second_level_intent", "response"})


class Router(Protocol):
    """Protocol that answers the user or routes an action to another agent. Plain text is an answer."""

    name: ClassVar[str] = "router"
    lookback = 0
    template: ClassVar[str] = WHO + _FORMAT + TYPES

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        text = answer_text(answer.text)
        if calls := parse_encoded_calls(text):
            return [calls]
        if _is_prose(text):
            return [SendReply(text=text)]
        kinds = view.profile.types
        return _outcomes(extract_only(text, lambda value: _reason(value, kinds)), kinds)

    def partial(self, text: str) -> str | None:
        if '"response"' not in text:
            return None
        value = parse_partial_json(text[max(text.find("{"), 0) :])
        if not isinstance(value, dict) or str(value.get("top_level_intent")).upper() != "CONVERSATION":
            return None
        response = value.get("response")
        return response if isinstance(response, str) else None

    def partial_answer(self) -> PartialAnswer:
        return PartialAnswer(self.partial, follow_strings(self.partial))

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        return (json.dumps({"top_level_intent": "CONVERSATION", "response": text}),)


_FENCE = re.compile(r"\A\s*```[\w+-]*\s*")
_LABEL = re.compile(r"\[[^\[\]{}\"',]{1,80}\](?:\(\S+\)|:?\s+\w)")
"""Pattern of prose that begins with a bracket: `[1] confirms it`, `[Note] it is late`, `[here](https://...)`."""
_DATA_ONLY = re.compile(
    r"""[-+.\deE,\s]+ | None | True | False | undefined | NaN
    | [A-Za-z_][\w.]*\(.*\)\s*;?              # a call
    | \(+\s*[\d"'\[{].*\)                    # a tuple
    | "[^"]*                                  # a string without its end
    """,
    re.VERBOSE | re.DOTALL,
)
_DATA_IN = re.compile(
    r"""```json | [{(]\s*[{\[] | \{\s*["'“] | \{\s*\}[\s;)`]*\Z | "\s*:\s*["\[{]
    | (?<![\w)\]])\[\s*(?:["'“\[{] | \( | [A-Za-z_][\w.\\]*\()
    | (?:top|second)_level_                     # this protocol's keys, in any spelling
    """,
    re.VERBOSE | re.IGNORECASE,
)


def _is_prose(text: str) -> bool:
    """Return True if a text is prose for the user: neither JSON, complete or truncated, nor code."""
    inner = _FENCE.sub("", text).strip().removesuffix("```").strip()
    if inner.startswith("{") or (inner.startswith("[") and not _LABEL.match(inner)):
        return False
    if _DATA_ONLY.fullmatch(inner) or _DATA_IN.search(text):
        return False
    try:
        loads(strip_code_fence(text))
    except ParseError:
        return True
    return False


def _reason(value: Any, kinds: Kinds) -> str | None:
    if not isinstance(value, dict):
        return 'the answer must be a JSON object with "top_level_intent"'
    if "top_level_intent" not in value:
        return _typed_reason(value, kinds)
    if reason := _duplicate_type_reason(value, kinds):
        return reason
    match str(value["top_level_intent"]).upper():
        case "CONVERSATION":
            return None if _is_name(value.get("response")) else "CONVERSATION needs a response, as text"
        case "ACTION":
            return (
                None if _is_name(value.get("second_level_intent")) else "ACTION needs a second_level_intent"
            )
        case other:
            return f"top_level_intent must be CONVERSATION or ACTION, not {shown(other)}"


def _duplicate_type_reason(value: dict[str, Any], kinds: Kinds) -> str | None:
    """Return an error text if an answer has an intent and a different `messageType`, else None."""
    name = value.get(MESSAGE_TYPE)
    if (
        not isinstance(name, str)
        or find_type(kinds, name) is None
        or name == value.get("second_level_intent")
    ):
        return None
    return f"the answer has a top_level_intent and also messageType {quoted(name)}: give exactly one of them"


def _typed_reason(value: dict[str, Any], kinds: Kinds) -> str | None:
    name = value.get("messageType")
    if not isinstance(name, str) or not name.strip():
        return "missing top_level_intent"
    kind = find_type(kinds, name)
    return type_mismatch_reason(value, kind) if kind is not None and kind.tool is not None else None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _outcomes(value: dict[str, Any], kinds: Kinds) -> list[Outcome]:
    if "top_level_intent" not in value:
        return _event(value, kinds)
    if str(value["top_level_intent"]).upper() == "CONVERSATION":
        return [SendReply(text=value["response"])]
    reply: list[Outcome] = [SendReply(text=value["response"])] if _is_name(value.get("response")) else []
    return [Route(action=value["second_level_intent"], data=_data(value)), *reply]


def _data(value: dict[str, Any]) -> Any:
    """Return the data of a routed action: the member `data` of the answer, or else all further members."""
    if "data" in value:
        return value["data"]
    return {name: member for name, member in value.items() if name not in _ENVELOPE} or None


def _event(value: dict[str, Any], kinds: Kinds) -> list[Outcome]:
    """Convert an answer `{"messageType", "content"}` to outcomes: an event, or the call of the type's tool."""
    name = value["messageType"]
    content = value.get("content", {key: member for key, member in value.items() if key != "messageType"})
    kind = find_type(kinds, name)
    if kind is None or kind.tool is None:
        return [Event(name=name, data=content)]
    data = matching_data(value, kind)
    return outcomes_of_type(kind, content if data is None else data, text_in(content))
