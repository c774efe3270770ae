"""Compilation of JSON Schemas, and validation of values within bounded time and memory. References to other documents are rejected.

Validation is cheap, but error reports are not: the library builds all errors at once, including those of every branch of
`anyOf` and `oneOf`, recursively. All errors are requested only if their number is bounded. Otherwise only the first error
is requested, from a second validator whose branches report no details.
"""

import copy
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Never

import attrs
import jsonschema_rs

from actgent.errors import ConfigurationError

from .schema_validation_cost import (
    MAX_COST,
    MAX_DEPTH,
    SchemaCost,
    SchemaTooCostly,
    compile_cost,
    measure_cost,
)

_MAX_BYTES = 32_000_000
"""Maximum memory of all compiled patterns of a schema."""
_MAX_PATTERN_BYTES = 10_000_000
"""Maximum memory of one compiled pattern."""
_MAX_CACHE_BYTES = 2_000_000
"""Maximum memory of one pattern's DFA cache."""
_MIN_PATTERN_BYTES = 20_000
"""Memory granted to each pattern even if a schema has many."""
MAX_BACKTRACKS = 10_000_000
"""Maximum number of backtracking steps per value, about 0.4 s."""
MAX_TEXT_BACKTRACKS = 1_000_000
"""Maximum number of backtracking steps per text."""
MIN_TEXT_BACKTRACKS = 100
"""Backtracking steps granted to each text even if a value has many."""
_BACKTRACKS = re.compile(r"\(\?(?:[=!>]|<[=!])|\\[1-9k]|[*+?}]\+")


def find_patterns(schema: Any) -> set[str]:
    """Return all regular expressions (`pattern`, `patternProperties`) in a schema."""
    return set(_patterns(schema))


def _patterns(schema: Any) -> Iterator[str]:
    """Yield the regular expressions in a schema and in its nested schemas."""
    stack = [schema]
    while stack:
        each = stack.pop()
        if isinstance(each, Mapping):
            named = each.get("patternProperties")
            texts = (each.get("pattern"), *(named if isinstance(named, Mapping) else ()))
            yield from (text for text in texts if isinstance(text, str))
            stack += each.values()
        elif isinstance(each, list | tuple):
            stack += each


def is_backtracking(pattern: str) -> bool:
    """Return True if a regular expression may backtrack, so that it may take more than linear time."""
    return _BACKTRACKS.search(pattern) is not None


def backtracks_for(tries: int) -> int:
    """Return the maximum number of backtracking steps for matching one text with one regular expression: 10, 100, 1,000 and so on.

    `tries` is the number of matches that the validation of a value needs: its texts times its patterns. More matches lower the limit.
    """
    backtracks = MAX_TEXT_BACKTRACKS
    while backtracks > MIN_TEXT_BACKTRACKS and backtracks * tries > MAX_BACKTRACKS:
        backtracks //= 10
    return backtracks


def pattern_options(patterns: int, backtracks: int = MAX_TEXT_BACKTRACKS) -> jsonschema_rs.FancyRegexOptions:
    """Return the library's limits for each regular expression of a schema.

    Args:
        patterns: Number of regular expressions in the schema.
        backtracks: Maximum number of backtracking steps per text.
    """
    share = max(_MAX_BYTES // max(patterns, 1), _MIN_PATTERN_BYTES)
    return jsonschema_rs.FancyRegexOptions(
        backtrack_limit=backtracks,
        size_limit=min(share, _MAX_PATTERN_BYTES),
        dfa_size_limit=min(share, _MAX_CACHE_BYTES),
    )


MAX_LEVELS = 200
"""Maximum nesting of a schema, in levels."""
_COST_PER_MEMBER = 4
"""Maximum number of subschemas that are validated per member of a value, independent of the value's size."""
_MAX_COMPILE_COST = 20_000
"""Maximum number of marks that the library builds for a schema, about 0.1 s. Its time grows with the square of this
number.
"""
_MAX_ERRORS = 5_000
"""Maximum number of errors built at once, at 30 µs each."""
_MAX_ERROR_CHARACTERS = 2_000_000
"""Maximum number of schema characters that are copied into errors. Each error quotes its whole `enum` or `not`."""
_MAX_CACHED_SCHEMAS = 512
"""Maximum number of cached compiled schemas."""
_MAX_CACHED_CHARACTERS = 10_000
"""Maximum length of a cached schema's JSON text."""
_compiled_schemas: "dict[str, CompiledSchema]" = {}
"""Compiled schemas by their JSON text, oldest first."""
_lock = threading.Lock()
"""Lock for access to `_compiled_schemas`."""
_MAX_FULL_REPORT_CHARACTERS = 4_000
"""Maximum length of a value's JSON text for which all errors are reported."""
_MAX_SHOWN_ERRORS = 5
_MAX_SHOWN_CHARACTERS = 300
_TOO_COSTLY = "the value is too large or too deep for this schema: pass a smaller value"
_BRANCHES = ("anyOf", "oneOf")
_KINDS = jsonschema_rs.ValidationErrorKind
_VALUE_KEYWORDS = ("const", "enum", "default", "examples")
_QUOTED_KEYWORDS = ("const", "enum", "not", "required", "dependentRequired", "dependencies")


def _reject_reference(uri: str) -> Never:
    """Reject a `$ref` to another document. The library would load it over HTTP or from files, and a schema may be untrusted."""
    raise ValueError(f"references to other documents are not supported ({uri})")


def compile_schema(schema: Mapping[str, Any], *, owner: str) -> "CompiledSchema":
    """Compile a JSON Schema (2020-12, or the draft that `$schema` names). `owner` names the schema's owner in errors.

    Raises:
        ConfigurationError: The schema is invalid, refers to another document, or is too costly to compile or to
            validate with.
    """
    if is_deep(schema):
        raise ConfigurationError(f"the JSON Schema of {owner} is nested deeper than {MAX_LEVELS} levels")
    try:
        return _compile_cached(schema)
    except jsonschema_rs.ValidationError as error:
        message = error.message[:_MAX_SHOWN_CHARACTERS]
        raise ConfigurationError(f"the JSON Schema of {owner} is not usable: {message}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error}") from None
    except SchemaTooCostly:
        raise ConfigurationError(
            f"the JSON Schema of {owner} has too many nested branches: remove some"
        ) from None


def _compile_cached(schema: Mapping[str, Any]) -> "CompiledSchema":
    """Return the cached compiled schema of an equal schema, or compile it.

    Compiling takes 1 to 2 ms, and programs create equal tools again for each customer or session, e.g. from bound methods.
    """
    try:
        key = json.dumps(schema)
    except (TypeError, ValueError, RecursionError):
        return _compile(schema)
    if len(key) > _MAX_CACHED_CHARACTERS:
        return _compile(schema)
    with _lock:
        found = _compiled_schemas.get(key)
    if found is None:
        found = _compile(copy_schema(schema))  # the caller may modify its schema later
        with _lock:
            if len(_compiled_schemas) >= _MAX_CACHED_SCHEMAS:
                _compiled_schemas.pop(next(iter(_compiled_schemas)))
            _compiled_schemas[key] = found
    return found


def _compile(schema: Mapping[str, Any]) -> "CompiledSchema":
    """Compile a schema after its duplicate branches were removed.

    If that fails, compile the unchanged schema, so that the error quotes the user's schema.
    """
    try:
        return _compile_with_cost(_without_duplicate_branches(schema))
    except (
        jsonschema_rs.ValidationError,
        ValueError,
    ):  # the schema is invalid, or refers to a removed branch
        return _compile_with_cost(dict(schema))


def _compile_with_cost(schema: dict[str, Any]) -> "CompiledSchema":
    """Compile a schema after measuring its cost.

    Raises:
        SchemaTooCostly: The schema is too costly to compile or to validate with.
    """
    cost = measure_cost(schema)
    if cost.at_depth(1) > MAX_COST:
        raise SchemaTooCostly
    patterns = find_patterns(schema)
    backtracks = any(map(is_backtracking, patterns))
    limit = MAX_BACKTRACKS // MAX_TEXT_BACKTRACKS if backtracks else MAX_COST
    is_always_cheap = cost.is_bounded and cost.at_depth(MAX_DEPTH) <= limit
    checked = CompiledSchema(schema, cost, len(patterns), backtracks, is_always_cheap)
    checked.validator_for(MAX_TEXT_BACKTRACKS)
    return checked


@attrs.frozen(eq=False, slots=False)
class CompiledSchema:
    """A compiled JSON Schema. Immutable; threads may share it."""

    _schema: dict[str, Any] = attrs.field(repr=False)
    """The compiled schema as a dict."""
    _cost: SchemaCost = attrs.field(repr=False)
    """Measured cost of validating values against the schema."""
    _patterns: int
    """Number of regular expressions in the schema."""
    _is_backtracking: bool
    """True if a regular expression may backtrack, so that it does not run in linear time."""
    _is_always_cheap: bool
    """True if every value is cheap to validate, so that the cost of values is not measured. True for most tools."""
    _compiled: dict[int, jsonschema_rs.Validator] = attrs.field(factory=dict, repr=False)
    """Compiled validators by their backtracking limit."""

    def validator_for(self, backtracks: int) -> jsonschema_rs.Validator:
        """Return the validator whose regular expressions backtrack at most `backtracks` times per text.

        Raises:
            SchemaTooCostly: The schema is too costly to compile.
        """
        if backtracks not in self._compiled:
            if compile_cost(self._schema) > _MAX_COMPILE_COST:
                raise SchemaTooCostly
            options = pattern_options(self._patterns, backtracks)
            self._compiled[backtracks] = jsonschema_rs.validator_for(
                self._schema, retriever=_reject_reference, pattern_options=options
            )
        return self._compiled[backtracks]

    def reason(self, value: Any, *, root: str = "") -> str | None:
        """Return an error text for the model if a value does not match the schema; None if it matches.

        `root` is the path of the value, which the text contains.

        Raises:
            ValueError: The value is not JSON.
        """
        backtracks = MAX_TEXT_BACKTRACKS if self._is_always_cheap else self._backtracks_for_value(value)
        if backtracks is None:
            return _TOO_COSTLY
        validator = self._compiled.get(backtracks) or self.validator_for(backtracks)
        if validator.is_valid(value):
            return None
        errors = self._errors(value, backtracks)
        more = f"; and {len(errors) - _MAX_SHOWN_ERRORS} more" if len(errors) > _MAX_SHOWN_ERRORS else ""
        error_text = "; ".join(
            [_format_error(error, root, self._schema) for error in errors[:_MAX_SHOWN_ERRORS]]
        )
        return f"{error_text}{more}" or "the value does not match the schema"

    @cached_property
    def _max_unmeasured_members(self) -> int:
        """Number of members up to which the cost of a value is not measured."""
        return 0 if self._is_backtracking else MAX_COST // self._cost.at_depth(MAX_DEPTH)

    def _backtracks_for_value(self, value: Any) -> int | None:
        """Return the maximum number of backtracking steps per text of a value.

        Return None if the validation of the value is too costly.
        """
        size = _count_members(value)
        if size <= self._max_unmeasured_members:
            return MAX_TEXT_BACKTRACKS
        if not self._is_backtracking:
            limit = max(MAX_COST, _COST_PER_MEMBER * size)
            return MAX_TEXT_BACKTRACKS if self._cost.for_value(value, limit) <= limit else None
        tries = self._cost.for_value(value, MAX_BACKTRACKS // MIN_TEXT_BACKTRACKS)
        return backtracks_for(tries) if tries <= MAX_BACKTRACKS // MIN_TEXT_BACKTRACKS else None

    def _errors(self, value: Any, backtracks: int) -> Sequence[jsonschema_rs.ValidationError]:
        """Return all validation errors of a value if their number is limited; otherwise only the first error."""
        text = json.dumps(value)
        limit = self._cost.at_depth(MAX_DEPTH) * (text.count(",") + 1)
        is_short = (
            len(text) <= _MAX_FULL_REPORT_CHARACTERS and limit * self._longest_quote <= _MAX_ERROR_CHARACTERS
        )
        if is_short and limit <= _MAX_ERRORS and not self._cost.is_circular:
            return list(self.validator_for(backtracks).iter_errors(value))
        first = self._brief_error(value, backtracks)
        return [] if first is None else [first]

    def _brief_error(self, value: Any, backtracks: int) -> jsonschema_rs.ValidationError | None:
        """Return the first validation error of a value, without details of branches; None if it cannot be determined."""
        try:
            brief = self._brief.validator_for(backtracks)
        except (
            jsonschema_rs.ValidationError,
            ValueError,
            SchemaTooCostly,
        ):  # a reference points into a removed branch
            return None
        try:
            brief.validate(value)
        except jsonschema_rs.ValidationError as error:
            return error
        return None

    @cached_property
    def _brief(self) -> "CompiledSchema":
        """This schema, compiled so that branches report no error details. It is compiled when it is first used."""
        return attrs.evolve(self, schema=_hide_branches(self._schema), compiled={})

    @cached_property
    def _longest_quote(self) -> int:
        """Return the length in characters of the longest part of the schema that a validation error may quote."""
        longest = 1
        stack: list[Any] = [self._schema]
        while stack:
            each = stack.pop()
            if isinstance(each, dict):
                quoted = [json.dumps(each[key], default=str) for key in _QUOTED_KEYWORDS if key in each]
                longest = max(longest, *map(len, quoted), 1)
            stack += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        return longest


def _format_error(
    error: jsonschema_rs.ValidationError, root: str, schema: Any, *, known_path: str = ""
) -> str:
    """Format a validation error as `path: text`, without the path if it equals `known_path`.

    Errors of the branches of `anyOf` and `oneOf` are merged into one text.

    Args:
        error: Error of the library.
        root: Path of the validated value.
        schema: The schema.
        known_path: Path that the reader already knows; empty for none.
    """
    branches = _relevant_branches(error)
    if len(branches) == 1:
        return "; ".join(
            [
                _format_error(each, root, None, known_path=known_path)
                for each in branches[0][:_MAX_SHOWN_ERRORS]
            ]
        )
    path = "".join(f"/{step}" for step in error.instance_path) or root
    message = _shorten(_format_required_choice(error, schema) or _format_branches(error, branches, path))
    return f"{path[:_MAX_SHOWN_CHARACTERS]}: {message}" if path and path != known_path else message


def _shorten(message: str) -> str:
    """Omit the middle of a long message: it begins with the value, and ends with the reason."""
    if len(message) <= _MAX_SHOWN_CHARACTERS:
        return message
    begin = _MAX_SHOWN_CHARACTERS // 3
    return f"{message[:begin]} ... {message[begin - _MAX_SHOWN_CHARACTERS :]}"


def _relevant_branches(error: jsonschema_rs.ValidationError) -> list[Sequence[jsonschema_rs.ValidationError]]:
    """Return the errors of the branches of `anyOf` or `oneOf` that the model has probably meant, one list per branch.

    If no branch is likely, return for each branch the errors that exclude it.
    """
    branches: Sequence[Sequence[jsonschema_rs.ValidationError]] = getattr(error.kind, "context", ())
    if not all(branches):
        return []
    apart: list[Sequence[jsonschema_rs.ValidationError]] = [
        [each for each in branch if _excludes_branch(each, error)] for branch in branches
    ]
    meant = [branch for branch, others in zip(branches, apart, strict=True) if not others]
    return meant or apart


def _excludes_branch(inner: jsonschema_rs.ValidationError, outer: jsonschema_rs.ValidationError) -> bool:
    """Return True if the error `inner` of a branch shows that the value was not written for the branch.

    The value has another type than the branch, or a member differs from a constant. `outer` is the error of the choice.
    """
    depth = len(inner.instance_path) - len(outer.instance_path)
    return (depth == 0 and isinstance(inner.kind, _KINDS.Type)) or (
        depth == 1 and isinstance(inner.kind, _KINDS.Constant)
    )


def _format_branches(
    error: jsonschema_rs.ValidationError,
    branches: Sequence[Sequence[jsonschema_rs.ValidationError]],
    path: str,
) -> str:
    """Format the errors of all failed branches of `anyOf` or `oneOf` as one text."""
    if error.message.startswith('{"not":'):
        shown = json.dumps(error.instance)[:_MAX_SHOWN_CHARACTERS]
        return f"{shown} is not valid under the branches of the schema"
    if isinstance(error.kind, _KINDS.Enum):
        shown = json.dumps(error.instance, ensure_ascii=False)[: _MAX_SHOWN_CHARACTERS // 3]
        options = [json.dumps(each, ensure_ascii=False) for each in error.kind.options]
        return f"{shown} is not one of {', '.join(options)}"
    if not branches:
        return error.message
    return "; or ".join([_format_error(each[0], "", None, known_path=path) for each in branches])


def _format_required_choice(error: jsonschema_rs.ValidationError, schema: Any) -> str:
    """Return a text such as "at least one of a, b must be present" if each branch of a choice only requires one member.

    Return an empty text otherwise.
    """
    if not hasattr(error.kind, "context"):
        return ""
    for step in error.schema_path:
        schema = schema.get(step) if isinstance(schema, Mapping) else None
    asked: list[Sequence[str]] = [
        each.get("required", ()) if _only_requires(each) else () for each in schema or ()
    ]
    names = [each[0] for each in asked if len(each) == 1]
    if not names or len(names) != len(asked):
        return ""
    present = [name for name in names if isinstance(error.instance, dict) and name in error.instance]
    count = "exactly" if error.schema_path[-1] == "oneOf" else "at least"
    return f"{count} one of {', '.join(names)} must be present, not {' and '.join(present) or 'none'}"


def _only_requires(branch: Any) -> bool:
    """Return True if `required` is the only keyword of a branch."""
    return isinstance(branch, Mapping) and branch.keys() == {"required"}


# --- schemas -----------------------------------------------------------------------------------


def is_deep(schema: Any) -> bool:
    """Return True if a schema is nested deeper than `MAX_LEVELS`. Not recursive."""
    level = [schema]
    for _ in range(MAX_LEVELS + 1):
        below: list[Any] = []
        for each in level:
            members = each.values() if isinstance(each, Mapping) else each
            below += [
                item for item in members if type(item) not in _SCALARS and isinstance(item, _CONTAINERS)
            ]
        if not below:
            return False
        level = below
    return True


_SCALARS = frozenset((str, int, float, bool, type(None)))
_CONTAINERS = (Mapping, list, tuple)


def copy_schema(schema: Any) -> Any:
    """Return a deep copy of a schema with at most `MAX_LEVELS` levels. `copy.deepcopy` takes five times as long."""
    kind = type(schema)
    if kind in _SCALARS:
        return schema
    if kind is dict:
        return {key: copy_schema(value) for key, value in schema.items()}
    if kind is list:
        return [copy_schema(item) for item in schema]
    return copy.deepcopy(schema)


def _without_duplicate_branches(schema: Any) -> dict[str, Any]:
    """Return the schema without duplicate branches in `anyOf` and `allOf`. Duplicate branches have no effect."""
    plain = dict(schema)
    for key in ("anyOf", "allOf"):
        branches = plain.get(key)
        if isinstance(branches, list) and len(branches) > 1:
            plain[key] = _deduplicate(branches)
    return {key: _map_schemas(key, value, _without_duplicate_branches) for key, value in plain.items()}


def _map_schemas(key: str, value: Any, change: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return the value of the schema keyword `key` with the function `change` applied to its subschemas.

    Values of data keywords such as `const` are unchanged.
    """
    if key in _VALUE_KEYWORDS:
        return value
    if isinstance(value, Mapping):
        return change(value)
    return [_map_schemas("", item, change) for item in value] if isinstance(value, list | tuple) else value


def _deduplicate(branches: Sequence[Any]) -> list[Any]:
    """Return the branches of a choice in their order, each branch once."""
    kept: dict[str, Any] = {}
    for branch in branches:
        try:
            kept.setdefault(json.dumps(branch, sort_keys=True, default=dict), branch)
        except (TypeError, ValueError):
            return list(branches)
    return list(kept.values())


def _hide_branches(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with double negations around `anyOf` and `oneOf`, so that errors contain no details of branches."""
    brief = {
        key: _map_schemas(key, value, _hide_branches) for key, value in schema.items() if key not in _BRANCHES
    }
    branches = [
        {"not": {"not": {key: schema[key]}}} for key in _BRANCHES if isinstance(schema.get(key), list)
    ]
    if branches:
        brief["allOf"] = [*(brief.get("allOf") or ()), *branches]
    return brief


# --- values ------------------------------------------------------------------------------------


def _count_members(value: Any) -> int:
    """Return the number of JSON values in a value, including itself and all nested members."""
    count, later = 1, [value] if type(value) in (dict, list) else []
    for each in later:
        count += len(each)
        members = each.values() if type(each) is dict else each
        later += [item for item in members if type(item) is dict or type(item) is list]
    return count
