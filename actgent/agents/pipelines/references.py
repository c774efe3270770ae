"""References to inputs and outputs: `{find.urls.0}` in a message, `find.urls.0` in a condition.

    {find.urls.0}    what the step `find` gave, there; a value that is the whole text keeps its type
    {find.note?}     the same, or nothing where there is none
    {{find.urls}}    the text `{find.urls}` itself

Braces round anything else, such as JSON, are text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.tools.outputs.results import to_text

NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
"""The name of a step or an input."""
_PATH = rf"{NAME}(?:\.[A-Za-z0-9_-]+)*"
_IN_TEXT = re.compile(rf"\{{(?P<own>\{{{_PATH}\??\}})\}}|\{{(?P<path>{_PATH})(?P<optional>\??)\}}")
_ALONE = re.compile(_PATH)
_PLACE = re.compile("[0-9]{1,9}")
_MISSING = object()


class NoValue(Exception):
    """There is nothing at a place that a step reads; the text says where."""


@attrs.frozen
class Reference:
    """Where a value stands: the name of a step or input, and the keys below it."""

    name: str
    keys: tuple[str, ...] = ()
    is_optional: bool = False

    def __str__(self) -> str:
        return ".".join((self.name, *self.keys))

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the value there.

        Raises:
            NoValue: there is none.
        """
        found = values.get(self.name, _MISSING)
        for key in self.keys:
            found = _member(found, key)
        if found is not _MISSING:
            return found
        if self.is_optional:
            return None
        raise NoValue(f"there is no {self} among the outputs")

    def is_there(self, values: Mapping[str, Any]) -> bool:
        """Return True if there is a value, and not None."""
        return attrs.evolve(self, is_optional=True).value(values) is not None


def _member(value: object, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key, _MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str) and _PLACE.fullmatch(key):
        return value[int(key)] if int(key) < len(value) else _MISSING
    return _MISSING


def parse(text: object) -> Reference:
    """Read a reference as conditions have it: `find.urls.0`.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(text, str) or _ALONE.fullmatch(text) is None:
        raise ConfigurationError(
            f"a reference is a step's or an input's name, with keys behind dots such as find.urls.0, not {text!r:.100}"
        )
    name, *keys = text.split(".")
    return Reference(name, tuple(keys))


def _of(found: "re.Match[str]") -> Reference:
    return attrs.evolve(parse(found["path"]), is_optional=bool(found["optional"]))


def references_in(value: object) -> Iterator[Reference]:
    """The references in a text, or in the texts of a structure, in their order."""
    if isinstance(value, str):
        yield from (_of(found) for found in _IN_TEXT.finditer(value) if found["path"])
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from references_in(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from references_in(each)


def fill(value: object, values: Mapping[str, Any]) -> Any:
    """Put values in the place of references; a text that is one reference and nothing else becomes its value.

    Raises:
        NoValue: a reference that is not optional leads to nothing.
    """
    if isinstance(value, str):
        return _fill_text(value, values)
    if isinstance(value, Mapping):
        return {key: fill(each, values) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [fill(each, values) for each in value]
    return value


def alone_in(value: object) -> Reference | None:
    """The reference that a text is, and nothing else; None for any other text or value."""
    found = _IN_TEXT.fullmatch(value) if isinstance(value, str) else None
    return _of(found) if found is not None and found["path"] else None


def _fill_text(text: str, values: Mapping[str, Any]) -> Any:
    if (alone := alone_in(text)) is not None:
        return alone.value(values)

    def put(found: "re.Match[str]") -> str:
        if found["own"]:
            return found["own"]
        value = _of(found).value(values)
        return "" if value is None else to_text(value)

    return _IN_TEXT.sub(put, text)
