"""`HTTPTool`: one HTTP request of an API as a tool."""

import base64
import codecs
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, get_args
from urllib.parse import quote, urlsplit

import orjson
import trio

from actgent.approvals import ApprovalRequest
from actgent.errors import ConfigurationError, InvalidArguments
from actgent.errors.text_escaping import counted
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.outputs.result_media import UNKNOWN_TYPE, make_medium
from actgent.tools.tool_interface import ApprovalRule, Effect, Tool, ToolContext
from actgent.toolsets.toolset import Publish, Toolset

from .api_credentials import Auth, check_auth, get_credentials
from .bounded_http_requests import APIRequest, APIResponse, Connections, RetryableHTTPToolError, is_http_url
from .internal_address_blocking import Guard

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
Parameters = Mapping[str, Any]
"""JSON Schema of an object, or schemas by name of optional parameters."""

METHOD_EFFECTS: Mapping[str, Effect] = {
    "GET": "pure",
    "HEAD": "pure",
    "OPTIONS": "pure",
    "PUT": "idempotent",
    "DELETE": "idempotent",
}
"""Effect by HTTP method (RFC 9110, 9.2): safe methods are pure, others idempotent or `once` if not listed."""
RESERVED_HEADERS = frozenset(
    "authorization connection content-length cookie host idempotency-key proxy-authorization te trailer "
    "transfer-encoding upgrade".split()
)
"""Names of headers that a model must not set."""
MAX_LOCATION_CHARACTERS = 1_000
"""Maximum number of characters of the `Location` of an empty response that the model reads."""
_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_MEDIA = re.compile("image/|audio/|application/pdf")
_TEXT = (
    "text/",
    "application/json",
    "application/xml",
    "application/yaml",
    "+json",
    "+xml",
    "javascript",
    "form-url",
)


@lists_arguments
class HTTPTool(Tool, Toolset):
    """An HTTP request as a tool. The model supplies the `{}` parts of the URL, query parameters, headers and the body.

    It is both a tool and a toolset of that one tool. An agent keeps its connections open while it runs.
    `configured(...)`, `approved(...)` and the other methods of `Toolset` derive toolsets from it.

    Args:
        name: Name by which the model calls the tool.
        url: For example `https://api.example/cities/{city}`; braces enclose parameter names.
        method: GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS.
        description: Text for the model: when to call the tool.
        path: Schemas of URL parameters that are not plain text, by name.
        query: Query parameters: a JSON Schema of an object, or schemas by name.
        headers: Header parameters, in the same form.
        body: JSON Schema of the body, which the model passes as `body`; it is sent as JSON.
        fixed_headers: Headers sent with every request.
        auth: `Bearer(token)`, `Basic(user, password)`, `APIKey(key)`, or a function that returns `Credentials`.
        timeout: Time limit of a call in seconds, including retries.
        max_bytes: Maximum size of the decoded response in bytes; a longer response is truncated.
        redirects: Maximum number of redirects to follow.
        retries: Maximum number of retries; by default 2 if the effect allows retries. A call with the effect `once`
            is not retried and has an `Idempotency-Key` header that is the same after a crash.
        effect: Side effect. None derives it from the method: GET and HEAD `pure`, PUT and DELETE `idempotent`, others
            `once`.
        approval: True if each call needs an approval.
        allow: Hosts and networks that are reachable although they are not public: `["127.0.0.1", "10.0.0.0/8"]`.
        connections: Connection pool to share with other tools; its guard replaces `allow`.

    Raises:
        ConfigurationError: An argument is invalid; the text names it.
    """

    may_change = False

    def __init__(
        self,
        name: str,
        url: str,
        method: Method = "GET",
        *,
        description: str = "",
        path: Mapping[str, Any] | None = None,
        query: Parameters | None = None,
        headers: Parameters | None = None,
        body: Mapping[str, Any] | None = None,
        fixed_headers: Mapping[str, str] | None = None,
        auth: Auth | None = None,
        timeout: float = 30.0,
        max_bytes: int = 1_000_000,
        redirects: int = 5,
        retries: int | None = None,
        effect: Effect | None = None,
        approval: bool | ApprovalRequest | ApprovalRule = False,
        allow: Sequence[str] = (),
        connections: Connections | None = None,
    ) -> None:
        check_auth(auth)
        at_least_one("max_bytes", max_bytes)
        self.name = name
        self.description = description
        self.url = url
        self.method = _parse_method(method)
        self.effect = effect or METHOD_EFFECTS.get(self.method, "once")
        self.timeout = timeout
        self.retries = (0 if self.effect == "once" else 2) if retries is None else retries
        self.retry_on = (RetryableHTTPToolError,) if self.retries else ()
        self.approval = approval
        self.max_bytes = max_bytes
        self.redirects = redirects
        self._auth = auth
        self._fixed = dict(fixed_headers or {})
        self._connections = connections or Connections(Guard(allow))
        self._path = _parse_placeholders(name, url)
        if unused := [each for each in path or () if each not in self._path]:
            raise ConfigurationError(
                f"HTTPTool {name!r}: path= names {unused[0]!r}, but the URL {url!r} has no {{{unused[0]}}} "
                f"(its parameters: {', '.join(self._path) or 'none'})"
            )
        known = {place: (path or {}).get(place, {"type": "string"}) for place in self._path}
        self._query = _object_schema(query)
        self._headers = _object_schema(headers)
        self._has_body = body is not None
        self.parameters = _merge_schemas(
            name,
            {"type": "object", "properties": known, "required": list(known)},
            self._query,
            _check_headers(name, self._headers),
            _object_schema(
                {"type": "object", "properties": {"body": body}, "required": ["body"]} if body else None
            ),
        )

    def __repr__(self) -> str:
        return f"<HTTPTool {self.name!r}: {self.method} {self.url}>"

    async def run(self, target: Any, context: ToolContext | None = None) -> Any:
        """Run one call outside of an agent, like `Tool.run`, if `target` are arguments.

        If `target` is the `publish` function, run as a toolset, like `Toolset.run`.
        """
        async with self._connections.keep_open():
            if not callable(target):
                return await Tool.run(self, target, context)
            publish: Publish = target
            publish([self])
            return await trio.sleep_forever()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        request = await self._request(arguments, context)
        return to_tool_result(await self._connections.send(request))

    async def _request(self, arguments: Mapping[str, Any], context: ToolContext) -> APIRequest:
        headers = {"Accept": "application/json, text/*;q=0.9, */*;q=0.1", **self._fixed}
        headers |= {
            name: to_parameter_text(arguments[name])
            for name in self._headers["properties"]
            if name in arguments
        }
        if self.effect == "once" and context.idempotency_key:
            headers["Idempotency-Key"] = context.idempotency_key
        content = None
        if self._has_body and "body" in arguments:
            content = orjson.dumps(arguments["body"])
            headers.setdefault("Content-Type", "application/json")
        return APIRequest(
            method=self.method,
            url=fill_path(self.url, {name: arguments[name] for name in self._path}),
            query=tuple(
                to_query_pairs({n: arguments[n] for n in self._query["properties"] if n in arguments})
            ),
            headers=headers,
            content=content,
            credentials=await get_credentials(self._auth),
            redirects=self.redirects,
            max_bytes=self.max_bytes,
        )


def api_tool(url: str, method: Method = "GET", *, name: str | None = None, **options: Any) -> HTTPTool:
    """Make an `HTTPTool` named after the method and the last fixed part of the URL. Options are those of `HTTPTool`.

    Raises:
        ConfigurationError: The URL, the method or an option is invalid.
    """
    parts = [part for part in urlsplit(url).path.split("/") if part and "{" not in part]
    named = name or f"{method.lower()}_{parts[-1] if parts else 'root'}".replace("-", "_").replace(".", "_")
    return HTTPTool(named, url, method, **options)


# --- building a request -----------------------------------------------------------------------


def fill_path(template: str, values: Mapping[str, Any]) -> str:
    """Replace the `{name}` fields of a URL template by values, each URL-encoded as one path segment.

    Raises:
        InvalidArguments: A value is empty, `.` or `..`, which would change the path.
    """
    texts = {name: to_parameter_text(value) for name, value in values.items()}
    for name, text in texts.items():
        if text in ("", ".", ".."):
            raise InvalidArguments(
                f"{name!r} must not be {text!r}: a path segment must not be empty, `.` or `..`"
            )
    return _PLACEHOLDER.sub(lambda place: quote(texts[place[1]], safe=""), template)


def to_parameter_text(value: Any) -> str:
    """Convert a parameter value to text for a path, query or header; None becomes an empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return orjson.dumps(value).decode()
    return str(value)


def to_query_pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Convert parameter values to (name, text) pairs of a query. A list gives one pair for each item, and None gives no pair."""
    found = []
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        found += [(name, to_parameter_text(item)) for item in items if item is not None]
    return found


def to_tool_result(response: APIResponse) -> object:
    """Convert an HTTP response to a tool result.

    Text stays text; pictures, audio and PDF become media. Other types become a note with type and size.
    """
    kind = response.headers.get("content-type", "").lower()
    if not response.body:
        location = response.headers.get("location", "").partition("?")[0]  # the query may repeat a key
        more = f", location {location[:MAX_LOCATION_CHARACTERS]}" if location else ""
        return f"(empty response, status {response.status}{more})"
    if any(mark in kind for mark in _TEXT):
        return response.text
    if not response.is_truncated and _MEDIA.match(kind):
        name = PurePosixPath(urlsplit(response.url).path).name or "file"
        if (medium := make_medium(response.body, kind, name=name)).media_type != UNKNOWN_TYPE:
            return medium
    if _is_utf8(response):
        return response.text
    head = base64.b64encode(response.body[:48]).decode()
    kind = kind.partition(";")[0] or "unknown type"
    return f"(binary response: {kind}, {counted(len(response.body), 'byte')}; first bytes in base64: {head})"


def _is_utf8(response: APIResponse) -> bool:
    """Return True if a response body is UTF-8 text without NUL bytes. The last character of a truncated body may be incomplete."""
    if b"\0" in response.body:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(response.body, final=not response.is_truncated)
    except UnicodeDecodeError:
        return False
    return True


# --- checking arguments -----------------------------------------------------------------------


def _parse_method(method: str) -> str:
    if method.upper() not in get_args(Method):
        raise ConfigurationError(f"method= must be one of {', '.join(get_args(Method))}, not {method!r}")
    return method.upper()


def _parse_placeholders(name: str, url: str) -> tuple[str, ...]:
    if not is_http_url(_PLACEHOLDER.sub("place", url)):
        raise ConfigurationError(
            f"tool {name!r}: the URL must begin with http:// or https:// and a host, not {url!r}"
        )
    if "@" in urlsplit(url).netloc:
        raise ConfigurationError(
            f"tool {name!r}: a password in the URL would appear in logs: pass auth=Basic(user, password)"
        )
    fields = _PLACEHOLDER.findall(url)
    if "{" in (rest := _PLACEHOLDER.sub("", url)) or "}" in rest:
        raise ConfigurationError(f"tool {name!r}: braces in the URL must enclose parameter names: {url!r}")
    if any(f"{{{field}}}" in urlsplit(url).netloc for field in fields):
        raise ConfigurationError(f"tool {name!r}: a parameter must not be in the host: move it to the path")
    return tuple(dict.fromkeys(fields))


def _object_schema(parameters: Parameters | None) -> dict[str, Any]:
    """Return the schema of `path=`, `query=` or `headers=` as the JSON Schema of an object.

    `parameters` is such a schema already, or a mapping of parameter names to schemas; None gives an object without properties.
    """
    if parameters is None:
        return {"type": "object", "properties": {}}
    if parameters.get("type") == "object" or "properties" in parameters:
        return {"type": "object", "properties": {}, **parameters}
    return {"type": "object", "properties": dict(parameters)}


def _check_headers(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    if wrong := sorted(header for header in schema["properties"] if header.lower() in RESERVED_HEADERS):
        raise ConfigurationError(
            f"tool {name!r}: the header {wrong[0]!r} cannot be set by the model: use fixed_headers= or auth="
        )
    return schema


def _merge_schemas(name: str, *schemas: dict[str, Any]) -> dict[str, Any]:
    """Merge object schemas to one schema with the properties of all. `name` is the tool's name for errors.

    Raises:
        ConfigurationError: Two schemas have a property of the same name.
    """
    properties: dict[str, Any] = {}
    required: list[str] = []
    rest: dict[str, Any] = {}
    for schema in schemas:
        if twice := sorted(properties.keys() & schema["properties"].keys()):
            raise ConfigurationError(f"tool {name!r}: two parameters are named {twice[0]!r}: rename one")
        properties |= schema["properties"]
        required += schema.get("required", [])
        rest |= {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    merged = {"type": "object", "properties": properties, "additionalProperties": False, **rest}
    return {**merged, "required": required} if required else merged
