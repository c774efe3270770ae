"""A JSON Schema that checks values: without fetching anything, and bounded in time, memory and words.

Whether a value fits is quick to tell, and why it does not is dear: the library builds all errors at once, and for `anyOf` and
`oneOf` those of every branch below every branch. So all errors are asked for only where there cannot be many. Otherwise the
first is, from a second validator in which a branch only says that it does not fit.
"""

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Never

import attrs
import jsonschema_rs

from actgent.errors import ConfigurationError, ParseError
from actgent.support.strict_json import loads

from .patterns import (
    LEAST_STEPS,
    MAX_STEPS,
    MAX_TEXT_STEPS,
    is_backtracking,
    pattern_options,
    patterns_of,
    steps_for,
)
from .work import MAX_HEIGHT, MAX_WORK, SchemaWork, TooMuchWork, build_work, work_of

MAX_LEVELS = 200
"""Of nesting of a schema itself."""
_PLAIN_WORK = 4
"""Schemas that may be tried for each member of a value, however many there are."""
_MAX_BUILT = 20_000
"""Marks that the library may build for one schema, 0.1 s: it takes four times as long for twice as many."""
_MAX_ERRORS = 5_000
"""That may be built at once, at 30 µs each."""
_MAX_ERROR_CHARACTERS = 2_000_000
"""Of the schema that may be copied into errors: each has the whole of the `enum` or the `not` that it is of."""
_MAX_CACHED_SCHEMAS = 512
_MAX_CACHED_CHARACTERS = 10_000
"""Length of the JSON text of a schema that is kept for equal ones."""
_compiled_schemas: "dict[str, CheckedSchema]" = {}
"""Compiled schemas by their JSON text, the oldest first."""
_lock = threading.Lock()
_SEARCHED_CHARACTERS = 4_000
_SHOWN_ERRORS = 5
_SHOWN_CHARACTERS = 300
_TOO_MUCH = "it is too large and too deep to be checked against this schema: pass less"
_BRANCHES = ("anyOf", "oneOf")
_KINDS = jsonschema_rs.ValidationErrorKind
_DATA = ("const", "enum", "default", "examples")
_QUOTED = ("const", "enum", "not", "required", "dependentRequired", "dependencies")


def _refuse(uri: str) -> Never:
    """The library would fetch a `$ref` over http and from files: a schema may come from strangers."""
    raise ValueError(f"references outside of the schema are not followed ({uri})")


def compile_schema(schema: Mapping[str, Any], *, owner: str) -> "CheckedSchema":
    """Compile a JSON Schema (2020-12, or what its `$schema` names) into a checker of values.

    Raises:
        ConfigurationError: not a JSON Schema, one that refers to another document, or one that takes too long to check.
    """
    if is_deep(schema):
        raise ConfigurationError(f"the JSON Schema of {owner} is nested deeper than {MAX_LEVELS} levels")
    try:
        return _cached(schema)
    except jsonschema_rs.ValidationError as error:
        message = error.message[:_SHOWN_CHARACTERS]
        raise ConfigurationError(f"the JSON Schema of {owner} is not usable: {message}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error}") from None
    except TooMuchWork:
        raise ConfigurationError(
            f"the JSON Schema of {owner} has branches in branches, too many to be tried: give it fewer"
        ) from None


def _cached(schema: Mapping[str, Any]) -> "CheckedSchema":
    """Return the compiled schema of an equal schema, or compile it.

    Compiling takes 1 to 2 ms. Programs make the same tools again for each customer or session, e.g. of bound methods.
    """
    try:
        key = json.dumps(schema)
    except (TypeError, ValueError, RecursionError):
        return _checked(schema)
    if len(key) > _MAX_CACHED_CHARACTERS:
        return _checked(schema)
    with _lock:
        found = _compiled_schemas.get(key)
    if found is None:
        found = _checked(copy.deepcopy(schema))  # the program may change its own later
        with _lock:
            if len(_compiled_schemas) >= _MAX_CACHED_SCHEMAS:
                _compiled_schemas.pop(next(iter(_compiled_schemas)))
            _compiled_schemas[key] = found
    return found


def plain_form(form: Mapping[str, Any] | None, *, owner: str) -> dict[str, Any] | None:
    """A form that a person fills in as it is checked, written and sent: plain JSON, whatever mappings it is made of; None is none.

    Raises:
        ConfigurationError: its schema cannot be used, or is not JSON.
    """
    if form is None:
        return None
    compile_schema(form, owner=owner)
    try:
        plain: dict[str, Any] = loads(json.dumps(form, allow_nan=False, default=_plain_mapping))
    except ParseError as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error.reason}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error}") from None
    return plain


def _plain_mapping(value: object) -> dict[Any, Any]:
    """A mapping that is no dict, for `json.dumps`."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _checked(schema: Mapping[str, Any]) -> "CheckedSchema":
    try:
        return _counted(_without_repeated(schema))
    except (
        jsonschema_rs.ValidationError,
        ValueError,
    ):  # wrong, or with a reference into a branch that is gone
        return _counted(dict(schema))


def _counted(schema: dict[str, Any]) -> "CheckedSchema":
    """Compile a schema, after the work that this takes and that it makes is counted."""
    work = work_of(schema)
    if work.at(1) > MAX_WORK:
        raise TooMuchWork
    patterns = patterns_of(schema)
    checked = CheckedSchema(schema, work, len(patterns), any(map(is_backtracking, patterns)))
    checked.compiled(MAX_TEXT_STEPS)
    return checked


@attrs.frozen(eq=False, slots=False)
class CheckedSchema:
    """A compiled schema; made once, safe to share."""

    _schema: dict[str, Any] = attrs.field(repr=False)
    _work: SchemaWork = attrs.field(repr=False)
    _patterns: int
    _is_backtracking: bool
    """Whether some of its patterns are not run in linear time."""
    _compiled: dict[int, jsonschema_rs.Validator] = attrs.field(factory=dict, repr=False)
    """By the steps that a pattern may take back."""

    def compiled(self, steps: int) -> jsonschema_rs.Validator:
        """The validator whose patterns take back at most so many steps for a text."""
        if steps not in self._compiled:
            if build_work(self._schema) > _MAX_BUILT:
                raise TooMuchWork
            options = pattern_options(self._patterns, steps)
            self._compiled[steps] = jsonschema_rs.validator_for(
                self._schema, retriever=_refuse, pattern_options=options
            )
        return self._compiled[steps]

    def reason(self, value: Any, *, root: str = "") -> str | None:
        """Explain to the model why a value is wrong, None if it is not; `root` is the path of the value itself.

        Raises:
            ValueError: it is no JSON.
        """
        steps = MAX_TEXT_STEPS if self._is_cheap else self._steps_for(value)
        if steps is None:
            return _TOO_MUCH
        if self.compiled(steps).is_valid(value):
            return None
        errors = self._errors(value, steps)
        more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
        worded = "; ".join([_worded(error, root, self._schema) for error in errors[:_SHOWN_ERRORS]])
        return f"{worded}{more}" or "it does not fit the schema"

    @cached_property
    def _is_cheap(self) -> bool:
        """Return True if no value makes much work: those of most tools."""
        most = MAX_STEPS // MAX_TEXT_STEPS if self._is_backtracking else MAX_WORK
        return self._work.is_closed and self._work.at(MAX_HEIGHT) <= most

    @cached_property
    def _uncounted(self) -> int:
        """How many members a value may have so that its work need not be counted."""
        return 0 if self._is_backtracking else MAX_WORK // self._work.at(MAX_HEIGHT)

    def _steps_for(self, value: Any) -> int | None:
        """How many steps a pattern may take back, None if the value makes too much work."""
        size = _size(value)
        if size <= self._uncounted:
            return MAX_TEXT_STEPS
        if not self._is_backtracking:
            most = max(MAX_WORK, _PLAIN_WORK * size)
            return MAX_TEXT_STEPS if self._work.of(value, most) <= most else None
        tries = self._work.of(value, MAX_STEPS // LEAST_STEPS)
        return steps_for(tries) if tries <= MAX_STEPS // LEAST_STEPS else None

    def _errors(self, value: Any, steps: int) -> Sequence[jsonschema_rs.ValidationError]:
        text = json.dumps(value)
        most = self._work.at(MAX_HEIGHT) * (text.count(",") + 1)
        is_short = len(text) <= _SEARCHED_CHARACTERS and most * self._longest <= _MAX_ERROR_CHARACTERS
        if is_short and most <= _MAX_ERRORS and not self._work.is_circular:
            return list(self.compiled(steps).iter_errors(value))
        first = self._brief_error(value, steps)
        return [] if first is None else [first]

    def _brief_error(self, value: Any, steps: int) -> jsonschema_rs.ValidationError | None:
        try:
            brief = self._brief.compiled(steps)
        except (jsonschema_rs.ValidationError, ValueError, TooMuchWork):  # it refers into one of its branches
            return None
        try:
            brief.validate(value)
        except jsonschema_rs.ValidationError as error:
            return error
        return None

    @cached_property
    def _brief(self) -> "CheckedSchema":
        """The same schema, whose branches only say that they do not fit; not compiled yet."""
        return CheckedSchema(_briefly(self._schema), self._work, self._patterns, self._is_backtracking)

    @cached_property
    def _longest(self) -> int:
        """Characters of the longest part of the schema that an error quotes."""
        longest = 1
        stack: list[Any] = [self._schema]
        while stack:
            each = stack.pop()
            if isinstance(each, dict):
                quoted = [json.dumps(each[key], default=str) for key in _QUOTED if key in each]
                longest = max(longest, *map(len, quoted), 1)
            stack += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        return longest


def _worded(error: jsonschema_rs.ValidationError, root: str, schema: Any, *, said: str = "") -> str:
    """Word an error with its path, unless that is `said`; one of branches by what they ask for."""
    branches = _likely(error)
    if len(branches) == 1:
        return "; ".join([_worded(each, root, None, said=said) for each in branches[0][:_SHOWN_ERRORS]])
    path = "".join(f"/{step}" for step in error.instance_path) or root
    message = (_choice(error, schema) or _of_branches(error, branches, path))[:_SHOWN_CHARACTERS]
    return f"{path[:_SHOWN_CHARACTERS]}: {message}" if path and path != said else message


def _likely(error: jsonschema_rs.ValidationError) -> list[Sequence[jsonschema_rs.ValidationError]]:
    """What is wrong by each branch, where all fail: by those that the value may be meant for, else why it is for none."""
    branches: Sequence[Sequence[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", ())
    if not all(branches):
        return []
    apart: list[Sequence[jsonschema_rs.ValidationError]] = [
        [each for each in branch if _tells_apart(each, error)] for branch in branches
    ]
    meant = [branch for branch, others in zip(branches, apart, strict=True) if not others]
    return meant or apart


def _tells_apart(inner: jsonschema_rs.ValidationError, outer: jsonschema_rs.ValidationError) -> bool:
    """Return True if a value is of another type than a branch is for, or has another constant in a member."""
    depth = len(inner.instance_path) - len(outer.instance_path)
    return (depth == 0 and isinstance(inner.kind, _KINDS.Type)) or (
        depth == 1 and isinstance(inner.kind, _KINDS.Constant)
    )


def _of_branches(
    error: jsonschema_rs.ValidationError,
    branches: Sequence[Sequence[jsonschema_rs.ValidationError]],
    path: str,
) -> str:
    if error.message.startswith('{"not":'):
        shown = json.dumps(error.instance)[:_SHOWN_CHARACTERS]
        return f"{shown} is not valid under the branches of the schema"
    if not branches:
        return error.message
    return "; or ".join([_worded(each[0], "", None, said=path) for each in branches])


def _choice(error: jsonschema_rs.ValidationError, schema: Any) -> str:
    """Name the members of which one has to be there, where that is what all branches ask for; otherwise empty."""
    if not hasattr(error.kind, "context"):
        return ""
    for step in error.schema_path:
        schema = schema.get(step) if isinstance(schema, Mapping) else None
    asked: list[Sequence[str]] = [
        each.get("required", ()) if _only_asks(each) else () for each in schema or ()
    ]
    names = [each[0] for each in asked if len(each) == 1]
    if not names or len(names) != len(asked):
        return ""
    there = [name for name in names if isinstance(error.instance, dict) and name in error.instance]
    count = "exactly" if error.schema_path[-1] == "oneOf" else "at least"
    return f"{count} one of {', '.join(names)} has to be there, not {' and '.join(there) or 'none'}"


def _only_asks(branch: Any) -> bool:
    return isinstance(branch, Mapping) and branch.keys() == {"required"}


# --- schemas -----------------------------------------------------------------------------------


def is_deep(schema: Any) -> bool:
    """Return True for a schema nested deeper than `MAX_LEVELS`, told without recursion."""
    level = [schema]
    for _ in range(MAX_LEVELS + 1):
        members = (item for each in level for item in (each.values() if isinstance(each, Mapping) else each))
        level = [item for item in members if isinstance(item, Mapping | list | tuple)]
        if not level:
            return False
    return True


def _without_repeated(schema: Any) -> dict[str, Any]:
    """The schema with each branch once: `anyOf` and `allOf` mean the same without those that are there twice."""
    plain = dict(schema)
    for key in ("anyOf", "allOf"):
        branches = plain.get(key)
        if isinstance(branches, list) and len(branches) > 1:
            plain[key] = _distinct(branches)
    return {key: _each(key, value, _without_repeated) for key, value in plain.items()}


def _each(key: str, value: Any, change: Callable[[Mapping[str, Any]], Any]) -> Any:
    if key in _DATA:
        return value
    if isinstance(value, Mapping):
        return change(value)
    return [_each("", item, change) for item in value] if isinstance(value, list | tuple) else value


def _distinct(branches: Sequence[Any]) -> list[Any]:
    kept: dict[str, Any] = {}
    for branch in branches:
        try:
            kept.setdefault(json.dumps(branch, sort_keys=True, default=dict), branch)
        except (TypeError, ValueError):
            return list(branches)
    return list(kept.values())


def _briefly(schema: Mapping[str, Any]) -> dict[str, Any]:
    brief = {key: _each(key, value, _briefly) for key, value in schema.items() if key not in _BRANCHES}
    branches = [
        {"not": {"not": {key: schema[key]}}} for key in _BRANCHES if isinstance(schema.get(key), list)
    ]
    if branches:
        brief["allOf"] = [*(brief.get("allOf") or ()), *branches]
    return brief


# --- values ------------------------------------------------------------------------------------


def _size(value: Any) -> int:
    """A value and its members, however deep."""
    count, later = 1, [value] if type(value) in (dict, list) else []
    for each in later:
        count += len(each)
        members = each.values() if type(each) is dict else each
        later += [item for item in members if type(item) is dict or type(item) is list]
    return count
