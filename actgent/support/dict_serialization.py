"""Conversion of public data to and from JSON: `to_dict` and `from_dict` of messages, events, steps and results."""

import base64
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from datetime import date
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, get_args, get_origin

import attrs

from actgent import errors
from actgent.errors import ActgentError, WireError
from actgent.errors.text_escaping import shown

from .attrs_class_repr import FieldRepr

_BIG = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SIMPLE = (str, int, float, bool, NoneType)


class Serializable(FieldRepr):
    """Base class of data with conversion to JSON (`to_dict`) and back (`from_dict`).

    The JSON object has a member for each field, and `type` with the name of the class. Enums are written as their names, bytes
    as base64, times as ISO 8601, exceptions as `{"class", "message", "fields"}`. Fields of any type, such as `Reply.data`,
    are read back as plain data.
    """

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the object as a dictionary that `json.dumps` accepts.

        Raises:
            TypeError: A value cannot be converted to JSON.
        """
        written: dict[str, Any] = _to_plain_json(self)
        return written

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create an object from the dictionary of `to_dict`; on a base class, e.g. `Observation`, `type` selects the class.

        Raises:
            WireError: The data does not fit this class.
        """
        if not isinstance(data, Mapping):
            raise WireError(
                f"the argument of {cls.__name__}.from_dict() must be a dictionary, not {data!r:.200}"
            )
        found = _class_named(data.get("type"), [cls])
        try:
            read: Self = _reader().structure(_to_plain_json(data), found)
        except WireError:
            raise
        except Exception as error:  # untrusted data can raise any error in cattrs or in a constructor
            raise WireError(f"{found.__name__}.from_dict(): {shown(error)}") from error
        return read


# --- writing -----------------------------------------------------------------------------------


def _to_plain_json(value: Any) -> Any:
    """Convert a value to plain JSON data. All lists and dictionaries of the result are new objects."""
    if attrs.has(type(value)):
        return _fields(value)
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value)
    return _foreign(value)


def _foreign(value: Any) -> Any:
    """Convert a third-party value to JSON data: a pydantic model, a dataclass, or a type known to msgspec, e.g. UUID."""
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return _to_plain_json(dump(mode="json"))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _to_plain_json(getattr(value, each.name)) for each in dataclasses.fields(value)}
    import msgspec  # noqa: PLC0415 - loads 16 modules, which few values need

    try:
        return msgspec.to_builtins(value)
    except TypeError as error:
        raise TypeError(
            f"a value of type {type(value).__name__} cannot be converted to JSON: {error}"
        ) from error


def _fields(value: Any) -> dict[str, Any]:
    kind = type(value)
    tag = {"type": _tag(kind)} if isinstance(value, Serializable) else {}
    return tag | {field.name: _to_plain_json(getattr(value, field.name)) for field in attrs.fields(kind)}


def _exception(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in vars(error).items():
        if isinstance(value, (*_SIMPLE, list, tuple, Mapping)) and not name.startswith("_"):
            try:
                fields[name] = _to_plain_json(value)
            except TypeError:
                continue  # a field that only this process uses
    return {"class": type(error).__name__, "message": str(error), "fields": fields}


_WRITERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, lambda value: value.name),
    (float, lambda value: value if math.isfinite(value) else str(value)),
    (_SIMPLE, lambda value: value),
    (Mapping, lambda value: {str(key): _to_plain_json(item) for key, item in value.items()}),
    ((bytes, bytearray), lambda value: base64.b64encode(value).decode("ascii")),
    ((Sequence, AbstractSet), lambda value: [_to_plain_json(item) for item in value]),
    (date, lambda value: value.isoformat()),
    (BaseException, _exception),
)
"""Pairs of a class and a function that converts its instances to JSON data. The first match is used."""


# --- class names ----------------------------------------------------------------------


def _tag(cls: type) -> str:
    named = getattr(cls, "type", None)
    return named if isinstance(named, str) else _BIG.sub("_", cls.__name__).lower()


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """Yield a class and all its subclasses that are attrs classes."""
    if "__attrs_attrs__" in vars(cls):
        yield cls
    below: list[type[Any]] = cls.__subclasses__()
    for each in below:
        yield from _subclasses(each)


def _class_named(tag: object, kinds: Sequence[type]) -> type:
    """Return the class that has this `type`, among `kinds` and their subclasses.

    Without a `type`, `kinds` must have one class.
    """
    if tag is None and len(kinds) == 1:
        return kinds[0]
    for kind in kinds:
        known: dict[str, type] = {_tag(each): each for each in _subclasses(kind)}
        if isinstance(tag, str) and tag in known:
            return known[tag]
    names = ", ".join(kind.__name__ for kind in kinds)
    raise WireError(f"unknown type {tag!r:.100} of {names}: call from_dict() of the class that wrote it")


# --- reading -----------------------------------------------------------------------------------


@functools.cache
def _reader() -> Any:
    import cattrs  # noqa: PLC0415 - most programs do not call from_dict()

    reader = cattrs.Converter(detailed_validation=False)
    for kind in (str, bool, int):
        reader.register_structure_hook(kind, _type_reader(kind))
    reader.register_structure_hook(float, _float)
    reader.register_structure_hook(bytes, lambda value, _: base64.b64decode(value, validate=True))
    reader.register_structure_hook_func(lambda kind: isinstance(kind, TypeVar), lambda value, _: value)
    reader.register_structure_hook_func(_is_kind(Enum), lambda value, kind: kind[value])
    reader.register_structure_hook_func(_is_kind(BaseException), lambda value, _: _restore_error(value))
    reader.register_structure_hook_factory(_is_union, lambda kind: _union_reader(kind, reader))
    reader.register_structure_hook_factory(
        lambda kind: attrs.has(_class_of(kind)), lambda kind: _fields_reader(kind, reader)
    )
    return reader


def _is_kind(base: type) -> Callable[[Any], bool]:
    return lambda kind: isinstance(kind, type) and issubclass(kind, base)


def _type_reader(kind: type) -> Callable[[Any, Any], Any]:
    def read(value: Any, wanted: Any) -> Any:
        if wanted is not kind and issubclass(wanted, Enum):  # cattrs takes the hook of a base class first
            return wanted[value]
        if type(value) is not kind:
            raise WireError(f"the value must be of type {kind.__name__}, not {value!r:.100}")
        return value

    return read


def _float(value: Any, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise WireError(f"the value must be a number, not {value!r:.100}")
    return float(value)


def _class_of(kind: Any) -> Any:
    """Return the class of a type without its type parameters, e.g. `Reply` for `Reply[int]`."""
    origin: Any = get_origin(kind)
    return kind if origin is None else origin


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _union_reader(kind: Any, reader: Any) -> Callable[[Any, Any], Any]:
    """Return a reader of a union: serializable classes are selected by `type`, other values are plain data."""
    members = [each for each in get_args(kind) if each is not NoneType]
    ours = [each for each in members if _is_kind(Serializable)(_class_of(each))]

    def read(value: Any, _: object) -> Any:
        if value is None:
            return None
        if len(members) == 1:
            return reader.structure(value, members[0])
        if ours and isinstance(value, Mapping):
            return reader.structure(value, _class_named(value.get("type"), ours))
        return value

    return read


def _fields_reader(kind: Any, reader: Any) -> Callable[[Any, Any], Any]:
    cls = _class_of(kind)
    attrs.resolve_types(cls)
    types = {field.name: field.type for field in attrs.fields(cls)}

    def read(value: Any, _: object) -> Any:
        given = dict(value)
        if "type" not in types and (tag := given.pop("type", None)) is not None and _tag(cls) != tag:
            raise WireError(f"the member `type` must be {_tag(cls)!r}, not {tag!r:.100}")
        if unknown := given.keys() - types.keys():
            raise WireError(f"{cls.__name__} has no field {min(unknown)!r:.100}")
        return cls(**{name: reader.structure(item, types[name]) for name, item in given.items()})

    return read


def _restore_error(value: Mapping[str, Any]) -> Exception:
    """Rebuild an error of actgent; any other exception becomes an `ActgentError` with its class name."""
    cls, message = getattr(errors, str(value["class"]), None), str(value["message"])
    if not (isinstance(cls, type) and issubclass(cls, ActgentError)):
        return ActgentError(f"{value['class']}: {message}")
    error = cls.__new__(cls)
    error.args = (message,)
    error.__dict__.update(value.get("fields", {}))
    return error
