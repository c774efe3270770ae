"""The gateway as an ASGI application: who may ask is checked before anything is looked for, and errors become problems.

Order of the checks: `Host`, `Origin` and `Sec-Fetch-Site`, the address, the token, its scope and rate, then query and body.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import attrs
import trio
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route as Path, Router
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.actors.event_loop import check_loop
from actgent.errors import Fenced, SessionMoved
from actgent.messages import new_id, traceparent, valid_traceparent
from actgent.support.logs import Each, logger_of

from .access_log import log_request
from .bounds import GatewayLimits, Meters
from .inside import Inside
from .problems import MEDIA_TYPE, Problem, problem_of
from .routes.endpoints import JSON, Endpoint, HTTPCall, read_body, read_query
from .server.relay import Relay
from .tokens import AccessToken, Caller, TokenStore

PREFIX = "/v1"
OWNER_HEADER = "actgent-owner"
"""The owner that a token with the scope `impersonate:` acts for."""
MAX_TOKEN = 500
MAX_SEGMENT = 2000
"""Characters of an id in a path: those of children are made from others, and long."""
ALWAYS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every answer."""
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/?#@]+)(?P<path>/.*)?", re.IGNORECASE)
_log = logger_of(__name__)


@attrs.frozen(kw_only=True)
class Doors:
    """By which names this server answers, and to pages of which sites."""

    hosts: frozenset[str]
    """Values of `Host`; one without a port stands for each port."""
    origins: frozenset[str] = frozenset()
    """Other sites whose pages may ask."""

    def check(self, scope: ASGIScope) -> str | None:
        """Refuse who asks for another host, or comes from the page of another site; returns the origin that is to be allowed.

        Raises:
            Problem: it is one.
        """
        given = _all_of(scope, b"host")
        host = given[0].lower() if len(given) == 1 else ""
        if host not in self.hosts and _without_port(host) not in self.hosts:
            raise Problem(
                "wrong-host", "the Host header is none of the names that this server answers to; see --host"
            )
        origin = self._check_origin(scope, host)
        site = _all_of(scope, b"sec-fetch-site")
        if origin is None and any(each not in ("same-origin", "none") for each in site):
            raise Problem("wrong-origin", "pages of other sites may not ask here; see --origin")
        return origin

    def _check_origin(self, scope: ASGIScope, host: str) -> str | None:
        """The other site that asks and may; None where it is ours, or no page."""
        given = _all_of(scope, b"origin")
        if not given or given == [f"{scope.get('scheme', 'http')}://{host}"]:
            return None
        if len(given) == 1 and given[0] in self.origins:
            return given[0]
        raise Problem("wrong-origin", "pages of other sites may not ask here; see --origin")


def _all_of(scope: ASGIScope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


@attrs.frozen(kw_only=True, eq=False)
class Application:
    """The ASGI application of a gateway."""

    inside: Inside
    tokens: TokenStore
    doors: Doors
    limits: GatewayLimits
    now: Callable[[], float]
    """Unix time in seconds."""
    meters: Meters
    """The same as those of `inside`."""
    router: Router
    relay: Relay | None = None
    """The way to sessions of other processes; None where there are none, or others see to it."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        check_loop("the gateway's application")
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        answer, begun = _Answer(send), trio.current_time()
        try:
            answer.origin = self.doors.check(scope)
            _check_framing(scope)
            app = _preflight if scope["method"] == "OPTIONS" and answer.origin else self.router
            await app(self._routed(scope, answer), receive, answer)
        except Exception as error:  # the edge: whatever it is, the client gets a problem
            if answer.is_cut:
                raise
            problem = told_problem(error, answer.id)
            if answer.has_begun:
                raise
            await problem_response(problem, answer.id)(scope, receive, answer)
        finally:
            self.inside.metrics.requests[answer.route, answer.status] += 1
            log_request(scope["method"], answer.route, answer.status, begun, answer.id)

    def _routed(self, scope: ASGIScope, answer: "_Answer") -> ASGIScope:
        """The same request with its path as it was sent: what is encoded in a segment does not part it.

        Raises:
            Problem: The target is a URL (RFC 9112, 3.2.2) of another host than the header says.
        """
        raw: bytes | None = scope.get("raw_path")
        path = quote(scope["path"], safe="/") if raw is None else raw.partition(b"?")[0].decode("latin-1")
        if not path.startswith("/") and (target := _ABSOLUTE.fullmatch(path)) is not None:
            if _all_of(scope, b"host") != [target["host"]]:
                raise Problem("malformed-request", "the request names two hosts: in its target and as Host")
            path = target["path"] or "/"
        return {**scope, "path": path, "actgent.answer": answer, "actgent.application": self}

    def authenticate(self, request: HTTPRequest) -> Caller:
        """Find out who asks.

        Raises:
            Problem: nobody who is known.
        """
        given = request.headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        known: AccessToken | None = None
        if scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN:
            known = self.tokens.find(token.strip(), now=self.now())
        if known is None:
            if given:
                self.meters.note_wrong(request.client.host if request.client else "", now=trio.current_time())
            raise Problem("unauthorized", "send a token as Authorization: Bearer TOKEN")
        owner = request.headers.get(OWNER_HEADER, known.owner)
        if not known.may_act_for(owner):
            raise Problem("forbidden", f"{OWNER_HEADER}: takes the scope impersonate: for this owner")
        return Caller(token=known, owner=owner)

    async def call(self, endpoint: Endpoint, caller: Caller, request: HTTPRequest) -> Response:
        """Answer a request whose caller may ask."""
        go_on_trace(request.headers)
        search = request.scope["query_string"].decode("latin-1")
        call = HTTPCall(
            gateway=self.inside,
            caller=caller,
            headers=request.headers,
            receive=request.receive,
            address=request.scope["path"],
            search=search,
            id=request.scope["actgent.answer"].id,
            client=request.client.host if request.client else "",
            path=decoded_all(request.path_params),
            query=read_query(endpoint, search),
            body=await read_body(endpoint, request, self.limits),
        )
        return (
            await endpoint.answer(call) if self.relay is None else await _answer(self.relay, endpoint, call)
        )


async def _answer(relay: Relay, endpoint: Endpoint, call: HTTPCall) -> Response:
    """Answer a request here, or hand it on to where its session lives."""
    if relay.takes(endpoint, call):
        return relay.answer(endpoint, call)
    try:
        return await endpoint.answer(call)
    except Fenced as moved:
        return relay.answer(endpoint, call, moved)


class _Answer:
    """What is sent in answer to one request, with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self.id = new_id()
        self.origin: str | None = None
        """The other site whose page may read it."""
        self.has_begun = False
        self.is_cut = False
        """True: its client has gone, or cannot be reached; what is raised then is nobody's fault."""
        self.status = 0
        self.route = "none"
        """The path of its endpoint, as the table has it."""
        self._send = send

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            extra = {
                **ALWAYS,
                "x-request-id": self.id,
                **({} if self.origin is None else _cors(self.origin)),
            }
            known = {name for name, _ in message["headers"]}
            added = ((name.encode(), value.encode("latin-1")) for name, value in extra.items())
            message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in known)]
        try:
            await self._send(message)
        except trio.BrokenResourceError:
            self.is_cut = True
            raise


@attrs.frozen(eq=False)
class _Address:
    """One path of the table, as an ASGI application: the endpoints of its verbs."""

    endpoints: Mapping[str, Endpoint]

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        is_head = scope["method"] == "HEAD"
        endpoint = self.endpoints.get("GET" if is_head else scope["method"])
        if endpoint is None:
            raise not_allowed(self.endpoints)
        application: Application = scope["actgent.application"]
        scope["actgent.answer"].route = f"{PREFIX}{endpoint.path}"
        request = HTTPRequest(scope, receive, send)
        if endpoint.scope is None:
            response = await application.call(endpoint, NOBODY, request)
            await _send(response, scope, receive, send)
            return
        caller = application.authenticate(request)
        check_scope(endpoint, caller)
        is_stream = (
            endpoint.streams and not is_head and JSON.media_type not in request.headers.get("accept", "")
        )
        with application.meters.entered(caller.token.digest, now=trio.current_time(), is_stream=is_stream):
            response = await application.call(endpoint, caller, request)
            held = application.tokens.holding(caller.token, now=application.now())
            with held if endpoint.streams else nullcontext():
                await _send(response, scope, receive, send)


class _HeadSent(Exception):
    """The head of an answer is sent, and its body is not wanted."""


async def _send(response: Response, scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Send an answer; in answer to HEAD without its body, which is not made where it would be a stream."""
    if scope["method"] != "HEAD":
        await response(scope, receive, send)
        return

    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise _HeadSent

    with suppress(_HeadSent):
        await response({**scope, "state": {}}, receive, send_head)


def not_allowed(endpoints: Mapping[str, Endpoint]) -> Problem:
    """The error for another verb than those of an address."""
    allowed = ", ".join(sorted(endpoints))
    return Problem("method-not-allowed", f"this address takes {allowed}", headers={"allow": allowed})


def check_scope(endpoint: Endpoint, caller: Caller) -> None:
    """Refuse who may not ask for what an endpoint does.

    Raises:
        Problem: the token has not the scope.
    """
    if endpoint.scope is not None and not caller.allows(endpoint.scope):
        raise Problem("forbidden", f"this takes the scope {endpoint.scope}, which the token has not")


NOBODY = Caller(
    token=AccessToken(name="nobody", owner="nobody", scopes=("metrics",), digest=""), owner="nobody"
)
"""Who asks without a token for what anybody may ask."""


def router_of(endpoints: Iterable[Endpoint], pages: Sequence[Path] = ()) -> Router:
    """Return what finds the endpoints of a table by path and verb, and pages for people beside them."""
    addresses = [Path(PREFIX + path, _Address(verbs)) for path, verbs in by_path(endpoints).items()]
    return Router([*addresses, *pages], redirect_slashes=False, default=_nowhere)


def by_path(endpoints: Iterable[Endpoint]) -> dict[str, dict[str, Endpoint]]:
    """The endpoints of a table by path and verb."""
    paths: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.verb] = endpoint
    return paths


def no_address() -> Problem:
    """The error for a path of which there is nothing."""
    return Problem("not-found", "there is no such address; GET /v1/openapi.json lists them")


async def _nowhere(_scope: ASGIScope, _receive: Receive, _send: Send) -> None:
    raise no_address()


async def _preflight(scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Tell a browser that a page of an allowed site may ask."""
    headers = {
        "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
        "access-control-allow-headers": "authorization, content-type, idempotency-key, last-event-id, prefer, traceparent, actgent-events",
        "access-control-max-age": "600",
    }
    await Response(status_code=204, headers=headers)(scope, receive, send)


def _cors(origin: str) -> dict[str, str]:
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": "location, retry-after, x-request-id, etag",
        "vary": "origin",
    }


def problem_response(problem: Problem, request_id: str) -> JSON:
    """An error as an answer."""
    return JSON(
        problem.document(request_id),
        status_code=problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )


def told_problem(error: Exception, request_id: str, *, is_led_on: bool = False) -> Problem:
    """Return what an error is to a client; what is the server's own fault stands in the log.

    `is_led_on`: other processes own sessions, too, and a request goes to who owns its session.
    """
    problem = problem_of(error)
    if problem is None:
        _log.exception("request %s failed", Each(request_id))
        return Problem("internal", "the log of the server has it under this request id")
    if isinstance(error, Fenced if is_led_on else SessionMoved):
        _log.debug("request %s: %s", Each(request_id), error)  # whoever asks is led to the next node
    elif problem.status >= 500 and error is not problem:  # noqa: PLR2004 - server errors
        _log.error("request %s: %s: %s", Each(request_id), type(error).__name__, error)
    return problem


def _check_framing(scope: ASGIScope) -> None:
    """Refuse a message whose end could be read in two ways.

    Raises:
        Problem: it is one.
    """
    lengths = [_all_of(scope, name) for name in (b"content-length", b"transfer-encoding")]
    if all(lengths) or any(len(each) > 1 for each in lengths):
        raise Problem(
            "malformed-request",
            "a message has one length: content-length or transfer-encoding",
            headers={"connection": "close"},
        )


def decoded_all(segments: Mapping[str, str]) -> dict[str, str]:
    """The variable segments of a path by their names; raises `Problem` as `decoded` does."""
    return {name: decoded(value) for name, value in segments.items()}


def go_on_trace(headers: Mapping[str, str]) -> None:
    """Have what this task does belong to the trace of a request that names one."""
    parent = valid_traceparent(headers.get("traceparent"))
    if parent is not None:
        traceparent.set(parent)


def decoded(segment: str) -> str:
    """One segment of a path.

    Raises:
        Problem: it is no printable text.
    """
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text.strip() or len(text) > MAX_SEGMENT:
        raise Problem("not-found", "there is nothing of this id here")
    return text


async def _live(receive: Receive, send: Send) -> None:
    """Follow the life of the server; what the gateway has open belongs to its block and not to that."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
