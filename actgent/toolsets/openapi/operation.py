"""An operation of an API as a tool: its arguments, and the request that they make."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import attrs

from actgent.errors import InvalidArguments
from actgent.tools.base import Tool, ToolContext
from actgent.toolsets.http import (
    EFFECTS,
    OURS,
    APIRequest,
    Auth,
    Connections,
    WorthRepeating,
    credentials_of,
    plain,
    readable,
)

from .document import APIDocument, Operation, SchemaTranslator, Unsupported

PLACES = ("path", "query", "header", "cookie")
LONGEST_DESCRIPTION = 1_000
_JSON = ("application/json", "+json")
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_NOT_GIVEN = OURS | {"accept", "content-type"}
"""Headers that are no parameters: three are to be ignored, says the specification, and the rest is the connection's."""
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]+")
_LONGEST_ARGUMENT = 64
"""Characters that providers take for the name of an argument."""


@attrs.frozen
class Parameter:
    """One parameter: where it goes, and how it is written there."""

    argument: str
    """By which the model gives it: its name, and its place where two have one name."""
    name: str
    place: str
    style: str
    explode: bool
    required: bool


@attrs.frozen
class RequestBody:
    """The body of a request: its media type, and whether it has to be there."""

    kind: str
    required: bool


class OperationTool(Tool):
    """Calls one operation of an API."""

    def __init__(
        self,
        document: APIDocument,
        operation: Operation,
        *,
        connections: Connections,
        auth: Auth | None,
        server: str,
        timeout: float,
        max_bytes: int,
    ) -> None:
        """Read what the operation takes.

        Raises:
            Unsupported: it cannot be a tool.
        """
        self.operation = operation
        self._connections, self._auth, self._max_bytes = connections, auth, max_bytes
        self._url = f"{server}{operation.path}"
        self.name = operation.id
        self.description = operation.text[:LONGEST_DESCRIPTION]
        self.effect = EFFECTS.get(operation.method.upper(), "once")
        self.timeout = timeout
        self.retries = 0 if self.effect == "once" else 2
        self.retry_on = (WorthRepeating,) if self.retries else ()
        translator = SchemaTranslator(document)
        properties: dict[str, Any] = {}
        self._parameters = tuple(_parameters(operation, translator, properties))
        self._body = _body(document, operation, translator, properties)
        required = [each.argument for each in self._parameters if each.required]
        required += ["body"] if self._body is not None and self._body.required else []
        defined = {"$defs": translator.definitions} if translator.definitions else {}
        needed = {"required": required} if required else {}
        self.parameters = {
            "type": "object", "properties": properties, "additionalProperties": False, **needed, **defined
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<OperationTool {self.name!r}: {self.operation.method.upper()} {self._url}>"

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        request = self.request(arguments, effect_key=context.effect_key)
        request = attrs.evolve(request, credentials=await credentials_of(self._auth))
        return readable(await self._connections.send(request))

    def request(self, arguments: Mapping[str, Any], *, effect_key: str = "") -> APIRequest:
        """The request that arguments make, without credentials.

        Raises:
            InvalidArguments: a value would name another path.
        """
        url = self._url
        query: list[tuple[str, str]] = []
        headers = {"Accept": "application/json, text/*;q=0.9, */*;q=0.1"}
        cookies: list[str] = []
        for each in self._parameters:
            if each.argument not in arguments:
                continue
            value = arguments[each.argument]
            if each.place == "path":
                url = url.replace(f"{{{each.name}}}", _segment(each, value))
            elif each.place == "query":
                query += in_query(each, value)
            elif each.place == "header":
                headers[each.name] = _listed(each, value)
            else:
                cookies.append(f"{each.name}={quote(_listed(each, value), safe='')}")
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        if self.effect == "once" and effect_key:
            headers["Idempotency-Key"] = effect_key
        content = None
        if self._body is not None and "body" in arguments:
            headers["Content-Type"], content = encoded(self._body.kind, arguments["body"])
        return APIRequest(
            method=self.operation.method.upper(),
            url=url,
            query=tuple(query),
            headers=headers,
            content=content,
            max_bytes=self._max_bytes,
        )


# --- what an operation takes -------------------------------------------------------------------


def _parameters(
    operation: Operation, translator: SchemaTranslator, properties: dict[str, Any]
) -> Sequence[Parameter]:
    """The parameters of an operation; their schemas go into `properties`."""
    names = [str(each.get("name")) for each in operation.parameters]
    found = []
    for given in operation.parameters:
        name, place = given.get("name"), str(given.get("in"))
        if not isinstance(name, str) or not name:
            raise Unsupported("a parameter has no name")
        if place not in PLACES:
            raise Unsupported(f"the parameter {name!r} stands in {place!r}")
        if place == "header" and name.lower() in _NOT_GIVEN:
            continue
        is_alone = names.count(name) == 1 and name != "body"
        argument = _argument(name if is_alone else f"{name}_{place}", properties)
        properties[argument] = _described(given, translator.translate(_schema_of(given)))
        style = str(given.get("style") or ("form" if place in ("query", "cookie") else "simple"))
        explode = given.get("explode", style == "form")
        found.append(
            Parameter(
                argument, name, place, style, bool(explode), given.get("required") is True or place == "path"
            )
        )
    if missing := [
        each for each in _places(operation.path) if each not in {p.name for p in found if p.place == "path"}
    ]:
        raise Unsupported(f"nothing says what {{{missing[0]}}} in its path is")
    return found


def _argument(name: str, taken: Mapping[str, Any]) -> str:
    """A name for an argument that providers take, and that no other one has."""
    fit = argument = _UNFIT.sub("_", name)[:_LONGEST_ARGUMENT]
    number = 1
    while argument in taken or argument == "body":
        number += 1
        argument = f"{fit[: _LONGEST_ARGUMENT - 5]}_{number}"
    return argument


def _places(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def _schema_of(parameter: Mapping[str, Any]) -> Any:
    """The schema of a parameter, or of its only media type."""
    if "schema" in parameter:
        return parameter["schema"]
    content = parameter.get("content")
    if isinstance(content, Mapping) and content:
        return _schema_in(next(iter(content.values())))
    return {"type": "string"}


def _schema_in(media: Any) -> Any:
    if media is not None and not isinstance(media, Mapping):
        raise Unsupported("a media type is no object")
    return (media or {}).get("schema", {})


def _described(given: Mapping[str, Any], schema: Any) -> Any:
    text = given.get("description")
    if not isinstance(text, str) or not isinstance(schema, Mapping) or "description" in schema:
        return schema
    return {**schema, "description": text[:LONGEST_DESCRIPTION]}


def _body(
    document: APIDocument, operation: Operation, translator: SchemaTranslator, properties: dict[str, Any]
) -> RequestBody | None:
    given = operation.spec.get("requestBody")
    if given is None:
        return None
    spec = document.resolved(given)
    content = spec.get("content")
    if not isinstance(content, Mapping) or not content:
        return None
    kind = next((kind for test in (_is_json, _is_form, _is_text) for kind in content if test(kind)), None)
    if kind is None:
        if spec.get("required") is not True:
            return None
        raise Unsupported(f"its body is {next(iter(content))}")
    properties["body"] = _described(spec, translator.translate(_schema_in(content[kind])))
    return RequestBody(kind, spec.get("required") is True)


def _is_json(kind: str) -> bool:
    return kind.partition(";")[0].strip().endswith(_JSON) or kind == "*/*"


def _is_form(kind: str) -> bool:
    return kind.partition(";")[0].strip() in (_FORM, _MULTIPART)


def _is_text(kind: str) -> bool:
    return kind.startswith("text/")


# --- how values are written --------------------------------------------------------------------


def in_query(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """The pairs that a value is in a query, by the parameter's style."""
    name = parameter.name
    if isinstance(value, dict):
        if parameter.style == "deepObject":
            return [(f"{name}[{key}]", plain(each)) for key, each in value.items()]
        if parameter.explode:
            return [(key, plain(each)) for key, each in value.items()]
        return [(name, ",".join(f"{key},{plain(each)}" for key, each in value.items()))]
    if isinstance(value, list):
        if parameter.explode:
            return [(name, plain(each)) for each in value]
        between = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
        return [(name, between.join(map(plain, value)))]
    return [] if value is None else [(name, plain(value))]


def _listed(parameter: Parameter, value: Any) -> str:
    """A value in a header, a cookie or a path: lists and objects with commas."""
    if isinstance(value, list):
        return ",".join(map(plain, value))
    if isinstance(value, dict):
        between = "=" if parameter.explode else ","
        return ",".join(f"{key}{between}{plain(each)}" for key, each in value.items())
    return plain(value)


def _segment(parameter: Parameter, value: Any) -> str:
    text = _listed(parameter, value)
    if text in ("", ".", ".."):
        raise InvalidArguments(f"{parameter.argument!r} is {text!r}, which is no part of a path")
    mark = {"label": ".", "matrix": f";{parameter.name}="}.get(parameter.style, "")
    return mark + quote(text, safe=",")


def encoded(kind: str, body: Any) -> tuple[str, bytes]:
    """The media type and the bytes of a body.

    Raises:
        InvalidArguments: a form is no object.
    """
    if _is_form(kind) and not isinstance(body, dict):
        raise InvalidArguments(f"'body' is a form, so it is an object, not {type(body).__name__}")
    if _is_text(kind):
        return kind, plain(body).encode()
    if kind.startswith(_FORM):
        pairs = [
            (name, plain(each))
            for name, value in body.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        return kind, urlencode(pairs).encode()
    if kind.startswith(_MULTIPART):
        return _multipart(body)
    return ("application/json" if kind == "*/*" else kind), json.dumps(body, ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


def _multipart(fields: Mapping[str, Any]) -> tuple[str, bytes]:
    """Fields as RFC 7578 has them; texts of files are sent as they are."""
    boundary = secrets.token_hex(16)
    parts = []
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            label = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
            parts.append(
                f'--{boundary}\r\nContent-Disposition: form-data; name="{label}"\r\n\r\n{plain(each)}\r\n'
            )
    return f"{_MULTIPART}; boundary={boundary}", ("".join(parts) + f"--{boundary}--\r\n").encode()
