"""Objects to bytes and back: the one cattrs converter, over msgpack.

A `Wire` is made from tables of tags, one for each union that travels: a tag is a short word that
never changes, so what was written once can be read after classes and modules have moved. Values
come back as they went: nothing is coerced, and what this version does not know is refused.

On the bytes an object of a union is `[tag, {field: value}]`, and a field that has its default is
left out. Fields of any type hold plain data: None, bool, int and float of any size, str, bytes,
lists, tuples, mappings and aware datetimes.
"""

import functools
import threading
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

import attrs
import cattrs
import msgpack  # type: ignore[import-untyped]
from cattrs.gen import make_dict_unstructure_fn, override

from actgent.errors import NotSerializable, WireError
from actgent.errors.printable import shown

SCHEMA_VERSION = 1
"""Of everything that a `Wire` writes: to be raised with a changed default, a changed name, a changed meaning."""

_DATETIME, _TUPLE, _INTEGER = 1, 2, 3
"""Extension types of msgpack; 0 to 127 belong to the application."""

MAX_TUPLES = 64
"""Tuples in one another. Each one takes 50 KB of the C stack while it is read, so 160 of them end the interpreter."""
_SHOWN = 500
_KEPT = 1 << 17
"""Bytes up to which what was packed fits into the memory that each packer has from the beginning."""
Hook = Callable[[Any, Any], Any]


class Packers:
    """msgpack whose packers are used again: to make one takes as long as to pack three small values.

    Who packs has one alone, so that it may be called in several threads, and by what is called while something is packed.
    """

    def __init__(self, **options: Any) -> None:
        """Args: `options` are those of `msgpack.Packer`."""
        self._options = options
        self._free: list[Any] = []

    def pack(self, value: object) -> bytes:
        """A value as bytes; raises as `msgpack.packb`."""
        try:
            packer = self._free.pop()
        except IndexError:
            packer = msgpack.Packer(**self._options)
        packed: bytes = packer.pack(value)  # one that raises is not used again
        if len(packed) <= _KEPT:  # nor one that would hold on to much memory
            self._free.append(packer)
        return packed


class Wire:
    """Writes and reads the objects of some unions; made once, safe to share.

    Args:
        unions: for each union its members by tag; a union that others hold stands before them.
    """

    def __init__(self, unions: Mapping[Any, Mapping[str, type]]) -> None:
        self._converter = _strict_converter()
        for union, tags in unions.items():
            _register_union(self._converter, union, tags)
        self._write = {union: self._converter.get_unstructure_hook(union) for union in unions}
        self._read = {union: self._converter.get_structure_hook(union) for union in unions}

    def encode(self, values: Iterable[Any], union: Any) -> bytes:
        """Several objects of one union as bytes.

        Raises:
            NotSerializable: something in them is not plain data; the text names its field and key.
        """
        write = self._write[union]
        plain = [write(value) for value in values]
        try:
            return _pack(plain)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return _pack_slowly(plain)

    def decode(self, data: bytes, union: Any) -> tuple[Any, ...]:
        """The objects that `encode` wrote.

        Raises:
            WireError: these are no such bytes, or a newer version wrote them.
        """
        read = self._read[union]
        try:
            return tuple([read(value, union) for value in _sequence(_unpack(data))])
        except WireError:
            raise
        except Exception as error:  # whatever foreign bytes lead to in msgpack, in cattrs or in a validator
            raise WireError(f"not what this version of actgent reads: {shown(error, _SHOWN)}") from error


# --- unions, classes, fields -------------------------------------------------------------


def _register_union(converter: cattrs.Converter, union: Any, tags: Mapping[str, type]) -> None:
    for cls in tags.values():
        _register_class(converter, cls)
    writers = {cls: (tag, converter.get_unstructure_hook(cls)) for tag, cls in tags.items()}
    readers = {tag: (cls, converter.get_structure_hook(cls)) for tag, cls in tags.items()}

    def write(value: object) -> list[Any]:
        try:
            tag, write_fields = writers[type(value)]
        except KeyError:
            raise NotSerializable(type(value).__name__, "a class without a tag") from None
        return [tag, write_fields(value)]

    def read(value: Any, _: object) -> object:
        tag, fields = value
        if tag not in readers:
            raise WireError(f"unknown tag {tag!r}: a newer version of actgent wrote it")
        cls, read_fields = readers[tag]
        return read_fields(fields, cls)

    converter.register_unstructure_hook(union, write)
    converter.register_structure_hook(union, read)


def _register_class(converter: cattrs.Converter, cls: type) -> None:
    """Generate the code that writes and reads a class; what a factory makes is always written."""
    attrs.resolve_types(cls)
    made: dict[str, Any] = {
        field.name: override(omit_if_default=False)
        for field in attrs.fields(cls)
        if isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
    }
    converter.register_unstructure_hook(
        cls, make_dict_unstructure_fn(cls, converter, _cattrs_omit_if_default=True, **made)
    )
    converter.register_structure_hook(cls, _fields_reader(cls, converter))


def _fields_reader(cls: type, converter: cattrs.Converter) -> Hook:
    """Return what reads an object from its fields, most of which have their defaults and are not there.

    Code that looks for each of them, as cattrs generates it, takes a quarter longer, and most of the time in which a long
    session is opened goes by here.
    """
    fields = {
        field.name: (_taken_as_they_are(field.type), converter.get_structure_hook(field.type), field.type)
        for field in attrs.fields(cls)
    }

    def read(value: Any, _: object) -> object:
        for name, given in value.items():
            try:
                as_it_is, read_field, kind = fields[name]
            except KeyError:
                text = f"unknown field {name!r} of {cls.__name__}: a newer version of actgent wrote it"
                raise WireError(text) from None
            if type(given) not in as_it_is:
                value[name] = read_field(given, kind)
        return cls(**value)

    return read


def _taken_as_they_are(kind: Any) -> frozenset[type]:
    """The types whose values a field of this type holds as they are read; all others go through its hook."""
    if isinstance(kind, types.UnionType) and kind.__args__[1:] == (types.NoneType,):
        inner = _taken_as_they_are(kind.__args__[0])
        return inner | {types.NoneType} if inner else inner
    if kind is float:
        return frozenset((float, int))
    return frozenset((kind,)) if kind in (str, bytes, bool, int) else frozenset()


def _strict_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)
    for kind in (str, bytes, bool, int):
        converter.register_structure_hook(kind, _exactly(kind))
    converter.register_structure_hook(float, _exactly(float, int))
    converter.register_structure_hook_func(_is_mapping, _exactly(dict))
    converter.register_structure_hook_func(_is_mapping_or_text, _exactly(dict, str))
    converter.register_structure_hook_factory(_is_enum, _enum_reader)
    converter.register_structure_hook_factory(_is_tuple, lambda kind: _tuple_reader(kind, converter))
    converter.register_structure_hook_factory(attrs.has, lambda cls: _class_reader(cls, converter))
    converter.register_unstructure_hook_func(_is_foreign, _as_it_is)
    converter.register_unstructure_hook_factory(_is_tuple, lambda kind: _tuple_writer(kind, converter))
    converter.register_unstructure_hook_factory(attrs.has, lambda cls: _class_writer(cls, converter))
    return converter


def _class_reader(cls: type, converter: cattrs.Converter) -> Hook:
    _register_class(converter, cls)
    return converter.get_structure_hook(cls)


def _class_writer(cls: type, converter: cattrs.Converter) -> Callable[[Any], Any]:
    _register_class(converter, cls)
    return converter.get_unstructure_hook(cls)


def _sequence(value: Any) -> list[Any]:
    if type(value) is list:
        return value
    raise WireError(f"a value of type {type(value).__name__} where a list belongs")


def _exactly(*accepted: type) -> Hook:
    """Return a hook that reads a value of these types and refuses all others."""

    def read(value: Any, kind: Any) -> Any:
        # cattrs looks up classes by their bases, so an `IntEnum` gets the hook of `int`.
        if kind not in accepted and _is_enum(kind):
            return _enum_reader(kind)(value, kind)
        if type(value) in accepted:
            return value
        names = " or ".join(kind.__name__ for kind in accepted)
        raise WireError(f"a value of type {type(value).__name__} where {names} belongs")

    return read


@functools.cache
def _enum_reader(kind: type[Enum]) -> Hook:
    """Return a hook that reads the members of an enum from their values."""
    members = {member.value: member for member in kind}

    def read(value: Any, _: object) -> Enum:
        if type(value) in (int, str) and value in members:
            return members[value]
        raise WireError(f"{value!r} is not a {kind.__name__} that this version knows")

    return read


def _tuple_reader(kind: Any, converter: cattrs.Converter) -> Hook:
    item = typing.get_args(kind)[0]
    read_item = converter.get_structure_hook(item)

    def read(value: Any, _: object) -> tuple[Any, ...]:
        return tuple([read_item(entry, item) for entry in _sequence(value)])

    return read


def _tuple_writer(kind: Any, converter: cattrs.Converter) -> Callable[[Any], list[Any]]:
    write_item = converter.get_unstructure_hook(typing.get_args(kind)[0])
    return lambda value: [write_item(entry) for entry in value]


def _as_it_is(value: Any) -> Any:
    return value


def _is_mapping(kind: Any) -> bool:
    return typing.get_origin(kind) is Mapping


def _is_mapping_or_text(kind: Any) -> bool:
    return isinstance(kind, types.UnionType) and _is_mapping(kind.__args__[0]) and kind.__args__[1:] == (str,)


def _is_foreign(kind: Any) -> bool:
    return kind is Any or _is_mapping(kind) or _is_mapping_or_text(kind)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _is_tuple(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


# --- plain data --------------------------------------------------------------------------


def _unpack(data: bytes, depth: int = 0) -> Any:
    """Decode msgpack; msgpack itself refuses more than 1,024 arrays and maps in one another."""
    return msgpack.unpackb(
        data, ext_hook=_EXTENSION_HOOKS[depth], strict_map_key=False, unicode_errors="surrogatepass"
    )


_nesting = threading.local()
"""`depth`: tuples that this thread is packing, in one another."""


def _extend(value: object) -> object:
    """Encode what msgpack has no form for; tuples stay tuples, and datetimes keep their offset."""
    if type(value) is tuple:
        depth = getattr(_nesting, "depth", 0)
        if depth >= MAX_TUPLES:
            raise ValueError(f"more than {MAX_TUPLES} tuples in one another")
        _nesting.depth = depth + 1
        try:
            return msgpack.ExtType(_TUPLE, _pack(list(value)))
        finally:
            _nesting.depth = depth
    if type(value) is datetime and value.tzinfo is not None:
        return msgpack.ExtType(_DATETIME, value.isoformat().encode())
    if isinstance(value, Mapping):
        return dict(value)
    if _is_text(value):
        return str.__str__(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _is_text(value: object) -> bool:
    """Return True for text of a subclass of str, e.g. a `MessageId`, which is read back as str. Members of enums are refused."""
    return isinstance(value, str) and not isinstance(value, Enum)


_pack = Packers(default=_extend, strict_types=True, unicode_errors="surrogatepass").pack
pack_plain = _pack
"""Plain data as bytes: equal for values that are read back equal, with their types and the order of their keys."""


def _reduce(depth: int, code: int, data: bytes) -> object:
    match code:
        case 1:
            return datetime.fromisoformat(data.decode())
        case 2:
            if depth >= MAX_TUPLES:
                raise WireError(f"more than {MAX_TUPLES} tuples in one another")
            return tuple(_unpack(data, depth + 1))
        case 3:
            return int.from_bytes(data, "big", signed=True)
    raise WireError(f"unknown extension type {code}: a newer version of actgent wrote it")


_EXTENSION_HOOKS = [partial(_reduce, depth) for depth in range(MAX_TUPLES + 1)]
"""By the number of tuples around the data."""


def _pack_slowly(plain: list[Any]) -> bytes:
    """Pack what msgpack refused: integers beyond 64 bits are boxed, and what is no plain data is named."""
    try:
        return _pack([_boxed(value, "") for value in plain])
    except (ValueError, RecursionError) as error:
        raise NotSerializable("a value", f"too large or too deep ({error})") from error


def _boxed(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {_boxed(key, f"{path} (a key)"): _boxed(item, f"{path}.{key}") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_boxed(item, path) for item in value)
    if type(value) is int and not -(2**63) <= value < 2**64:
        return msgpack.ExtType(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if type(value) is datetime and value.tzinfo is not None:
        return value
    if _is_text(value):
        return str.__str__(value)
    raise NotSerializable(path.lstrip("."), f"a value of type {type(value).__name__}")
