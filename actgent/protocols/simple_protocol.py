"""The `simple` protocol: one JSON object, `{"messageType": ..., "content": ...}`."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from actgent.errors.text_escaping import quoted, shown
from actgent.llm.model_interface import ModelResponse
from actgent.messages import ToolCall
from actgent.structured_output.extract_json import extract_only, parse_partial_json

from .answer_content_parsing import (
    DIRECT_RESPONSE,
    TOOL_INVOCATION,
    answer_text,
    find_type,
    invocation_reason,
    is_media_only,
    matching_data,
    outcomes_of_type,
    parse_encoded_calls,
    text_in,
    to_call_tools,
    type_mismatch_reason,
)
from .partial_answers import PartialAnswer, follow_strings
from .prompt_rendering import NAMED_TYPES, WHO
from .protocol_interface import ClassificationType, Outcome, Protocol, SendReply, TurnView

_FORMAT = """\

Answer with exactly one JSON object and nothing else:
{"messageType": "<one of the types below>", "content": <what the type asks for>}

The types:
- DIRECT_RESPONSE: content is the text that the user reads.
- TOOL_INVOCATION: content is {"name": "<tool>", "parameters": {...}}; the result comes as the next message.
"""
_KEYS = frozenset(("messageType", "content"))


class Simple(Protocol):
    """Protocol of answers with a type: text for the user, an instruction, or a tool call."""

    name: ClassVar[str] = "simple"
    lookback = 0
    reserved_names = frozenset((DIRECT_RESPONSE, TOOL_INVOCATION))
    template: ClassVar[str] = WHO + _FORMAT + NAMED_TYPES

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        if is_media_only(answer):
            return [SendReply(text="")]
        text = answer_text(answer.text)
        if calls := parse_encoded_calls(text):
            return [calls]
        kinds = view.profile.types
        value = extract_only(text, lambda value: _reason(value, kinds))
        return _outcomes(value, kinds)

    def partial(self, text: str) -> str | None:
        if '"content"' not in text:
            return None
        value = parse_partial_json(text[max(text.find("{"), 0) :])
        if not isinstance(value, dict) or value.get("messageType", TOOL_INVOCATION) == TOOL_INVOCATION:
            return None
        content = value.get("content")
        # A type name is complete only if another member follows it.
        return content if isinstance(content, str) and list(value)[-1] != "messageType" else None

    def partial_answer(self) -> PartialAnswer:
        return PartialAnswer(self.partial, follow_strings(self.partial))

    def script(self, text: str, call: ToolCall | None = None) -> Sequence[str]:
        return (json.dumps({"messageType": DIRECT_RESPONSE, "content": text}),)


def _reason(value: Any, kinds: Sequence[ClassificationType]) -> str | None:
    if not isinstance(value, dict):
        return 'the answer must be a JSON object with "messageType" and "content"'
    name = value.get("messageType")
    if not isinstance(name, str):
        return "missing messageType"
    if "content" not in value:
        return f"missing content of messageType {quoted(name)}"
    if name == TOOL_INVOCATION:
        return invocation_reason(value["content"], (value, _KEYS))
    kind = find_type(kinds, name)
    if name == DIRECT_RESPONSE and kind is None:
        return None if text_in(value["content"]) else "the content of DIRECT_RESPONSE must be text"
    return type_mismatch_reason(value, kind) if kind else _unknown(name, kinds)


def _unknown(name: str, kinds: Sequence[ClassificationType]) -> str:
    known = ", ".join([DIRECT_RESPONSE, TOOL_INVOCATION, *(kind.name for kind in kinds)])
    return f"Unknown messageType: {shown(name)} (known: {known})"


def _outcomes(value: dict[str, Any], kinds: Sequence[ClassificationType]) -> list[Outcome]:
    name, content = value["messageType"], value["content"]
    if name == TOOL_INVOCATION:
        return [to_call_tools(content)]
    text = text_in(content)
    if kind := find_type(kinds, name):
        data = matching_data(value, kind)
        return outcomes_of_type(kind, content if data is None else data, text)
    return [
        SendReply(text=text or "", data=content if isinstance(content, dict) else None, message_type=name)
    ]
