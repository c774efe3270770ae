"""`Endpoint`, a row of the gateway's endpoint table, and the parsing and validation of requests against it."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl

import attrs
import trio
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive

from actgent.agents.session import Session
from actgent.errors import ParseError
from actgent.errors.text_escaping import quoted, shown
from actgent.journal.journal_interface import SessionSummary
from actgent.support.strict_json import check_depth, encode_json, loads
from actgent.tools.schemas import CompiledSchema, compile_schema
from actgent.web.access_tokens import Caller, Scope
from actgent.web.gateway_context import GatewayContext
from actgent.web.gateway_limits import GatewayLimits
from actgent.web.problem_documents import Problem

from .common_request_schemas import check_client_id

MAX_JSON_DEPTH = 64
"""Maximum nesting depth of a JSON body."""
MAX_ANONYMOUS_BODY_BYTES = 4096
"""Maximum size in bytes of a body for endpoints that need no token. It is small, because any caller can send it."""
MAX_QUERY_BYTES = 4096
"""Maximum length of a query string in bytes."""
MAX_QUERY_INTEGER = 10**15 - 1
"""Largest integer of a query parameter. JavaScript reads it without loss."""
MAX_QUERY_TEXT_CHARS = 500
"""Maximum length in characters of the text of a query parameter without `maxLength`."""
_JSON_TYPES = ("application/json", "application/a2a+json")
"""Media types of JSON bodies. A page of another origin cannot send them without a CORS preflight request."""
BODY_VERBS = ("POST", "PUT", "PATCH")
"""HTTP methods of requests with a JSON body."""
_SECRETS = {"token", "access_token", "key", "api_key", "apikey", "authorization", "bearer"}
Schema = Mapping[str, Any]
T = TypeVar("T")
IDEMPOTENCY_KEY = "Idempotency-Key"
"""Request header with a key that makes a retry of a request idempotent."""
IDEMPOTENCY_TEXT = "A repeated key is the same request: it has its effect once, also after a restart. With another body it is a 422."


def _session_in_path(call: "HTTPCall") -> str:
    return call.path.get("id", "")


@attrs.frozen(kw_only=True)
class Forwarding:
    """Rules by which a gateway forwards requests of an endpoint to the cluster node that owns the session."""

    session_of: "Callable[[HTTPCall], str]" = _session_in_path
    """Returns the id of the session that a request concerns; empty if any node can answer the request."""
    reads_journal: bool = False
    """True if the endpoint only reads the journal, so that any node can answer requests for any session."""
    served_while_draining: bool = False
    """True if a node also answers the request while it hands the session's partition to another node.

    It is set for requests that let a running turn end (for example approval decisions), and for requests that read the
    status.
    """
    repeated_status: int | None = None
    """Error status with which the endpoint rejects a retry after the first try has succeeded.
    The relay then sends a success to the client instead. None if the endpoint itself answers such a retry with success.
    """
    awaits_run: bool = False
    """True if the response ends when a message's run ends, so that the relay waits for it without a time limit.

    If the streaming node is lost, the connection to the client is broken: a normal end would look like the end of the run.
    """
    add_ids: "Callable[[HTTPCall], HTTPCall] | None" = None
    """Returns a copy of a request with an id that makes retries idempotent, if the client sent no id.

    None if the request needs no such id.
    """
    sends_message: "Callable[[HTTPCall], bool] | None" = None
    """Returns True if a request sends a message to its session. The node that relays the request then counts the message.

    None if no request of the endpoint sends a message.
    """


def is_stream_requested(call: "HTTPCall") -> bool:
    """Return True if the body field or the query parameter `stream` requests a stream."""
    return bool(call.body.get("stream")) or call.query.get("stream") == "true"


def streams_always(_call: "HTTPCall") -> bool:
    """Return True: each response of the endpoint is a stream."""
    return True


def sends_always(_call: "HTTPCall") -> bool:
    """Return True: each request of the endpoint sends a message."""
    return True


READS_JOURNAL = Forwarding(reads_journal=True)
ANY_NODE = Forwarding(session_of=lambda _: "")
"""For endpoints of which each node answers all requests."""


@attrs.frozen(kw_only=True, eq=False)
class Endpoint:
    """One endpoint of the gateway: HTTP method, path, required scope, schemas of the request, and type of the response.

    The row is the only place for these facts: routing, validation, the OpenAPI document, forwarding in a cluster and the headers
    that pages of other origins may send follow from it. The type of the answer is the return annotation of `answer`.
    """

    verb: str
    path: str
    """URL path below `prefix`, with `{name}` for variable segments."""
    answer: "Callable[[HTTPCall], Awaitable[Response]]"
    """Function that handles the request. The first line of its docstring is the summary in the OpenAPI document."""
    scope: Scope | None
    """Scope that the token needs; None if the endpoint needs no token."""
    query: Mapping[str, Schema] = attrs.field(factory=dict)
    """JSON Schemas of the query parameters, by name."""
    required_query: Sequence[str] = ()
    """Names of the query parameters that a request must have."""
    body: Schema | None = None
    """JSON Schema of the request body; None if the endpoint accepts no body."""
    has_parts: bool = False
    """True if the request body may contain pictures and files, so that the larger limit `parts_bytes` applies."""
    statuses: Sequence[int] = (200,)
    """HTTP statuses of successful responses."""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """Request headers that the endpoint supports, with their descriptions. `id_field` adds `Idempotency-Key`."""
    answer_headers: Mapping[str, str] = attrs.field(factory=dict)
    """Headers of a successful response, with their descriptions."""
    id_field: str | None = None
    """Name of the body field with the id that makes a retry idempotent, as an alternative to the header `Idempotency-Key`.

    Empty if the endpoint supports only the header; None if it supports neither.
    """
    forwarding: Forwarding = Forwarding()
    """Rules by which the endpoint's requests are forwarded in a cluster."""
    ignores_body: bool = False
    """True if the endpoint ignores the request body, so that a POST request needs no body and no content type."""
    media_type: str = "application/json"
    """Media type of a successful response."""
    streams: bool = False
    """True if the endpoint can also respond with `text/event-stream`."""
    is_stream: "Callable[[HTTPCall], bool] | None" = None
    """Returns True if the response to a request is a stream. None lets the header `Accept` decide. Requires `streams`."""
    prefix: str = "/v1"
    """First part of the URL path, before `path`. Endpoints of interoperability protocols have another prefix than `/v1`."""
    to_error: "Callable[[Problem, str], Response] | None" = None
    """Converts a problem and the request id to an error response. None for `application/problem+json` (RFC 9457)."""

    @cached_property
    def route(self) -> str:
        """Path template of the endpoint with the prefix of its API, such as `/v1/sessions/{id}`."""
        return f"{self.prefix}{self.path}"

    @cached_property
    def request_headers(self) -> Mapping[str, str]:
        """Request headers that the endpoint supports, with their descriptions."""
        key = {} if self.id_field is None else {IDEMPOTENCY_KEY: IDEMPOTENCY_TEXT}
        return {**key, **self.headers}

    @cached_property
    def checker(self) -> CompiledSchema:
        """Compiled JSON Schema of the request body; accepts any object if the endpoint has no schema."""
        return compile_schema(self.body or {}, owner=f"{self.verb} {self.path}")


@attrs.frozen(kw_only=True, eq=False)
class HTTPCall:
    """An authenticated and validated request, as passed to `Endpoint.answer`."""

    gateway: GatewayContext
    caller: Caller
    headers: Mapping[str, str]
    """Request headers by lower-case name."""
    receive: Receive
    """ASGI receive function. The body was already read, so the function returns when the client disconnects."""
    address: str
    """Percent-encoded path of the URL as the client sent it."""
    search: str
    """Query string of the URL as the client sent it."""
    id: str
    """Id of the request, for logs and errors."""
    client: str
    """Network address of the client, or of the proxy in front; empty for relayed requests."""
    path: Mapping[str, str]
    """Decoded values of the path's variable segments, by name."""
    query: Mapping[str, Any]
    """Validated query parameters, by name."""
    body: Mapping[str, Any]
    """Validated JSON object of the request body; empty if the request has no body."""
    scheme: str = "http"
    """Scheme of the URL by which the client has reached the gateway: `http` or `https`."""

    @property
    def shows_exception_texts(self) -> bool:
        """True if the caller may see messages of exceptions that user code or libraries raised (scope `journal`)."""
        return self.caller.allows("journal")

    def header(self, name: str) -> str:
        """Return the value of the request header with this lower-case name; empty if the request lacks this header."""
        return self.headers.get(name, "")

    @property
    def idempotency_key(self) -> str:
        """Value of the header `Idempotency-Key`; empty if the request does not have the header.

        Raises:
            Problem: The key is empty, or has characters that are not allowed in ids.
        """
        key = self.headers.get("idempotency-key")
        return "" if key is None else check_client_id("idempotency-key:", key)

    def chosen_id(self, field: str) -> str | None:
        """Return the id that the client has chosen for the new object; None if the client has chosen no id.

        The id is in the header `Idempotency-Key` or in the body field `field`.

        Raises:
            Problem: Both are set and differ.
        """
        key, named = self.idempotency_key, self.body.get(field)
        if key and named is not None and key != named:
            raise Problem(
                "invalid", f"the header idempotency-key and the field {field} must be equal if both are sent"
            )
        return key or named

    async def head(self) -> SessionSummary:
        """Return the summary of the session whose id is in the path.

        Raises:
            Problem: The session does not exist, or the caller may not access it.
        """
        return await self.gateway.access.head(self.caller, self.path["id"], self.query.get("agent"))

    async def session(self) -> Session:
        """Open the session whose id is in the path.

        Raises:
            Problem: The session does not exist, or the caller may not access it.
            SessionClosed: The session was closed.
            NotRunning: The agent of the session is not running.
        """
        return await self.gateway.access.session(self.caller, self.path["id"], self.query.get("agent"))

    async def readable_session(self) -> Session:
        """Return the session whose id is in the path, for reading. An unfinished turn is not resumed.

        Raises:
            Problem: The session does not exist, or the caller may not access it.
            SessionClosed: The session was closed.
            NotRunning: The agent of the session is not running.
        """
        return await self.gateway.access.readable(await self.head())


class JSON(Response, Generic[T]):
    """HTTP response with a JSON document of type `T`."""

    media_type = "application/json"

    def __init__(
        self,
        content: T,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(content, status_code, headers, media_type)

    def render(self, content: Any) -> bytes:
        return encode_json(content, _encode_default)

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        self._given = headers

    @cached_property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override]  # built on first use; in-process calls never read them
        super().init_headers(self._given)
        return self.raw_headers


def _encode_default(value: object) -> Any:
    """Convert a value that orjson cannot encode to a value that orjson can encode.

    Bytes become their size, mappings become dicts, tuples and sets become lists, and other values become text.
    """
    if isinstance(value, bytes | bytearray):
        return {"bytes": len(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return quoted(value)


# --- reading a request ----------------------------------------------------------------------


def read_query(endpoint: Endpoint, text: str) -> dict[str, Any]:
    """Parse the query string `text` of a request. Validate each parameter against the endpoint's schema for it.

    Raises:
        Problem: A parameter is unknown, is repeated, is missing, or has an invalid value; or the query is too long or unreadable.
    """
    if len(text) > MAX_QUERY_BYTES:
        raise Problem("invalid", f"the query string must have at most {MAX_QUERY_BYTES} bytes")
    try:
        pairs = _pairs_of(text)
    except (ValueError, UnicodeDecodeError):
        raise Problem("malformed-request", "the query string cannot be decoded") from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name.lower() in _SECRETS and name not in endpoint.query:
            raise Problem(
                "malformed-request", "do not send a token in the URL: send it as Authorization: Bearer TOKEN"
            )
        if name not in endpoint.query:
            known = ", ".join(endpoint.query) or "none"
            raise Problem(
                "invalid", f"unknown query parameter {quoted(name, 40)}: the endpoint supports {known}"
            )
        if name in found:
            raise Problem("invalid", f"the query must have the parameter {name} only once")
        found[name] = _value_of(name, value, endpoint.query[name])
    for name in endpoint.required_query:
        if name not in found:
            raise Problem("invalid", f"the query must have the parameter {name}")
    return found


@lru_cache(maxsize=256)
def _pairs_of(text: str) -> Sequence[tuple[str, str]]:
    """Split a query string into decoded pairs of name and value.

    The result is cached, because most requests have the same few queries.
    """
    return parse_qsl(
        text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=32
    )


def _value_of(name: str, text: str, schema: Schema) -> Any:
    """Convert the text of a query parameter to the type that its schema requires.

    Raise `Problem` if the text does not match the schema. The error contains the parameter's `name`.
    """
    kind = schema.get("type", "string")
    value: Any = text
    if kind == "integer":
        least = schema.get("minimum", 0)
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_QUERY_INTEGER))):
            raise Problem(
                "invalid", f"{name}= must be a whole number, at least {least}, not {quoted(text, 40)}"
            )
        value = int(text)
        if value < least:
            raise Problem("invalid", f"{name}= must be at least {least}, not {value}")
    elif kind == "number":
        value = _number_of(name, text)
    elif "enum" in schema and text not in schema["enum"]:
        raise Problem(
            "invalid", f"{name}= must be one of {', '.join(schema['enum'])}, not {quoted(text, 40)}"
        )
    elif "\x00" in text or len(text) > schema.get("maxLength", MAX_QUERY_TEXT_CHARS):
        most = schema.get("maxLength", MAX_QUERY_TEXT_CHARS)
        raise Problem("invalid", f"{name}= must be a string of at most {most} characters without NUL")
    return value


def _number_of(name: str, text: str) -> float:
    """Convert the text of the query parameter `name` to a number. Raise `Problem` if it is no number of at least 0."""
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise Problem("invalid", f"{name}= must be a number, at least 0, not {quoted(text, 40)}")
    return value


async def read_body(endpoint: Endpoint, request: HTTPRequest, limits: GatewayLimits) -> Mapping[str, Any]:
    """Read the body of an HTTP request, and validate it against the endpoint's schema.

    Raises:
        Problem: The body is missing, invalid, too large or too slow, or has a wrong media type.
    """
    if endpoint.ignores_body:
        return {}
    check_content_headers(request.method, request.headers)
    if has_no_body(endpoint, request.method):
        return {}
    data = await _read_bytes(request, max_body_bytes(endpoint, limits), limits.body_seconds)
    request.scope["actgent.answer"].has_read_body = True
    return to_body(endpoint, data)


def has_no_body(endpoint: Endpoint, verb: str) -> bool:
    """Return True if requests with this HTTP method need no body. If such a request has a body, the body is ignored."""
    return endpoint.body is None and verb in ("GET", "DELETE", "HEAD")


def max_body_bytes(endpoint: Endpoint, limits: GatewayLimits) -> int:
    """Return the maximum size in bytes of the request body of an endpoint.

    The maximum is smaller for endpoints that need no token.
    """
    most = limits.parts_bytes if endpoint.has_parts else limits.body_bytes
    return min(most, MAX_ANONYMOUS_BODY_BYTES) if endpoint.scope is None else most


def to_body(endpoint: Endpoint, data: bytes) -> Mapping[str, Any]:
    """Decode a JSON request body, and validate it against the endpoint's schema.

    Raises:
        Problem: The bytes are not a JSON object in UTF-8, or the object does not match the schema.
    """
    value = _decode(data) if data else {}
    if not isinstance(value, dict):
        raise Problem("invalid", "the request body must be a JSON object")
    if endpoint.body is None and value:
        raise Problem("invalid", "this endpoint accepts no fields: send no body, or an empty JSON object")
    if endpoint.body is not None and (reason := endpoint.checker.reason(value)):
        raise Problem("invalid", shown(reason, 1000))
    return value


def check_content_headers(verb: str, headers: Mapping[str, str]) -> None:
    """Check the content type and encoding of a request with this HTTP method and these headers.

    Requiring `application/json` prevents cross-site request forgery: a page of another origin cannot send it without a preflight
    request.

    Raises:
        Problem: The body is compressed, or a POST, PUT or PATCH request is not `application/json` in UTF-8.
    """
    _check_content_headers(verb, headers.get("content-encoding", "identity"), headers.get("content-type", ""))


@lru_cache(maxsize=256)
def _check_content_headers(verb: str, encoding: str, media_type: str) -> None:
    """Raise `Problem` if the body is compressed, or if a POST, PUT or PATCH request is not JSON in UTF-8.

    `encoding` and `media_type` are the values of `Content-Encoding` and `Content-Type`. The result is cached.
    """
    if encoding != "identity":
        raise Problem(
            "unsupported-media-type",
            "compressed request bodies are not supported: remove the header content-encoding",
        )
    kind, _, rest = media_type.partition(";")
    is_json = kind.strip().lower() in _JSON_TYPES
    if is_json and rest.strip() and rest.replace(" ", "").replace('"', "").lower() != "charset=utf-8":
        raise Problem("unsupported-media-type", "the JSON body must be encoded as UTF-8")
    if verb in BODY_VERBS and not is_json:
        raise Problem(
            "unsupported-media-type",
            "the header content-type must be application/json, also for an empty body",
        )


async def _read_bytes(request: HTTPRequest, max_bytes: int, seconds: float) -> bytes:
    """Read the request body. Raise `Problem` if it has more than `max_bytes`, or takes longer than `seconds`."""
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:16]) > max_bytes:
        raise too_large(max_bytes)
    data = bytearray()
    with trio.move_on_after(seconds) as limit:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Problem(
                    "malformed-request", "the client disconnected before the whole request body was received"
                )
            data += message.get("body", b"")
            if len(data) > max_bytes:
                raise too_large(max_bytes)
            if not message.get("more_body", False):
                break
    if limit.cancelled_caught:
        raise Problem(
            "timeout",
            f"the request body was not received within {seconds:g} s",
            headers={"connection": "close"},
        )
    return bytes(data)


def too_large(max_bytes: int) -> Problem:
    """Return the error for a request body of more than `max_bytes` bytes."""
    return Problem(
        "body-too-large",
        f"the request body must have at most {max_bytes} bytes",
        headers={"connection": "close"},
        limit=max_bytes,
    )


def _decode(data: bytes) -> Any:
    """Decode JSON in UTF-8. Raise `Problem` if the JSON is malformed or nested too deeply."""
    try:
        value = loads(text := data.decode("utf-8"))
        if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
            check_depth(value, MAX_JSON_DEPTH)
    except UnicodeDecodeError:
        raise Problem("malformed-request", "the request body must be encoded as UTF-8") from None
    except ParseError as error:
        raise Problem("malformed-request", shown(error.reason, 300)) from None
    return value
