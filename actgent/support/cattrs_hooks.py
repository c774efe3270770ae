"""Hooks of cattrs that convert the objects of a `TaggedCodec` to plain data and back.

`TaggedCodec` imports this module when it encodes or decodes the first object, because the import of cattrs and the hooks of 93
classes take 70 ms. An agent without a journal needs neither.
"""

import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from actgent.errors import NotSerializable, WireError

from .fast_attrs_constructors import DERIVED, STORED_AS

Hook = Callable[[Any, Any], Any]
"""Function `(value, type)` that restores an object from plain data."""
Write = Callable[[Any], Any]
"""Function that converts an object to plain data."""


Derive = Callable[[Mapping[str, Any]], Any]
"""Function that returns the value of a field from the stored fields of its object."""


def make_hooks(unions: Mapping[Any, Mapping[str, type]]) -> tuple[Mapping[Any, Write], Mapping[Any, Hook]]:
    """Return two tables: the functions that write the objects of each union, and the functions that read them.

    Args:
        unions: Member classes of each union, by tag. A union that another union contains comes before it.
    """
    converter = _strict_converter()
    for union, tags in unions.items():
        _register_union(converter, union, tags)
    return (
        {union: converter.get_unstructure_hook(union) for union in unions},
        {union: converter.get_structure_hook(union) for union in unions},
    )


def _register_union(converter: cattrs.Converter, union: Any, tags: Mapping[str, type]) -> None:
    for cls in tags.values():
        _register_class(converter, cls)
    writers = {cls: (tag, converter.get_unstructure_hook(cls)) for tag, cls in tags.items()}
    readers = {tag: (cls, converter.get_structure_hook(cls)) for tag, cls in tags.items()}

    def write(value: object) -> list[Any]:
        try:
            tag, write_fields = writers[type(value)]
        except KeyError:
            raise NotSerializable(type(value).__name__, "the class is not registered with a tag") from None
        return [tag, write_fields(value)]

    def read(value: Any, _: object) -> object:
        tag, fields = value
        if tag not in readers:
            raise WireError(
                f"the tag {tag!r} is unknown: a newer version of actgent wrote the data, so use that version"
            )
        cls, read_fields = readers[tag]
        return read_fields(fields, cls)

    converter.register_unstructure_hook(union, write)
    converter.register_structure_hook(union, read)


def _register_class(converter: cattrs.Converter, cls: type) -> None:
    """Generate the functions that write and read a class. Fields with a factory default are always written."""
    attrs.resolve_types(cls)
    made: dict[str, Any] = {
        field.name: override(omit_if_default=False)
        for field in attrs.fields(cls)
        if isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]
    }
    stored_names = {
        each.name: each.metadata[STORED_AS] for each in attrs.fields(cls) if STORED_AS in each.metadata
    }
    made |= {name: override(rename=stored) for name, stored in stored_names.items()}
    write: Write = make_dict_unstructure_fn(cls, converter, _cattrs_omit_if_default=True, **made)
    read = _fields_reader(cls, converter)
    if stored_names:
        read = _rename_stored(read, stored_names)
    if derived := {
        each.name: each.metadata[DERIVED] for each in attrs.fields(cls) if DERIVED in each.metadata
    }:
        write, read = _omit_derived(write, derived), _add_derived(read, derived)
    converter.register_unstructure_hook(cls, write)
    converter.register_structure_hook(cls, read)


def _omit_derived(write: Write, derived: Mapping[str, Derive]) -> Write:
    """Return a function that writes an object as `write` does, without the fields whose value follows from the others."""

    def write_without_derived(value: Any) -> Any:
        fields = write(value)
        for name, derive in derived.items():
            given = getattr(value, name)
            if derive(fields) == given:
                fields.pop(name, None)
            else:
                fields[name] = given
        return fields

    return write_without_derived


def _rename_stored(read: Hook, stored_names: Mapping[str, str]) -> Hook:
    """Return a function that reads an object as `read` does, from fields with their stored names.

    Args:
        read: Function that reads the fields by attribute name.
        stored_names: Stored names by attribute name.
    """

    def read_renamed(value: Any, cls: Any) -> Any:
        for name, stored in stored_names.items():
            if stored in value:
                value[name] = value.pop(stored)
        return read(value, cls)

    return read_renamed


def _add_derived(read: Hook, derived: Mapping[str, Derive]) -> Hook:
    """Return a function that reads an object as `read` does, and derives the fields that are missing."""

    def read_with_derived(value: Any, cls: Any) -> Any:
        for name, derive in derived.items():
            if name not in value:
                value[name] = derive(value)
        return read(value, cls)

    return read_with_derived


def _fields_reader(cls: type, converter: cattrs.Converter) -> Hook:
    """Return a function that reads an object from its fields.

    Most fields have their defaults and are missing. Code that looks up each field, as cattrs generates it, takes a
    quarter longer. Opening a long session spends most of its time here.
    """
    fields = {
        field.name: (_unconverted_types(field.type), converter.get_structure_hook(field.type), field.type)
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


def _unconverted_types(kind: Any) -> frozenset[type]:
    """Return the types of values that a field of type `kind` stores unchanged.

    All other values are converted by the hook of `kind`.
    """
    if isinstance(kind, types.UnionType) and kind.__args__[1:] == (types.NoneType,):
        inner = _unconverted_types(kind.__args__[0])
        return inner | {types.NoneType} if inner else inner
    if kind is float:
        return frozenset((float, int))
    return frozenset((kind,)) if kind in (str, bytes, bool, int) else frozenset()


def _strict_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)
    for kind in (str, bytes, bool, int):
        converter.register_structure_hook(kind, _type_check_hook(kind))
    converter.register_structure_hook(float, _type_check_hook(float, int))
    converter.register_structure_hook_func(_is_mapping, _type_check_hook(dict))
    converter.register_structure_hook_func(_is_mapping_or_text, _type_check_hook(dict, str))
    converter.register_structure_hook_factory(_is_enum, _enum_reader)
    converter.register_structure_hook_factory(_is_tuple, lambda kind: _tuple_reader(kind, converter))
    converter.register_structure_hook_factory(attrs.has, lambda cls: _class_reader(cls, converter))
    converter.register_unstructure_hook_func(_is_foreign, _unchanged)
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
    raise WireError(f"the stored value must be a list, not {type(value).__name__}")


def _type_check_hook(*accepted: type) -> Hook:
    """Return a hook that accepts only values of these types, unchanged."""

    def read(value: Any, kind: Any) -> Any:
        # cattrs looks up classes by their bases, so an `IntEnum` gets the hook of `int`.
        if kind not in accepted and _is_enum(kind):
            return _enum_reader(kind)(value, kind)
        if type(value) in accepted:
            return value
        names = " or ".join(kind.__name__ for kind in accepted)
        raise WireError(f"the stored value must be {names}, not {type(value).__name__}")

    return read


@functools.cache
def _enum_reader(kind: type[Enum]) -> Hook:
    """Return a cattrs hook that reads the members of an enum from their values.

    Unknown values raise `WireError`.
    """
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


def _unchanged(value: Any) -> Any:
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
