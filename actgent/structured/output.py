"""What the answers of an agent have to be: a form for the model, and the way from JSON to a value."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.llm.base import ResponseFormat
from actgent.tools.schemas import compile_schema, compile_type

from .schemas import is_json_schema, schema_check

_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_NAME = 64


@attrs.frozen
class Output:
    """What the answers of an agent have to be: a form for the model, and the way from JSON to the value."""

    name: str
    schema: Mapping[str, Any]
    """JSON Schema, or a template (see `schemas`)."""
    convert: Callable[[Any], Any] = attrs.field(repr=False)
    """The value of a decoded JSON value; raises ValueError if it does not fit, and says where."""

    def check(self, value: Any) -> str | None:
        """Explain what is wrong with a decoded JSON value, None if nothing."""
        try:
            self.convert(value)
        except ValueError as error:
            return str(error)
        return None

    @property
    def response_format(self) -> ResponseFormat | None:
        """The form as providers take it; None for a template."""
        return ResponseFormat(self.name, self.schema) if is_json_schema(self.schema) else None

    @property
    def form(self) -> str:
        """The schema as JSON text."""
        text: str = json.dumps(self.schema, ensure_ascii=False, default=dict)
        return text


def form_output(name: str, schema: Mapping[str, Any]) -> Output:
    """The output of a form alone, whose values are plain JSON data."""
    return Output(name, schema, _form_converter(schema))


def output_of(output: Any) -> Output:
    """The output that a type (builtin, attrs class, dataclass, TypedDict, pydantic model, union ...) or a form (a dict) stands for.

    Raises:
        ConfigurationError: JSON Schema cannot say it, it takes too long to check, it is no JSON Schema, or it is a
            union with two classes that one answer could fit.
    """
    if isinstance(output, Output):
        return output
    if isinstance(output, Mapping):
        _refuse_types(output)
        return form_output(_name(output.get("title")), output)
    _refuse_values(output)
    compiled = compile_type(output)
    if pair := compiled.ambiguous_pair():
        one, other = pair
        raise ConfigurationError(
            f"output=: one answer could fit both {one} and {other}: give each class a field that tells them apart, "
            f'for example kind: Literal["{one.lower()}"] and kind: Literal["{other.lower()}"]'
        )
    if compiled.has_placeholders:
        compile_schema(compiled.schema, owner="output=")
    return Output(_name(getattr(output, "__name__", None)), compiled.schema, compiled.convert)


def _refuse_values(output: object) -> None:
    """Refuse a text, and an object where its class is meant."""
    if isinstance(output, str):
        given = f"the text {output!r:.100}"
    elif hasattr(type(output), "__dataclass_fields__") or attrs.has(type(output)):
        given = f"an object of it: write {type(output).__name__}"
    else:
        return
    raise ConfigurationError(f"output= takes a type or a JSON Schema (a dict), not {given}")


def _refuse_types(form: Mapping[str, Any]) -> None:
    """Refuse Python types where JSON is said.

    Raises:
        ConfigurationError: the text names the first.
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
    """As providers take it: at most 64 letters, digits, `_` and `-`."""
    return _NO_NAME.sub("_", name)[:_MAX_NAME] if isinstance(name, str) and name else "answer"
