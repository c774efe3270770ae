"""The gateway's endpoints for requests that came another way than over HTTP, and whose senders are known by that."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs
import orjson
import trio
from starlette.requests import Request as HTTPRequest

from actgent.runtime.runtime import Runtime
from actgent.web.app import PREFIX, Application, Doors, router_of
from actgent.web.bounds import GatewayLimits, Meters
from actgent.web.inside import Inside
from actgent.web.routes.table import ENDPOINTS
from actgent.web.server.relay import HANDED_ON, WANTS_HEADERS
from actgent.web.tokens import AccessToken, Caller, TokenStore

HOST = "cluster"
MUCH = 1_000_000_000
LIMITS = GatewayLimits(requests=MUCH, messages=None, rate=float(MUCH), burst=MUCH)
"""The sender is trusted: what bounds it is the broker, and the inboxes of agents."""
_UNAVAILABLE = 503
Tell = Callable[[int, bytes, bool, Mapping[str, str]], Awaitable[None]]
"""Takes the status of an answer, a piece of it, whether that is the last one, and headers that are wanted."""


@attrs.frozen(kw_only=True)
class WiredRequest:
    """A request, below `/v1`."""

    verb: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    owner: str
    scopes: tuple[str, ...]


@attrs.frozen(kw_only=True, eq=False)
class WiredApplication(Application):
    """The same application, whose callers are named by who hands their requests over."""

    def authenticate(self, request: HTTPRequest) -> Caller:
        caller: Caller = request.scope["actgent.caller"]
        return caller

    async def answer(self, request: WiredRequest, tell: Tell, gone: trio.Event) -> None:
        """Answer a request, until `gone` is set: nobody reads any more."""
        has_body = False

        async def receive() -> dict[str, Any]:
            nonlocal has_body
            if not has_body:
                has_body = True
                return {"type": "http.request", "body": request.body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        status, headers = 0, {}

        async def send(message: Any) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = _handed_on(message["headers"]) if WANTS_HEADERS in request.headers else {}
            else:
                body, is_last = message.get("body", b""), not message.get("more_body", False)
                await tell(status, body, is_last, headers)

        await self(_scope_of(request), receive, send)


def _handed_on(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    known = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
    return {name: value for name, value in known.items() if name in HANDED_ON}


def _scope_of(request: WiredRequest) -> dict[str, Any]:
    path = PREFIX + request.path
    headers = {**request.headers, "host": HOST, "content-length": str(len(request.body))}
    return {
        "type": "http",
        "method": request.verb,
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": request.query.encode("ascii"),
        "headers": [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()],
        "scheme": "http",
        "http_version": "2",
        "actgent.caller": Caller(
            token=AccessToken(name=HOST, owner=request.owner, scopes=request.scopes, digest=HOST),
            owner=request.owner,
        ),
    }


def has_moved(status: int, data: bytes) -> bool:
    """Return True for the answer that a session lives elsewhere by now."""
    return status == _UNAVAILABLE and bool(orjson.loads(data).get("moved"))


W = TypeVar("W", bound=WiredApplication)


def wired_application(runtime: Runtime, inside: Inside, *, kind: type[W], **more: Any) -> W:
    """Return what answers for the agents of a runtime: an object of a class that may answer `more`."""
    return kind(
        inside=inside,
        tokens=TokenStore([]),
        doors=Doors(hosts=frozenset([HOST])),
        limits=inside.limits,
        now=runtime.clock.now,
        meters=Meters(inside.limits),
        router=router_of(ENDPOINTS),
        **more,
    )
