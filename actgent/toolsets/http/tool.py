"""`HTTPTool`: one call of an HTTP API as a tool."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal, get_args
from urllib.parse import quote, urlsplit

import orjson
import trio

from actgent.approvals import Ask
from actgent.control.arguments import at_least_one
from actgent.errors import ConfigurationError, InvalidArguments
from actgent.errors.printable import counted
from actgent.tools.base import AskFor, Effect, Tool, ToolContext
from actgent.tools.outputs.media import OTHER, medium_of
from actgent.toolsets.toolset import Publish, Toolset

from .auth import Auth, check_auth, credentials_of
from .exchange import APIRequest, APIResponse, Connections, WorthRepeating
from .guard import Guard
from .urls import is_http_url

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
Parameters = Mapping[str, Any]
"""A JSON Schema of an object; or schemas by name, of parameters that may be left out."""

EFFECTS: Mapping[str, Effect] = {
    "GET": "pure",
    "HEAD": "pure",
    "OPTIONS": "pure",
    "PUT": "idempotent",
    "DELETE": "idempotent",
}
"""RFC 9110, 9.2: what is safe, and what may be repeated; the others happen once."""
OURS = frozenset(
    "authorization connection content-length cookie host idempotency-key proxy-authorization te trailer "
    "transfer-encoding upgrade".split()
)
"""Headers that are no model's to give."""
_PLACE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
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


class HTTPTool(Tool, Toolset):
    """A call of an HTTP API: the model gives what stands in `{}` in the URL, the query, the headers and the body.

    It is a tool and a toolset of that one tool: given to an agent, its connections are kept while the agent runs.
    `configured(...)`, `approved(...)` and the others of `Toolset` derive others of it.

    Args:
        name: What the model calls it by.
        url: `https://api.example/cities/{city}`; what stands in braces is a parameter.
        method: GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS.
        description: When to call it, for the model.
        path: Schemas of parameters in the URL that are no plain text, by name.
        query: Parameters of the query: a JSON Schema of an object, or schemas by name.
        headers: Parameters that go into headers, likewise.
        body: JSON Schema of the body, which the model gives as `body`; it is sent as JSON.
        fixed_headers: Headers that go with each request.
        auth: `Bearer(token)`, `Basic(user, password)`, `APIKey(key)`, or a function that returns `Credentials`.
        timeout: Seconds for the whole call, its repetitions included.
        max_bytes: The longest answer, unpacked; what is behind that is cut.
        redirects: How many are followed.
        retries: How often it is repeated where that helps; by default 2 where the effect allows it. None of a call
            that happens `once`, which has an `Idempotency-Key` instead: the same after a crash.
        effect: What it does outside; None: by the method, GET and HEAD `pure`, PUT and DELETE `idempotent`, others `once`.
        approval: Whether a person has to approve each call.
        allow: Hosts and networks that it may reach although they are not public: `["127.0.0.1", "10.0.0.0/8"]`.
        connections: To share those of other tools; `allow` is theirs then.

    Raises:
        ConfigurationError: one of these is wrong; the text names it.
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
        approval: bool | Ask | AskFor = False,
        allow: Sequence[str] = (),
        connections: Connections | None = None,
    ) -> None:
        check_auth(auth)
        at_least_one("max_bytes", max_bytes)
        self.name = name
        self.description = description
        self.url = url
        self.method = _checked_method(method)
        self.effect = effect or EFFECTS.get(self.method, "once")
        self.timeout = timeout
        self.retries = (0 if self.effect == "once" else 2) if retries is None else retries
        self.retry_on = (WorthRepeating,) if self.retries else ()
        self.approval = approval
        self.max_bytes = max_bytes
        self.redirects = redirects
        self._auth = auth
        self._fixed = dict(fixed_headers or {})
        self._connections = connections or Connections(Guard(allow))
        self._path = _placeholders(name, url)
        known = {place: (path or {}).get(place, {"type": "string"}) for place in self._path}
        self._query = _object_schema(query)
        self._headers = _object_schema(headers)
        self._has_body = body is not None
        self.parameters = _merged(
            name,
            {"type": "object", "properties": known, "required": list(known)},
            self._query,
            _checked_headers(name, self._headers),
            _object_schema(
                {"type": "object", "properties": {"body": body}, "required": ["body"]} if body else None
            ),
        )

    def __repr__(self) -> str:
        return f"<HTTPTool {self.name!r}: {self.method} {self.url}>"

    async def run(self, told: Any, context: ToolContext | None = None) -> Any:
        """Run one call by hand, with its arguments, as `Tool.run` does; with a function, be a toolset, as `Toolset.run` says."""
        async with self._connections.opened():
            if not callable(told):
                return await Tool.run(self, told, context)
            publish: Publish = told
            publish([self])
            return await trio.sleep_forever()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        request = await self._request(arguments, context)
        return readable(await self._connections.send(request))

    async def _request(self, arguments: Mapping[str, Any], context: ToolContext) -> APIRequest:
        headers = {"Accept": "application/json, text/*;q=0.9, */*;q=0.1", **self._fixed}
        headers |= {name: plain(arguments[name]) for name in self._headers["properties"] if name in arguments}
        if self.effect == "once" and context.effect_key:
            headers["Idempotency-Key"] = context.effect_key
        content = None
        if self._has_body and "body" in arguments:
            content = orjson.dumps(arguments["body"])
            headers.setdefault("Content-Type", "application/json")
        return APIRequest(
            method=self.method,
            url=filled(self.url, {name: arguments[name] for name in self._path}),
            query=tuple(pairs({n: arguments[n] for n in self._query["properties"] if n in arguments})),
            headers=headers,
            content=content,
            credentials=await credentials_of(self._auth),
            redirects=self.redirects,
            max_bytes=self.max_bytes,
        )


def api_tool(url: str, method: Method = "GET", *, name: str | None = None, **options: Any) -> HTTPTool:
    """Make an `HTTPTool` named after the last plain part of its URL; the options are those of `HTTPTool`.

    Raises:
        ConfigurationError: as `HTTPTool`.
    """
    parts = [part for part in urlsplit(url).path.split("/") if part and "{" not in part]
    named = name or f"{method.lower()}_{parts[-1] if parts else 'root'}".replace("-", "_").replace(".", "_")
    return HTTPTool(named, url, method, **options)


# --- what goes into a request ------------------------------------------------------------------


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Put values into a URL, each as one segment of its path at most.

    Raises:
        InvalidArguments: a value is empty, `.` or `..`, and would name another path.
    """
    texts = {name: plain(value) for name, value in values.items()}
    for name, text in texts.items():
        if text in ("", ".", ".."):
            raise InvalidArguments(f"{name!r} is {text!r}, which is no part of a path")
    return _PLACE.sub(lambda place: quote(texts[place[1]], safe=""), template)


def plain(value: Any) -> str:
    """Write a value as a path, a query or a header has it; nothing for None, which would name something called so."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return orjson.dumps(value).decode()
    return str(value)


def pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write values as pairs of a query; a list is one pair for each item, None is left out."""
    found = []
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        found += [(name, plain(item)) for item in items if item is not None]
    return found


def readable(response: APIResponse) -> object:
    """The answer as a tool's result: text as it is, pictures, audio and PDF as such, the rest by its kind and size."""
    kind = response.headers.get("content-type", "").lower()
    if not response.body:
        return f"(empty answer, status {response.status})"
    if not kind or any(mark in kind for mark in _TEXT):
        return response.text
    if not response.is_cut and _MEDIA.match(kind):
        name = PurePosixPath(urlsplit(response.url).path).name or "file"
        if (medium := medium_of(response.body, kind, name=name)).media_type != OTHER:
            return medium
    head = base64.b64encode(response.body[:48]).decode()
    return f"(binary answer: {kind.partition(';')[0]}, {counted(len(response.body), 'byte')}; it begins, in base64, with {head})"


# --- what a developer wrote, checked -----------------------------------------------------------


def _checked_method(method: str) -> str:
    if method.upper() not in get_args(Method):
        raise ConfigurationError(f"method= is one of {', '.join(get_args(Method))}, not {method!r}")
    return method.upper()


def _placeholders(name: str, url: str) -> tuple[str, ...]:
    if not is_http_url(_PLACE.sub("place", url)):
        raise ConfigurationError(
            f"tool {name!r}: the URL begins with http:// or https:// and a host, not {url!r}"
        )
    if "@" in urlsplit(url).netloc:
        raise ConfigurationError(
            f"tool {name!r}: a password in the URL would stand in logs: pass auth=Basic(user, password)"
        )
    fields = _PLACE.findall(url)
    if "{" in (rest := _PLACE.sub("", url)) or "}" in rest:
        raise ConfigurationError(f"tool {name!r}: in the URL, braces hold names of parameters: {url!r}")
    if any(f"{{{field}}}" in urlsplit(url).netloc for field in fields):
        raise ConfigurationError(f"tool {name!r}: no model chooses the host: put the parameter behind it")
    return tuple(dict.fromkeys(fields))


def _object_schema(parameters: Parameters | None) -> dict[str, Any]:
    if parameters is None:
        return {"type": "object", "properties": {}}
    if parameters.get("type") == "object" or "properties" in parameters:
        return {"type": "object", "properties": {}, **parameters}
    return {"type": "object", "properties": dict(parameters)}


def _checked_headers(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    if wrong := sorted(header for header in schema["properties"] if header.lower() in OURS):
        raise ConfigurationError(
            f"tool {name!r}: the header {wrong[0]!r} is not the model's to give: use fixed_headers= or auth="
        )
    return schema


def _merged(name: str, *schemas: dict[str, Any]) -> dict[str, Any]:
    """One schema of all parameters; a model gives them side by side."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    rest: dict[str, Any] = {}
    for schema in schemas:
        if twice := sorted(properties.keys() & schema["properties"].keys()):
            raise ConfigurationError(f"tool {name!r}: two parameters are named {twice[0]!r}")
        properties |= schema["properties"]
        required += schema.get("required", [])
        rest |= {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    merged = {"type": "object", "properties": properties, "additionalProperties": False, **rest}
    return {**merged, "required": required} if required else merged
