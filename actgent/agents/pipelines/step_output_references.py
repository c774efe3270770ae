"""References to inputs and outputs: `{find.urls.0}` in a message, `find.urls.0` in a condition.

    {find.urls.0}    the output of step `find`, its key `urls`, element 0; a value that is the whole text keeps its type
    {find.note?}     the output of step `find`, its key `note`; empty if there is no value
    {{find.urls}}    the text `{find.urls}` itself

Braces around anything else, such as JSON, are text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.tools.outputs.result_text import to_text

NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
"""Pattern of the name of a step or an input."""
_PATH = rf"{NAME}(?:\.[A-Za-z0-9_-]+)*"
_IN_TEXT = re.compile(rf"\{{(?P<escaped>\{{{_PATH}\??\}})\}}|\{{(?P<path>{_PATH})(?P<optional>\??)\}}")
_ALONE = re.compile(_PATH)
_INDEX = re.compile("[0-9]{1,9}")
_MISSING = object()


class NoValue(Exception):
    """A reference to an input or output has no value; the text names the reference."""


@attrs.frozen
class Reference:
    """Reference to a value of a run: the name of a step or input, and the keys that lead to a part of its value."""

    name: str
    """Name of the step or input."""
    keys: tuple[str, ...] = ()
    """Keys and list positions that lead from the step or input to the value."""
    is_optional: bool = False
    """True if the value may be missing."""

    def __str__(self) -> str:
        return ".".join((self.name, *self.keys))

    def value(self, values: Mapping[str, Any]) -> Any:
        """Return the referenced value from the inputs and outputs in `values`; None for a missing optional value.

        Raises:
            NoValue: There is no value, and the reference is not optional.
        """
        found = values.get(self.name, _MISSING)
        for key in self.keys:
            found = _member(found, key)
        if found is not _MISSING:
            return found
        if self.is_optional:
            return None
        raise NoValue(
            f"the value {self} does not exist: check the name of the step or input, and the keys after it"
        )

    def exists(self, values: Mapping[str, Any]) -> bool:
        """Return True if the referenced value exists in `values` and is not None."""
        return attrs.evolve(self, is_optional=True).value(values) is not None


def _member(value: object, key: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(key, _MISSING)
    if isinstance(value, Sequence) and not isinstance(value, str) and _INDEX.fullmatch(key):
        return value[int(key)] if int(key) < len(value) else _MISSING
    return _MISSING


def parse(text: object) -> Reference:
    """Parse a reference in the form that conditions use: `find.urls.0`.

    Raises:
        ConfigurationError: The text is not a reference.
    """
    if not isinstance(text, str) or _ALONE.fullmatch(text) is None:
        raise ConfigurationError(
            f"a reference must be the name of a step or input, with keys after dots such as find.urls.0, not {text!r:.100}"
        )
    name, *keys = text.split(".")
    return Reference(name, tuple(keys))


def _reference_of(found: "re.Match[str]") -> Reference:
    return attrs.evolve(parse(found["path"]), is_optional=bool(found["optional"]))


def references_in(value: object) -> Iterator[Reference]:
    """Yield the references in a text, or in all texts of a nested structure, in order."""
    if isinstance(value, str):
        yield from (_reference_of(found) for found in _IN_TEXT.finditer(value) if found["path"])
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from references_in(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from references_in(each)


def fill(value: object, values: Mapping[str, Any]) -> Any:
    """Return `value` with references replaced by their values, in a text or in all texts of a nested structure.

    A text that consists of one reference becomes the value itself, with its type.

    Raises:
        NoValue: A required reference has no value.
    """
    if isinstance(value, str):
        return _fill_text(value, values)
    if isinstance(value, Mapping):
        return {key: fill(each, values) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [fill(each, values) for each in value]
    return value


def sole_reference(value: object) -> Reference | None:
    """Return the reference if a text consists of exactly one reference; None for other values."""
    found = _IN_TEXT.fullmatch(value) if isinstance(value, str) else None
    return _reference_of(found) if found is not None and found["path"] else None


def _fill_text(text: str, values: Mapping[str, Any]) -> Any:
    if (alone := sole_reference(text)) is not None:
        return alone.value(values)

    def put(found: "re.Match[str]") -> str:
        if found["escaped"]:
            return found["escaped"]
        value = _reference_of(found).value(values)
        return "" if value is None else to_text(value)

    return _IN_TEXT.sub(put, text)
