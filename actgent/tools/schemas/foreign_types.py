"""Types that msgspec does not read by itself: those of pydantic, and unions whose members look alike in JSON.

Each stands in what msgspec is shown as a class without instances, which msgspec hands back with the value to be read.
Pydantic is imported where a type of it is, and nowhere else.
"""

import enum
import functools
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

import attrs
import msgspec

MAX_CHARACTERS = 300
"""Of what a class says of a value that it refuses."""
_SHOWN_ERRORS = 5
_ARRAYS = (list, tuple, set, frozenset)
_MARKS = ("__pydantic_core_schema__", "__get_pydantic_core_schema__", "__pydantic_validator__")

_PACKAGES = {"pydantic", "annotated_types"}
"""What is in `Annotated` and comes from them says what fits, and only pydantic knows how."""

_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")
Convert = Callable[[Any, Any], Any]
"""Reads a value as a type that msgspec knows, and builds what stands in it."""


class Placeholder:
    """A type as msgspec shall see it, where it cannot read the type itself; an instance holds what was read."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def schema(cls, definitions: "Definitions") -> Mapping[str, Any]:
        """Its JSON Schema; what that refers to is put into the definitions."""
        raise NotImplementedError

    @classmethod
    def read(cls, value: Any, convert: Convert) -> Any:
        """A decoded JSON value as the type.

        Raises:
            ValueError: it does not fit; the text says where.
        """
        raise NotImplementedError


@attrs.define
class Definitions:
    """The definitions of one JSON Schema, each under a name of its own."""

    known: dict[str, Any] = attrs.field(factory=dict)
    _places: dict[type[Placeholder], str] = attrs.field(factory=dict)
    """The names of placeholders; no name of a class has a dash."""

    def add(self, given: Mapping[str, Any]) -> bool:
        """Take further ones; False where another one has such a name already."""
        if any(self.known.get(name, each) != each for name, each in given.items()):
            return False
        self.known.update(given)
        return True

    def place_of(self, kind: type[Placeholder]) -> str:
        """The name of a placeholder, under which its schema is to stand."""
        if kind not in self._places:
            self._places[kind] = f"{kind.__name__}-{len(self._places) + 1}"
        return self._places[kind]


# --- pydantic --------------------------------------------------------------------------------


def is_pydantic(annotation: Any) -> bool:
    """Return True for what pydantic reads: its models, dataclasses and types, and what is annotated with its fields."""
    if get_origin(annotation) is Annotated:
        packages = {type(each).__module__.partition(".")[0] for each in annotation.__metadata__}
        return bool(packages & _PACKAGES) or is_pydantic(annotation.__origin__)
    return isinstance(annotation, type) and any(hasattr(annotation, mark) for mark in _MARKS)


def pydantic_placeholder(annotation: Any) -> type[Placeholder]:
    """The placeholder of a type of pydantic.

    Raises:
        TypeError: pydantic cannot say what fits.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - half a second, for those who use it
    from pydantic.errors import PydanticUserError  # noqa: PLC0415

    # `Page[Item]` of a generic model: brackets may not stand in a reference (RFC 3986).
    name = _NO_NAME.sub("_", getattr(annotation, "__name__", "Value"))
    try:
        adapter: Any = TypeAdapter(annotation)
        adapter.json_schema()
    except PydanticUserError as error:
        raise TypeError(str(error).partition("\n")[0]) from error

    class Model(Placeholder):
        @classmethod
        def schema(cls, definitions: Definitions) -> Mapping[str, Any]:
            return _pydantic_schema(adapter, name, definitions)

        @classmethod
        def read(cls, value: Any, convert: Convert) -> Any:  # noqa: ARG003 - pydantic builds all that is in it
            try:
                return adapter.validate_json(json.dumps(value), strict=True)
            except ValidationError as error:
                raise ValueError(pydantic_reason(error)) from None
            except Exception as error:  # a validator of the program's own
                raise ValueError(bounded_text(f"{name}: {type(error).__name__}: {error}")) from error

    Model.__name__ = name
    return Model


def _pydantic_schema(adapter: Any, name: str, definitions: Definitions) -> Mapping[str, Any]:
    """The schema of an adapter; its definitions get names that no other has."""
    prefix, number = f"{name}-", 1
    while True:
        made: dict[str, Any] = adapter.json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
        if definitions.add({f"{prefix}{key}": each for key, each in made.pop("$defs", {}).items()}):
            return made
        number += 1
        prefix = f"{name}-{number}-"


def pydantic_reason(error: Any) -> str:
    """Say in words for a model what pydantic found wrong, and where: the first five, each bounded."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    worded = []
    for each in found[:_SHOWN_ERRORS]:
        path = "".join(f"/{step}" for step in each["loc"])
        worded.append(bounded_text(f"{path}: {each['msg']}" if path else each["msg"]))
    more = f"; and {len(found) - _SHOWN_ERRORS} more" if len(found) > _SHOWN_ERRORS else ""
    return "; ".join(worded) + more


def bounded_text(text: str) -> str:
    """At most 300 characters of what foreign code says."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


# --- unions ----------------------------------------------------------------------------------


def needs_choice(members: Sequence[Any]) -> bool:
    """Return True for a union that msgspec refuses, because it could not tell its members apart by a look at the value."""
    if _are_tagged(members):
        return False
    plain = {kind for member in members if _is_plain(member) for kind in _kinds(member)}
    kinds = [*plain, *(kind for member in members if not _is_plain(member) for kind in _kinds(member))]
    others = [kind for kind in kinds if kind != "null"]
    return "any" not in kinds and (len(set(others)) < len(others) or ("custom" in others and len(others) > 1))


def _is_plain(member: Any) -> bool:
    """Return True for what may be of one kind with others such: text, numbers, and literals of them."""
    return get_origin(member) is Literal or member in (str, int, bool, float, None, type(None))


def _are_tagged(members: Sequence[Any]) -> bool:
    """Return True where all that are objects are structs that say in a field which of them it is."""
    objects = [member for member in members if "object" in _kinds(member)]
    return len(objects) > 1 and all(
        isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__struct_config__.tag is not None
        for each in objects
    )


def _kinds(member: Any) -> set[str]:
    """Return what a value of a type may be in JSON."""
    origin = get_origin(member)
    if origin is Annotated:
        return _kinds(member.__origin__)
    if origin is Literal:
        return {_kind_of_value(value) for value in get_args(member)}
    plain = origin or member
    if plain is Any or not isinstance(plain, type):
        return {"any"}
    return _kinds_of_class(plain)


def _kinds_of_class(cls: type) -> set[str]:
    if cls is type(None):
        return {"null"}
    if cls in (bool, int, float):
        return {cls.__name__}
    if issubclass(cls, enum.Enum):
        return {_kind_of_value(each.value) for each in cls}
    if issubclass(cls, _ARRAYS):
        return {"array"}
    if issubclass(cls, Placeholder) or cls.__module__ == "pathlib":
        return {"custom"}
    is_object = typing.is_typeddict(cls) or issubclass(cls, msgspec.Struct | Mapping)
    return {"object" if is_object else "text"}


def _kind_of_value(value: Any) -> str:
    if value is None:
        return "null"
    return type(value).__name__ if isinstance(value, bool | int) else "text"


def choice_placeholder(members: Sequence[Any]) -> type[Placeholder]:
    """Return the placeholder of a union. An object is read as the class that knows all of its keys.

    Several such classes, and values that are no objects: the first member that the value fits. An object with keys that
    no class knows is refused if it fits several classes.
    """

    @functools.cache
    def known_keys() -> list[frozenset[str] | None]:
        return [keys_of(object_schema(member)) for member in members]

    class Choice(Placeholder):
        @classmethod
        def schema(cls, definitions: Definitions) -> Mapping[str, Any]:
            return {"anyOf": [schema_in(member, definitions) for member in members]}

        @classmethod
        def read(cls, value: Any, convert: Convert) -> Any:
            return _read_member(_in_order(value, members, known_keys()), value, convert)

    Choice.__name__ = _NO_NAME.sub("_", "_or_".join(map(union_label, members)))[:64]
    return Choice


def _in_order(
    value: Any, members: Sequence[Any], known: Sequence[frozenset[str] | None]
) -> list[tuple[Any, bool]]:
    """Return the members of a union in the order in which they are tried; True for one that does not know a key of the value."""
    if not isinstance(value, dict):
        return [(member, False) for member in members]
    loose = [keys is not None and not value.keys() <= keys for keys in known]
    order = sorted(range(len(members)), key=lambda index: (loose[index], known[index] is None))
    return [(members[index], loose[index]) for index in order]


def _read_member(members: Sequence[tuple[Any, bool]], value: Any, convert: Convert) -> Any:
    """Read a value as the first member that it fits; members that do not know all keys come last and must not be several."""
    reasons = []
    loose: dict[str, Any] = {}
    for member, is_loose in members:
        try:
            read = convert(member, value)
        except ValueError as error:
            reasons.append(f"{union_label(member)} ({bounded_text(str(error))})")
            continue
        if not is_loose:
            return read
        loose[union_label(member)] = read
    if len(loose) > 1:
        raise ValueError(f"it fits {' and '.join(loose)}: leave out the members that its class does not have")
    if loose:
        return loose.popitem()[1]
    raise ValueError(f"it fits none of {'; '.join(reasons[:_SHOWN_ERRORS])}")


def object_schema(member: Any) -> Mapping[str, Any]:
    """Return the JSON Schema of a member of a union, with the schema that a reference at its root leads to."""
    definitions = Definitions()
    return resolved(schema_in(member, definitions), definitions.known)


def resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or the definition that it refers to, together with the definitions."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return {"$defs": definitions, **definitions.get(name, schema)}


def keys_of(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of an object's members; None if other members are allowed too, or it is no object."""
    return frozenset(schema["properties"]) if "properties" in schema else None


def could_both_fit(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if an object may fit the schemas of two classes, and its keys do not tell which class is meant."""
    mine, others = keys_of(one), keys_of(other)
    if mine is None or others is None:
        return False
    needed = {*one.get("required", ()), *other.get("required", ())}
    if not needed <= (mine & others):
        return False
    return not any(
        _are_disjoint(
            resolved(one["properties"][key], one.get("$defs", {})),
            resolved(other["properties"][key], other.get("$defs", {})),
        )
        for key in needed
    )


def _are_disjoint(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if no value can fit both schemas, by their constants or by their JSON types."""
    if (parts := one.get("anyOf")) is not None:
        return all(_are_disjoint(resolved(part, one.get("$defs", {})), other) for part in parts)
    if "anyOf" in other:
        return _are_disjoint(other, one)
    mine, others = _values_of(one), _values_of(other)
    if mine is not None and others is not None:
        return not any(value in others for value in mine)
    types, other_types = _types_of(one), _types_of(other)
    return types is not None and other_types is not None and types.isdisjoint(other_types)


def _values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _types_of(schema: Mapping[str, Any]) -> set[str] | None:
    values, given = _values_of(schema), schema.get("type")
    if values is not None:
        return {_JSON_TYPES.get(type(value), "any") for value in values}
    if given is None:
        return None
    types = {given} if isinstance(given, str) else set(given)
    return types | {"integer"} if "number" in types else types


_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def union_label(member: Any) -> str:
    """Return the name of a member of a union, as errors call it."""
    return "null" if member is type(None) else getattr(member, "__name__", str(member))


# --- schemas ---------------------------------------------------------------------------------


def schema_in(annotation: Any, definitions: Definitions) -> dict[str, Any]:
    """The JSON Schema of what msgspec is shown; what it refers to is put into the definitions.

    Raises:
        TypeError: JSON Schema cannot say it.
    """
    if isinstance(annotation, type) and issubclass(annotation, Placeholder):
        return dict(annotation.schema(definitions))
    later: list[type[Placeholder]] = []

    def hook(kind: type) -> dict[str, Any]:
        if not issubclass(kind, Placeholder):
            raise NotImplementedError
        later.append(kind)
        return {"$ref": f"#/$defs/{definitions.place_of(kind)}"}

    (schema,), components = msgspec.json.schema_components(
        [annotation], schema_hook=hook, ref_template="#/$defs/{name}"
    )
    if not definitions.add(components):
        raise TypeError(f"two classes in {annotation} have one name")
    for kind in later:
        place = definitions.place_of(kind)
        if place not in definitions.known:
            definitions.known[place] = {}  # while it is made, in which it may be met again
            definitions.known[place] = dict(kind.schema(definitions))
    return schema
