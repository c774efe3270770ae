"""Parsed OpenAPI document (3.0 to 3.2): its operations, references and schemas.

Specification: https://spec.openapis.org/oas/v3.1.1 and v3.0.4. Schemas of 3.0 are a dialect and are converted to JSON
Schema; schemas of later versions are JSON Schema.
"""

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin

import attrs
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from actgent.errors import ConfigurationError
from actgent.toolsets.http.bounded_http_requests import is_http_url

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_MAX_REFERENCE_CHAIN = 50
"""Maximum number of consecutive references that are followed."""
_MAX_VALUES = 2_000_000
"""Maximum number of values in a document with expanded aliases; real documents have up to 500,000."""
MAX_TOOL_VALUES = 10_000
"""Maximum number of values in the schemas of one operation, including referenced schemas.

Compiling 10,000 values takes 0.3 s, and no model reads a tool of 100,000 tokens.
"""
_INDEX = re.compile("[0-9]{1,9}")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_DROPPED = frozenset(
    "discriminator xml externalDocs example examples deprecated readOnly writeOnly nullable".split()
)


_TOO_LARGE = f"its schemas, including referenced schemas, have more than {MAX_TOOL_VALUES:,} values"


class Unsupported(Exception):
    """Error: an operation of the document cannot become a tool. The text is the reason."""


@attrs.frozen
class Operation:
    """An operation of an OpenAPI document: an HTTP method of a path."""

    path: str
    method: str
    spec: Mapping[str, Any]
    """The operation object in the OpenAPI document."""
    parameters: tuple[Mapping[str, Any], ...]
    """Parameter objects of the path and the operation, with references resolved."""
    servers: Any = None
    """The value of `servers` of the path item; None without it. The operation's own servers are in `spec`."""

    @property
    def id(self) -> str:
        """Id of the API operation: its `operationId`, or else an id made of its HTTP method and path."""
        given = self.spec.get("operationId")
        return given if isinstance(given, str) and given else self.default_id

    @property
    def default_id(self) -> str:
        """Id of the API operation, made of its HTTP method and path."""
        return f"{self.method}{self.path}".replace("/", "_")

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that the OpenAPI document gives to the operation."""
        tags = self.spec.get("tags")
        return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()

    @property
    def text(self) -> str:
        """Summary and description of the operation, as the description of its tool."""
        texts = [self.spec.get("summary"), self.spec.get("description")]
        return "\n".join(
            dict.fromkeys(text.strip() for text in texts if isinstance(text, str) and text.strip())
        )


@attrs.frozen
class TranslatedSchema:
    """A schema converted to JSON Schema, with default names for its references."""

    source: Any
    """The schema as written in the OpenAPI document."""
    schema: Any
    """The schema converted to JSON Schema."""
    references: tuple[str, ...]
    """Targets of the references in the schema, in order of occurrence."""
    values: int
    """Number of JSON values in the schema, to limit its size."""


class APIDocument:
    """A parsed OpenAPI document.

    Raises:
        ConfigurationError: The data is not an OpenAPI document of a supported version.
    """

    def __init__(self, data: object, *, origin: str = "") -> None:
        """Check the version and structure of an OpenAPI document.

        Args:
            data: The document as parsed data.
            origin: URL of the document, to resolve relative server URLs; empty for a document without a URL.
        """
        data = _to_json(data)
        if not isinstance(data, dict) or not isinstance(data.get("paths", {}), dict):
            raise ConfigurationError(
                "this is not an OpenAPI document: it must have the members openapi, info and paths"
            )
        version = str(data.get("openapi") or data.get("swagger"))
        if not version.startswith(("3.0", "3.1", "3.2")):
            raise ConfigurationError(
                f"OpenAPI {version} is not supported: convert the document to 3.0 or 3.1"
            )
        self.data = data
        self.origin = origin
        self.is_3_0 = version.startswith("3.0")
        self._targets: dict[str, TranslatedSchema] = {}
        """Converted schemas by reference, shared by the tools."""

    @property
    def title(self) -> str:
        """Title of the API; empty if the document has no title."""
        info = self.data.get("info")
        return str(info.get("title", "")) if isinstance(info, Mapping) else ""

    def operations(self, skipped: dict[str, str] | None = None) -> list[Operation]:
        """Return all valid operations of the document in order.

        The dict `skipped` receives why the other operations are invalid, by method and path.
        """
        skipped = {} if skipped is None else skipped
        found: list[Operation] = []
        for path, node in self.data.get("paths", {}).items():
            if path.startswith("x-"):
                continue
            try:
                item = self.resolve(node)
            except Unsupported as error:
                skipped[path] = str(error)
                continue
            for method in METHODS:
                if isinstance(item.get(method), Mapping):
                    try:
                        found.append(self._operation(path, method, item))
                    except Unsupported as error:
                        skipped[f"{method} {path}"] = str(error)
        return found

    def _operation(self, path: str, method: str, item: Mapping[str, Any]) -> Operation:
        if not path.startswith("/"):
            raise Unsupported("the path of the operation must begin with /")
        spec = item[method]
        parameters = self._merge_parameters(item.get("parameters"), spec.get("parameters"))
        return Operation(path, method, spec, parameters, item.get("servers"))

    def _merge_parameters(self, *lists: Any) -> tuple[Mapping[str, Any], ...]:
        """Merge the `parameters` lists of a path and of its operation.

        A parameter of the operation overrides that of the path with equal name and location.
        """
        found = [self.resolve(parameter) for parameters in lists for parameter in _require_list(parameters)]
        return tuple({(str(each.get("name")), str(each.get("in"))): each for each in found}.values())

    def security_schemes(self) -> Mapping[str, Any]:
        """Return the security schemes of the document by name. References inside of the schemes are not resolved."""
        components = self.data.get("components")
        schemes = components.get("securitySchemes") if isinstance(components, Mapping) else None
        return schemes if isinstance(schemes, Mapping) else {}

    def server(self, operation: Operation | None = None) -> str:
        """Return the base URL of the API, or that of an operation.

        The operation or its path may have another server than the document.

        Raises:
            ConfigurationError: The document has no absolute server URL.
        """
        lists = [operation.spec.get("servers"), operation.servers] if operation is not None else []
        for servers in (*lists, self.data.get("servers")):
            if isinstance(servers, list) and servers and isinstance(servers[0], Mapping):
                return _resolve_server(self.origin, _fill_server_variables(servers[0]))
        return _resolve_server(self.origin, "")

    def resolve(self, node: Any) -> Mapping[str, Any]:
        """Follow the references of a node until a node that is not a reference, and return that node.

        Raises:
            Unsupported: A reference has no target, leaves the document, or is circular.
        """
        for _ in range(_MAX_REFERENCE_CHAIN):
            if not isinstance(node, Mapping):
                raise Unsupported("each part of the operation must be an object")
            if not isinstance(node.get("$ref"), str):
                return node
            node = self.lookup(node["$ref"])
        raise Unsupported("the references in the operation must not form a cycle")

    def lookup(self, reference: str) -> Any:
        """Return the node of the document at a `$ref` such as `#/components/schemas/City` (RFC 6901).

        Other documents are never fetched.

        Raises:
            Unsupported: The reference has no target or leaves the document.
        """
        if not reference.startswith("#/"):
            raise Unsupported(f"the reference {reference!r} points outside of the document")
        node: Any = self.data
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and _INDEX.fullmatch(key) and int(key) < len(node):
                node = node[int(key)]
            else:
                raise Unsupported(f"the reference {reference!r} has no target")
        return node

    def translate(self, schema: Any) -> TranslatedSchema:
        """Convert a schema of the document to JSON Schema. Schemas to which it refers stay unchanged.

        Raises:
            Unsupported: A part of the schema is invalid, or the schema is too large.
        """
        values = _count_values(schema, MAX_TOOL_VALUES)
        if values > MAX_TOOL_VALUES:
            raise Unsupported(_TOO_LARGE)
        translation = _SchemaConverter(self.is_3_0)
        return TranslatedSchema(schema, translation.convert(schema), tuple(translation.references), values)

    def translate_target(self, reference: str) -> TranslatedSchema:
        """Convert the schema at a reference to JSON Schema; the result is cached for the document.

        Raises:
            Unsupported: The reference has no target within the document, or the target is not a schema.
        """
        if (target := self._targets.get(reference)) is None:
            target = self._targets[reference] = self.translate(self.lookup(reference))
        return target


class SchemaTranslator:
    """Converts the schemas of one tool, and collects referenced schemas in `definitions`. Recursive schemas are supported."""

    def __init__(self, document: APIDocument) -> None:
        self._document = document
        self.definitions: dict[str, Any] = {}
        """Converted referenced schemas by name."""
        self._names: dict[str, str] = {}
        self._values = 0

    def translate(self, schema: Any) -> Any:
        """Convert a schema to JSON Schema. Remember all schemas to which it refers, for `$defs`.

        Raises:
            Unsupported: A reference has no target within the document, or the tool's schemas are too large.
        """
        translated = self._document.translate(schema)
        self._add(translated)
        self._define(translated.references)
        return self._use_tool_names(translated)

    def _define(self, references: Sequence[str]) -> None:
        """Convert the schemas at these references, and all schemas to which they refer, and add them to `$defs`."""
        waiting, fresh = [*reversed(references)], list[str]()
        while waiting:
            reference = waiting.pop()
            if reference in self._names:
                continue
            name = self._names[reference] = self._free_name(reference)
            self.definitions[name] = True  # reserves the position
            fresh.append(reference)
            target = self._document.translate_target(reference)
            self._add(target)
            waiting += reversed(target.references)
        for reference in fresh:
            self.definitions[self._names[reference]] = self._use_tool_names(
                self._document.translate_target(reference)
            )

    def _add(self, translated: TranslatedSchema) -> None:
        """Add the size of a converted schema to that of the tool's schemas. Raise `Unsupported` if they are too large together."""
        self._values += translated.values
        if self._values > MAX_TOOL_VALUES:
            raise Unsupported(_TOO_LARGE)

    def _free_name(self, reference: str) -> str:
        name = plain = _default_name(reference)
        while name in self.definitions:
            name = f"{plain}_{len(self.definitions)}" if name == plain else f"{name}_"
        return name

    def _use_tool_names(self, translated: TranslatedSchema) -> Any:
        """Return the converted schema with references to the names that this tool's `$defs` have.

        If no name differs from its default, return `translated.schema` itself: tools share this object to save memory.
        """
        if all(self._names[each] == _default_name(each) for each in translated.references):
            return translated.schema
        return _SchemaConverter(self._document.is_3_0, self._names).convert(translated.source)


class _SchemaConverter:
    """Converts a schema to JSON Schema, and records its references."""

    def __init__(self, is_3_0: bool, names: Mapping[str, str] | None = None) -> None:  # noqa: FBT001 - internal
        """Prepare the conversion of OpenAPI schemas to JSON Schema.

        Args:
            is_3_0: True for a schema of OpenAPI 3.0, which has a dialect.
            names: Names in `$defs` by reference; None uses the default names.
        """
        self._is_3_0, self._names = is_3_0, names
        self.references: dict[str, None] = {}

    def convert(self, schema: Any) -> Any:
        """Convert one schema and its subschemas to JSON Schema, and record its references.

        Raises:
            Unsupported: A part of the schema is invalid.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise Unsupported("a schema must be an object")
        if isinstance(reference := schema.get("$ref"), str):
            self.references[reference] = None
            name = _default_name(reference) if self._names is None else self._names[reference]
            return {**self._siblings(schema), "$ref": f"#/$defs/{name}"}
        translated = {
            key: self._value(key, value)
            for key, value in schema.items()
            if key not in _DROPPED and not key.startswith("x-")
        }
        _drop_unusable(schema, translated)
        return _from_3_0(schema, translated) if self._is_3_0 else translated

    def _siblings(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}

    def _value(self, key: str, value: Any) -> Any:
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            return {name: self.convert(each) for name, each in _require_object(value).items()}
        if key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            return [self.convert(each) for each in _require_list(value)]
        is_schema = key in (
            "items",
            "additionalProperties",
            "not",
            "contains",
            "if",
            "then",
            "else",
            "propertyNames",
        )
        return self.convert(value) if is_schema else value


def _count_values(schema: Any, limit: int) -> int:
    """Return the number of JSON values in a schema. If it exceeds `limit`, counting stops and the result is above `limit`."""
    count, left = 0, [schema]
    while left and count <= limit:
        each = left.pop()
        count += 1
        left += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
    return count


def _default_name(reference: str) -> str:
    return _UNFIT.sub("_", reference.rpartition("/")[2]) or "schema"


def _require_list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | None):
        raise Unsupported(f"a schema has {type(value).__name__} where OpenAPI requires a list")
    return value or ()


def _require_object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Unsupported(f"a schema has {type(value).__name__} where OpenAPI requires an object")
    return value


def _drop_unusable(schema: Mapping[str, Any], translated: dict[str, Any]) -> None:
    """Remove the read-only properties of a schema, which requests must not have, and keywords with common mistakes.

    `schema` is the schema as written. `translated` is its converted form, which is changed.
    """
    if not isinstance(required := translated.get("required", []), list):
        del translated["required"]  # `required: true` on a property
        required = []
    kinds = translated.get("type")
    if isinstance(kinds, str) and kinds not in _TYPES:
        del translated["type"]
    properties = schema.get("properties")
    for name, each in properties.items() if isinstance(properties, Mapping) else ():
        if isinstance(each, Mapping) and each.get("readOnly") is True:
            del translated["properties"][name]
            if name in required:
                required = translated["required"] = [other for other in required if other != name]


def _from_3_0(schema: Mapping[str, Any], translated: dict[str, Any]) -> dict[str, Any]:
    """Replace keywords of OpenAPI 3.0 that JSON Schema lacks: `nullable` and boolean exclusive bounds.

    `schema` is the schema as written. `translated` is its converted form, which is changed and returned.
    """
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(flag := translated.get(exclusive), bool):
            del translated[exclusive]
            if flag and bound in translated:
                translated[exclusive] = translated.pop(bound)
    if schema.get("nullable") is True:
        if isinstance(kind := translated.get("type"), str):
            translated["type"] = [kind, "null"]
        if isinstance(allowed := translated.get("enum"), list) and None not in allowed:
            translated["enum"] = [*allowed, None]
    return translated


def _fill_server_variables(server: Mapping[str, Any]) -> str:
    url = str(server.get("url", ""))
    variables = server.get("variables")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        if isinstance(variable, Mapping) and "default" in variable:
            url = url.replace(f"{{{name}}}", str(variable["default"]))
    return url


def _resolve_server(origin: str, url: str) -> str:
    """Return a server URL relative to `origin` as an absolute URL.

    Raises:
        ConfigurationError: The URL is not absolute, or contains a user, query, fragment or variable.
    """
    try:
        whole = urljoin(origin, url) if origin else url
    except ValueError:
        whole = ""
    if not is_server(whole):
        raise ConfigurationError(
            f"the document must have an absolute server URL without variables, not {url!r:.200}: otherwise pass server="
        )
    return whole.rstrip("/")


def is_server(url: str) -> bool:
    """Return True for an http or https URL that a path can be appended to: no user, query, fragment or variables."""
    return is_http_url(url) and not any(each in url for each in "@?#{}\\")


# --- parsing -----------------------------------------------------------------------------------


def _to_json(data: object) -> Any:
    """Convert a parsed document to plain JSON data.

    YAML also has dates, keys that are not text, and aliases that can expand 1 KB to 1 TB.

    Raises:
        ConfigurationError: The document is too large, too deep, or contains itself.
    """
    sizes: dict[int, tuple[Any, int]] = {}
    try:
        plain, size = _convert_node(data, sizes, {})
    except RecursionError:
        raise ConfigurationError("the OpenAPI document is nested too deeply") from None
    if size > _MAX_VALUES:
        raise ConfigurationError(
            f"the document must have at most {_MAX_VALUES:,} values with expanded aliases"
        )
    return plain


def _convert_node(node: Any, converted: dict[int, tuple[Any, int]], above: dict[int, Any]) -> tuple[Any, int]:
    """Convert a node of a parsed document to plain JSON data. Return the data and their number of values.

    Args:
        node: The node.
        converted: Results by id of the node, so that a shared node is converted once.
        above: The nodes that contain this node, by id.
    """
    if not isinstance(node, Mapping | list | tuple):
        return _scalar(node), 1
    if id(node) in converted:
        return converted[id(node)]
    if id(node) in above:
        raise ConfigurationError("a part of the document must not contain itself")
    above[id(node)] = node
    if isinstance(node, Mapping):
        each = {str(key): _convert_node(item, converted, above) for key, item in node.items()}
        plain: Any = {key: item for key, (item, _) in each.items()}
        size = sum(size for _, size in each.values()) + 1
    else:
        items = [_convert_node(item, converted, above) for item in node]
        plain, size = [item for item, _ in items], sum(size for _, size in items) + 1
    del above[id(node)]
    converted[id(node)] = plain, size
    return plain, size


def _scalar(value: Any) -> Any:
    """Convert a YAML scalar to a JSON value. Values that JSON does not have, such as dates and NaN, become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)


class _CheckedReader:
    """Binary file object that calls a function before each read, so that the parsing of YAML can be stopped."""

    def __init__(self, data: bytes, check: Callable[[], object]) -> None:
        self._data, self._check = io.BytesIO(data), check

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._data.read(size)


def read_document(text: str | bytes, *, name: str, check: Callable[[], object] = lambda: None) -> Any:
    """Parse a JSON or YAML document.

    Args:
        text: The text of the document.
        name: Name of the document for errors.
        check: Called repeatedly while YAML is parsed, which takes seconds per megabyte. It may raise to stop parsing.

    Raises:
        ConfigurationError: The text is neither JSON nor YAML, or has too many values.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if sum(data.count(each) for each in (b"[", b"{", b",")) > _MAX_VALUES or data.count(b"\n") > _MAX_VALUES:
        raise ConfigurationError(f"{name} must have at most {_MAX_VALUES:,} values")
    try:
        value = json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise ConfigurationError(f"{name} is nested too deeply") from None
    else:
        return value
    try:
        return YAML(typ="safe").load(_CheckedReader(data, check))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
        place = "" if mark is None else f" in line {mark.line + 1}"
        raise ConfigurationError(f"{name} is neither JSON nor YAML: {reason:.200}{place}") from None


def read_file(path: Path) -> Any:
    """Read and parse a document file.

    Raises:
        ConfigurationError: The file cannot be read, or is neither JSON nor YAML.
    """
    try:
        return read_document(path.read_bytes(), name=str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
