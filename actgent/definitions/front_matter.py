"""Markdown with YAML in front of it, and where each value stands.

The YAML is that of version 1.2 without what configuration does not need: no tags, anchors, aliases, merge keys,
directives, or keys that are no text; no key twice. So nothing is ever built but text, numbers, true, false, null,
lists and objects, and a small file cannot become a large value. Values are built from the parser's events, which
know their lines. Source: https://yaml.org/spec/1.2.2/ (10.3, the core schema).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from actgent.errors import InvalidFile

from .folder import UNREADABLE, looks_secret

MAX_CHARACTERS = 32 * 1024
"""Of YAML; the text below it has the file's own limit."""
MAX_DEPTH = 24
_MAX_DIGITS = 300
_MAX_WORD_DIGITS = 4
_WORD = re.compile(r"[A-Za-z_$][\w. -]{0,31}")
Place = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""

_FENCED = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)", re.DOTALL | re.MULTILINE)


@attrs.frozen
class Document:
    """The values in front, where they stand, and the text below."""

    values: Mapping[str, Any]
    lines: Mapping[Place, int]
    """Of every key and item, from 1."""
    body: str = ""

    def line(self, place: Place) -> int:
        """Where a value stands, or what should hold it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def split_front_matter(text: str, *, name: str) -> Document:
    """Read markdown that begins with YAML between two lines of `---`.

    Raises:
        InvalidFile: there is no such beginning, or it cannot be read; with the line.
    """
    found = _FENCED.match(text)
    if found is None:
        missing = "is never closed" if text.startswith("---") else "is missing"
        raise InvalidFile(
            name, 1, f"the front matter {missing}: the file begins with YAML between two lines of ---"
        )
    document = read_yaml(found[1], name=name, first_line=2)
    return attrs.evolve(document, body=found[2].strip())


def read_yaml(text: str, *, name: str, first_line: int = 1) -> Document:
    """Read a YAML object; JSON is one, too. `first_line` is the number of its first line in the file.

    Raises:
        InvalidFile: it cannot be read, has what is not allowed (see the module), or is no object.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidFile(name, first_line, f"the YAML is longer than {MAX_CHARACTERS:,} characters")
    builder = _Builder(YAML(typ="safe", pure=True).parse(text), name, first_line)
    try:
        return builder.document()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark is not None else 0
        raise InvalidFile(
            name, first_line + line, f"invalid YAML: {error.problem or error.context}"
        ) from None
    except YAMLError:
        raise InvalidFile(name, first_line, "invalid YAML") from None


@attrs.define
class _Builder:
    """Values from events, one after the other."""

    _events: Iterator[Event]
    _name: str
    _first_line: int
    _lines: dict[Place, int] = attrs.field(factory=dict)

    def document(self) -> Document:
        values = self._content()
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise InvalidFile(self._name, self._first_line, "an object is needed: lines of `key: value`")
        return Document(values, self._lines)

    def _content(self) -> Any:
        self._expect(StreamStartEvent)
        event = next(self._events)
        if isinstance(event, StreamEndEvent):
            return None
        if not isinstance(event, DocumentStartEvent) or event.version or event.tags:
            raise self._error(event, "directives (%) are not allowed")
        value = self._value(next(self._events), ())
        self._expect(DocumentEndEvent)
        self._expect(StreamEndEvent)
        return value

    def _expect(self, kind: type[Event]) -> None:
        event = next(self._events)
        if not isinstance(event, kind):
            raise self._error(event, "one document is all that is read")

    def _error(self, event: Event, reason: str, place: Place = ()) -> InvalidFile:
        return InvalidFile(self._name, self._line(event), reason, dotted(place))

    def _line(self, event: Event) -> int:
        mark = event.start_mark
        return self._first_line + (mark.line if mark is not None else 0)

    def _value(self, event: Event, place: Place) -> Any:
        self._refuse_odd(event, place)
        self._lines.setdefault(place, self._line(event))
        match event:
            case ScalarEvent():
                return self._scalar(event, place)
            case SequenceStartEvent():
                return self._list(place)
            case MappingStartEvent():
                return self._object(place)
        raise self._error(event, "a value is missing", place)

    def _refuse_odd(self, event: Event, place: Place) -> None:
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self._error(
                event, "anchors (&) and aliases (*) are not allowed: write the value out", place
            )
        if getattr(event, "tag", None) is not None:
            raise self._error(event, "tags (!) are not allowed", place)
        if len(place) > MAX_DEPTH:
            raise self._error(event, f"more than {MAX_DEPTH} levels")

    def _scalar(self, event: ScalarEvent, place: Place) -> Any:
        is_plain = bool(event.implicit[0])
        try:
            return _resolved(event.value) if is_plain else _readable(event.value)
        except ValueError as error:
            raise self._error(event, str(error), place) from None

    def _list(self, place: Place) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._value(event, (*place, len(items))))
        return items

    def _object(self, place: Place) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event, place)
            inner = (*place, key)
            if key in members:
                first = self._lines[inner]
                raise self._error(event, f"the key is there twice (first in line {first})", inner)
            self._lines[inner] = self._line(event)
            members[key] = self._value(next(self._events), inner)
        return members

    def _key(self, event: Event, place: Place) -> str:
        self._refuse_odd(event, place)
        if not isinstance(event, ScalarEvent):
            raise self._error(event, "a key must be text", place)
        if event.value == "<<" and event.implicit[0]:
            raise self._error(event, "merge keys (<<) are not allowed: write the members out", place)
        return str(event.value)


def dotted(place: Place) -> str:
    """A place as errors name it: `llm.temperature`. What may be a secret in the wrong column is not quoted."""
    return ".".join(str(step) if isinstance(step, int) or _is_word(step) else "(a key)" for step in place)


def _is_word(key: str) -> bool:
    """False for what is long or has many digits among its letters, as keys of providers do."""
    return (
        _WORD.fullmatch(key) is not None
        and sum(map(str.isdigit, key)) <= _MAX_WORD_DIGITS
        and not looks_secret(key)
    )


# --- the core schema ---------------------------------------------------------------------------

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], int | float]], ...] = (
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text, 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda _: math.inf),
)


def _resolved(text: str) -> Any:
    """The value of a scalar without quotes.

    Raises:
        ValueError: a number that JSON does not have.
    """
    if text.lower() in _WORDS and text in (text.lower(), text.upper(), text.title()):
        return _WORDS[text.lower()]
    for pattern, convert in _NUMBERS:
        if pattern.fullmatch(text):
            return _finite(text, convert)
    return str(text)


def _readable(text: str) -> str:
    if found := UNREADABLE.search(text):
        raise ValueError(f"there is a control character (U+{ord(found[0]):04X})")
    return str(text)


def _finite(text: str, convert: Callable[[str], int | float]) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number has at most {_MAX_DIGITS} digits")
    number = convert(text)
    if math.isinf(number):
        raise ValueError("infinity and nan are not valid numbers here")
    return number
