"""The parameters of a function `(state, args)`: from the type of `args`, or as its docstring lists them.

A docstring lists them in its section of arguments, beside `state` and `args` or indented below `args`:

Args:
        city (str): The name of the city.
        days (int, optional): How many days.

What has no type takes any value, and what is not listed may be given too: a docstring is prose.
"""

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_origin

from actgent.errors import ConfigurationError

from .schema import CompiledType, compile_type, docstring_of

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
_OWN = ("state", "args")
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


def typed_arguments(function: Callable[..., Any]) -> CompiledType | None:
    """The type of `args`, where it says which arguments there are: a TypedDict, a dataclass, a model ...

    Raises:
        ConfigurationError: the annotation cannot be resolved, or JSON Schema cannot say it.
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
        isinstance(plain, type) and issubclass(plain, Mapping) and not _has_keys(plain)
    ):
        return None
    return compile_type(hint)


def _has_keys(cls: type) -> bool:
    return typing.is_typeddict(cls)


def documented_arguments(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The JSON Schema of the arguments that a docstring lists; any object where it lists none."""
    listed = list(_listed(function))
    if not listed:
        return ANY_ARGUMENTS
    return {
        "type": "object",
        "properties": {name: _form(kind, text) for name, kind, text in listed},
        "required": [name for name, kind, text in listed if not _OPTIONAL.search(f"{kind} {text}")],
        "additionalProperties": True,
    }


def _listed(function: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    """Name, type and text of each argument."""
    for item in docstring_of(function).params:
        name, text = item.arg_name.lstrip("_"), item.description or ""
        if name == "args":
            yield from _below(text)
        elif name not in _OWN and item.args[:1] in (["param"], ["parameter"]):
            optional = " optional" if item.is_optional else ""
            yield item.arg_name, f"{item.type_name or ''}{optional}", " ".join(text.split())


def _below(text: str) -> Iterator[tuple[str, str, str]]:
    """Arguments in the lines below `args:`."""
    for line in text.splitlines()[1:]:
        if match := _LINE.match(line):
            yield match["name"], match["type"] or "", match["text"].strip()


def _form(kind: str, text: str) -> Mapping[str, Any]:
    form: dict[str, Any] = {}
    word = re.match(r"\s*([A-Za-z]+)\s*(?:\[\s*([A-Za-z]+)\s*\])?", kind)
    if word and (known := _TYPES.get(word[1].lower())):
        form["type"] = known
        if known == "array" and word[2] and (of := _TYPES.get(word[2].lower())):
            form["items"] = {"type": of}
    if text:
        form["description"] = text
    return form
