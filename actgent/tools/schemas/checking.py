"""A JSON Schema that checks values: without fetching anything, and bounded in time, memory and words.

Whether a value fits is quick to tell, and why it does not is dear: the library builds all errors at once, and for `anyOf` and
`oneOf` those of every branch below every branch. So all errors are asked for only where there cannot be many. Otherwise the
first is, from a second validator in which a branch only says that it does not fit.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Never

import attrs
import jsonschema_rs

from actgent.errors import ConfigurationError

from .work import MAX_HEIGHT, SchemaWork, work_of

MAX_LEVELS = 200
"""Of nesting of a schema itself."""
MAX_WORK = 3_000_000
"""Schemas that may be tried for one value, 50 ms."""
_PLAIN_WORK = 1_000
_MAX_COUNTED = 500_000
"""Schemas times members whose work is counted before a check, 0.3 s."""
_MAX_ERRORS = 5_000
"""That may be built at once, at 30 µs each."""
_SEARCHED_CHARACTERS = 4_000
_SHOWN_ERRORS = 5
_SHOWN_CHARACTERS = 300
_TOO_MUCH = "it is too large and too deep to be checked against this schema: pass less"
_BRANCHES = ("anyOf", "oneOf")
_DATA = ("const", "enum", "default", "examples")


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
        plain, validator = _compiled(schema)
    except jsonschema_rs.ValidationError as error:
        message = error.message[:_SHOWN_CHARACTERS]
        raise ConfigurationError(f"the JSON Schema of {owner} is not usable: {message}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error}") from None
    work = work_of(plain)
    if work.at(1) > MAX_WORK:
        raise ConfigurationError(
            f"the JSON Schema of {owner} has branches in branches, too many to be tried: give it fewer"
        )
    return CheckedSchema(plain, validator, work)


def _compiled(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], jsonschema_rs.Validator]:
    plain = _without_repeated(schema)
    try:
        return plain, jsonschema_rs.validator_for(plain, retriever=_refuse)
    except (
        jsonschema_rs.ValidationError,
        ValueError,
    ):  # wrong, or with a reference into a branch that is gone
        return schema, jsonschema_rs.validator_for(dict(schema), retriever=_refuse)


@attrs.frozen(eq=False, slots=False)
class CheckedSchema:
    """A compiled schema; made once, safe to share."""

    _schema: Mapping[str, Any] = attrs.field(repr=False)
    _validator: jsonschema_rs.Validator = attrs.field(repr=False)
    _work: SchemaWork = attrs.field(repr=False)

    def reason(self, value: Any, *, root: str = "") -> str | None:
        """Explain to the model why a value is wrong, None if it is not; `root` is the path of the value itself.

        Raises:
            ValueError: it is no JSON.
        """
        if self._is_steep and self._is_too_much(value):
            return _TOO_MUCH
        if self._validator.is_valid(value):
            return None
        errors = self._errors(value)
        more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
        worded = "; ".join([_worded(error, root) for error in errors[:_SHOWN_ERRORS]])
        return f"{worded}{more}" or "it does not fit the schema"

    @cached_property
    def _is_steep(self) -> bool:
        """Return True if the work grows with the value's depth far beyond what there is in the schema."""
        return self._work.at(MAX_HEIGHT) > max(50 * self._work.size, _PLAIN_WORK)

    def _is_too_much(self, value: Any) -> bool:
        return _size(value) * self._work.size > _MAX_COUNTED or self._work.of(value) > MAX_WORK

    def _errors(self, value: Any) -> Sequence[jsonschema_rs.ValidationError]:
        text = json.dumps(value)
        most = self._work.at(MAX_HEIGHT) * (text.count(",") + 1)
        if len(text) <= _SEARCHED_CHARACTERS and most <= _MAX_ERRORS:
            return list(self._validator.iter_errors(value))
        try:
            if self._brief is not None:
                self._brief.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []

    @cached_property
    def _brief(self) -> jsonschema_rs.Validator | None:
        """The same schema, whose branches only say that they do not fit; None if it refers into one of them."""
        try:
            return jsonschema_rs.validator_for(_briefly(self._schema), retriever=_refuse)
        except (jsonschema_rs.ValidationError, ValueError):
            return None


def _worded(error: jsonschema_rs.ValidationError, root: str) -> str:
    path = "".join(f"/{step}" for step in error.instance_path) or root
    message = error.message
    if message.startswith('{"not":'):
        message = (
            f"{json.dumps(error.instance)[:_SHOWN_CHARACTERS]} is not valid under the branches of the schema"
        )
    message = message[:_SHOWN_CHARACTERS]
    return f"{path[:_SHOWN_CHARACTERS]}: {message}" if path else message


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
    """Members of a value, however deep."""
    count, level = 0, [value]
    while level:
        count += len(level)
        level = [
            item
            for each in level
            if isinstance(each, dict | list)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
    return count
