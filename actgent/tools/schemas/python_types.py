"""Conversion of Python types and signatures to JSON Schema, and of JSON values to Python objects.

msgspec supports most types and is strict. But it creates attrs classes without running their converters. Therefore each
attrs class and dataclass is first read as a struct with the same fields, and then created by its `__init__`.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import operator
import pathlib
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict, Union, get_args, get_origin

import attrs
import docstring_parser
import msgspec
from docstring_parser import Docstring

from actgent.errors import ConfigurationError

from .pydantic_and_union_types import (
    Definitions,
    Placeholder,
    annotation_schema,
    bounded_text,
    choice_placeholder,
    could_both_fit,
    is_pydantic,
    needs_choice,
    object_schema,
    pydantic_placeholder,
    union_label,
)
from .schema_validation import copy_schema

_STRING = msgspec.Meta(extra_json_schema={"type": "string"})
_EMPTY = inspect.Parameter.empty
_typed_dict: Any = TypedDict  # type checkers know only its literal form
_FACTORY: Any = attrs.Factory
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_SUFFIX = re.compile(r" - at `(key in )?\$?(?P<path>[^`]*)`$")


_SUPPORTED_TYPES = (
    "supported types are str, int, float, bool, None, list, dict, tuple, set, Literal, enums, dates, UUID, Decimal, "
    "dataclasses, attrs classes, TypedDict, NamedTuple, msgspec Structs, pydantic models, and unions of these: convert the class to "
    "one of them"
)


@attrs.frozen
class _Field:
    """Field of a class, or parameter of a function: name, type, and default value if it is optional."""

    name: str
    type: Any
    required: bool
    default: object = _EMPTY


# --- types -------------------------------------------------------------------------------


@attrs.define
class _TypeRewriter:
    """Rewrites annotations for msgspec: attrs classes and dataclasses become structs, unsupported types placeholders."""

    sources: dict[type, type] = attrs.field(factory=dict)
    """Original class by the struct that replaces it."""
    _done: dict[Any, Any] = attrs.field(factory=dict)
    """Rewritten types by original class, so that each class is rewritten once."""
    _placeholders: dict[int, tuple[Any, type[Placeholder]]] = attrs.field(factory=dict)
    """Annotation and its placeholder class, by the `id()` of the annotation.
    The annotation is kept so that its id stays valid.
    """
    _choices: dict[tuple[Any, ...], type[Placeholder]] = attrs.field(factory=dict)
    """Placeholder class of each union, by the members of the union."""

    @property
    def has_placeholders(self) -> bool:
        """True if the annotation contains a placeholder, because msgspec cannot read all of the type."""
        return bool(self._placeholders or self._choices)

    @property
    def unions(self) -> tuple[tuple[Any, ...], ...]:
        """The members of each union that has been replaced by a placeholder."""
        return tuple(self._choices)

    def rewrite(self, annotation: Any) -> Any:
        """Replace classes in an annotation by structs and placeholders that msgspec can read. Other types are unchanged."""
        origin = get_origin(annotation)
        if is_pydantic(annotation):
            key = id(annotation)  # pydantic fields are not hashable
            if key not in self._placeholders:
                self._placeholders[key] = annotation, pydantic_placeholder(annotation)
            return self._placeholders[key][1]
        if origin is None:
            return self._rewrite_class(annotation) if isinstance(annotation, type) else annotation
        if origin is Literal:
            return annotation
        if origin is Annotated:
            return Annotated[(self.rewrite(annotation.__origin__), *annotation.__metadata__)]
        return self._rewrite_generic(annotation, origin)

    def _rewrite_generic(self, annotation: Any, origin: Any) -> Any:
        if _has_fields(origin):
            raise TypeError(f"generic classes such as {annotation} are not supported")
        arguments = tuple(self.rewrite(argument) for argument in get_args(annotation))
        if origin in (Union, types.UnionType) and needs_choice(arguments):
            return self._choice(arguments)
        if arguments == get_args(annotation):
            return annotation
        kind: Any = Union if origin is types.UnionType else origin
        return kind[arguments]

    def _choice(self, members: tuple[Any, ...]) -> Any:
        """Return the placeholder for a union of `members`. If None is a member, it stays outside of the placeholder."""
        others = tuple(member for member in members if member is not type(None))
        if others not in self._choices:
            self._choices[others] = choice_placeholder(others)
        made: Any = self._choices[others]
        return made if len(others) == len(members) else made | None

    def _rewrite_class(self, cls: type) -> Any:
        if cls is object:
            return Any
        if issubclass(cls, pathlib.PurePath):
            return Annotated[cls, _STRING]
        if cls not in self._done:
            self._done[cls] = cls
            self._done[cls] = self._replace_class(cls)
        return self._done[cls]

    def _replace_class(self, cls: type) -> Any:
        if typing.is_typeddict(cls):
            return self._rewrite_typed_dict(cls)
        return self._struct(cls) if _has_fields(cls) else cls

    def _rewrite_typed_dict(self, cls: Any) -> Any:
        fields = {name: self.rewrite(_strip_required(hint)) for name, hint in _hints(cls).items()}
        marked = {
            name: Required[each] if name in cls.__required_keys__ else NotRequired[each]
            for name, each in fields.items()
        }
        made = _typed_dict(cls.__name__, marked)
        made.__doc__ = cls.__doc__
        return made

    def _struct(self, cls: type) -> type:
        """Create the msgspec struct for an attrs class or dataclass. The struct has the same fields and the same JSON."""
        fields = list(_init_arguments(cls))
        struct = msgspec.defstruct(
            self._free_name(cls.__name__),
            [(field.name, Any) if field.required else (field.name, Any, msgspec.UNSET) for field in fields],
            namespace={"__doc__": _summary(cls)},
            kw_only=True,
            frozen=True,
            forbid_unknown_fields=True,
        )
        self._done[cls] = struct  # before the fields, which may refer to the class itself
        self.sources[struct] = cls
        documents = parameter_texts(cls)
        for field in fields:  # msgspec reads annotations on first use
            struct.__annotations__[field.name] = self.annotate(field, documents.get(field.name))
        return struct

    def annotate(self, field: _Field, text: str | None) -> Any:
        """Return the rewritten type of a field, annotated with the description `text` and the default."""
        annotation = self.rewrite(field.type)
        if field.default is None and not _takes_none(annotation):
            annotation = annotation | None
        if described := text or _annotated_text(field.type):
            annotation = Annotated[annotation, msgspec.Meta(description=described)]
        return _with_default(annotation, field.default)

    def _free_name(self, name: str) -> str:
        """Return `name`, with a number if another struct has that name."""
        taken = {struct.__name__ for struct in self.sources}
        return next(free for free in _number_names(name) if free not in taken)


def _strip_required(hint: Any) -> Any:
    """Return the annotation of a TypedDict key without `Required` and `NotRequired`."""
    while get_origin(hint) in (Required, NotRequired):
        (hint,) = get_args(hint)
    return hint


def _number_names(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}{number}"
        number += 1


def _has_fields(cls: Any) -> bool:
    return isinstance(cls, type) and (attrs.has(cls) or dataclasses.is_dataclass(cls))


def _init_arguments(cls: type) -> Iterator[_Field]:
    """Yield the arguments that the `__init__` of an attrs class or dataclass accepts by name."""
    return _attrs_fields(cls) if attrs.has(cls) else _dataclass_fields(cls)


def _dataclass_fields(cls: Any) -> Iterator[_Field]:
    hints = _hints(cls)
    for field in filter(operator.attrgetter("init"), dataclasses.fields(cls)):
        default = _EMPTY if field.default is dataclasses.MISSING else field.default
        required = default is _EMPTY and field.default_factory is dataclasses.MISSING
        yield _Field(field.name, hints[field.name], required, default)


def _attrs_fields(cls: Any) -> Iterator[_Field]:
    hints = _hints(cls)
    for attribute in filter(operator.attrgetter("init"), attrs.fields(cls)):
        required = attribute.default is attrs.NOTHING
        default = _EMPTY if required or isinstance(attribute.default, _FACTORY) else attribute.default
        annotation = _converter_type(cls, attribute) or hints.get(attribute.name, attribute.type or Any)
        yield _Field(attribute.alias, annotation, required, default)


def _converter_type(cls: Any, attribute: "attrs.Attribute[Any]") -> Any:
    """Return the type that a field's converter accepts; None if the field has no converter with an annotation."""
    annotation = cls.__init__.__annotations__.get(attribute.alias)
    return None if attribute.converter is None or isinstance(annotation, str) else annotation


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)


def _takes_none(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _takes_none(annotation.__origin__)
    return annotation is Any or type(None) in get_args(annotation)


def _annotated_text(annotation: Any) -> str | None:
    """Return the first text in the metadata of `Annotated`, which describes the value; None without such a text."""
    metadata = getattr(annotation, "__metadata__", ()) if get_origin(annotation) is Annotated else ()
    return next((text for text in metadata if isinstance(text, str)), None)


def _with_default(annotation: Any, default: object) -> Any:
    if default is _EMPTY:
        return annotation
    try:
        plain = json.loads(json.dumps(msgspec.to_builtins(default), allow_nan=False))
    except (TypeError, ValueError):  # a sentinel: the schema shows only that the field is optional
        return annotation
    return Annotated[annotation, msgspec.Meta(extra_json_schema={"default": plain})]


# --- texts -------------------------------------------------------------------------------


def docstring_of(target: object) -> Docstring:
    """Parse the docstring of an object (Google, NumPy or reST style). An unparsable docstring is all description."""
    return _parse_docstring(inspect.getdoc(target) or "")


@functools.lru_cache(maxsize=256)
def _parse_docstring(text: str) -> Docstring:
    """Parse a docstring. Cached, since a tool parses its docstring twice, and objects created per session share theirs."""
    try:
        return docstring_parser.parse(text)
    except (docstring_parser.ParseError, LookupError, ValueError):  # the parser fails on some texts
        document = Docstring()
        document.short_description = text
        return document


def description_of(target: object) -> str:
    """Return the docstring of an object without sections such as `Args:`; empty if the object has no docstring."""
    document = docstring_of(target)
    return (document.description or "").strip()


def _summary(cls: type) -> str:
    """Return the docstring of a class without sections such as `Args:`; empty if `dataclass` generated the docstring."""
    text = cls.__doc__ or ""
    generated = text.startswith(f"{cls.__name__}(") and dataclasses.is_dataclass(cls)
    return "" if generated else description_of(cls)


def parameter_texts(target: object) -> dict[str, str]:
    """Return the texts of the parameters and attributes in an object's docstring, by name."""
    parameters = docstring_of(target).params
    return {item.arg_name: " ".join(item.description.split()) for item in parameters if item.description}


# --- compiled types ----------------------------------------------------------------------


@attrs.frozen
class CompiledType:
    """A Python type with its JSON Schema and the conversion of JSON values to the type."""

    schema: Mapping[str, Any]
    """JSON Schema of the type. Every `$ref` in it points into its own `$defs`."""
    _type: Any = attrs.field(repr=False)
    """The rewritten type that is passed to msgspec for decoding."""
    _sources: Mapping[type, type] = attrs.field(repr=False)
    """Original class by the struct that replaces it in the type."""
    has_placeholders: bool = attrs.field(default=False, repr=False)
    """True if msgspec cannot read a part of the type: pydantic types, and unions with similar members."""
    unions: tuple[tuple[Any, ...], ...] = attrs.field(default=(), repr=False)
    """The members of each union that msgspec cannot read, because its members are similar in JSON."""

    def ambiguous_pair(self) -> tuple[str, str] | None:
        """Return the names of two classes in a union that the same object could match; None if no pair is ambiguous."""
        for members in self.unions:
            schemas = [(union_label(member), object_schema(member)) for member in members]
            for (name, one), (other_name, other) in itertools.combinations(schemas, 2):
                if could_both_fit(one, other):
                    return name, other_name
        return None

    def convert(self, value: Any) -> Any:
        """Convert a decoded JSON value to the type. The types are strict: "5" and true are not an int; 1 is a float, and 1.0 is an int.

        Raises:
            ValueError: The value does not match, or the class rejects it; the text contains the location.
        """
        is_built = self._sources or self.has_placeholders
        try:
            return (_Converter(self._build_value) if is_built else _PLAIN_CONVERTER).convert(
                self._type, value
            )
        except ValueError:
            return (_Converter(self._build_value) if is_built else _PLAIN_CONVERTER).convert(
                self._type, _integral_floats_to_int(value)
            )

    def _build_value(self, value: Any) -> Any:
        """Replace structs in a value by instances of the user's classes, and placeholders by their values.

        Applies at any depth.
        """
        kind = type(value)
        if isinstance(value, Placeholder):
            return value.value
        if kind in self._sources:
            return self._build_instance(value, self._sources[kind])
        if kind is dict:
            return {key: self._build_value(item) for key, item in value.items()}
        if kind in (list, tuple, set, frozenset):
            return kind(self._build_value(item) for item in value)
        return value

    def _build_instance(self, struct: Any, cls: type) -> Any:
        """Create an instance of a user's class from the struct that msgspec read.

        Raises:
            ValueError: The class rejects the values.
        """
        given = {name: getattr(struct, name) for name in struct.__struct_fields__}
        fields = {name: self._build_value(item) for name, item in given.items() if item is not msgspec.UNSET}
        try:
            return cls(**fields)
        except Exception as error:  # `__init__` is user code, and the values are untrusted
            reason = (
                error.args[0] if error.args else type(error).__name__
            )  # attrs adds the attribute as a further argument
            raise ValueError(bounded_text(f"{cls.__name__}: {reason}")) from error


@attrs.define
class _Converter:
    """Conversion of one JSON value.

    Caches results, so that each part of the value is read once per type, even if several branches contain it.
    """

    _build: Callable[[Any], Any] | None
    """Function that replaces structs in a decoded value by the user's classes; None if the type contains no structs."""
    _results: dict[tuple[int, type], tuple[Any, str]] = attrs.field(factory=dict)
    """Cached conversions of parts of the JSON value.
    The key is the `id()` of the part and the class (`Placeholder`) that replaces its type. The value is the result and
    an empty string, or None and the error text.
    """

    def convert(self, annotation: Any, value: Any) -> Any:
        """Convert a part of the JSON value to the type `annotation`.

        Raises:
            ValueError: The part does not match the type.
        """
        try:
            read = msgspec.convert(value, annotation, str_keys=True, dec_hook=self._decode)
        except msgspec.ValidationError as error:
            raise ValueError(_path_first(str(error))) from None
        return read if self._build is None else self._build(read)

    def _decode(self, kind: type, value: Any) -> Any:
        if issubclass(kind, Placeholder):
            return self._decode_once(kind, value)
        if issubclass(kind, pathlib.PurePath) and isinstance(value, str):
            return kind(value)
        raise ValueError(f"Expected a path as text, got {type(value).__name__}")

    def _decode_once(self, kind: type[Placeholder], value: Any) -> Any:
        key = (id(value), kind)
        if key not in self._results:
            try:
                self._results[key] = kind(kind.read(value, self.convert)), ""
            except ValueError as error:
                self._results[key] = None, str(error)
        read, wrong = self._results[key]
        if wrong:
            raise ValueError(wrong)
        return read


_PLAIN_CONVERTER = _Converter(None)
"""Converter for types that msgspec reads completely; it keeps no state."""


def _path_first(text: str) -> str:
    """Move the path in msgspec's error to the front: `... - at $.a[0]` becomes `/a/0: ...`."""
    match = _SUFFIX.search(text)
    if match is None:
        return text
    path = re.sub(r"\[(\d+|\.\.\.)\]", r"/\1", match["path"].replace(".", "/"))
    problem = text[: match.start()]
    return f"{path}{problem}" if problem.startswith("/") else f"{path}: {problem}"


def _integral_floats_to_int(value: Any) -> Any:
    """Replace floats such as 1.0 by integers at any depth, since JSON does not distinguish them."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _integral_floats_to_int(item) for key, item in value.items()}
    return [_integral_floats_to_int(item) for item in value] if isinstance(value, list) else value


def compile_type(annotation: Any) -> CompiledType:
    """Compile a type that JSON can represent: builtins, attrs classes, dataclasses, TypedDict, enums, dates, unions.

    Raises:
        ConfigurationError: The type has no JSON Schema.
    """
    rewriter = _TypeRewriter()
    try:
        rewritten = rewriter.rewrite(annotation)
        return CompiledType(
            _schema(rewritten), rewritten, rewriter.sources, rewriter.has_placeholders, rewriter.unions
        )
    except (TypeError, NameError, RecursionError) as error:
        raise ConfigurationError(
            f"{annotation} has no JSON Schema: {_reason(error)}; {_SUPPORTED_TYPES}, or pass a JSON Schema (a dict)"
        ) from error


def _reason(error: Exception) -> str:
    """Return the last line of an error's text. The other lines are advice of msgspec that users cannot apply."""
    return str(error).rpartition("\n")[2]


def schema_of(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type.

    Raises:
        ConfigurationError: The type has no JSON Schema.
    """
    return dict(compile_type(annotation).schema)


def _schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of a rewritten type, with the root definition inlined."""
    found = Definitions()
    schema, definitions = annotation_schema(annotation, found), found.schemas
    msgspec.json.Decoder(annotation)  # raises for types that have a schema but cannot be read
    name = schema.get("$ref", "").rpartition("/")[2]
    if name not in definitions:
        return {**schema, "$defs": definitions} if definitions else schema
    root = {**definitions[name], **{key: schema[key] for key in schema if key not in ("$ref", "$defs")}}
    others = {key: value for key, value in definitions.items() if key != name}
    if f'"#/$defs/{name}"' in json.dumps(definitions):
        return {**root, "$defs": definitions}
    return {**root, "$defs": others} if others else root


# --- signatures --------------------------------------------------------------------------

_BUILT_IN_TYPES = (Any, str, int, float, bool, None, type(None), list, dict)
_BUILT_IN_ORIGINS = (list, dict, Union, types.UnionType)
_PLAIN_DEFAULTS = (str, int, float, bool, type(None))


def compile_signature(
    function: Callable[..., Any],
    hints: Mapping[str, Any],
    *,
    label: str,
    texts: Mapping[str, str],
    leave_out: Collection[str] = (),
) -> CompiledType:
    """Compile the parameters of a function to a type for one JSON object.

    `CompiledType.convert` of the result returns the keyword arguments for a call.

    Args:
        function: The function.
        hints: Resolved annotations by parameter name.
        label: Name of the function, for errors.
        texts: Descriptions by parameter name.
        leave_out: Parameters that the model does not fill in.

    Raises:
        ConfigurationError: JSON cannot represent a parameter; the text names it.
    """
    fields = tuple(
        _parameter(parameter, hints, label)
        for parameter in _signature(function, label).parameters.values()
        if parameter.name not in leave_out
    )
    if not all(map(_is_cacheable, fields)):
        return _compile_fields(fields, label, texts)
    described = tuple((field.name, texts.get(field.name)) for field in fields)
    compiled = _compile_plain_fields(fields, label, described)
    return attrs.evolve(compiled, schema=copy_schema(compiled.schema))


@functools.lru_cache(maxsize=512)
def _compile_plain_fields(
    fields: tuple[_Field, ...], label: str, texts: tuple[tuple[str, str | None], ...]
) -> CompiledType:
    """Compile parameters of built-in types to a type for one JSON object.

    Cached, because programs create tools of the same methods per customer or session.
    """
    return _compile_fields(fields, label, {name: text for name, text in texts if text is not None})


def _is_cacheable(field: _Field) -> bool:
    """Return True if a parameter's schema can be cached, because its type is built-in and its default is hashable.

    Classes are not cacheable, because their annotations may resolve differently later.
    """
    return _is_built_in(field.type) and (field.default is _EMPTY or type(field.default) in _PLAIN_DEFAULTS)


def _is_built_in(annotation: Any) -> bool:
    if annotation in _BUILT_IN_TYPES:
        return True
    if get_origin(annotation) is Literal:
        return all(type(value) in _PLAIN_DEFAULTS for value in get_args(annotation))
    return get_origin(annotation) in _BUILT_IN_ORIGINS and all(map(_is_built_in, get_args(annotation)))


def _compile_fields(fields: Collection[_Field], label: str, texts: Mapping[str, str]) -> CompiledType:
    rewriter = _TypeRewriter()
    annotations = {field.name: _annotate(rewriter, field, label, texts) for field in fields}
    hints = {
        field.name: (Required if field.required else NotRequired)[annotations[field.name]] for field in fields
    }
    rewritten = _typed_dict("Arguments", hints)
    try:
        schema = {**_schema(rewritten), "additionalProperties": False}
    except (TypeError, NameError, RecursionError):
        for field in fields:  # find the parameter: a check of each before took most of the time of `@tool`
            with _parameter_errors(field, label):
                _schema(annotations[field.name])
        raise
    return CompiledType(_without_title(schema), rewritten, rewriter.sources, rewriter.has_placeholders)


def _signature(function: Callable[..., Any], label: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise ConfigurationError(f"{label} has no signature: pass parameters= (a JSON Schema)") from error


def _parameter(parameter: inspect.Parameter, hints: Mapping[str, Any], label: str) -> _Field:
    if parameter.kind in _VARIADIC:
        raise ConfigurationError(
            f"{label}: {parameter} accepts unnamed arguments: name the parameters, or pass parameters= (a JSON Schema)"
        )
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise ConfigurationError(
            f"{label}: parameter {parameter.name!r} is positional-only, but tools receive arguments by name"
        )
    required = parameter.default is _EMPTY
    return _Field(parameter.name, hints.get(parameter.name, Any), required, parameter.default)


def _annotate(rewriter: _TypeRewriter, field: _Field, label: str, texts: Mapping[str, str]) -> Any:
    with _parameter_errors(field, label):
        return rewriter.annotate(field, texts.get(field.name))


@contextmanager
def _parameter_errors(field: _Field, label: str) -> Iterator[None]:
    """Context manager: convert an error of its block to a `ConfigurationError` that names the parameter."""
    try:
        yield
    except (TypeError, NameError, RecursionError) as error:
        raise ConfigurationError(
            f"{label}: parameter {field.name!r} has no JSON Schema for its type ({field.type}): {_reason(error)}; "
            f"{_SUPPORTED_TYPES}, or pass parameters= (a JSON Schema)"
        ) from error


def _without_title(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}
