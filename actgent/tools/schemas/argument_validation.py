"""Validation of tool-call arguments against the tool's JSON Schema."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

import attrs

from actgent.errors import ConfigurationError, InvalidArguments, InvalidToolSchema, ParseError
from actgent.support.strict_json import loads

from .argument_coercion import coerce
from .schema_validation import CompiledSchema, compile_schema


def _require_object_schema(name: str, parameters: Any) -> Mapping[str, Any]:
    """Return the parameters of a tool after a check that they are a schema of type object.

    Raises:
        InvalidToolSchema: The parameters are not a schema of type object.
    """
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise InvalidToolSchema(
            f'the parameters of tool {name!r} must be a JSON Schema of an object: {{"type": "object", "properties": ...}}',
            tool_name=name,
        )
    return parameters


_OPEN_KEYWORDS = frozenset(
    "additionalProperties unevaluatedProperties patternProperties propertyNames "
    "allOf anyOf oneOf if dependentSchemas $ref $dynamicRef".split()
)
"""Schema keywords that may allow arguments in addition to `properties`."""


def _close(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a parameter schema that rejects unknown arguments, unless the schema explicitly allows them.

    Models invent arguments, and a tool that ignores them would silently do something else. JSON Schema
    accepts unknown arguments by default, and published tools rarely forbid them.
    """
    is_open = not parameters.get("properties") or not _OPEN_KEYWORDS.isdisjoint(parameters)
    return parameters if is_open else {**parameters, "additionalProperties": False}


_SCALARS = (str, int, float, bool, NoneType)
"""Types of most values, checked first because `isinstance` with an abstract class is slow."""


def _copy_value(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {key: _copy_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy_value(item) for item in value]
    return value


def _parse_failure(arguments: object) -> str:
    """Return the reason why a text of arguments is not valid JSON, in parentheses; empty if it is valid."""
    try:
        loads(arguments if isinstance(arguments, str) else "{}")
    except ParseError as error:
        return f" ({error.reason})"
    return ""


@attrs.frozen(init=False)
class ArgumentsValidator:
    """Validator of one tool's arguments."""

    _tool: str
    _schema: CompiledSchema
    _parameters: Mapping[str, Any] = attrs.field(repr=False)

    def __init__(self, tool: str, parameters: Mapping[str, Any]) -> None:
        """Compile the schema.

        Raises:
            InvalidToolSchema: The schema is invalid or too costly.
        """
        parameters = _close(_require_object_schema(tool, parameters))
        try:
            checked = compile_schema(parameters, owner=f"tool {tool!r}")
        except ConfigurationError as error:
            raise InvalidToolSchema(str(error), tool_name=tool) from error.__cause__
        self.__attrs_init__(tool, checked, parameters)

    def validate(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return a validated copy of the arguments, which the tool may modify.

        Text is converted to a number, a boolean or null if the schema accepts no text there.

        Raises:
            InvalidArguments: The arguments are not a JSON object or do not match the schema; the text contains the location.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(
                f'Invalid arguments for tool "{self._tool}": the arguments are not a JSON object{_parse_failure(arguments)}'
            )
        try:
            copy = {
                key: value if type(value) in _SCALARS else _copy_value(value)
                for key, value in arguments.items()
            }
            reason = self._schema.reason(copy)
            if reason is not None:
                # Small models send numbers and booleans as text.
                read = coerce(copy, self._parameters)
                if read != copy and self._schema.reason(read) is None:
                    return dict(read)
        except (ValueError, RecursionError) as error:
            reason = str(error)
        if reason is None:
            return copy
        raise InvalidArguments(f'Invalid arguments for tool "{self._tool}": {reason}')
