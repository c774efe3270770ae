"""Argument schema of a function `(state, args)`, derived from the type of `args` or from the docstring.

The docstring lists them in its arguments section, next to `state` and `args` or indented below `args`:

Args:
        city (str): The name of the city.
        days (int, optional): How many days.

An argument without a type accepts any value. Undocumented arguments are accepted too, because a docstring is prose.
"""

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_origin

from actgent.errors import ConfigurationError

from .python_types import CompiledType, compile_type, docstring_of

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
_STATE_PARAMETERS = ("state", "args")
_LINE = re.compile(r"^\s*[-*]?\s*`?(?P<name>[A-Za-z_]\w*)`?\s*(?:\((?P<type>[^)]*)\))?\s*:\s*(?P<text>.*)$")
_OPTIONAL = re.compile(r"\b(optional|defaults? to|default:)", re.IGNORECASE)
_TYPES = {
    "str": "string", "string": "string", "text": "string",
    "int": "integer", "integer": "integer",
    "float": "number", "number": "number",
    "bool": "boolean", "boolean": "boolean",
    "list": "array", "array": "array", "tuple": "array", "sequence": "array", "set": "array",
    "dict": "object", "object": "object", "mapping": "object",
}  # fmt: skip


def schema_from_annotation(function: Callable[..., Any]) -> CompiledType | None:
    """Compile the annotated type of the parameter `args` (a TypedDict, a dataclass, a model).

    Return None if the type does not name the arguments, such as `dict`.

    Raises:
        ConfigurationError: The annotation cannot be resolved, or has no JSON Schema.
    """
    name = list(inspect.signature(function).parameters)[1]
    if name not in getattr(function, "__annotations__", {}):
        return None
    try:
        hint = typing.get_type_hints(function, include_extras=True)[name]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ConfigurationError(
            f"the type of {name} in {function.__name__} cannot be resolved ({error}): define it at the top of its module"
        ) from error
    plain = get_origin(hint) or hint
    if plain in (Any, object) or (
        isinstance(plain, type) and issubclass(plain, Mapping) and not typing.is_typeddict(plain)
    ):
        return None
    return compile_type(hint)


def schema_from_docstring(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the JSON Schema of the arguments that a docstring lists. If it lists none, the schema accepts any object."""
    listed = list(_documented_items(function))
    if not listed:
        return ANY_ARGUMENTS
    return {
        "type": "object",
        "properties": {name: _parameter_schema(kind, text) for name, kind, text in listed},
        "required": [name for name, kind, text in listed if not _OPTIONAL.search(f"{kind} {text}")],
        "additionalProperties": True,
    }


def _documented_items(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, type and description of each argument in a function's docstring."""
    for item in docstring_of(function).params:
        name, text = item.arg_name.lstrip("_"), item.description or ""
        if name == "args":
            yield from _parse_lines(text)
        elif name not in _STATE_PARAMETERS and item.args[:1] in (["param"], ["parameter"]):
            optional = " optional" if item.is_optional else ""
            yield item.arg_name, f"{item.type_name or ''}{optional}", " ".join(text.split())


def _parse_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, type and description of each argument in the indented lines below `args:` in a docstring."""
    for line in text.splitlines()[1:]:
        if match := _LINE.match(line):
            yield match["name"], match["type"] or "", match["text"].strip()


def _parameter_schema(kind: str, text: str) -> Mapping[str, Any]:
    """Return the JSON Schema of one argument from its documented type `kind` and description `text`.

    For an unknown type, the schema accepts any value.
    """
    schema: dict[str, Any] = {}
    word = re.match(r"\s*([A-Za-z]+)\s*(?:\[\s*([A-Za-z]+)\s*\])?", kind)
    if word and (known := _TYPES.get(word[1].lower())):
        schema["type"] = known
        if known == "array" and word[2] and (of := _TYPES.get(word[2].lower())):
            schema["items"] = {"type": of}
    if text:
        schema["description"] = text
    return schema
