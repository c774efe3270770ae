"""When a step runs: conditions over inputs and the outputs of earlier steps, and nothing else.

So a run that goes on after a crash decides as it did before.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import attrs

from actgent.errors import ConfigurationError, nearest

from .references import NoValue, Reference, alone_in, fill, parse, references_in

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {"greater": operator.gt, "less": operator.lt}
_WORDS = {"greater": ">", "less": "<", "equal": "==", "contains": "contains"}
_OF_ONE = ("exists", "empty")
_OF_TWO = ("greater", "less", "equal", "contains")
_JOINED = ("and", "or")
OPERATORS = (*_OF_ONE, *_OF_TWO, *_JOINED, "not")
"""The names of conditions in files."""
_LISTED = 2
"""How many elements a comparison in a file has."""


@attrs.frozen
class When:
    """A condition over outputs: `When.exists("find.url") & When.greater("find.score", 0.5)`.

    `&`, `|` and `~` join conditions. A value may be a reference in braces: `When.less("a.price", "{b.price}")`.
    """

    kind: str
    """One of `OPERATORS`."""
    reference: Reference | None = None
    """What is looked at; None for `and`, `or` and `not`."""
    value: Any = None
    """What it is compared with."""
    parts: tuple["When", ...] = ()
    """The conditions that `and`, `or` and `not` join."""

    # --- making them -----------------------------------------------------------------------

    @classmethod
    def exists(cls, reference: str) -> "When":
        """True if there is a value, and not null."""
        return cls("exists", parse(reference))

    @classmethod
    def empty(cls, reference: str) -> "When":
        """True if there is no value, or null, or a text, list or object with nothing in it."""
        return cls("empty", parse(reference))

    @classmethod
    def greater(cls, reference: str, value: Any) -> "When":
        """True if there is a number or text that is greater; of different kinds none is, and the step fails."""
        return cls("greater", parse(reference), value)

    @classmethod
    def less(cls, reference: str, value: Any) -> "When":
        """True if there is a number or text that is less; of different kinds none is, and the step fails."""
        return cls("less", parse(reference), value)

    @classmethod
    def equal(cls, reference: str, value: Any) -> "When":
        """True if there is this very value: 1 is not true, and not "1"."""
        return cls("equal", parse(reference), value)

    @classmethod
    def contains(cls, reference: str, value: Any) -> "When":
        """True if a text has this part, a list this element, or an object this key."""
        return cls("contains", parse(reference), value)

    @classmethod
    def all_of(cls, *conditions: "When") -> "When":
        """True if all of them are."""
        return cls("and", parts=_several("all_of", conditions))

    @classmethod
    def any_of(cls, *conditions: "When") -> "When":
        """True if one of them is."""
        return cls("or", parts=_several("any_of", conditions))

    def __and__(self, other: "When") -> "When":
        return When.all_of(self, other)

    def __or__(self, other: "When") -> "When":
        return When.any_of(self, other)

    def __invert__(self) -> "When":
        return self.parts[0] if self.kind == "not" else When("not", parts=(self,))

    def __bool__(self) -> bool:
        raise ConfigurationError("conditions are joined by &, | and ~, not by and, or and not")

    # --- what it says ----------------------------------------------------------------------

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Decide over inputs and outputs, by their names.

        Raises:
            NoValue: what is compared is of different kinds; the text names both.
        """
        if self.reference is None:
            held = (part.holds(values) for part in self.parts)
            return not next(held) if self.kind == "not" else (all if self.kind == "and" else any)(held)
        found = attrs.evolve(self.reference, is_optional=True).value(values)
        if self.kind == "empty":
            return found is None or (isinstance(found, Sized) and not len(found))
        if self.kind == "exists" or found is None:
            return found is not None
        return _compare(self.kind, self.reference, found, fill(self.value, values))

    def references(self) -> Iterator[Reference]:
        """All that it looks at."""
        if self.reference is not None:
            yield self.reference
            yield from references_in(self.value)
        for part in self.parts:
            yield from part.references()

    def needed(self) -> Iterator["When"]:
        """The conditions that all have to hold for this one to hold."""
        if self.kind == "and":
            for part in self.parts:
                yield from part.needed()
        else:
            yield self

    def excludes(self, other: "When") -> bool:
        """Return True if one of two conditions is the other's opposite, or both want another value at one place."""
        if ~self == other:
            return True
        is_same = self.kind == other.kind == "equal" and self.reference == other.reference
        return is_same and not _is_reference(self, other) and not _is_equal(self.value, other.value)

    def __str__(self) -> str:
        if self.kind in _JOINED:
            return f" {self.kind} ".join(
                f"({each})" if each.kind in _JOINED else f"{each}" for each in self.parts
            )
        if self.kind == "not":
            return f"not ({self.parts[0]})"
        if self.kind == "exists":
            return f"{self.reference} exists"
        if self.kind == "empty":
            return f"{self.reference} is empty"
        value = str(alone) if (alone := alone_in(self.value)) is not None else repr(self.value)
        return f"{self.reference} {_WORDS[self.kind]} {value}"

    # --- as data ---------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """The condition as files have it: `{"greater": ["find.score", 0.5]}`."""
        if self.kind in _JOINED:
            return {self.kind: [part.to_data() for part in self.parts]}
        if self.kind == "not":
            return {"not": self.parts[0].to_data()}
        return {self.kind: str(self.reference) if self.kind in _OF_ONE else [str(self.reference), self.value]}

    @classmethod
    def from_data(cls, data: object) -> "When":
        """Read a condition of a file.

        Raises:
            ConfigurationError: it is none; the text says what is wrong.
        """
        if not isinstance(data, Mapping) or len(data) != 1:
            raise ConfigurationError(f"a condition is an object with one key, not {data!r:.100}")
        ((kind, given),) = data.items()
        if kind in _OF_ONE:
            return cls(kind, parse(given))
        if kind in _OF_TWO:
            if not isinstance(given, list) or len(given) != _LISTED:
                raise ConfigurationError(
                    f"{kind}: takes a list of a reference and a value, not {given!r:.100}"
                )
            return cls(kind, parse(given[0]), given[1])
        if kind in _JOINED:
            if not isinstance(given, list):
                raise ConfigurationError(f"{kind}: takes a list of conditions, not {given!r:.100}")
            return cls(kind, parts=_several(kind, tuple(map(cls.from_data, given))))
        if kind == "not":
            return ~cls.from_data(given)
        raise ConfigurationError(f"there is no condition {kind!r}: {nearest(str(kind), OPERATORS)}")


def _several(name: str, conditions: tuple[When, ...]) -> tuple[When, ...]:
    for each in conditions:
        if not isinstance(each, When):
            raise ConfigurationError(
                f"{name} takes conditions such as When.exists('find'), not {each!r:.100}"
            )
    if not conditions:
        raise ConfigurationError(f"{name} takes at least one condition")
    return conditions


def _compare(kind: str, reference: Reference, found: Any, value: Any) -> bool:
    if kind == "equal":
        return _is_equal(found, value)
    if kind == "contains":
        if isinstance(found, str):
            return isinstance(value, str) and value in found
        return isinstance(found, list | dict) and any(_is_equal(each, value) for each in found)
    if (_is_number(found) and _is_number(value)) or (isinstance(found, str) and isinstance(value, str)):
        return _COMPARED[kind](found, value)
    raise NoValue(
        f"{kind}: {reference} is {_kind_of(found)} and cannot be compared with {_kind_of(value)}: "
        "give the step an output= that says what it is"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(one: Any, other: Any) -> bool:
    """Compare as JSON does, in which true is no number."""
    if _is_number(one) and _is_number(other):
        return bool(one == other)
    return type(one) is type(other) and bool(one == other)


def _is_reference(*conditions: When) -> bool:
    return any(True for each in conditions for _ in references_in(each.value))


def _kind_of(value: object) -> str:
    kinds = {str: "a text", bool: "a truth value", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
