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
from actgent.toolsets.http.api_credentials import Auth, get_credentials
from actgent.toolsets.http.bounded_http_requests import APIRequest, Connections, RetryableHTTPToolError
from actgent.toolsets.http.http_tool import (
    METHOD_EFFECTS,
    RESERVED_HEADERS,
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
    """Name of the parameter in the HTTP request of the operation."""
    location: str
    """Part of the request that carries the parameter: `path`, `query`, `header` or `cookie`."""
    style: str
    """Serialization style of the parameter in the OpenAPI document, e.g. `form` or `simple`."""
    explode: bool
    """True if the items of a list or object value become separate parameters of the request."""
    required: bool
    """True if the model must pass the parameter."""
    is_json: bool = False
    """True if the parameter has a media type, so that its value is sent as JSON."""


@attrs.frozen
class RequestBody:
    """Body of an operation's requests: its media type, and True in `required` if the model must pass it."""

    media_type: str
    required: bool
    styles: Mapping[str, Parameter] = attrs.field(factory=dict)
    """Serialization of those fields of a form for which the document sets a style."""
    files: frozenset[str] = frozenset()
    """Names of those fields of a multipart form that are files."""


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
            value = arguments.get(each.argument)
            if value is None and not (each.location == "path" and each.argument in arguments):
                continue
            if each.is_json:
                value = json.dumps(value, ensure_ascii=False)
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
            headers["Content-Type"], content = encode_body(self._body, arguments["body"])
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
        if location == "path" and f"{{{name}}}" not in operation.path:
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
                "schema" not in given and bool(given.get("content")),
            )
        )
    described = {each.name for each in found if each.location == "path"}
    for name in dict.fromkeys(_path_parameters(operation.path)):
        if name not in described:
            argument = _argument(name, properties)
            properties[argument] = {"type": "string"}
            found.append(Parameter(argument, name, "path", "simple", explode=False, required=True))
    return found


def _argument(name: str, taken: Mapping[str, Any]) -> str:
    """Make an argument name that all model providers accept and that `taken` does not contain.

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
    """Return the schema of a parameter object. If the schema depends on a media type, return that of the only media type.

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
    media = content[media_type]
    schema = _schema_in(media)
    properties["body"] = _with_description(spec, translator.translate(schema))
    is_required = spec.get("required") is True
    if not _is_form(media_type) or not isinstance(media, Mapping):
        return RequestBody(media_type, is_required)
    encoding = media.get("encoding")
    styles = {
        name: Parameter(
            name, name, "query", style, bool(each.get("explode", style == "form")), required=False
        )
        for name, each in (encoding.items() if isinstance(encoding, Mapping) else ())
        if isinstance(each, Mapping) and ("style" in each or "explode" in each)
        for style in [str(each.get("style") or "form")]
    }
    fields = document.resolve(schema).get("properties")
    files = frozenset(
        name for name, each in (fields.items() if isinstance(fields, Mapping) else ()) if _is_file(each)
    )
    return RequestBody(media_type, is_required, styles, files)


def _is_file(schema: Any) -> bool:
    """Return True if the schema of a form's field describes a file, or a list of files."""
    if not isinstance(schema, Mapping):
        return False
    is_text = schema.get("contentMediaType") is None and schema.get("format") not in ("binary", "base64")
    return not is_text or _is_file(schema.get("items"))


def _is_json(media_type: str) -> bool:
    return _essence(media_type).endswith(_JSON) or media_type == "*/*"


def _is_form(media_type: str) -> bool:
    return _essence(media_type) in (_FORM, _MULTIPART)


def _is_text(media_type: str) -> bool:
    return media_type.lower().startswith("text/") and _essence(media_type) != "text/xml"


def _essence(media_type: str) -> str:
    """Return a media type in lower case, without parameters such as `charset`."""
    return media_type.partition(";")[0].strip().lower()


# --- serializing values ------------------------------------------------------------------------


def to_query_parameters(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Encode a parameter value as (name, text) pairs of a query, in the style that the document sets.

    Null values and empty lists have no pair.
    """
    name = parameter.name
    if parameter.style == "deepObject":
        return _deep_object_pairs(name, value)
    if not isinstance(value, dict | list):
        return _repeat(name, value)
    if parameter.explode:
        pairs = value.items() if isinstance(value, dict) else [(name, value)]
        return [pair for key, each in pairs for pair in _repeat(key, each)]
    between = {"spaceDelimited": " ", "pipeDelimited": "|"}.get(parameter.style, ",")
    texts = [text for pair in _pairs(value) for text in pair]
    return [(name, between.join(texts))] if texts else []


def _repeat(name: str, value: Any) -> list[tuple[str, str]]:
    """Return a pair of a query for each item of a list, or one pair for another value."""
    items = value if isinstance(value, list) else [value]
    return [(name, to_parameter_text(each)) for each in items if each is not None]


def _deep_object_pairs(name: str, value: Any) -> list[tuple[str, str]]:
    """Encode nested objects and lists with the keys and indices in brackets: `filter[tags][0]`."""
    if not isinstance(value, dict | list):
        return _repeat(name, value)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [pair for key, each in items for pair in _deep_object_pairs(f"{name}[{key}]", each)]


def _pairs(value: Any) -> list[tuple[str, ...]]:
    """Return the key and text of each member of an object, or the text of each item of a list. Null values are left out."""
    if isinstance(value, dict):
        return [(key, to_parameter_text(each)) for key, each in value.items() if each is not None]
    return [(to_parameter_text(each),) for each in value if each is not None]


def _join_values(parameter: Parameter, value: Any, *, between: str = ",", safe: str | None = None) -> str:
    """Encode a parameter value for a header, cookie or path.

    Args:
        parameter: The parameter.
        value: Its value.
        between: Separator of the items of a list or object.
        safe: Characters that are not percent-encoded in names and texts; None encodes no characters.
    """

    def encode(text: str) -> str:
        return text if safe is None else quote(text, safe=safe)

    if not isinstance(value, dict | list):
        return encode(to_parameter_text(value))
    within = "=" if parameter.explode else between
    return between.join(within.join(map(encode, pair)) for pair in _pairs(value))


def _segment(parameter: Parameter, value: Any) -> str:
    """Encode the value of a path parameter in the style that the document sets (RFC 6570).

    Raises:
        InvalidArguments: The value is empty, `.` or `..`, which would change the path.
    """
    text = _join_values(parameter, value)
    if text in ("", ".", ".."):
        raise InvalidArguments(
            f"{parameter.argument!r} must not be {text!r}: a path segment must not be empty, `.` or `..`"
        )
    is_exploded = parameter.explode and isinstance(value, dict | list)
    if parameter.style == "label":
        return "." + _join_values(parameter, value, between="." if is_exploded else ",", safe="")
    if parameter.style == "matrix":
        start = f";{quote(parameter.name, safe='')}="
        if not is_exploded:
            return start + _join_values(parameter, value, safe="")
        start = start if isinstance(value, list) else ";"
        return start + _join_values(parameter, value, between=start, safe="")
    return _join_values(parameter, value, safe="")


def encode_body(spec: RequestBody, body: Any) -> tuple[str, bytes]:
    """Encode a request body in the format of its media type.

    Return the media type, with its parameters, and the bytes.

    Raises:
        InvalidArguments: The body of a form is not an object.
    """
    media_type = spec.media_type
    if _is_form(media_type) and not isinstance(body, dict):
        raise InvalidArguments(f"'body' is a form, so it must be an object, not {type(body).__name__}")
    if _is_text(media_type):
        return media_type, to_parameter_text(body).encode()
    if _essence(media_type) == _MULTIPART:
        return _multipart(spec, body)
    if _essence(media_type) == _FORM:
        return media_type, urlencode(
            [pair for item in body.items() for pair in _encode_form_field(spec, *item)]
        ).encode()
    return ("application/json" if media_type == "*/*" else media_type), json.dumps(
        body, ensure_ascii=False
    ).encode("utf-8", "surrogatepass")


def _encode_form_field(spec: RequestBody, name: str, value: Any) -> list[tuple[str, str]]:
    """Encode a form field as pairs of name and value.

    The document may define a serialization style for the field. Otherwise, a list gives one pair per item, and an object is
    sent as JSON.
    """
    if name in spec.styles:
        return to_query_parameters(spec.styles[name], value)
    return [(name, to_parameter_text(each)) for each in (value if isinstance(value, list) else [value])]


def _multipart(spec: RequestBody, fields: Mapping[str, Any]) -> tuple[str, bytes]:
    """Encode form fields as multipart/form-data (RFC 7578). Return the media type and the body.

    Contents of files are sent as text.
    """
    boundary = secrets.token_hex(16)
    parts = []
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            label = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
            if name in spec.files:
                kind = f'; filename="{label}"\r\nContent-Type: application/octet-stream'
            else:
                kind = "\r\nContent-Type: application/json" if isinstance(each, dict) else ""
            parts.append(
                f'--{boundary}\r\nContent-Disposition: form-data; name="{label}"{kind}\r\n\r\n{to_parameter_text(each)}\r\n'
            )
    return f"{_MULTIPART}; boundary={boundary}", ("".join(parts) + f"--{boundary}--\r\n").encode()
