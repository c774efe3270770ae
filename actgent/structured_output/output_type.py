"""`output=`: the schema of an agent's answers, and the conversion of JSON to Python values."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.llm.model_interface import ResponseFormat
from actgent.support.attrs_class_repr import FieldRepr
from actgent.tools import schemas

from .answer_type_schemas import is_json_schema, schema_check

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_NAME = 64


@attrs.frozen(repr=False)
class Output(FieldRepr):
    """Schema of an agent's answers, with the function that converts an answer to a Python value."""

    name: str
    """Name of the answer's schema in model requests: at most 64 letters, digits, `_` and `-`."""
    schema: Mapping[str, Any]
    """JSON Schema of the answer, or a template of it (an example object with a description for each field)."""
    convert: Callable[[Any], Any] = attrs.field(repr=False)
    """Function that converts decoded JSON to the Python value. It raises ValueError if the JSON does not match the schema."""

    def check(self, value: Any) -> str | None:
        """Return an error text if a decoded JSON value does not match the schema; None if it does."""
        try:
            self.convert(value)
        except ValueError as error:
            return str(error)
        return None

    @property
    def response_format(self) -> ResponseFormat | None:
        """Response format of a model request for this schema; None if the schema is a template, which providers do not know."""
        return ResponseFormat(self.name, self.schema) if is_json_schema(self.schema) else None

    @property
    def schema_text(self) -> str:
        """Schema of the answer as JSON text, for prompts."""
        text: str = json.dumps(self.schema, ensure_ascii=False, default=dict)
        return text


def output_of_schema(name: str, schema: Mapping[str, Any]) -> Output:
    """Build the `Output` of a JSON Schema or template. Answers stay plain JSON data, without conversion to a class."""
    return Output(name, schema, _form_converter(schema))


def output_of(output: Any) -> Output:
    """Return the `Output` of an `output=` argument.

    The argument is a type (builtin, attrs class, dataclass, TypedDict, pydantic model, union ...) or a schema.

    Raises:
        ConfigurationError: The type has no JSON Schema, or its schema takes too long to check. Or a dict is not a valid JSON
            Schema, or one answer could match two classes of a union.
    """
    if isinstance(output, Output):
        return output
    if isinstance(output, Mapping):
        _reject_types(output)
        return output_of_schema(_name(output.get("title")), output)
    _reject_values(output)
    compiled = schemas.compile_type(output)
    if pair := compiled.ambiguous_pair():
        one, other = pair
        raise ConfigurationError(
            f"output=: one answer could match both {one} and {other}: give each class a field with a distinct value, "
            f'for example kind: Literal["{one.lower()}"] and kind: Literal["{other.lower()}"]'
        )
    if compiled.has_placeholders:
        schemas.compile_schema(compiled.schema, owner="output=")
    return Output(_name(getattr(output, "__name__", None)), compiled.schema, compiled.convert)


def _reject_values(output: object) -> None:
    """Check that an `output=` argument is not a text, and not an object instead of its class.

    Raises:
        ConfigurationError: The value is a text or an object.
    """
    if isinstance(output, str):
        value = f"the text {output!r:.100}"
    elif hasattr(type(output), "__dataclass_fields__") or attrs.has(type(output)):
        value = f"an instance: write {type(output).__name__}"
    else:
        return
    raise ConfigurationError(f"output= must be a type or a JSON Schema (a dict), not {value}")


def _reject_types(form: Mapping[str, Any]) -> None:
    """Check that a dict in `output=` is a JSON Schema and does not contain Python types as values.

    Raises:
        ConfigurationError: A value of the dict is a Python type. The text names the first.
    """
    wrong = next(
        (f"{key!r}: {value.__name__}" for key, value in form.items() if isinstance(value, type)), None
    )
    if wrong is not None:
        raise ConfigurationError(
            f"output= has {{{wrong}}}, a Python type in a dict: write a class with these fields "
            "(a dataclass, TypedDict, attrs or pydantic class), or a JSON Schema"
        )


def _form_converter(schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    check = schema_check(schema)

    def convert(value: Any) -> Any:
        if reason := check(value):
            raise ValueError(reason)
        return value

    return convert


def _name(name: Any) -> str:
    """Return the schema name `name` in the form that providers accept: at most 64 letters, digits, `_` and `-`.

    Other characters become `_`. An empty name becomes `answer`.
    """
    return _NO_NAME.sub("_", name)[:_MAX_NAME] if isinstance(name, str) and name else "answer"
