"""`When`: conditions of pipeline steps on inputs and on outputs of earlier steps.

A condition depends only on these values, so a run that resumes after a crash makes the same decisions.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import attrs

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.support.unknown_name_hints import lists_arguments

from .step_output_references import NoValue, Reference, fill, parse, references_in, sole_reference

_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {"greater": operator.gt, "less": operator.lt}
_WORDS = {"greater": ">", "less": "<", "equal": "==", "contains": "contains"}
_UNARY = ("exists", "empty")
_BINARY = ("greater", "less", "equal", "contains")
_LOGICAL = ("and", "or")
OPERATORS = (*_UNARY, *_BINARY, *_LOGICAL, "not")
"""Names of conditions in definition files."""
_PAIR_LENGTH = 2
"""Number of elements of a comparison in a definition file: reference and value."""


@lists_arguments
@attrs.frozen
class When:
    """A condition on inputs and outputs: `When.exists("find.url") & When.greater("find.score", 0.5)`.

    `&`, `|` and `~` join conditions. A value may be a reference in braces: `When.less("a.price", "{b.price}")`.
    """

    kind: str
    """Operator: one of `OPERATORS`."""
    reference: Reference | None = None
    """Reference whose value is tested; None for `and`, `or` and `not`."""
    value: Any = None
    """Value that the referenced value is compared with; None for operators without one."""
    parts: tuple["When", ...] = ()
    """Conditions that the operators `and`, `or` and `not` combine; empty for other operators."""

    # --- constructors -----------------------------------------------------------------------

    @classmethod
    def exists(cls, reference: str) -> "When":
        """Return a condition that is true if the value exists and is not null."""
        return cls("exists", parse(reference))

    @classmethod
    def empty(cls, reference: str) -> "When":
        """Return a condition that is true if the value does not exist, is null, or is an empty text, list or object."""
        return cls("empty", parse(reference))

    @classmethod
    def greater(cls, reference: str, value: Any) -> "When":
        """Return a condition that is true if the referenced number or text is greater than `value`.

        The step fails if the two values cannot be compared.
        """
        return cls("greater", parse(reference), value)

    @classmethod
    def less(cls, reference: str, value: Any) -> "When":
        """Return a condition that is true if the referenced number or text is less than `value`.

        The step fails if the two values cannot be compared.
        """
        return cls("less", parse(reference), value)

    @classmethod
    def equal(cls, reference: str, value: Any) -> "When":
        """Return a condition that is true if the two values are equal and of the same JSON type.

        The number 1 equals neither true nor the text "1".
        """
        return cls("equal", parse(reference), value)

    @classmethod
    def contains(cls, reference: str, value: Any) -> "When":
        """Return a condition that is true if a text contains a substring, a list contains an element, or an object contains a key."""
        return cls("contains", parse(reference), value)

    @classmethod
    def all_of(cls, *conditions: "When") -> "When":
        """Return a condition that is true if all given conditions are true."""
        return cls("and", parts=_check_conditions("all_of", conditions))

    @classmethod
    def any_of(cls, *conditions: "When") -> "When":
        """Return a condition that is true if at least one of the conditions in `conditions` is true."""
        return cls("or", parts=_check_conditions("any_of", conditions))

    def __and__(self, other: "When") -> "When":
        return When.all_of(self, other)

    def __or__(self, other: "When") -> "When":
        return When.any_of(self, other)

    def __invert__(self) -> "When":
        return self.parts[0] if self.kind == "not" else When("not", parts=(self,))

    def __bool__(self) -> bool:
        raise ConfigurationError(
            "join conditions with the operators &, | and ~, not with the words and, or and not"
        )

    # --- evaluation ----------------------------------------------------------------------

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return True if the condition is true for the inputs and outputs in `values`, by name.

        Raises:
            NoValue: The compared values are of different kinds; the text names both.
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
        """Yield all references that the condition reads."""
        if self.reference is not None:
            yield self.reference
            yield from references_in(self.value)
        for part in self.parts:
            yield from part.references()

    def needed(self) -> Iterator["When"]:
        """Yield the parts of an `and` condition, which must all be true. For other conditions, yield the condition itself."""
        if self.kind == "and":
            for part in self.parts:
                yield from part.needed()
        else:
            yield self

    def excludes(self, other: "When") -> bool:
        """Return True if this condition and `other` can never both be true, e.g. because they compare one reference with two values."""
        if ~self == other:
            return True
        is_same = self.kind == other.kind == "equal" and self.reference == other.reference
        return is_same and not _is_reference(self, other) and not _is_equal(self.value, other.value)

    def __str__(self) -> str:
        if self.kind in _LOGICAL:
            return f" {self.kind} ".join(
                f"({each})" if each.kind in _LOGICAL else f"{each}" for each in self.parts
            )
        if self.kind == "not":
            return f"not ({self.parts[0]})"
        if self.kind == "exists":
            return f"{self.reference} exists"
        if self.kind == "empty":
            return f"{self.reference} is empty"
        value = str(alone) if (alone := sole_reference(self.value)) is not None else repr(self.value)
        return f"{self.reference} {_WORDS[self.kind]} {value}"

    # --- conversion ---------------------------------------------------------------------------

    def to_data(self) -> dict[str, Any]:
        """Return the condition as data of a definition file: `{"greater": ["find.score", 0.5]}`."""
        if self.kind in _LOGICAL:
            return {self.kind: [part.to_data() for part in self.parts]}
        if self.kind == "not":
            return {"not": self.parts[0].to_data()}
        return {self.kind: str(self.reference) if self.kind in _UNARY else [str(self.reference), self.value]}

    @classmethod
    def from_data(cls, data: object) -> "When":
        """Parse a condition of a definition file.

        Raises:
            ConfigurationError: The data is not a condition; the text has the reason.
        """
        if not isinstance(data, Mapping) or len(data) != 1:
            raise ConfigurationError(f"a condition must be an object with one key, not {data!r:.100}")
        ((kind, given),) = data.items()
        if kind in _UNARY:
            return cls(kind, parse(given))
        if kind in _BINARY:
            if not isinstance(given, list) or len(given) != _PAIR_LENGTH:
                raise ConfigurationError(
                    f"{kind}: needs a list of two items (a reference and a value), not {given!r:.100}"
                )
            return cls(kind, parse(given[0]), given[1])
        if kind in _LOGICAL:
            if not isinstance(given, list):
                raise ConfigurationError(f"{kind}: needs a list of conditions, not {given!r:.100}")
            return cls(kind, parts=_check_conditions(kind, tuple(map(cls.from_data, given))))
        if kind == "not":
            return ~cls.from_data(given)
        raise ConfigurationError(
            f"unknown condition operator {kind!r}: {did_you_mean_or_list(str(kind), OPERATORS)}"
        )


def _check_conditions(name: str, conditions: tuple[When, ...]) -> tuple[When, ...]:
    for each in conditions:
        if not isinstance(each, When):
            raise ConfigurationError(
                f"{name} needs conditions such as When.exists('find'), not {each!r:.100}"
            )
    if not conditions:
        raise ConfigurationError(f"{name} needs at least one condition")
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
        "declare its type with output= of the step"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal as JSON values; true and false are not equal to numbers."""
    if _is_number(one) and _is_number(other):
        return bool(one == other)
    return type(one) is type(other) and bool(one == other)


def _is_reference(*conditions: When) -> bool:
    return any(True for each in conditions for _ in references_in(each.value))


def _kind_of(value: object) -> str:
    kinds = {str: "a text", bool: "a truth value", list: "a list", dict: "an object", type(None): "null"}
    return kinds.get(type(value), "a number")
