"""JSON Schemas of the types in `actgent.web.json_response_types`, for the OpenAPI document, and examples of schemas."""

import ast
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import attrs

from actgent.web.json_response_types import Named

Schema = dict[str, Any]
_PLAIN: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_EXAMPLES: Mapping[str, Any] = {"string": "text", "integer": 1, "number": 0.5, "boolean": False, "null": None}
_COMPONENTS = "#/components/schemas/"


class TypeSchemas:
    """JSON Schemas of Python types. Classes and named types become OpenAPI components, which `components` collects by name."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}
        self._sources: dict[str, Any] = {}
        """Type of each component, by name."""

    def schema(self, annotation: Any) -> Schema:  # noqa: PLR0911 - one branch for each kind of type
        """Return the JSON Schema of a type for the OpenAPI document.

        Classes become components, and the schema is a reference.

        Raises:
            TypeError: The type has no schema, such as `Any` without a name.
        """
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self._annotated(arguments[0], arguments[1:])
        if origin is NotRequired:
            return self.schema(arguments[0])
        if annotation in _PLAIN:
            return {"type": _PLAIN[annotation]}
        if origin is Literal:
            return {"type": "string" if isinstance(arguments[0], str) else "boolean"} | _choice(arguments)
        if origin in (Union, types.UnionType):
            return self._union(arguments)
        if origin in (list, Sequence, tuple):
            return {"type": "array", "items": self.schema(arguments[0])}
        if origin in (dict, Mapping):
            names = {} if arguments[0] is str else {"propertyNames": self.schema(arguments[0])}
            return {"type": "object", **names, "additionalProperties": self.schema(arguments[1])}
        if is_typeddict(origin or annotation) or attrs.has(annotation):
            return self._reference(_name_of(annotation), annotation, lambda: self._object(annotation))
        raise TypeError(f"{annotation} has no schema: use a class with fields, or Annotated[..., Named(...)]")

    def _annotated(self, annotation: Any, marks: Sequence[Any]) -> Schema:
        named = next((mark for mark in marks if isinstance(mark, Named)), None)
        more = {key: value for mark in marks for key, value in mark.keywords.items()}
        if named is None:
            return self.schema(annotation) | more
        is_open = "type" in more or "properties" in more
        return self._reference(
            named.name, named, lambda: ({"type": "object"} if is_open else self.schema(annotation)) | more
        )

    def _reference(self, name: str, source: Any, build: Callable[[], Schema]) -> Schema:
        if self._sources.setdefault(name, source) != source:
            raise TypeError(
                f"two types have the component name {name}: {self._sources[name]} and {source}; rename one of them"
            )
        if name not in self.components:
            self.components[name] = {}  # a type may refer to itself
            self.components[name] = built = build()
            if "discriminator" in built:
                built["discriminator"] = self._discriminator(built)
        return {"$ref": f"{_COMPONENTS}{name}"}

    def _discriminator(self, union: Schema) -> Schema:
        """Return the OpenAPI discriminator of a union schema. It maps each constant of the type field to a member's component."""
        field = union["discriminator"]["propertyName"]
        members = [each["$ref"] for each in union["oneOf"]]
        values = [
            self.components[each.removeprefix(_COMPONENTS)]["properties"][field]["const"] for each in members
        ]
        return {"propertyName": field, "mapping": dict(zip(values, members, strict=True))}

    def _union(self, members: Sequence[Any]) -> Schema:
        schemas = [self.schema(each) for each in members]
        if all(set(each) == {"type"} for each in schemas):
            return {"type": [each["type"] for each in schemas]}
        plain = [each for each in schemas if set(each) != {"type"} or each["type"] != "null"]
        if len(plain) == 1 and isinstance(plain[0].get("type"), str) and "enum" not in plain[0]:
            return plain[0] | {"type": [plain[0]["type"], "null"]}
        if all("enum" in each for each in schemas):
            return schemas[0] | {"enum": [value for each in schemas for value in each["enum"]]}
        return {"oneOf": schemas}

    def _object(self, cls: Any) -> Schema:
        origin = get_origin(cls) or cls
        values = dict(zip(getattr(origin, "__parameters__", ()), get_args(cls), strict=False))
        texts = attribute_texts(origin)
        properties: dict[str, Schema] = {}
        for name, hint in get_type_hints(origin, include_extras=True).items():
            schema = self.schema(_substituted(hint, values))
            properties[name] = schema | ({"description": texts[name]} if name in texts else {})
        if attrs.has(origin):
            required = [field.name for field in attrs.fields(origin)]
        else:
            required = [name for name in properties if name in origin.__required_keys__]
        return {
            "type": "object",
            **({"description": inspect.cleandoc(origin.__doc__)} if origin.__doc__ else {}),
            "properties": properties,
            **({"required": required} if required else {}),
        }


def _substituted(hint: Any, values: Mapping[Any, Any]) -> Any:
    """Return a type annotation with its type variables replaced by the types in `values`."""
    if isinstance(hint, TypeVar):
        return values[hint]
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(values[each] for each in parameters)] if parameters and values else hint


def _choice(values: Sequence[Any]) -> Schema:
    return {"const": values[0]} if len(values) == 1 else {"enum": list(values)}


def _name_of(annotation: Any) -> str:
    """Return the OpenAPI component name of a class. For `Event[Literal["answer"], Data]` it is AnswerEvent."""
    arguments = get_args(annotation)
    name: str = (get_origin(annotation) or annotation).__name__.removesuffix("Document")
    if not arguments:
        return name
    first = arguments[0]
    start = get_args(first)[0].title() if get_origin(first) is Literal else _name_of(first)
    return f"{start}{name}"


@cache
def attribute_texts(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and its base classes, by field name; empty without the source code."""
    texts: dict[str, str] = {}
    for each in getattr(cls, "__orig_bases__", cls.__bases__):
        base = get_origin(each) or each
        if isinstance(base, type) and base.__module__.startswith("actgent."):
            texts |= attribute_texts(base)
    for field, text in pairwise(_class_bodies(cls.__module__).get(cls.__name__, ())):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                texts[name] = " ".join(words.split())
    return texts


@cache
def _class_bodies(module: str) -> Mapping[str, Sequence[ast.stmt]]:
    """Return the statements in the body of each class of a module, by class name; empty without the source code."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {each.name: each.body for each in tree.body if isinstance(each, ast.ClassDef)}


def example_of(schema: Mapping[str, Any], components: Mapping[str, Schema]) -> Any:  # noqa: PLR0911 - one branch for each kind of schema
    """Build an example value that matches a JSON Schema, from the examples and bounds in the schema."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return example_of(components[schema["$ref"].removeprefix(_COMPONENTS)], components)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        alternatives = schema.get("oneOf", ({},))
        wanted = {*schema.get("required", ()), *alternatives[0].get("required", ())}
        known = schema.get("properties", {})
        return {name: example_of(each, components) for name, each in known.items() if name in wanted}
    if "oneOf" in schema or "anyOf" in schema:
        return example_of((schema.get("oneOf") or schema["anyOf"])[0], components)
    if kind == "array":
        return [example_of(schema["items"], components)]
    if kind in ("integer", "number"):
        return max(
            schema.get("minimum", 1),
            schema.get("exclusiveMinimum", 0) + 1 if "exclusiveMinimum" in schema else 0,
        )
    return _EXAMPLES[kind or "string"]
