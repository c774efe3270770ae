"""The `bare` protocol: the text of the answer is the reply."""

from typing import Any, ClassVar

from actgent.errors import ParseError
from actgent.llm.base import Answer
from actgent.structured.extract import is_cut, loads, unfenced, visible

from .actions import answer_text, encoded_calls
from .base import Outcome, Profile, Protocol, Say, View, make_say
from .growing import Growth, follow_prose
from .prompts import WHO

_MAY_BE_JSON = frozenset('{["`n<')
"""What a text begins with that is not simply text: JSON, a fence, `null`, a tag of thoughts."""

_TAGS = ("<think>", "<thinking>")
"""What thoughts begin with, before the answer."""


class Bare(Protocol):
    """Plain talk. Only JSON that is the whole answer is looked at, for models that cannot help writing it."""

    name: ClassVar[str] = "bare"
    lookback = 0
    template: ClassVar[str] = WHO

    def read(self, answer: Answer, view: View) -> list[Outcome]:
        text = answer.text
        if text.lstrip()[:1] in _MAY_BE_JSON or "</think" in text:
            return _read_odd(text, view.profile)
        return [make_say(text=text, message_type=_first_type(view.profile))]

    def partial(self, text: str) -> str | None:
        head = text.lstrip()
        if any(tag.startswith(head) for tag in _TAGS):
            return None  # it may become a tag, or is one, and what it holds is not shown
        return visible(text) if head.startswith("<think") else text

    def growth(self) -> Growth:
        return Growth(self.partial, follow_prose)


def _first_type(profile: Profile) -> str | None:
    return profile.types[0].name if profile.types else None


def _read_odd(text: str, profile: Profile) -> list[Outcome]:
    if calls := encoded_calls(text):
        return [calls]
    shown = answer_text(text)
    value = _decoded(shown)
    said = _text_in(value)
    structure = value if isinstance(value, dict | list) else None
    return [Say(text=shown if said is None else said, data=structure, message_type=_first_type(profile))]


def _decoded(text: str) -> Any:
    """The value of a text that is JSON, fenced or not; the text itself if it is none."""
    inner = unfenced(text)
    try:
        value = loads(inner)
    except ParseError:
        if _begins_object(inner) and is_cut(inner):
            raise ParseError("truncated: the JSON of the answer is never closed", text) from None
        return text
    if value is None:
        raise ParseError("the answer is null", text)
    return value


def _begins_object(text: str) -> bool:
    """True for `{"` and `[{"`, fenced or not: JSON was meant, not prose that begins with a bracket."""
    start = "".join(text[:200].split()).lstrip("`").removeprefix("json")
    return start.startswith(('{"', '[{"'))


def _text_in(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return next((value[name] for name in ("text", "content") if isinstance(value.get(name), str)), None)
    return None
