"""`OpenAPITool`: an API operation as a tool, with the conversion of its arguments to a request."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import attrs

from actgent.errors import InvalidArguments
from actgent.tools.tool_interface import Tool, ToolContext
from actgent.toolsets.http import (
    METHOD_EFFECTS,
    RESERVED_HEADERS,
    APIRequest,
    Auth,
    Connections,
    RetryableHTTPToolError,
    get_credentials,
    to_parameter_text,
    to_tool_result,
)

from .document import APIDocument, Operation, SchemaTranslator, Unsupported

PARAMETER_LOCATIONS = ("path", "query", "header", "cookie")
"""Supported values of a parameter's `in`."""
MAX_DESCRIPTION_CHARACTERS = 1_000
"""Maximum length of a description in characters."""
_JSON = ("application/json", "+json")
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_IGNORED_HEADERS = RESERVED_HEADERS | {"accept", "content-type"}
"""Headers that are not parameters: three are excluded by the specification, the others belong to the connection."""
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]+")
_MAX_ARGUMENT_CHARACTERS = 64
"""Maximum length of an argument name that model providers accept."""


@attrs.frozen
class Parameter:
    """A parameter of an operation: its location in the request and its serialization."""

    argument: str
    """Name of the tool argument: the parameter's name, followed by its location if the name occurs twice."""
    name: str
    """Name of the parameter in the request."""
    location: str
    """Part of the request that carries the parameter: `path`, `query`, `header` or `cookie`."""
    style: str
    """Serialization style of the parameter in the OpenAPI document, e.g. `form` or `simple`."""
    explode: bool
    """True if the items of a list or object value become separate parameters of the request."""
    required: bool
    """True if the model must pass the parameter."""


@attrs.frozen
class RequestBody:
    """Body of an operation's requests: its media type, and True in `required` if the model must pass it."""

    media_type: str
    required: bool


class OperationTool(Tool):
    """A tool that calls one operation of an API."""

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
        """Convert the parameters and the body of an operation to a tool's parameter schema.

        Raises:
            Unsupported: The operation cannot become a tool.
        """
        self.operation = operation
        self._connections, self._auth, self._max_bytes = connections, auth, max_bytes
        self._url = f"{server}{operation.path}"
        self.name = operation.id
        self.description = operation.text[:MAX_DESCRIPTION_CHARACTERS]
        self.effect = METHOD_EFFECTS.get(operation.method.upper(), "once")
        self.timeout = timeout
        self.retries = 0 if self.effect == "once" else 2
        self.retry_on = (RetryableHTTPToolError,) if self.retries else ()
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
        request = self.request(arguments, idempotency_key=context.idempotency_key)
        request = attrs.evolve(request, credentials=await get_credentials(self._auth))
        return to_tool_result(await self._connections.send(request))

    def request(self, arguments: Mapping[str, Any], *, idempotency_key: str = "") -> APIRequest:
        """Build the API request from the tool arguments, without credentials.

        `idempotency_key` is sent as a header; an empty key is not sent.

        Raises:
            InvalidArguments: A value would change the path, or a form is not an object.
        """
        url = self._url
        query: list[tuple[str, str]] = []
        headers = {"Accept": "application/json, text/*;q=0.9, */*;q=0.1"}
        cookies: list[str] = []
        for each in self._parameters:
            if each.argument not in arguments:
                continue
            value = arguments[each.argument]
            if each.location == "path":
                url = url.replace(f"{{{each.name}}}", _segment(each, value))
            elif each.location == "query":
                query += to_query_parameters(each, value)
            elif each.location == "header":
                headers[each.name] = _join_values(each, value)
            else:
                cookies.append(f"{each.name}={quote(_join_values(each, value), safe='')}")
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        if self.effect == "once" and idempotency_key:
            headers["Idempotency-Key"] = idempotency_key
        content = None
        if self._body is not None and "body" in arguments:
            headers["Content-Type"], content = encode_body(self._body.media_type, arguments["body"])
        return APIRequest(
            method=self.operation.method.upper(),
            url=url,
            query=tuple(query),
            headers=headers,
            content=content,
            max_bytes=self._max_bytes,
        )


# --- parameters and body -----------------------------------------------------------------------


def _parameters(
    operation: Operation, translator: SchemaTranslator, properties: dict[str, Any]
) -> Sequence[Parameter]:
    """Return the parameters of an operation, and add the schema of each tool argument to `properties`.

    Raises:
        Unsupported: A parameter is invalid or unsupported.
    """
    names = [str(each.get("name")) for each in operation.parameters]
    found = []
    for given in operation.parameters:
        name, location = given.get("name"), str(given.get("in"))
        if not isinstance(name, str) or not name:
            raise Unsupported("a parameter must have a name")
        if location not in PARAMETER_LOCATIONS:
            raise Unsupported(f"the parameter {name!r} has the unsupported location {location!r}")
        if location == "header" and name.lower() in _IGNORED_HEADERS:
            continue
        is_alone = names.count(name) == 1 and name != "body"
        argument = _argument(name if is_alone else f"{name}_{location}", properties)
        properties[argument] = _with_description(given, translator.translate(_schema_of(given)))
        style = str(given.get("style") or ("form" if location in ("query", "cookie") else "simple"))
        explode = given.get("explode", style == "form")
        found.append(
            Parameter(
                argument,
                name,
                location,
                style,
                bool(explode),
                given.get("required") is True or location == "path",
            )
        )
    if missing := [
        each
        for each in _path_parameters(operation.path)
        if each not in {p.name for p in found if p.location == "path"}
    ]:
        raise Unsupported(f"its `parameters` must describe the parameter {{{missing[0]}}} of its path")
    return found


def _argument(name: str, taken: Mapping[str, Any]) -> str:
    """Make an argument name that model providers accept and that is not in `taken`.

    `name` is the parameter's name in the document.
    """
    fit = argument = _UNFIT.sub("_", name)[:_MAX_ARGUMENT_CHARACTERS]
    number = 1
    while argument in taken or argument == "body":
        number += 1
        argument = f"{fit[: _MAX_ARGUMENT_CHARACTERS - 5]}_{number}"
    return argument


def _path_parameters(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def _schema_of(parameter: Mapping[str, Any]) -> Any:
    """Return the schema of a parameter object, or that of its only media type.

    Return the schema of a text if the document has none.
    """
    if "schema" in parameter:
        return parameter["schema"]
    content = parameter.get("content")
    if isinstance(content, Mapping) and content:
        return _schema_in(next(iter(content.values())))
    return {"type": "string"}


def _schema_in(media: Any) -> Any:
    if media is not None and not isinstance(media, Mapping):
        raise Unsupported("a media type must be an object")
    return (media or {}).get("schema", {})


def _with_description(given: Mapping[str, Any], schema: Any) -> Any:
    text = given.get("description")
    if not isinstance(text, str) or not isinstance(schema, Mapping) or "description" in schema:
        return schema
    return {**schema, "description": text[:MAX_DESCRIPTION_CHARACTERS]}


def _body(
    document: APIDocument, operation: Operation, translator: SchemaTranslator, properties: dict[str, Any]
) -> RequestBody | None:
    """Return the request body of an operation, and add its schema to `properties`.

    Return None if the operation has no body, or an optional body without a supported media type.

    Raises:
        Unsupported: A required body has no supported media type.
    """
    given = operation.spec.get("requestBody")
    if given is None:
        return None
    spec = document.resolve(given)
    content = spec.get("content")
    if not isinstance(content, Mapping) or not content:
        return None
    media_type = next(
        (media_type for test in (_is_json, _is_form, _is_text) for media_type in content if test(media_type)),
        None,
    )
    if media_type is None:
        if spec.get("required") is not True:
            return None
        raise Unsupported(f"the media type {next(iter(content))} of its body is not supported")
    properties["body"] = _with_description(spec, translator.translate(_schema_in(content[media_type])))
    return RequestBody(media_type, spec.get("required") is True)


def _is_json(media_type: str) -> bool:
    return media_type.partition(";")[0].strip().endswith(_JSON) or media_type == "*/*"


def _is_form(media_type: str) -> bool:
    return media_type.partition(";")[0].strip() in (_FORM, _MULTIPART)


def _is_text(media_type: str) -> bool:
    return media_type.startswith("text/")


# --- serializing values ------------------------------------------------------------------------


def to_query_parameters(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Encode a parameter value as (name, text) pairs of a query, in the style that the document sets."""
    name = parameter.name
    if isinstance(value, dict):
        if parameter.style == "deepObject":
            return [(f"{name}[{key}]", to_parameter_text(each)) for key, each in value.items()]
        if parameter.explode:
            return [(key, to_parameter_text(each)) for key, each in value.items()]
        return [(name, ",".join(f"{key},{to_parameter_text(each)}" for key, each in value.items()))]
    if isinstance(value, list):
        if parameter.explode:
            return [(name, to_parameter_text(each)) for each in value]
        between = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
        return [(name, between.join(map(to_parameter_text, value)))]
    return [] if value is None else [(name, to_parameter_text(value))]


def _join_values(parameter: Parameter, value: Any) -> str:
    """Encode a parameter value for a header, cookie or path. Items of lists and objects are separated by commas."""
    if isinstance(value, list):
        return ",".join(map(to_parameter_text, value))
    if isinstance(value, dict):
        between = "=" if parameter.explode else ","
        return ",".join(f"{key}{between}{to_parameter_text(each)}" for key, each in value.items())
    return to_parameter_text(value)


def _segment(parameter: Parameter, value: Any) -> str:
    text = _join_values(parameter, value)
    if text in ("", ".", ".."):
        raise InvalidArguments(
            f"{parameter.argument!r} must not be {text!r}: a path segment must not be empty, `.` or `..`"
        )
    mark = {"label": ".", "matrix": f";{parameter.name}="}.get(parameter.style, "")
    return mark + quote(text, safe=",")


def encode_body(media_type: str, body: Any) -> tuple[str, bytes]:
    """Encode a request body in the format of its media type.

    Return the media type, with its parameters, and the bytes.

    Raises:
        InvalidArguments: The body of a form is not an object.
    """
    if _is_form(media_type) and not isinstance(body, dict):
        raise InvalidArguments(f"'body' is a form, so it must be an object, not {type(body).__name__}")
    if _is_text(media_type):
        return media_type, to_parameter_text(body).encode()
    if media_type.startswith(_FORM):
        pairs = [
            (name, to_parameter_text(each))
            for name, value in body.items()
            for each in (value if isinstance(value, list) else [value])
        ]
        return media_type, urlencode(pairs).encode()
    if media_type.startswith(_MULTIPART):
        return _multipart(body)
    return ("application/json" if media_type == "*/*" else media_type), json.dumps(
        body, ensure_ascii=False
    ).encode("utf-8", "surrogatepass")


def _multipart(fields: Mapping[str, Any]) -> tuple[str, bytes]:
    """Encode form fields as multipart/form-data (RFC 7578). Return the media type and the body.

    Contents of files are sent as text.
    """
    boundary = secrets.token_hex(16)
    parts = []
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            label = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
            parts.append(
                f'--{boundary}\r\nContent-Disposition: form-data; name="{label}"\r\n\r\n{to_parameter_text(each)}\r\n'
            )
    return f"{_MULTIPART}; boundary={boundary}", ("".join(parts) + f"--{boundary}--\r\n").encode()
