"""Placeholder classes for types that msgspec cannot read: pydantic types, and unions with members of similar JSON.

msgspec passes each value of a placeholder class to a hook, which reads the value. pydantic is imported only if a pydantic type is
used.
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

MAX_REASON_CHARACTERS = 300
"""Maximum length of an error text from user code, in characters."""
_MAX_SHOWN_ERRORS = 5
_ARRAYS = (list, tuple, set, frozenset)
_PYDANTIC_ATTRIBUTES = ("__pydantic_core_schema__", "__get_pydantic_core_schema__", "__pydantic_validator__")

_PYDANTIC_PACKAGES = {"pydantic", "annotated_types"}
"""Packages whose `Annotated` metadata only pydantic can interpret."""

_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_]+")
Convert = Callable[[Any, Any], Any]
"""Function that converts data to a type that msgspec supports, and creates instances of classes."""


class Placeholder:
    """Placeholder class for a type that msgspec cannot read. An instance holds the converted value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def schema(cls, definitions: "Definitions") -> Mapping[str, Any]:
        """Return the JSON Schema of the values that `read` of this placeholder type accepts.

        The returned schema may refer to other schemas. These are added to `definitions`.
        """
        raise NotImplementedError

    @classmethod
    def read(cls, value: Any, convert: Convert) -> Any:
        """Convert a decoded JSON value to the type of this placeholder.

        Raises:
            ValueError: The value does not match; the text contains the location.
        """
        raise NotImplementedError


@attrs.define
class Definitions:
    """Named definitions (`$defs`) of one JSON Schema."""

    schemas: dict[str, Any] = attrs.field(factory=dict)
    """The defined schemas by name."""
    _names: dict[type[Placeholder], str] = attrs.field(factory=dict)
    """Definition names of placeholders. They contain a dash, so they cannot collide with class names."""

    def add(self, definitions: Mapping[str, Any]) -> bool:
        """Add schemas by name. Return False and add none of them if a name is taken by a different schema."""
        if any(self.schemas.get(name, each) != each for name, each in definitions.items()):
            return False
        self.schemas.update(definitions)
        return True

    def name_of(self, kind: type[Placeholder]) -> str:
        """Return the definition name of a placeholder, assigned on first use."""
        if kind not in self._names:
            self._names[kind] = f"{kind.__name__}-{len(self._names) + 1}"
        return self._names[kind]


# --- pydantic --------------------------------------------------------------------------------


def is_pydantic(annotation: Any) -> bool:
    """Return True for types that pydantic validates: its models and dataclasses, and `Annotated` types with pydantic metadata."""
    if get_origin(annotation) is Annotated:
        packages = {type(each).__module__.partition(".")[0] for each in annotation.__metadata__}
        return bool(packages & _PYDANTIC_PACKAGES) or is_pydantic(annotation.__origin__)
    return isinstance(annotation, type) and any(hasattr(annotation, mark) for mark in _PYDANTIC_ATTRIBUTES)


def pydantic_placeholder(annotation: Any) -> type[Placeholder]:
    """Create the placeholder class for a pydantic type.

    Raises:
        TypeError: pydantic has no schema for the type.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - its import takes half a second
    from pydantic.errors import PydanticUserError  # noqa: PLC0415

    # `Page[Item]` of a generic model: brackets are invalid in a reference (RFC 3986).
    name = _INVALID_NAME_CHARACTERS.sub("_", getattr(annotation, "__name__", "Value"))
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
        def read(cls, value: Any, convert: Convert) -> Any:  # noqa: ARG003 - pydantic reads nested values itself
            try:
                return adapter.validate_json(json.dumps(value), strict=True)
            except ValidationError as error:
                raise ValueError(pydantic_reason(error)) from None
            except Exception as error:  # a validator of the model may raise anything
                raise ValueError(bounded_text(f"{name}: {type(error).__name__}: {error}")) from error

    Model.__name__ = name
    return Model


def _pydantic_schema(adapter: Any, name: str, definitions: Definitions) -> Mapping[str, Any]:
    """Return the schema of a pydantic `TypeAdapter`, and add its definitions to `definitions` with a unique name prefix."""
    prefix, number = f"{name}-", 1
    while True:
        made: dict[str, Any] = adapter.json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
        if definitions.add({f"{prefix}{key}": each for key, each in made.pop("$defs", {}).items()}):
            return made
        number += 1
        prefix = f"{name}-{number}-"


def pydantic_reason(error: Any) -> str:
    """Describe a pydantic `ValidationError` for a model: the first five errors with their paths, each truncated."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    error_text = []
    for each in found[:_MAX_SHOWN_ERRORS]:
        path = "".join(f"/{step}" for step in each["loc"])
        error_text.append(bounded_text(f"{path}: {each['msg']}" if path else each["msg"]))
    more = f"; and {len(found) - _MAX_SHOWN_ERRORS} more" if len(found) > _MAX_SHOWN_ERRORS else ""
    return "; ".join(error_text) + more


def bounded_text(text: str) -> str:
    """Truncate the text of an exception of user code to `MAX_REASON_CHARACTERS`."""
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}..."


# --- unions ----------------------------------------------------------------------------------


def needs_choice(members: Sequence[Any]) -> bool:
    """Return True if msgspec rejects a union of `members`, because the JSON type of a value does not distinguish them."""
    if _are_tagged(members):
        return False
    plain = {kind for member in members if _is_plain(member) for kind in _json_kinds(member)}
    kinds = [*plain, *(kind for member in members if not _is_plain(member) for kind in _json_kinds(member))]
    others = [kind for kind in kinds if kind != "null"]
    return "any" not in kinds and (len(set(others)) < len(others) or ("custom" in others and len(others) > 1))


def _is_plain(member: Any) -> bool:
    """Return True if a union member is text, a number, a boolean, None or a literal, which msgspec can combine with others."""
    return get_origin(member) is Literal or member in (str, int, bool, float, None, type(None))


def _are_tagged(members: Sequence[Any]) -> bool:
    """Return True if all object members of a union are msgspec structs with a tag field."""
    objects = [member for member in members if "object" in _json_kinds(member)]
    return len(objects) > 1 and all(
        isinstance(each, type) and issubclass(each, msgspec.Struct) and each.__struct_config__.tag is not None
        for each in objects
    )


def _json_kinds(member: Any) -> set[str]:
    """Return the kinds of JSON values that a type accepts, such as "text", "int" or "object"."""
    origin = get_origin(member)
    if origin is Annotated:
        return _json_kinds(member.__origin__)
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
    """Create the placeholder class for a union of `members`.

    An object is read as the class that defines all of its keys. If several classes do, or if the value is not an object, it
    is read as the first matching member. An object with unknown keys is rejected if it matches several classes.
    """

    @functools.cache
    def defined_keys() -> list[frozenset[str] | None]:
        return [keys_of(object_schema(member)) for member in members]

    class Choice(Placeholder):
        @classmethod
        def schema(cls, definitions: Definitions) -> Mapping[str, Any]:
            return {"anyOf": [annotation_schema(member, definitions) for member in members]}

        @classmethod
        def read(cls, value: Any, convert: Convert) -> Any:
            return _read_member(_order_members(value, members, defined_keys()), value, convert)

    Choice.__name__ = _INVALID_NAME_CHARACTERS.sub("_", "_or_".join(map(union_label, members)))[:64]
    return Choice


def _order_members(
    value: Any, members: Sequence[Any], defined_keys: Sequence[frozenset[str] | None]
) -> list[tuple[Any, bool]]:
    """Return the members of a union in the order in which to try them for a value.

    Each is paired with True if the value has a key that the member does not define. `defined_keys` are the keys that each
    member defines; None if it defines none.
    """
    if not isinstance(value, dict):
        return [(member, False) for member in members]
    loose = [keys is not None and not value.keys() <= keys for keys in defined_keys]
    order = sorted(range(len(members)), key=lambda index: (loose[index], defined_keys[index] is None))
    return [(members[index], loose[index]) for index in order]


def _read_member(members: Sequence[tuple[Any, bool]], value: Any, convert: Convert) -> Any:
    """Convert a value to the first matching member of a union.

    A member that is paired with True does not define all keys of the value. It is used only if no other member matches.

    Raises:
        ValueError: No member matches, or the value has undefined keys and matches several members.
    """
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
        raise ValueError(
            f"the value matches {' and '.join(loose)}, but has keys that these classes do not define: remove such keys"
        )
    if loose:
        return loose.popitem()[1]
    raise ValueError(f"the value has none of the permitted types: {'; '.join(reasons[:_MAX_SHOWN_ERRORS])}")


def object_schema(member: Any) -> Mapping[str, Any]:
    """Return the JSON Schema of a union member. If the schema is only a `$ref`, return the target of the `$ref`."""
    definitions = Definitions()
    return inline_root_reference(annotation_schema(member, definitions), definitions.schemas)


def inline_root_reference(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace a schema that is only a `$ref` by its target, and return it with `definitions` as its `$defs`."""
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return {"$defs": definitions, **definitions.get(name, schema)}


def keys_of(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the property names of an object schema; None if the schema names no properties."""
    return frozenset(schema["properties"]) if "properties" in schema else None


def could_both_fit(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if one object could match both object schemas, so that its class would be ambiguous."""
    mine, others = keys_of(one), keys_of(other)
    if mine is None or others is None:
        return False
    needed = {*one.get("required", ()), *other.get("required", ())}
    if not needed <= (mine & others):
        return False
    return not any(
        _are_disjoint(
            inline_root_reference(one["properties"][key], one.get("$defs", {})),
            inline_root_reference(other["properties"][key], other.get("$defs", {})),
        )
        for key in needed
    )


def _are_disjoint(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if constants or JSON types show that no value can match both schemas; False if this is unclear."""
    if (parts := one.get("anyOf")) is not None:
        return all(_are_disjoint(inline_root_reference(part, one.get("$defs", {})), other) for part in parts)
    if "anyOf" in other:
        return _are_disjoint(other, one)
    mine, others = _values_of(one), _values_of(other)
    if mine is not None and others is not None:
        return not any(value in others for value in mine)
    types, other_types = _types_of(one), _types_of(other)
    return types is not None and other_types is not None and types.isdisjoint(other_types)


def _values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that the `const` or `enum` of a schema allows; None if the schema has neither keyword."""
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _types_of(schema: Mapping[str, Any]) -> set[str] | None:
    """Return the JSON types that a schema allows; None if the schema allows all types."""
    values, definitions = _values_of(schema), schema.get("type")
    if values is not None:
        return {_JSON_TYPES.get(type(value), "any") for value in values}
    if definitions is None:
        return None
    types = {definitions} if isinstance(definitions, str) else set(definitions)
    return types | {"integer"} if "number" in types else types


_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def union_label(member: Any) -> str:
    """Return the name of a union member for errors."""
    return "null" if member is type(None) else getattr(member, "__name__", str(member))


# --- schemas ---------------------------------------------------------------------------------


def annotation_schema(annotation: Any, definitions: Definitions) -> dict[str, Any]:
    """Return the JSON Schema of a type annotation, which may be a placeholder class or contain such classes.

    The schemas to which the result refers are added to `definitions`.

    Raises:
        TypeError: The annotation has no JSON Schema.
    """
    if isinstance(annotation, type) and issubclass(annotation, Placeholder):
        return dict(annotation.schema(definitions))
    later: list[type[Placeholder]] = []

    def hook(kind: type) -> dict[str, Any]:
        if not issubclass(kind, Placeholder):
            raise NotImplementedError
        later.append(kind)
        return {"$ref": f"#/$defs/{definitions.name_of(kind)}"}

    (schema,), components = msgspec.json.schema_components(
        [annotation], schema_hook=hook, ref_template="#/$defs/{name}"
    )
    if not definitions.add(components):
        raise TypeError(f"two classes in {annotation} have the same name: rename one")
    for kind in later:
        name = definitions.name_of(kind)
        if name not in definitions.schemas:
            definitions.schemas[name] = {}  # the schema of a recursive type refers to itself
            definitions.schemas[name] = dict(kind.schema(definitions))
    return schema
