"""Arguments checked against a tool's JSON Schema."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

import attrs

from actgent.errors import ConfigurationError, InvalidArguments, InvalidToolSchema, ParseError
from actgent.support.strict_json import loads

from .checking import CheckedSchema, compile_schema
from .coercion import coerced


def _parameters_checked(name: str, parameters: Any) -> Mapping[str, Any]:
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise InvalidToolSchema(
            f'the parameters of tool {name!r} are a JSON Schema of an object: {{"type": "object", "properties": ...}}',
            tool_name=name,
        )
    return parameters


_SAY_MORE = frozenset(
    "additionalProperties unevaluatedProperties patternProperties propertyNames "
    "allOf anyOf oneOf if dependentSchemas $ref $dynamicRef".split()
)
"""Where one of these stands, `properties` are not all that the schema says of what arguments there may be."""


def _closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse arguments that the schema does not name, unless it says that there may be others.

    JSON Schema lets them pass, published tools seldom say anything, and models make some up: the tool would do
    something else than what was meant, and say nothing.
    """
    is_open = not parameters.get("properties") or not _SAY_MORE.isdisjoint(parameters)
    return parameters if is_open else {**parameters, "additionalProperties": False}


_STILL = (str, int, float, bool, NoneType)
"""Most values are of these, and an `isinstance` against an abstract class is dear."""


def _copied(value: Any) -> Any:
    if type(value) in _STILL:
        return value
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value


def _why(arguments: object) -> str:
    """Explain what is wrong with the text of arguments."""
    try:
        loads(arguments if isinstance(arguments, str) else "{}")
    except ParseError as error:
        return f" ({error.reason})"
    return ""


@attrs.frozen(init=False)
class ArgumentsValidator:
    """The arguments of one tool, checked."""

    _tool: str
    _checked: CheckedSchema
    _parameters: Mapping[str, Any] = attrs.field(repr=False)

    def __init__(self, tool: str, parameters: Mapping[str, Any]) -> None:
        """Compile the schema.

        Raises:
            InvalidToolSchema: The schema is not usable.
        """
        parameters = _closed(_parameters_checked(tool, parameters))
        try:
            checked = compile_schema(parameters, owner=f"tool {tool!r}")
        except ConfigurationError as error:
            raise InvalidToolSchema(str(error), tool_name=tool) from error.__cause__
        self.__attrs_init__(tool, checked, parameters)

    def validate(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """A copy of the arguments, so that a tool may change them and the record stays as it was.

        A text in a place that takes no text is read as the number, boolean or null that it is the JSON of.

        Raises:
            InvalidArguments: not an object, or one that does not fit; the text says where.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(
                f'Invalid arguments for tool "{self._tool}": they are not a JSON object{_why(arguments)}'
            )
        try:
            copy = {
                key: value if type(value) in _STILL else _copied(value) for key, value in arguments.items()
            }
            reason = self._checked.reason(copy)
            if reason is not None:
                # Small models send numbers and booleans as text.
                read = coerced(copy, self._parameters)
                if read != copy and self._checked.reason(read) is None:
                    return dict(read)
        except (ValueError, RecursionError) as error:
            reason = str(error)
        if reason is None:
            return copy
        raise InvalidArguments(f'Invalid arguments for tool "{self._tool}": {reason}')
