"""Conversion of values that JSON does not support to simpler values.

`result_text` imports this module when a tool returns the first such value, because the recognized classes come from 20 modules.
Most tools return text and plain data, and do not need this module.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import types
import uuid
from collections.abc import AsyncIterable, Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any

import attrs
import msgspec

from actgent.messages import Media

_TEXTUAL = (
    uuid.UUID,
    pathlib.PurePath,
    decimal.Decimal,
    fractions.Fraction,
    complex,
    dt.tzinfo,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
)
_EXPORT_METHODS = ("model_dump", "tolist")
"""Methods by which values such as pydantic models and numpy arrays export plain data."""


def simplify(value: object) -> Any:
    """Convert a value that JSON does not support to a dict, list, text or number: a date to text, an attrs object to a dict.

    The members of the result are not converted. Raise TypeError if the type of the value is not known.
    """
    if isinstance(value, Media):
        raise TypeError(
            f"{type(value).__name__} cannot be nested in other data: return it alone, or in a list such as [text, {type(value).__name__}(...)]"
        )
    for kinds, write in _CONVERTERS:
        if isinstance(value, kinds):
            return write(value)
    if not isinstance(value, type) and (fields := _field_values(value)) is not None:
        return fields
    return _collection_items(value)


def _field_values(value: Any) -> Any:
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if hasattr(value, "__pydantic_serializer__") and hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    export = next(filter(None, (getattr(value, name, None) for name in _EXPORT_METHODS)), None)
    return None if export is None else export()


def _collection_items(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    if isinstance(value, Collection):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value: {_remedy(value)}")


def _remedy(value: object) -> str:
    if isinstance(value, Coroutine):
        value.close()  # prevents Python's warning about a coroutine that was never awaited
        return "await it in the tool"
    if isinstance(value, AsyncIterable):
        return "collect it in a list first"
    if isinstance(value, Iterator):
        return "return a list"
    return "return text, a number, a list, a dict, or a dataclass"


_CONVERTERS: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((dt.date, dt.time), lambda value: value.isoformat()),
    (enum.Enum, lambda value: value.value),
    (_TEXTUAL, str),
    (dt.timedelta, msgspec.to_builtins),  # ISO 8601, as parameters are read
    (re.Pattern, lambda value: value.pattern),
    (
        re.Match,
        lambda value: {
            "match": value[0],
            "span": value.span(),
            "groups": value.groupdict() or value.groups(),
        },
    ),
    (types.SimpleNamespace, vars),
)
"""Converters of standard library types to plain data, by type. Without them, the work of a tool that returns such a
value would be lost.
"""
