"""An OpenAPI document (3.0 or 3.1): its operations, references followed, schemas as JSON Schema has them.

Specification: https://spec.openapis.org/oas/v3.1.1 and v3.0.4. A schema of 3.0 is a dialect of its own, which is
translated; one of 3.1 is JSON Schema already.
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
from actgent.toolsets.http import is_http_url

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_CHAIN = 50
"""How many references may lead from one to the next."""
_LARGEST = 2_000_000
"""Values that a document may have once its aliases are written out; real documents have up to 500,000."""
MAX_TOOL_VALUES = 10_000
"""Values in the schemas of one operation, with all that they refer to. A checker of 10,000 values takes 0.3 s to compile,
and no model reads a tool of 100,000 tokens.
"""
_PLACE = re.compile("[0-9]{1,9}")
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_DROPPED = frozenset(
    "discriminator xml externalDocs example examples deprecated readOnly writeOnly nullable".split()
)


_TOO_LARGE = f"its schemas, with those that they refer to, have more than {MAX_TOOL_VALUES:,} values"


class Unsupported(Exception):
    """An operation cannot be a tool; the text says why."""


@attrs.frozen
class Operation:
    """One operation: a method of a path, with what the path says for all of its methods."""

    path: str
    method: str
    spec: Mapping[str, Any]
    parameters: tuple[Mapping[str, Any], ...]
    servers: Any = None
    """Servers that the path names; those of the operation are in `spec`."""

    @property
    def id(self) -> str:
        """Its own id, or one made of method and path."""
        given = self.spec.get("operationId")
        return given if isinstance(given, str) and given else f"{self.method}{self.path}".replace("/", "_")

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is filed under."""
        tags = self.spec.get("tags")
        return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()

    @property
    def text(self) -> str:
        """What it is for, in words."""
        said = [self.spec.get("summary"), self.spec.get("description")]
        return "\n".join(
            dict.fromkeys(text.strip() for text in said if isinstance(text, str) and text.strip())
        )


@attrs.frozen
class Translated:
    """A schema as JSON Schema, for a tool in which all that it refers to has its plain name."""

    given: Any
    schema: Any
    references: tuple[str, ...]
    """What it refers to by itself, in the order in which it does."""
    values: int
    """Number of values in the schema."""


class APIDocument:
    """A document that was read.

    Raises:
        ConfigurationError: it is no OpenAPI document of a version that is known.
    """

    def __init__(self, data: object, *, origin: str = "") -> None:
        """Args: `origin` is the URL that it came from, for addresses that are relative to it."""
        data = _plain(data)
        if not isinstance(data, dict) or not isinstance(data.get("paths", {}), dict):
            raise ConfigurationError("this is not an OpenAPI document: it holds openapi, info and paths")
        version = str(data.get("openapi") or data.get("swagger"))
        if not version.startswith(("3.0", "3.1")):
            raise ConfigurationError(
                f"OpenAPI {version} is not supported: 3.0 and 3.1 are; convert the document first"
            )
        self.data = data
        self.origin = origin
        self.is_3_0 = version.startswith("3.0")
        self._targets: dict[str, Translated] = {}
        """By reference, what it leads to: many tools refer to the same."""

    @property
    def title(self) -> str:
        """What the API is called."""
        info = self.data.get("info")
        return str(info.get("title", "")) if isinstance(info, Mapping) else ""

    def operations(self, skipped: dict[str, str] | None = None) -> list[Operation]:
        """All operations that can be read, in their order; `skipped` learns why others cannot, by method and path."""
        skipped = {} if skipped is None else skipped
        found: list[Operation] = []
        for path, node in self.data.get("paths", {}).items():
            if path.startswith("x-"):
                continue
            try:
                item = self.resolved(node)
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
            raise Unsupported("its path does not begin with /")
        spec = item[method]
        parameters = self._joined(item.get("parameters"), spec.get("parameters"))
        return Operation(path, method, spec, parameters, item.get("servers"))

    def _joined(self, *lists: Any) -> tuple[Mapping[str, Any], ...]:
        """Parameters of path and operation; the operation's own go before the path's of the same name and place."""
        found = [self.resolved(parameter) for parameters in lists for parameter in _list(parameters)]
        return tuple({(str(each.get("name")), str(each.get("in"))): each for each in found}.values())

    def security_schemes(self) -> Mapping[str, Any]:
        """Its security schemes by name, references not followed."""
        components = self.data.get("components")
        schemes = components.get("securitySchemes") if isinstance(components, Mapping) else None
        return schemes if isinstance(schemes, Mapping) else {}

    def server(self, operation: Operation | None = None) -> str:
        """The address of the API, or of an operation or a path that is elsewhere.

        Raises:
            ConfigurationError: the document names none that is whole.
        """
        lists = [operation.spec.get("servers"), operation.servers] if operation is not None else []
        for servers in (*lists, self.data.get("servers")):
            if isinstance(servers, list) and servers and isinstance(servers[0], Mapping):
                return _absolute(self.origin, _filled(servers[0]))
        return _absolute(self.origin, "")

    def resolved(self, node: Any) -> Mapping[str, Any]:
        """Return what a reference leads to, through references; anything else as it is.

        Raises:
            Unsupported: it leads out of the document, nowhere, or in a circle.
        """
        for _ in range(_CHAIN):
            if not isinstance(node, Mapping):
                raise Unsupported("a part of it is no object")
            if not isinstance(node.get("$ref"), str):
                return node
            node = self.at(node["$ref"])
        raise Unsupported("its references lead in a circle")

    def at(self, reference: str) -> Any:
        """Return what stands at a reference within the document (RFC 6901).

        Raises:
            Unsupported: it leads out of the document, or nowhere. Other documents are never fetched.
        """
        if not reference.startswith("#/"):
            raise Unsupported(f"the reference {reference!r} leads out of the document")
        node: Any = self.data
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and _PLACE.fullmatch(key) and int(key) < len(node):
                node = node[int(key)]
            else:
                raise Unsupported(f"the reference {reference!r} leads nowhere")
        return node

    def translated(self, schema: Any) -> Translated:
        """A schema as JSON Schema, without what it refers to.

        Raises:
            Unsupported: a part of it is no schema.
        """
        values = _count_values(schema, MAX_TOOL_VALUES)
        if values > MAX_TOOL_VALUES:
            raise Unsupported(_TOO_LARGE)
        translation = _Translation(self.is_3_0)
        return Translated(schema, translation.of(schema), tuple(translation.references), values)

    def target(self, reference: str) -> Translated:
        """The same of what a reference leads to, translated once.

        Raises:
            Unsupported: it leads out of the document, or nowhere, or to no schema.
        """
        if (target := self._targets.get(reference)) is None:
            target = self._targets[reference] = self.translated(self.at(reference))
        return target


class SchemaTranslator:
    """Translates the schemas of one tool; what they refer to is collected in `definitions`, so recursion is kept."""

    def __init__(self, document: APIDocument) -> None:
        self._document = document
        self.definitions: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._values = 0

    def translate(self, schema: Any) -> Any:
        """A schema as JSON Schema, with its references leading into `$defs`.

        Raises:
            Unsupported: a reference leads out of the document, or nowhere; or the schemas of the tool are too large.
        """
        translated = self._document.translated(schema)
        self._add(translated)
        self._define(translated.references)
        return self._named(translated)

    def _define(self, references: Sequence[str]) -> None:
        """Take up what is referred to, with all that it leads to, however far."""
        waiting, fresh = [*reversed(references)], list[str]()
        while waiting:
            reference = waiting.pop()
            if reference in self._names:
                continue
            name = self._names[reference] = self._free_name(reference)
            self.definitions[name] = True  # its place
            fresh.append(reference)
            target = self._document.target(reference)
            self._add(target)
            waiting += reversed(target.references)
        for reference in fresh:
            self.definitions[self._names[reference]] = self._named(self._document.target(reference))

    def _add(self, translated: Translated) -> None:
        """Count a schema; raise Unsupported if all schemas of the tool together are too large."""
        self._values += translated.values
        if self._values > MAX_TOOL_VALUES:
            raise Unsupported(_TOO_LARGE)

    def _free_name(self, reference: str) -> str:
        name = plain = _plain_name(reference)
        while name in self.definitions:
            name = f"{plain}_{len(self.definitions)}" if name == plain else f"{name}_"
        return name

    def _named(self, translated: Translated) -> Any:
        """The schema with the names of this tool; the one that all tools share, where those are plain."""
        if all(self._names[each] == _plain_name(each) for each in translated.references):
            return translated.schema
        return _Translation(self._document.is_3_0, self._names).of(translated.given)


class _Translation:
    """The way from a schema to JSON Schema; notes what it refers to."""

    def __init__(self, is_3_0: bool, names: Mapping[str, str] | None = None) -> None:  # noqa: FBT001 - as the document has it
        """Args: `names` is how what is referred to is called; None: by its plain names."""
        self._is_3_0, self._names = is_3_0, names
        self.references: dict[str, None] = {}

    def of(self, schema: Any) -> Any:
        """Raises Unsupported: a part of it is no schema."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise Unsupported("a schema is no object")
        if isinstance(reference := schema.get("$ref"), str):
            self.references[reference] = None
            name = _plain_name(reference) if self._names is None else self._names[reference]
            return {**self._siblings(schema), "$ref": f"#/$defs/{name}"}
        translated = {key: self._value(key, value) for key, value in schema.items() if _is_kept(key)}
        return _from_3_0(schema, translated) if self._is_3_0 else translated

    def _siblings(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}

    def _value(self, key: str, value: Any) -> Any:
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            return {name: self.of(each) for name, each in _object(value).items()}
        if key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            return [self.of(each) for each in _list(value)]
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
        return self.of(value) if is_schema else value


def _count_values(schema: Any, most: int) -> int:
    """Return the number of values in a schema; counting ends after `most`."""
    count, left = 0, [schema]
    while left and count <= most:
        each = left.pop()
        count += 1
        left += each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ()
    return count


def _plain_name(reference: str) -> str:
    return _UNFIT.sub("_", reference.rpartition("/")[2]) or "schema"


def _is_kept(key: str) -> bool:
    return key not in _DROPPED and not key.startswith("x-")


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | None):
        raise Unsupported("what is to be a list is none")
    return value or ()


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Unsupported("a part of a schema is no object")
    return value


def _from_3_0(schema: Mapping[str, Any], translated: dict[str, Any]) -> dict[str, Any]:
    """Return what a schema of 3.0 says in other words than JSON Schema: what may be null, and bounds that are left out."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(said := translated.get(exclusive), bool):
            del translated[exclusive]
            if said and bound in translated:
                translated[exclusive] = translated.pop(bound)
    if schema.get("nullable") is True:
        if isinstance(kind := translated.get("type"), str):
            translated["type"] = [kind, "null"]
        if isinstance(allowed := translated.get("enum"), list) and None not in allowed:
            translated["enum"] = [*allowed, None]
    return translated


def _filled(server: Mapping[str, Any]) -> str:
    url = str(server.get("url", ""))
    variables = server.get("variables")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        default = variable.get("default", "") if isinstance(variable, Mapping) else ""
        url = url.replace(f"{{{name}}}", str(default))
    return url


def _absolute(origin: str, url: str) -> str:
    """The address of a server, which no argument of a call is a part of.

    Raises:
        ConfigurationError: it is no whole one.
    """
    try:
        whole = urljoin(origin, url) if origin else url
    except ValueError:
        whole = ""
    if not is_server(whole):
        raise ConfigurationError(f"the document names no server for it ({url!r:.200}): pass server=")
    return whole.rstrip("/")


def is_server(url: str) -> bool:
    """True for an http or https URL to which paths can be appended: without user, query, fragment and variables."""
    return is_http_url(url) and not any(each in url for each in "@?#{}\\")


# --- reading -----------------------------------------------------------------------------------


def _plain(data: object) -> Any:
    """A document as JSON has it: YAML has dates, keys that are no text, and aliases, by which 1 KB can mean 1 TB.

    Raises:
        ConfigurationError: it is too large or too deep, or it contains itself.
    """
    sizes: dict[int, tuple[Any, int]] = {}
    try:
        plain, size = _walked(data, sizes, {})
    except RecursionError:
        raise ConfigurationError("the document is nested too deeply") from None
    if size > _LARGEST:
        raise ConfigurationError(f"the document has more than {_LARGEST:,} values, its aliases written out")
    return plain


def _walked(node: Any, known: dict[int, tuple[Any, int]], above: dict[int, Any]) -> tuple[Any, int]:
    """A node as JSON has it, and how many values it has; one that several refer to is walked once."""
    if not isinstance(node, Mapping | list | tuple):
        return _value_of(node), 1
    if id(node) in known:
        return known[id(node)]
    if id(node) in above:
        raise ConfigurationError("a part of the document contains itself")
    above[id(node)] = node
    if isinstance(node, Mapping):
        each = {str(key): _walked(item, known, above) for key, item in node.items()}
        plain: Any = {key: item for key, (item, _) in each.items()}
        size = sum(size for _, size in each.values()) + 1
    else:
        items = [_walked(item, known, above) for item in node]
        plain, size = [item for item, _ in items], sum(size for _, size in items) + 1
    del above[id(node)]
    known[id(node)] = plain, size
    return plain, size


def _value_of(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | None) else str(value)


class _Pieces:
    """A file of bytes that calls a function before each read; YAML is read in pieces of some kilobytes."""

    def __init__(self, data: bytes, check: Callable[[], object]) -> None:
        self._data, self._check = io.BytesIO(data), check

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._data.read(size)


def read_document(text: str | bytes, *, name: str, check: Callable[[], object] = lambda: None) -> Any:
    """Read JSON, or else YAML.

    Args:
        text: The document.
        name: Its name in errors.
        check: Called again and again while YAML is read, which takes seconds for a megabyte; it may raise to end that.

    Raises:
        ConfigurationError: it is neither, or has too many values.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if sum(data.count(each) for each in (b"[", b"{", b",")) > _LARGEST or data.count(b"\n") > _LARGEST:
        raise ConfigurationError(f"{name} has more than {_LARGEST:,} values")
    try:
        value = json.loads(text)
    except ValueError:
        pass
    except RecursionError:
        raise ConfigurationError(f"{name} is nested too deeply") from None
    else:
        return value
    try:
        return YAML(typ="safe").load(_Pieces(data, check))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigurationError(f"{name} is neither JSON nor YAML: {first:.200}") from None


def read_file(path: Path) -> Any:
    """Read a document's file.

    Raises:
        ConfigurationError: there is none, or it is neither JSON nor YAML.
    """
    try:
        return read_document(path.read_bytes(), name=str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
