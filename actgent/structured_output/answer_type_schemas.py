"""Validation of answers against an answer type's schema, which is a JSON Schema or a template.

A template is an example of the answer: `{"name": "<the agent's name>", "caps": ["<one capability>"]}`. A value `"<...>"`
accepts anything but null. A list needs at least one item, and each item must match the template's first item. An object is
checked member by member. Any other value only requires that the member exists.

A dict is a JSON Schema if all of its keys are keywords of JSON Schema, and at least one of them is unambiguous. Unambiguous are
`properties`, `$ref`, a `type` that is a JSON type, and so on. Any other dict is a template.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actgent.errors import ConfigurationError
from actgent.tools import schemas

from .extract_json import Check

_MAX_CHECKS = 1_024
"""Maximum number of compiled schemas that are cached."""
_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_DECIDING: dict[str, Callable[[Any], bool]] = {
    "$schema": lambda value: isinstance(value, str),
    "$ref": lambda value: isinstance(value, str) and not _is_placeholder(value),
    "type": lambda value: value in _TYPES if isinstance(value, str) else _is_list(value, _TYPES.__contains__),
    "properties": lambda value: isinstance(value, Mapping) and all(map(_is_schema, value.values())),
    "anyOf": lambda value: _is_list(value, _is_schema),
    "oneOf": lambda value: _is_list(value, _is_schema),
    "allOf": lambda value: _is_list(value, _is_schema),
    "enum": lambda value: isinstance(value, Sequence) and not any(map(_is_placeholder, value)),
    "const": lambda value: not _is_placeholder(value),
}
_VOCABULARY = """
$schema $id $anchor $dynamicAnchor $ref $dynamicRef $defs $comment $vocabulary definitions type enum const
multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern format
items prefixItems contains maxItems minItems uniqueItems maxContains minContains additionalItems
properties patternProperties additionalProperties propertyNames required dependentRequired
dependentSchemas dependencies maxProperties minProperties unevaluatedItems unevaluatedProperties
allOf anyOf oneOf not if then else title description default examples deprecated readOnly writeOnly
contentEncoding contentMediaType contentSchema discriminator nullable
"""
_WORDS = frozenset(_VOCABULARY.split())
_checks: dict[int, tuple[Mapping[str, Any], Check]] = {}


def is_json_schema(schema: Mapping[str, Any]) -> bool:
    """Return True if an answer schema is a JSON Schema, False if it is a template: an example such as `{"name": "<the name>"}`."""
    return all(key in _WORDS or key.startswith("x-") for key in schema) and any(
        key in schema and decides(schema[key]) for key, decides in _DECIDING.items()
    )


def schema_check(schema: Mapping[str, Any]) -> Check:
    """Return the function that validates answers against a JSON Schema or template.

    The last 1,024 validators are cached by the identity of their schema, so a schema must not change in place.

    An empty schema accepts everything, so a search for the matching schema must skip it.

    Raises:
        ConfigurationError: The JSON Schema is invalid, nested too deep, or takes too long to check.
    """
    kept = _checks.get(id(schema))
    if kept is None:
        if len(_checks) >= _MAX_CHECKS:
            del _checks[next(iter(_checks))]
        # The entry holds a reference to the schema, so that its id is not reused.
        kept = _checks[id(schema)] = (schema, _compile(schema))
    return kept[1]


def _compile(schema: Mapping[str, Any]) -> Check:
    if schemas.is_deep(schema):
        raise ConfigurationError(
            f"the schema of an answer must not be nested deeper than {schemas.MAX_LEVELS} levels"
        )
    if not is_json_schema(schema):
        return lambda value: _against_template(value, schema, "")
    checked = schemas.compile_schema(schema, owner="an instruction or output=")
    return lambda value: checked.reason(value, root="/")


# --- templates -----------------------------------------------------------------------------------


def _against_template(value: Any, template: Any, path: str) -> str | None:
    if _is_placeholder(template):
        return f"{path or '/'}: must not be null" if value is None else None
    if isinstance(template, Mapping) and template:
        return _against_members(value, template, path)
    if isinstance(template, list):
        return _against_items(value, template, path)
    return None


def _against_members(value: Any, template: Mapping[str, Any], path: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{path or '/'}: must be an object with {', '.join(template)}"
    for name, inner in template.items():
        if name not in value:
            return f"{path or '/'}: {name!r} is missing"
        if reason := _against_template(value[name], inner, f"{path}/{name}"):
            return reason
    return None


def _against_items(value: Any, template: list[Any], path: str) -> str | None:
    if not isinstance(value, list) or not value:
        return f"{path}: must be a list of at least one item"
    if not template:
        return None
    reasons = (_against_template(item, template[0], f"{path}/{index}") for index, item in enumerate(value))
    return next(filter(None, reasons), None)


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 1 and value.startswith("<") and value.endswith(">")


def _is_schema(value: Any) -> bool:
    return isinstance(value, (Mapping, bool))


def _is_list(value: Any, accepts: Callable[[Any], bool]) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(map(accepts, value))
    )
