"""ASGI application of the gateway: authenticates requests, calls endpoints, and converts exceptions to problem documents.

Order of the checks: `Host`, `Origin` and `Sec-Fetch-Site`, the path, the token, its scope and rate, then query and body.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes

import attrs
import trio
from starlette.datastructures import Headers
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route as Path, Router
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.actors.event_loop_check import check_loop
from actgent.client.http.http_request import SOURCES_HEADER
from actgent.errors import Fenced, SessionMoved
from actgent.information_flow_labels import label_of, text_of
from actgent.messages import new_id, traceparent, valid_traceparent
from actgent.support import span_names as names
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.tracing_interface import Attribute, OpenSpan, Tracing
from actgent.tools.untrusted_sources_of_call import sources_of_request

from .access_tokens import AccessToken, Caller, TokenStore
from .gateway_context import GatewayContext
from .gateway_limits import GatewayLimits, Meters
from .problem_documents import MEDIA_TYPE, Problem, problem_of
from .routes.endpoints import JSON, Endpoint, HTTPCall, read_body, read_query
from .server.request_relay import Relay

_access_log = logging.getLogger("actgent.access")
"""Logger of requests. Requests are logged at INFO, probes and metrics at DEBUG."""
_QUIET = frozenset({"/v1/health/live", "/v1/health/ready", "/v1/metrics"})
"""Path templates that monitoring programs request every few seconds; logged at DEBUG."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


def log_request(method: str, route: str, status: int, started_at: float, request_id: str) -> None:
    """Log a completed HTTP request. Do nothing if the log level of its path is disabled.

    Paths are templates (`/v1/sessions/{id}`), so that no id, query value or token gets into the log.

    Args:
        method: HTTP method as the client sent it; unknown methods are logged as OTHER.
        route: Path template, or `none` for addresses outside `/v1`.
        status: HTTP status of the response; 0 if the client disconnected before the response began.
        started_at: Arrival time of the request by trio's clock, in seconds.
        request_id: Value of the response header `X-Request-Id`.
    """
    level = logging.DEBUG if route in _QUIET else logging.INFO
    if not _access_log.isEnabledFor(level):
        return
    method = method if method in _METHODS else "OTHER"
    milliseconds = round((trio.current_time() - started_at) * 1000, 1)
    fields = {"method": method, "path": route, "status": status, "ms": milliseconds, "request_id": request_id}
    _access_log.log(
        level,
        "%s %s %d %.1f ms %s",
        method,
        route,
        status,
        milliseconds,
        request_id,
        extra={"fields": fields},
    )


def begin_request_span(tracing: Tracing | None, endpoint: Endpoint, scheme: str) -> OpenSpan | None:
    """Begin the OpenTelemetry span of a request, and make it the current span of the calling task.

    The parent span is the request's trace context, otherwise the current span. Return None if `tracing` is None, and
    for probes and metrics requests.
    """
    if tracing is None or endpoint.scope in (None, "metrics"):
        return None
    attributes: dict[str, Attribute] = {
        names.HTTP_METHOD: endpoint.verb,
        names.HTTP_ROUTE: endpoint.route,
        names.URL_SCHEME: scheme,
    }
    parent = valid_traceparent(traceparent.get())
    span = tracing.begin(f"{endpoint.verb} {endpoint.route}", attributes, kind="server", parent=parent)
    span.make_current()
    traceparent.set(span.traceparent)
    return span


def end_request_span(span: OpenSpan | None, status: int) -> None:
    """End the tracing span of a request with the HTTP status of the response. Status 0 means that no response was sent."""
    if span is not None:
        facts: dict[str, Attribute] = {names.HTTP_STATUS: status} if status else {}
        span.end(facts, error=str(status) if status >= _SERVER_ERROR else "")


PREFIX = "/v1"
OWNER_HEADER = "actgent-owner"
"""Request header with the owner on whose behalf a token with the scope `impersonate:` acts."""
MAX_TOKEN_CHARS = 500
MAX_SEGMENT_CHARS = 2000
"""Maximum length of an id in a path. Ids of child sessions are long, because they contain the parent's id."""
ALWAYS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""HTTP headers that every response has."""
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/?#@]+)(?P<path>/.*)?", re.IGNORECASE)
_log = logger_of(__name__)


@attrs.frozen(kw_only=True)
class HostPolicy:
    """Allowed `Host` headers and cross-origin web sites of the gateway."""

    hosts: frozenset[str]
    """Allowed values of the `Host` header; a value without a port allows every port."""
    origins: frozenset[str] = frozenset()
    """Values of the `Origin` header of web sites whose pages may send cross-origin requests."""

    def check(self, scope: ASGIScope) -> str | None:
        """Check host and origin of a request.

        Return the allowed value of the `Origin` header if the request comes from a page of another site, else None.

        Raises:
            Problem: The host is not allowed, or the request comes from a page of another site.
        """
        headers = Headers(scope=scope)
        given = headers.getlist("host")
        host = given[0].lower() if len(given) == 1 else ""
        if host not in self.hosts and _without_port(host) not in self.hosts:
            raise Problem(
                "wrong-host", "the Host header is not an allowed host name: start the server with --host NAME"
            )
        origin = self._check_origin(headers.getlist("origin"), f"{scope.get('scheme', 'http')}://{host}")
        if origin is None and not {"same-origin", "none"}.issuperset(headers.getlist("sec-fetch-site")):
            raise Problem(
                "wrong-origin", "cross-origin requests are not allowed: start the server with --origin ORIGIN"
            )
        return origin

    def _check_origin(self, given: Sequence[str], own: str) -> str | None:
        """Return the `Origin` header of a request from another site; None for requests from this server or without the header.

        Args:
            given: Values of the header.
            own: Origin of this server.

        Raises:
            Problem: The origin is not allowed.
        """
        if not given or given == [own]:
            return None
        if len(given) == 1 and given[0] in self.origins:
            return given[0]
        raise Problem(
            "wrong-origin", "cross-origin requests are not allowed: start the server with --origin ORIGIN"
        )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


MAX_DROPPED_BYTES = 65_536
"""Maximum size of a body that is received although an early error needs none of it."""
DROP_SECONDS = 1.0
"""Maximum seconds for which the body of a request is received although an early error needs none of it."""
_SERVER_ERROR = 500
"""Least HTTP status of server errors."""
_REQUEST_TIMEOUT = 408
"""HTTP status of a request whose body did not arrive in time. The rest of the body is not awaited."""


@attrs.frozen(kw_only=True, eq=False)
class Application:
    """The ASGI application of a gateway."""

    context: GatewayContext
    tokens: TokenStore
    host_policy: HostPolicy
    limits: GatewayLimits
    now: Callable[[], float]
    """Returns the current Unix time in seconds."""
    meters: Meters
    """Meters that limit the requests of each access token."""
    router: Router
    preflight: Response
    """Response to preflight requests (CORS) of allowed origins."""
    relay: Relay | None = None
    """Relay that forwards requests to the cluster nodes that own their sessions; None without a cluster."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        check_loop("the gateway's application")
        if scope["type"] == "lifespan":
            await _answer_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        answer, begun = _Answer(send), trio.current_time()
        try:
            answer.origin = self.host_policy.check(scope)
            _check_framing(scope)
            app = self.preflight if scope["method"] == "OPTIONS" and answer.origin else self.router
            await app(self._with_raw_path(scope, answer), receive, answer)
        except Exception as error:  # the outermost handler: every exception becomes a problem document
            if answer.is_cut:
                raise
            problem = log_and_convert(error, answer.id)
            if answer.has_begun:
                raise
            to_error = problem_response if answer.to_error is None else answer.to_error
            if not answer.has_read_body and problem.status != _REQUEST_TIMEOUT:
                await _finish_body(scope, receive, problem)
            await to_error(problem, answer.id)(scope, receive, answer)
        finally:
            end_request_span(answer.span, answer.status)
            self.context.metrics.requests[answer.route, answer.status] += 1
            log_request(scope["method"], answer.route, answer.status, begun, answer.id)

    def _with_raw_path(self, scope: ASGIScope, answer: "_Answer") -> ASGIScope:
        """Return a copy of the ASGI scope with the percent-encoded path, so that an encoded `/` does not split a segment.

        Raises:
            Problem: The request target is a URL (RFC 9112, 3.2.2) whose host differs from the `Host` header.
        """
        raw: bytes | None = scope.get("raw_path")
        path = quote(scope["path"], safe="/") if raw is None else raw.partition(b"?")[0].decode("latin-1")
        if not path.startswith("/") and (target := _ABSOLUTE.fullmatch(path)) is not None:
            if Headers(scope=scope).getlist("host") != [target["host"]]:
                raise Problem(
                    "malformed-request", "the host in the request target differs from the Host header"
                )
            path = target["path"] or "/"
        return {**scope, "path": path, "actgent.answer": answer, "actgent.application": self}

    def authenticate(self, request: HTTPRequest) -> Caller:
        """Return the authenticated caller of a request, from its bearer token.

        Raises:
            Problem: The token is missing, unknown or expired, or may not act for the requested owner.
        """
        given = request.headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        known: AccessToken | None = None
        if scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN_CHARS:
            known = self.tokens.find(token.strip(), now=self.now())
        if known is None:
            if given:
                self.meters.count_unknown_token(
                    request.client.host if request.client else "", now=trio.current_time()
                )
            reason = "the token is unknown or expired" if given else "the request has no token"
            raise Problem("unauthorized", f"{reason}: send a valid token as Authorization: Bearer TOKEN")
        owner = request.headers.get(OWNER_HEADER, known.owner)
        if not known.can_impersonate(owner):
            raise Problem(
                "forbidden",
                f"the header {OWNER_HEADER} requires a token with an `impersonate:` scope for this owner",
            )
        return Caller(token=known, owner=owner)

    async def read(self, endpoint: Endpoint, caller: Caller, request: HTTPRequest) -> HTTPCall:
        """Parse and validate an authenticated request. Return the call to pass to its endpoint."""
        take_context_headers(request.headers)
        scheme = request.scope.get("scheme", "http")
        answer: _Answer = request.scope["actgent.answer"]
        answer.span = begin_request_span(self.context.access.runtime.stream.tracing, endpoint, scheme)
        search = request.scope["query_string"].decode("latin-1")
        return HTTPCall(
            gateway=self.context,
            caller=caller,
            headers=request.headers,
            receive=request.receive,
            address=request.scope["path"],
            search=search,
            id=answer.id,
            client=request.client.host if request.client else "",
            path=decode_segments(request.path_params),
            query=read_query(endpoint, search),
            body=await read_body(endpoint, request, self.limits),
            scheme=scheme,
        )


class _Answer:
    """Sends the response to one request, and adds the headers of every response."""

    def __init__(self, send: Send) -> None:
        self.id = new_id()
        self.origin: str | None = None
        """Origin of the page that may read the response (CORS); None if there is none."""
        self.has_begun = False
        self.has_read_body = False
        """True if the whole body of the request was received."""
        self.is_cut = False
        """True if the client disconnected; exceptions are then ignored."""
        self.status = 0
        self.rate_headers: Mapping[str, str] = {}
        """Headers with the request rate of the token; empty without a token."""
        self.route = "none"
        """Path template of the endpoint; `none` if no endpoint matched."""
        self.to_error: Callable[[Problem, str], Response] | None = None
        """Converts a problem to the endpoint's error response; None uses `problem_response`."""
        self.span: OpenSpan | None = None
        """Span of the request; None without telemetry."""
        self._send = send

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            extra = {
                **ALWAYS,
                "x-request-id": self.id,
                **self.rate_headers,
                **({} if self.origin is None else _cors(self.origin)),
            }
            headers = [*message["headers"]]
            known = {name for name, _ in headers}
            for name, value in extra.items():
                if name.encode() not in known:
                    headers.append((name.encode(), value.encode("latin-1")))
            message["headers"] = headers
        try:
            await self._send(message)
        except trio.BrokenResourceError:
            self.is_cut = True
            raise


@attrs.frozen(eq=False)
class _Address:
    """ASGI application for one URL path. It calls the endpoint for the request's HTTP method."""

    endpoints: Mapping[str, Endpoint]

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        is_head = scope["method"] == "HEAD"
        endpoint = self.endpoints.get("GET" if is_head else scope["method"])
        application: Application = scope["actgent.application"]
        answer: _Answer = scope["actgent.answer"]
        if endpoint is None:
            answer.to_error = next(iter(self.endpoints.values())).to_error
            raise not_allowed(self.endpoints)
        answer.route, answer.to_error = endpoint.route, endpoint.to_error
        request, relay = HTTPRequest(scope, receive, send), application.relay
        # A request whose session another node owns is relayed to that node.
        run = endpoint.answer if relay is None else partial(relay.answer, endpoint)
        if endpoint.scope is None:
            response = await run(await application.read(endpoint, ANONYMOUS, request))
            await _send(response, scope, receive, send)
            return
        caller = application.authenticate(request)
        check_scope(endpoint, caller)
        is_stream = (
            endpoint.streams
            and not (is_head or endpoint.is_stream is not None)
            and JSON.media_type not in request.headers.get("accept", "")
        )
        meters = application.meters
        with meters.entered(caller.token.digest, now=trio.current_time(), is_stream=is_stream) as left:
            answer.rate_headers = {"ratelimit": left, "ratelimit-policy": meters.policy}
            call = await application.read(endpoint, caller, request)
            is_asked = endpoint.is_stream is not None and not is_head and endpoint.is_stream(call)
            if not (is_stream or is_asked):
                await _send(await run(call), scope, receive, send)
                return
            with meters.streaming(caller.token.digest) if is_asked else nullcontext():
                response = await run(call)
                with application.tokens.cancel_on_revocation(caller.token, now=application.now()):
                    await _send(response, scope, receive, send)


class _HeadSent(Exception):
    """Raised after the headers of a HEAD response were sent, to skip the body."""


async def _send(response: Response, scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Send a response. For HEAD send only the headers, without producing the body."""
    if scope["method"] != "HEAD":
        await response(scope, receive, send)
        return

    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise _HeadSent

    try:
        await response({**scope, "state": {}}, receive, send_head)
    except* _HeadSent:  # a response with a nursery raises it in a group
        pass


def not_allowed(endpoints: Mapping[str, Endpoint]) -> Problem:
    """Return the error response for an HTTP method that a path does not support.

    `endpoints` are the endpoints of the path, by supported method.
    """
    allowed = ", ".join(sorted(endpoints))
    return Problem("method-not-allowed", f"this path supports {allowed}", headers={"allow": allowed})


def check_scope(endpoint: Endpoint, caller: Caller) -> None:
    """Check that a caller has the scope of an endpoint.

    Raises:
        Problem: The token does not have the scope.
    """
    if endpoint.scope is not None and not caller.allows(endpoint.scope):
        raise Problem(
            "forbidden", f"the request requires the scope `{endpoint.scope}`: use a token with this scope"
        )


ANONYMOUS = Caller(
    token=AccessToken(name="nobody", owner="nobody", scopes=("metrics",), digest=""), owner="nobody"
)
"""Caller of requests without a token. It may only call public endpoints."""


def router_of(endpoints: Iterable[Endpoint], pages: Sequence[Path] = ()) -> Router:
    """Return a router that serves endpoints and additional pages, such as the dashboard."""
    known = tuple(endpoints)
    addresses = [
        Path(next(iter(verbs.values())).prefix + path, _Address(verbs))
        for path, verbs in by_path(known).items()
    ]
    errors = {_first_segment(each.route): each.to_error for each in reversed(known) if each.to_error}
    return Router([*addresses, *pages], redirect_slashes=False, default=_UnknownPath(errors))


def preflight_of(endpoints: Iterable[Endpoint]) -> Response:
    """Return the response to preflight requests (CORS): the HTTP methods and request headers that the endpoints support."""
    known = tuple(endpoints)
    names = {name.lower() for endpoint in known for name in endpoint.request_headers}
    headers = {
        "access-control-allow-methods": ", ".join(sorted({"HEAD", *(each.verb for each in known)})),
        "access-control-allow-headers": ", ".join(
            ["authorization", "content-type", "traceparent", SOURCES_HEADER, *sorted(names)]
        ),
        "access-control-max-age": "600",
    }
    return Response(status_code=204, headers=headers)


def by_path(endpoints: Iterable[Endpoint]) -> dict[str, dict[str, Endpoint]]:
    """Group endpoints by path, then by HTTP method."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.verb] = endpoint
    return paths


def no_address() -> Problem:
    """Return the error response for an unknown URL path. It refers to the OpenAPI document."""
    return Problem("not-found", "unknown path: GET /v1/openapi.json lists all paths")


def _first_segment(path: str) -> str:
    return path.partition("/")[2].partition("/")[0]  # the target of OPTIONS * and of CONNECT has no segment


_OPENAI_PATHS = ("/chat/completions", "/responses")
"""Ends of the paths that OpenAI clients request below their base URL."""


@attrs.frozen(eq=False)
class _UnknownPath:
    """ASGI application for unknown paths. Clients of a protocol get the error format of the protocol."""

    errors: Mapping[str, Callable[[Problem, str], Response]]
    """Functions that convert a problem to an error response, by the first segment of the path."""

    async def __call__(self, scope: ASGIScope, _receive: Receive, _send: Send) -> None:
        segment = _first_segment(scope["path"])
        is_openai_client = scope["path"].endswith(_OPENAI_PATHS) and "openai" in self.errors
        if is_openai_client and segment != "openai":
            scope["actgent.answer"].to_error = self.errors["openai"]
            raise Problem("not-found", "unknown path: the base URL of OpenAI clients ends with /openai/v1")
        scope["actgent.answer"].to_error = self.errors.get(segment)
        raise no_address()


def _cors(origin: str) -> dict[str, str]:
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": "location, retry-after, ratelimit, ratelimit-policy, x-request-id, etag",
        "vary": "origin",
    }


def problem_response(problem: Problem, request_id: str) -> JSON[dict[str, Any]]:
    """Return the HTTP response for a problem. The problem document has the request id as `instance`."""
    return JSON(
        problem.document(request_id),
        status_code=problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )


def log_and_convert(error: Exception, request_id: str, *, is_forwarded: bool = False) -> Problem:
    """Return the problem (error response) for an exception, and log the exception if it is a server error.

    `is_forwarded=True` means: another node relayed the request, and retries it if this node does not own the session.
    """
    problem = problem_of(error)
    if problem is None:
        _log.exception("request %s failed", LogVariable(request_id))
        return Problem("internal", "unexpected error: the server log has details under this request id")
    if isinstance(error, Fenced if is_forwarded else SessionMoved):
        _log.debug(
            "request %s: %s", LogVariable(request_id), error
        )  # the caller forwards the request to the next owner
    elif problem.status >= _SERVER_ERROR and error is not problem:
        _log.error("request %s: %s: %s", LogVariable(request_id), type(error).__name__, error)
    return problem


def _check_framing(scope: ASGIScope) -> None:
    """Check that the length of a request body is unambiguous.

    Raises:
        Problem: The request has both or repeated `content-length` and `transfer-encoding` headers.
    """
    headers = Headers(scope=scope)
    lengths, encodings = headers.getlist("content-length"), headers.getlist("transfer-encoding")
    if len(lengths) + len(encodings) > 1:
        raise Problem(
            "malformed-request",
            "a request with a body must have exactly one of the headers content-length and transfer-encoding",
            headers={"connection": "close"},
        )


async def _finish_body(scope: ASGIScope, receive: Receive, problem: Problem) -> None:
    """Receive the rest of a small request body. For a larger body, add `connection: close` to the problem's headers.

    Otherwise the server closes the connection without a notice, and clients that keep connections fail with their next request.
    """
    headers = Headers(scope=scope)
    length = headers.get("content-length", "0")
    if (
        "transfer-encoding" not in headers
        and length.isascii()
        and length.isdigit()
        and int(length[:16]) <= MAX_DROPPED_BYTES
    ):
        with trio.move_on_after(DROP_SECONDS):
            while int(length):
                message = await receive()
                if not message.get("more_body", False):
                    return
            return
    problem.headers.setdefault("connection", "close")


def decode_segments(segments: Mapping[str, str]) -> dict[str, str]:
    """Decode the percent-encoded variable segments of a path, by name.

    Raises:
        Problem: A segment is empty, too long, or not printable UTF-8.
    """
    return {name: decode_segment(value) for name, value in segments.items()}


def take_context_headers(headers: Mapping[str, str]) -> None:
    """Set the trace context and the untrusted sources of the current task from the headers `traceparent` and `actgent-sources`.

    An invalid `traceparent` is ignored. A source with an invalid name counts as an unknown untrusted source.
    """
    parent = valid_traceparent(headers.get("traceparent"))
    if parent is not None:
        traceparent.set(parent)
    if given := headers.get(SOURCES_HEADER):
        sources_of_request.set(text_of(label_of(", ".join(map(str.strip, unquote(given).split(","))))))


def decode_segment(segment: str) -> str:
    """Decode one percent-encoded segment of a path.

    Raises:
        Problem: The segment is empty, too long, or not printable UTF-8.
    """
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text.strip() or len(text) > MAX_SEGMENT_CHARS:
        raise Problem("not-found", "an id in the path does not exist")
    return text


async def _answer_lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge ASGI lifespan events until shutdown. Resources are managed by the gateway's `async with` block instead."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
