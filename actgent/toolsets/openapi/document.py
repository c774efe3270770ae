"""An OpenAPI document (3.0 or 3.1): its operations, references followed, schemas as JSON Schema has them.

Specification: https://spec.openapis.org/oas/v3.1.1 and v3.0.4. A schema of 3.0 is a dialect of its own, which is
translated; one of 3.1 is JSON Schema already.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin

import attrs
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from actgent.errors import ConfigurationError

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_CHAIN = 50
"""How many references may lead from one to the next."""
_DROPPED = frozenset(
    "discriminator xml externalDocs example examples deprecated readOnly writeOnly nullable".split()
)


class Unsupported(Exception):
    """An operation cannot be a tool; the text says why."""


@attrs.frozen
class Operation:
    """One operation: a method of a path, with what the path says for all of its methods."""

    path: str
    method: str
    spec: Mapping[str, Any]
    parameters: tuple[Mapping[str, Any], ...]

    @property
    def id(self) -> str:
        """Its own id, or one made of method and path."""
        given = self.spec.get("operationId")
        return given if isinstance(given, str) and given else f"{self.method}{self.path}".replace("/", "_")

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is filed under."""
        return tuple(tag for tag in self.spec.get("tags") or () if isinstance(tag, str))

    @property
    def text(self) -> str:
        """What it is for, in words."""
        said = [self.spec.get("summary"), self.spec.get("description")]
        return "\n".join(
            dict.fromkeys(text.strip() for text in said if isinstance(text, str) and text.strip())
        )


class APIDocument:
    """A document that was read.

    Raises:
        ConfigurationError: it is no OpenAPI document of a version that is known.
    """

    def __init__(self, data: object, *, origin: str = "") -> None:
        """Args: `origin` is the URL that it came from, for addresses that are relative to it."""
        if not isinstance(data, Mapping) or not isinstance(data.get("paths", {}), Mapping):
            raise ConfigurationError("this is not an OpenAPI document: it holds openapi, info and paths")
        version = str(data.get("openapi") or data.get("swagger"))
        if not version.startswith(("3.0", "3.1")):
            raise ConfigurationError(
                f"OpenAPI {version} is not supported: 3.0 and 3.1 are; convert the document first"
            )
        self.data = data
        self.origin = origin
        self.is_3_0 = version.startswith("3.0")

    @property
    def title(self) -> str:
        """What the API is called."""
        info = self.data.get("info")
        return str(info.get("title", "")) if isinstance(info, Mapping) else ""

    def operations(self) -> Iterator[Operation]:
        """All operations, in their order."""
        for path, found in self.data.get("paths", {}).items():
            item = self.resolved(found)
            shared = item.get("parameters") or ()
            for method in METHODS:
                if isinstance(item.get(method), Mapping):
                    own = item[method].get("parameters") or ()
                    yield Operation(str(path), method, item[method], self._joined(shared, own))

    def _joined(self, *lists: Any) -> tuple[Mapping[str, Any], ...]:
        """Parameters of path and operation; the operation's own go before the path's of the same name and place."""
        found = [self.resolved(parameter) for parameters in lists for parameter in parameters]
        return tuple({(each.get("name"), each.get("in")): each for each in found}.values())

    def server(self, operation: Operation | None = None) -> str:
        """The address of the API, or of an operation that is elsewhere.

        Raises:
            ConfigurationError: the document names none that is whole.
        """
        lists = [operation.spec.get("servers")] if operation is not None else []
        for servers in (*lists, self.data.get("servers")):
            if isinstance(servers, list) and servers and isinstance(servers[0], Mapping):
                url = _filled(servers[0])
                return (urljoin(self.origin, url) if self.origin else url).rstrip("/")
        return self.origin.rstrip("/")

    def resolved(self, node: Any) -> Mapping[str, Any]:
        """What a reference leads to, through references; anything else as it is.

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
        """What stands at a reference within the document (RFC 6901).

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
            elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise Unsupported(f"the reference {reference!r} leads nowhere")
        return node


class SchemaTranslator:
    """Translates the schemas of one tool; what they refer to is collected in `definitions`, so recursion is kept."""

    def __init__(self, document: APIDocument) -> None:
        self._document = document
        self.definitions: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def translate(self, schema: Any) -> Any:
        """A schema as JSON Schema, with its references leading into `$defs`.

        Raises:
            Unsupported: a reference leads out of the document, or nowhere.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise Unsupported("a schema is no object")
        if isinstance(reference := schema.get("$ref"), str):
            return {**self._siblings(schema), "$ref": self._defined(reference)}
        translated = {key: self._value(key, value) for key, value in schema.items() if _is_kept(key)}
        return _from_3_0(schema, translated) if self._document.is_3_0 else translated

    def _siblings(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}

    def _defined(self, reference: str) -> str:
        name = self._names.get(reference)
        if name is None:
            last = reference.rpartition("/")[2].replace("~1", "_").replace("%", "_") or "schema"
            name = last if last not in self.definitions else f"{last}_{len(self.definitions)}"
            self._names[reference] = name
            self.definitions[name] = True  # a place, before what it refers to may refer to it
            self.definitions[name] = self.translate(self._document.at(reference))
        return f"#/$defs/{name}"

    def _value(self, key: str, value: Any) -> Any:
        if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            return {name: self.translate(each) for name, each in _object(value).items()}
        if key in ("allOf", "anyOf", "oneOf", "prefixItems"):
            return [self.translate(each) for each in value]
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
        return self.translate(value) if is_schema else value


def _is_kept(key: str) -> bool:
    return key not in _DROPPED and not key.startswith("x-")


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Unsupported("a part of a schema is no object")
    return value


def _from_3_0(schema: Mapping[str, Any], translated: dict[str, Any]) -> dict[str, Any]:
    """What a schema of 3.0 says in other words than JSON Schema: what may be null, and bounds that are left out."""
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
        url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
    return url


def read_document(text: str | bytes, *, name: str) -> Any:
    """Read JSON, or else YAML.

    Raises:
        ConfigurationError: it is neither.
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise ConfigurationError(f"{name} is neither JSON nor YAML: {str(error).splitlines()[0]}") from error


def read_file(path: Path) -> Any:
    """Read a document's file.

    Raises:
        ConfigurationError: there is none, or it is neither JSON nor YAML.
    """
    try:
        return read_document(path.read_bytes(), name=str(path))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
