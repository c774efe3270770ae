"""Parser of markdown with YAML front matter. It records the line of each value.

The YAML is a safe subset of version 1.2: no tags, anchors, aliases, merge keys, directives, duplicate keys, or keys that
are not strings. A document therefore contains only strings, numbers, true, false, null, lists and objects, and a small file
cannot expand to a large value. Values are built from the parser's events, which have line numbers. Source:
https://yaml.org/spec/1.2.2/ (10.3, the core schema).
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

from .untrusted_folder_reading import UNREADABLE, looks_secret

MAX_YAML_CHARS = 32 * 1024
"""Maximum length of the YAML in characters, without the text below it."""
MAX_DEPTH = 24
"""Maximum nesting depth of a value."""
_MAX_DIGITS = 300
_MAX_WORD_DIGITS = 4
_WORD = re.compile(r"[A-Za-z_$][\w. -]{0,31}")
Path = tuple[str | int, ...]
"""Keys and indexes from the document root to a value."""

_FENCED = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)", re.DOTALL | re.MULTILINE)


@attrs.frozen
class Document:
    """A parsed file: the values of its YAML front matter with their line numbers, and the text below."""

    values: Mapping[str, Any]
    """Parsed values of the front matter by key."""
    lines: Mapping[Path, int]
    """Line number of every key and item, from 1."""
    body: str = ""
    """Text below the front matter."""

    def line(self, path: Path) -> int:
        """Return the line number of a value, or of its nearest existing parent if the value is missing."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def split_front_matter(text: str, *, name: str) -> Document:
    """Parse markdown that begins with YAML between two lines of `---`.

    Raises:
        InvalidFile: The front matter is missing or invalid.
    """
    found = _FENCED.match(text)
    if found is None:
        missing = "is not closed" if text.startswith("---") else "is missing"
        raise InvalidFile(
            name, 1, f"the front matter {missing}: the file must begin with YAML between two lines of ---"
        )
    document = read_yaml(found[1], name=name, first_line=2)
    return attrs.evolve(document, body=found[2].strip())


def read_yaml(text: str, *, name: str, first_line: int = 1) -> Document:
    """Parse a YAML or JSON object; `first_line` is the line number of its first line in the file.

    Raises:
        InvalidFile: The YAML is invalid, uses a forbidden feature (see the module), or is no object.
    """
    if len(text) > MAX_YAML_CHARS:
        raise InvalidFile(name, first_line, f"the YAML is longer than {MAX_YAML_CHARS:,} characters")
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
    """Builds Python values with line numbers from the events of the YAML parser."""

    _events: Iterator[Event]
    _name: str
    _first_line: int
    _lines: dict[Path, int] = attrs.field(factory=dict)

    def document(self) -> Document:
        values = self._content()
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise InvalidFile(
                self._name, self._first_line, "the YAML must be an object: lines of `key: value`"
            )
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
            raise self._error(event, "the file must contain a single YAML document")

    def _error(self, event: Event, reason: str, path: Path = ()) -> InvalidFile:
        return InvalidFile(self._name, self._line(event), reason, format_path(path))

    def _line(self, event: Event) -> int:
        mark = event.start_mark
        return self._first_line + (mark.line if mark is not None else 0)

    def _value(self, event: Event, path: Path) -> Any:
        self._check_allowed(event, path)
        self._lines.setdefault(path, self._line(event))
        match event:
            case ScalarEvent():
                return self._scalar(event, path)
            case SequenceStartEvent():
                return self._list(path)
            case MappingStartEvent():
                return self._object(path)
        raise self._error(event, "a value must follow the key: write the value, or remove the key", path)

    def _check_allowed(self, event: Event, path: Path) -> None:
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            raise self._error(event, "anchors (&) and aliases (*) are not allowed: write the value out", path)
        if getattr(event, "tag", None) is not None:
            raise self._error(event, "tags (!) are not allowed", path)
        if len(path) > MAX_DEPTH:
            raise self._error(event, f"the values are nested in more than {MAX_DEPTH} levels")

    def _scalar(self, event: ScalarEvent, path: Path) -> Any:
        is_plain = bool(event.implicit[0])
        try:
            return _resolve_scalar(event.value) if is_plain else _check_readable(event.value)
        except ValueError as error:
            raise self._error(event, str(error), path) from None

    def _list(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _object(self, path: Path) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            key = self._key(event, path)
            inner = (*path, key)
            if key in members:
                first = self._lines[inner]
                raise self._error(event, f"duplicate key (first used in line {first})", inner)
            self._lines[inner] = self._line(event)
            members[key] = self._value(next(self._events), inner)
        return members

    def _key(self, event: Event, path: Path) -> str:
        self._check_allowed(event, path)
        if not isinstance(event, ScalarEvent):
            raise self._error(event, "a key must be text", path)
        if event.value == "<<" and event.implicit[0]:
            raise self._error(event, "merge keys (<<) are not allowed: write the members out", path)
        return str(event.value)


def format_path(path: Path) -> str:
    """Join the keys of a setting for error texts, such as `llm.temperature`. A key that may be a secret becomes `(a key)`."""
    return ".".join(str(step) if isinstance(step, int) or _is_word(step) else "(a key)" for step in path)


def _is_word(key: str) -> bool:
    """Return True if a key resembles a word; False for long keys and keys with many digits, which may be API keys."""
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


def _resolve_scalar(text: str) -> Any:
    """Return the value of an unquoted YAML scalar: null, true, false, a number or a text.

    Raises:
        ValueError: The scalar is a number that JSON cannot express.
    """
    if text.lower() in _WORDS and text in (text.lower(), text.upper(), text.title()):
        return _WORDS[text.lower()]
    for pattern, convert in _NUMBERS:
        if pattern.fullmatch(text):
            return _to_finite_number(text, convert)
    return str(text)


def _check_readable(text: str) -> str:
    if found := UNREADABLE.search(text):
        raise ValueError(f"the text has a control character (U+{ord(found[0]):04X})")
    return str(text)


def _to_finite_number(text: str, convert: Callable[[str], int | float]) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"the number has more than {_MAX_DIGITS} digits")
    number = convert(text)
    if math.isinf(number):
        raise ValueError("infinity and nan are not valid numbers here")
    return number
