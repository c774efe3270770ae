"""Handler of requests that other nodes relay: it calls the gateway's endpoints. The other node has authenticated the caller.

Path, scope, query and body are checked as for a request over HTTP. No HTTP server is involved: a complete answer is sent as one
piece, and only a stream is written with ASGI messages.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

import attrs
import orjson
import trio
from starlette.responses import Response
from starlette.routing import compile_path

from actgent.client.http.http_request import HTTPRequest
from actgent.messages import new_id
from actgent.support.tracing_interface import OpenSpan
from actgent.web.access_tokens import AccessToken, Caller
from actgent.web.asgi_app import (
    ALWAYS,
    ANONYMOUS,
    PREFIX,
    begin_request_span,
    by_path,
    check_scope,
    decode_segments,
    end_request_span,
    log_and_convert,
    not_allowed,
    problem_response,
    take_context_headers,
)
from actgent.web.gateway_context import GatewayContext
from actgent.web.gateway_limits import GatewayLimits
from actgent.web.problem_documents import Problem
from actgent.web.routes.endpoint_table import ENDPOINTS
from actgent.web.routes.endpoints import (
    Endpoint,
    HTTPCall,
    check_content_headers,
    has_no_body,
    max_body_bytes,
    read_query,
    to_body,
    too_large,
)
from actgent.web.server.http_request_framing import PLAIN
from actgent.web.server.request_relay import RELAYED_ANSWER_HEADERS, WANTS_HEADERS, RelayedRequest
from actgent.web.streaming.sse import Streamed

RELAY_SENDER = "cluster"
"""Token name of relayed requests."""
UNLIMITED = 1_000_000_000
"""Limit that is never reached, for quantities that relayed requests do not limit."""
LIMITS = GatewayLimits(requests=UNLIMITED, messages=None, rate=float(UNLIMITED), burst=UNLIMITED)
"""Limits of relayed requests. The gateway that received them from the client has already applied its limits."""
CACHE_SIZE = 4096
"""Maximum number of cached lookups, of paths and of callers."""
_UNAVAILABLE = 503
_ALWAYS_RELAYED = {name: value for name, value in ALWAYS.items() if name in RELAYED_ANSWER_HEADERS}


SendChunk = Callable[[int, bytes, bool, Mapping[str, str]], Awaitable[None]]
"""Function that sends a chunk of an answer: HTTP status, data, True if it is the last chunk, and the headers to relay."""
FoundEndpoints = tuple[Mapping[str, Endpoint], Mapping[str, str]]
"""The endpoints of a path by verb, and the values of its variable segments."""
_RETRIED = frozenset({"busy", "unavailable"})
"""Kinds of problems after which the relaying node may retry. The node parses them, so they keep the format of `Problem`."""


@attrs.frozen(kw_only=True, eq=False)
class RelayApplication:
    """Handler that answers requests relayed by other nodes with the gateway's endpoints."""

    context: GatewayContext
    find: "EndpointFinder"

    def is_served_while_draining(self, verb: str, path: str) -> bool:
        """Return True if a node still answers this request while it hands over the partition of the session.

        `verb` is the HTTP method and `path` the URL path of the request.
        """
        with suppress(Problem):  # unknown path
            endpoint = self.find(path)[0].get(verb)
            return endpoint is not None and endpoint.forwarding.served_while_draining
        return False

    async def answer(self, request: RelayedRequest, send: SendChunk, disconnected: trio.Event) -> None:
        """Answer a relayed request, and send the response in chunks with `send`.

        `disconnected` is set when the relaying node disconnects, which ends the response.
        """
        answer = _Answer(request.http_request, send, disconnected)
        try:
            response = await self._respond(request, answer)
            await answer.send_response(response)
        except Exception as error:  # every error is answered as a problem
            if answer.has_begun:
                raise
            problem = log_and_convert(error, answer.id, is_forwarded=True)
            to_error = None if answer.endpoint is None else answer.endpoint.to_error
            if to_error is None or problem.kind in _RETRIED:
                to_error = problem_response
            await answer.send_response(to_error(problem, answer.id))
        finally:
            end_request_span(answer.span, answer.status)
            self.context.metrics.requests[answer.route, answer.status] += 1

    async def _respond(self, request: RelayedRequest, answer: "_Answer") -> Response:
        """Validate a relayed request, call its endpoint, and return the response."""
        http_request = request.http_request
        endpoints, path = self.find(http_request.path)
        endpoint = endpoints.get(http_request.verb)
        if endpoint is None:
            raise not_allowed(endpoints)
        answer.endpoint, answer.route = endpoint, endpoint.route
        caller = ANONYMOUS if endpoint.scope is None else _caller(request.owner, request.scopes)
        check_scope(endpoint, caller)
        take_context_headers(http_request.headers)
        answer.span = begin_request_span(self.context.access.runtime.stream.tracing, endpoint, "http")
        call = HTTPCall(
            gateway=self.context,
            caller=caller,
            headers=http_request.headers,
            receive=answer.receive,
            address=http_request.path if endpoint.prefix == "" else PREFIX + http_request.path,
            search=http_request.query,
            id=answer.id,
            client="",
            path=path,
            query=read_query(endpoint, http_request.query),
            body=_body_of(endpoint, http_request, self.context.limits),
        )
        return await endpoint.answer(call)


def _body_of(endpoint: Endpoint, request: HTTPRequest, limits: GatewayLimits) -> Mapping[str, Any]:
    """Validate the JSON body of a relayed request, and return it.

    Raises:
        Problem: The body is invalid, or too large for its endpoint.
    """
    check_content_headers(request.verb, request.headers)
    if has_no_body(endpoint, request.verb):
        return {}
    body = request.body or b""
    if len(body) > (most := max_body_bytes(endpoint, limits)):
        raise too_large(most)
    return to_body(endpoint, body)


@lru_cache(maxsize=CACHE_SIZE)
def _caller(owner: str, scopes: tuple[str, ...]) -> Caller:
    token = AccessToken(name=RELAY_SENDER, owner=owner, scopes=scopes, digest=RELAY_SENDER)
    return Caller(token=token, owner=owner)


class _Answer:
    """Sends the response to one relayed request, and stores its HTTP status."""

    def __init__(self, request: HTTPRequest, send: SendChunk, disconnected: trio.Event) -> None:
        self.id = new_id()
        self.has_begun = False
        self.is_cut = False
        self.status = 0
        self.route = "none"
        """Path template of the endpoint, for metrics; `none` if the path is unknown."""
        self.endpoint: Endpoint | None = None
        """Endpoint of the request; None if the path is unknown."""
        self.span: OpenSpan | None = None
        """Span of the request; None without telemetry."""
        self._verb, self._send_chunk, self._disconnected = request.verb, send, disconnected
        self._wants_headers = WANTS_HEADERS in request.headers
        self._headers: Mapping[str, str] = {}

    async def send_response(self, response: Response) -> None:
        """Send a response to the relaying node: a stream in chunks, any other response in one chunk."""
        if isinstance(response, Streamed):
            scope = {
                "type": "http",
                "http_version": "2",
                "method": self._verb,
                "state": {PLAIN: self},
                "actgent.answer": self,
            }
            await response(scope, self.receive, self._send)
        else:
            self._begin(response.status_code, response)
            await self._send_chunk(self.status, bytes(response.body), True, self._headers)  # noqa: FBT003 - as `SendChunk`

    def _begin(self, status: int, response: Response) -> None:
        self.has_begun, self.status = True, status
        if self._wants_headers:
            self._headers = self._relayed(response.raw_headers)

    # --- methods of `DirectConnection`, for streams

    def send_now(self, data: bytes) -> int:
        return 0  # nothing is sent to another node without waiting

    async def send_all(self, data: bytes) -> None:
        await self._send_chunk(self.status, data, False, self._headers)  # noqa: FBT003 - as `SendChunk`

    async def receive(self) -> dict[str, Any]:
        """Wait until the relaying node disconnects, and return the ASGI message `http.disconnect`. The body was read before."""
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            self._headers = self._relayed(message["headers"]) if self._wants_headers else {}
        else:
            is_last = not message.get("more_body", False)
            await self._send_chunk(self.status, message.get("body", b""), is_last, self._headers)

    def _relayed(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """Return the response headers that the relaying node passes on to the client."""
        own = () if self.endpoint is None else map(str.lower, self.endpoint.answer_headers)
        names = RELAYED_ANSWER_HEADERS.union(own)
        known = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
        return _ALWAYS_RELAYED | {name: value for name, value in known.items() if name in names}


def has_moved(status: int, data: bytes) -> bool:
    """Return True if a response reports that another node owns the session now.

    The relaying node must then send the request to that node.
    """
    return status == _UNAVAILABLE and bool(orjson.loads(data or b"{}").get("moved"))


# --- addresses ---------------------------------------------------------------------------


class EndpointFinder:
    """Finds the endpoints for the paths of relayed requests: those of `/v1`, and those of the open gateways' protocols."""

    def __init__(self) -> None:
        self._added: list[Sequence[Endpoint]] = []
        self._build()

    def __call__(self, path: str) -> FoundEndpoints:
        """Return the endpoints of a path (without the prefix `/v1`) by HTTP method, and the variable segments of the path.

        Raises:
            Problem: The path is unknown.
        """
        return self._find(path)

    @contextmanager
    def serving(self, endpoints: Iterable[Endpoint]) -> Iterator[None]:
        """Also find the endpoints of a table during the `with` block. Endpoints that were added last take precedence."""
        added = tuple(endpoints)
        self._added.append(added)
        self._build()
        try:
            yield
        finally:
            self._added.remove(added)
            self._build()

    def _build(self) -> None:
        endpoints = [*ENDPOINTS, *(each for added in self._added for each in added)]
        table = [(compile_path(path)[0], verbs) for path, verbs in by_path(endpoints).items()]
        self._find = lru_cache(maxsize=CACHE_SIZE)(partial(_find, table))


def _find(table: Sequence[tuple[Any, Mapping[str, Endpoint]]], path: str) -> FoundEndpoints:
    for pattern, endpoints in table:
        if (found := pattern.match(path)) is not None:
            return endpoints, decode_segments(found.groupdict())
    raise Problem(
        "unavailable",
        "the node that owns the session does not serve this path: use one release and the same protocols at all nodes",
    )
