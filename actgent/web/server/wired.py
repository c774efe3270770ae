"""The gateway's endpoints for requests that came another way than over HTTP, and whose senders are known by that.

What is asked is checked as of a request over HTTP: its address, what its sender may do, its query and its body. There is no
server in between: an answer that is known is told as it is, and only one that is a stream is written as over HTTP.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

import attrs
import orjson
import trio
from starlette.responses import Response
from starlette.routing import compile_path

from actgent.messages import new_id
from actgent.runtime.runtime import Runtime
from actgent.web.app import (
    ALWAYS,
    NOBODY,
    PREFIX,
    by_path,
    check_scope,
    decoded_all,
    go_on_trace,
    no_address,
    not_allowed,
    problem_response,
    told_problem,
)
from actgent.web.bounds import GatewayLimits
from actgent.web.inside import Inside
from actgent.web.routes.endpoints import (
    Endpoint,
    HTTPCall,
    check_media,
    has_no_body,
    most_of,
    read_query,
    to_body,
    too_large,
)
from actgent.web.routes.table import ENDPOINTS
from actgent.web.server.framing import PLAIN
from actgent.web.server.relay import HANDED_ON, WANTS_HEADERS
from actgent.web.streaming.streams import Streamed
from actgent.web.tokens import AccessToken, Caller

SENDER = "cluster"
"""The name of whoever hands requests over."""
MUCH = 1_000_000_000
LIMITS = GatewayLimits(requests=MUCH, messages=None, rate=float(MUCH), burst=MUCH)
"""The sender is trusted: what bounds it is the broker, and the inboxes of agents."""
KNOWN = 4096
"""Addresses, and senders, that are looked up once only; more are looked up again."""
_UNAVAILABLE = 503
_HANDED_ON_ALWAYS = {name: value for name, value in ALWAYS.items() if name in HANDED_ON}


class Tell(Protocol):
    """Tells the answer to a request, in pieces."""

    async def __call__(self, status: int, data: bytes, is_last: bool, headers: Mapping[str, str], /) -> None:  # noqa: FBT001 - read as a sentence
        """Tell the status, a piece, whether that is the last one, and headers that are wanted."""

    def now(self, data: bytes) -> bool:
        """Tell a further piece of a stream if it goes at once; returns False if it does not."""


Place = tuple[Mapping[str, Endpoint], Mapping[str, str]]
"""The endpoints of an address by verb, and the variable segments of its path."""


@attrs.frozen(kw_only=True)
class WiredRequest:
    """A request, below `/v1`."""

    verb: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes
    owner: str
    scopes: tuple[str, ...]


@attrs.frozen(kw_only=True, eq=False)
class WiredApplication:
    """What answers requests whose callers are named by who hands them over."""

    inside: Inside
    find: Callable[[str], Place]
    """Finds the endpoints of a path; raises `Problem` where there are none."""

    async def answer(self, request: WiredRequest, tell: Tell, gone: trio.Event) -> None:
        """Answer a request, until `gone` is set: nobody reads any more."""
        answer = _Answer(request, tell, gone)
        try:
            response = await self._respond(request, answer)
            await answer.say(response)
        except Exception as error:  # the edge: whatever it is, the sender gets a problem
            if answer.has_begun:
                raise
            problem = told_problem(error, answer.id, is_led_on=True)
            await answer.say(problem_response(problem, answer.id))
        finally:
            self.inside.metrics.requests[answer.route, answer.status] += 1

    async def _respond(self, request: WiredRequest, answer: "_Answer") -> Response:
        endpoints, path = self.find(request.path)
        endpoint = endpoints.get(request.verb)
        if endpoint is None:
            raise not_allowed(endpoints)
        answer.route = PREFIX + endpoint.path
        caller = NOBODY if endpoint.scope is None else _caller(request.owner, request.scopes)
        check_scope(endpoint, caller)
        go_on_trace(request.headers)
        call = HTTPCall(
            gateway=self.inside,
            caller=caller,
            headers=request.headers,
            receive=answer.receive,
            address=PREFIX + request.path,
            search=request.query,
            id=answer.id,
            client="",
            path=path,
            query=read_query(endpoint, request.query),
            body=_body_of(endpoint, request, self.inside.limits),
        )
        return await endpoint.answer(call)


def _body_of(endpoint: Endpoint, request: WiredRequest, limits: GatewayLimits) -> Mapping[str, Any]:
    """The body of a request, as `read_body` has it."""
    check_media(request.verb, request.headers)
    if has_no_body(endpoint, request.verb):
        return {}
    if len(request.body) > (most := most_of(endpoint, limits)):
        raise too_large(most)
    return to_body(endpoint, request.body)


@lru_cache(maxsize=KNOWN)
def _caller(owner: str, scopes: tuple[str, ...]) -> Caller:
    token = AccessToken(name=SENDER, owner=owner, scopes=scopes, digest=SENDER)
    return Caller(token=token, owner=owner)


class _Answer:
    """What is told in answer to one request."""

    def __init__(self, request: WiredRequest, tell: Tell, gone: trio.Event) -> None:
        self.id = new_id()
        self.has_begun = False
        self.is_cut = False
        self.status = 0
        self.route = "none"
        """The path of its endpoint, as the table has it."""
        self._verb, self._tell, self._gone = request.verb, tell, gone
        self._wants_headers = WANTS_HEADERS in request.headers
        self._headers: Mapping[str, str] = {}

    async def say(self, response: Response) -> None:
        """Tell all of a response, as it comes if it is a stream."""
        if isinstance(response, Streamed):
            scope = {"type": "http", "http_version": "2", "method": self._verb, "state": {PLAIN: self}}
            await response(scope, self.receive, self._send)
        else:
            self._begin(response.status_code, response)
            await self._tell(self.status, bytes(response.body), True, self._headers)  # noqa: FBT003 - as `Tell`

    def _begin(self, status: int, response: Response) -> None:
        self.has_begun, self.status = True, status
        if self._wants_headers:
            self._headers = _handed_on(response.raw_headers)

    # --- the way of a stream: see `DirectWay`

    def send_now(self, data: bytes) -> int:
        return len(data) if self._tell.now(data) else 0

    async def send_all(self, data: bytes) -> None:
        await self._tell(self.status, data, False, self._headers)  # noqa: FBT003 - as `Tell`

    async def receive(self) -> dict[str, Any]:
        """Wait until nobody reads any more; the body was read before."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.has_begun, self.status = True, message["status"]
            self._headers = _handed_on(message["headers"]) if self._wants_headers else {}
        else:
            is_last = not message.get("more_body", False)
            await self._tell(self.status, message.get("body", b""), is_last, self._headers)


def _handed_on(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    known = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
    return _HANDED_ON_ALWAYS | {name: value for name, value in known.items() if name in HANDED_ON}


def has_moved(status: int, data: bytes) -> bool:
    """Return True for the answer that a session lives elsewhere by now."""
    return status == _UNAVAILABLE and bool(orjson.loads(data).get("moved"))


# --- addresses ---------------------------------------------------------------------------


def finder_of(endpoints: Iterable[Endpoint]) -> Callable[[str], Place]:
    """Return what finds the endpoints of a path; see `WiredApplication.find`."""
    table = [(compile_path(path)[0], verbs) for path, verbs in by_path(endpoints).items()]
    return lru_cache(maxsize=KNOWN)(partial(_find, table))


def _find(table: Sequence[tuple[Any, Mapping[str, Endpoint]]], path: str) -> Place:
    for pattern, endpoints in table:
        if (found := pattern.match(path)) is not None:
            return endpoints, decoded_all(found.groupdict())
    raise no_address()


W = TypeVar("W", bound=WiredApplication)


def wired_application(_: Runtime, inside: Inside, *, kind: type[W], **more: Any) -> W:
    """Return what answers for the agents of a runtime: an object of a class that may answer `more`."""
    return kind(inside=inside, find=finder_of(ENDPOINTS), **more)
