"""The `bare` protocol: the text of the model's answer is the reply."""

from typing import Any, ClassVar

from actgent.errors import ParseError
from actgent.llm.model_interface import ModelResponse
from actgent.structured_output.extract_json import is_truncated, loads, remove_thinking, strip_code_fence

from .answer_content_parsing import answer_text, parse_encoded_calls
from .partial_answers import PartialAnswer, follow_prose
from .prompt_rendering import WHO
from .protocol_interface import Outcome, Profile, Protocol, SendReply, TurnView, make_say

_MAY_BE_JSON = frozenset('{["`n<')
"""First characters of answers that may not be prose: JSON, a code fence, `null`, or a reasoning tag."""

_TAGS = ("<think>", "<thinking>")
"""Opening tags of reasoning before the answer."""


class Bare(Protocol):
    """Protocol of plain text: the answer is the reply. Of an answer in JSON, which some models write unasked, only the text is used."""

    name: ClassVar[str] = "bare"
    lookback = 0
    template: ClassVar[str] = WHO

    def read(self, answer: ModelResponse, view: TurnView) -> list[Outcome]:
        text = answer.text
        if text.lstrip()[:1] in _MAY_BE_JSON or "</think" in text:
            return _read_json_like(text, view.profile)
        types = view.profile.types
        return [make_say(text=text, message_type=types[0].name if types else None)]

    def partial(self, text: str) -> str | None:
        head = text.lstrip()
        if any(tag.startswith(head) for tag in _TAGS):
            return None  # it is or may become a reasoning tag, whose content is not shown
        return remove_thinking(text) if head.startswith("<think") else text

    def partial_answer(self) -> PartialAnswer:
        return PartialAnswer(self.partial, follow_prose)


def _read_json_like(text: str, profile: Profile) -> list[Outcome]:
    if calls := parse_encoded_calls(text):
        return [calls]
    shown = answer_text(text)
    value = _decode(shown)
    inner_text = _text_in(value)
    structure = value if isinstance(value, dict | list) else None
    return [
        SendReply(
            text=shown if inner_text is None else inner_text,
            data=structure,
            message_type=profile.types[0].name if profile.types else None,
        )
    ]


def _decode(text: str) -> Any:
    """Decode a text that is JSON, with or without a code fence, and return its value; return other text unchanged."""
    inner = strip_code_fence(text)
    try:
        value = loads(inner)
    except ParseError:
        if _begins_object(inner) and is_truncated(inner):
            raise ParseError("truncated: the JSON of the answer is never closed", text) from None
        return text
    if value is None:
        raise ParseError("the answer must not be null", text)
    return value


def _begins_object(text: str) -> bool:
    """Return True if a text begins with `{"` or `[{"`, so that the model meant JSON and not prose with a bracket."""
    start = "".join(text[:200].split()).lstrip("`").removeprefix("json")
    return start.startswith(('{"', '[{"'))


def _text_in(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return next((value[name] for name in ("text", "content") if isinstance(value.get(name), str)), None)
    return None
