"""Arguments checked against a tool's JSON Schema, without ever fetching anything."""

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any, Never

import attrs
import jsonschema_rs

from actgent.errors import ConfigurationError, InvalidArguments

_SHOWN_ERRORS = 5
_SHOWN_CHARACTERS = 300
_SEARCHED_CHARACTERS = 4_000
"""Of longer arguments only the first error is looked for: the library takes 30 µs for each, all at once."""


def _refuse(uri: str) -> Never:
    """The library would fetch a `$ref` over http and from files: a schema may come from strangers."""
    raise ValueError(f"references outside of the schema are not followed ({uri})")


def compile_schema(schema: Mapping[str, Any], *, owner: str) -> jsonschema_rs.Validator:
    """A validator for a JSON Schema (2020-12, or what its `$schema` names).

    Raises:
        ConfigurationError: not a JSON Schema, or one that refers to another document.
    """
    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
    except jsonschema_rs.ValidationError as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not usable: {error.message}") from None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the JSON Schema of {owner} is not JSON: {error}") from None


def _parameters_checked(name: str, parameters: Any) -> Mapping[str, Any]:
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise ConfigurationError(
            f'the parameters of tool {name!r} are a JSON Schema of an object: {{"type": "object", "properties": ...}}'
        )
    return parameters


def _worded(error: jsonschema_rs.ValidationError) -> str:
    path = "".join(f"/{step}" for step in error.instance_path)
    message = error.message[:_SHOWN_CHARACTERS]
    return f"{path}: {message}" if path else message


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


@attrs.frozen(init=False)
class ArgumentsValidator:
    """The arguments of one tool, checked."""

    _tool: str
    _validator: jsonschema_rs.Validator

    def __init__(self, tool: str, parameters: Mapping[str, Any]) -> None:
        """Compile the schema.

        Raises:
            ConfigurationError: the schema is not usable.
        """
        parameters = _parameters_checked(tool, parameters)
        self.__attrs_init__(tool, compile_schema(parameters, owner=f"tool {tool!r}"))

    def validate(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """A copy of the arguments, so that a tool may change them and the record stays as it was.

        Raises:
            InvalidArguments: not an object, or one that does not fit; the text says where.
        """
        if not isinstance(arguments, Mapping):
            raise InvalidArguments(f'Invalid arguments for tool "{self._tool}": they are not a JSON object')
        try:
            copy = {key: _copied(value) for key, value in arguments.items()}
            if self._validator.is_valid(copy):
                return copy
            reasons = self._reasons(copy)
        except (ValueError, RecursionError) as error:
            reasons = str(error)
        raise InvalidArguments(f'Invalid arguments for tool "{self._tool}": {reasons}')

    def _reasons(self, arguments: dict[str, Any]) -> str:
        errors = self._errors(arguments)
        more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
        return "; ".join(map(_worded, errors[:_SHOWN_ERRORS])) + more

    def _errors(self, arguments: dict[str, Any]) -> list[jsonschema_rs.ValidationError]:
        if len(json.dumps(arguments)) <= _SEARCHED_CHARACTERS:
            return list(self._validator.iter_errors(arguments))
        try:
            self._validator.validate(arguments)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []
