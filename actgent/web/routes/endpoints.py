"""What an address of the gateway is: one row of its table, from which requests are checked and described."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import parse_qsl

import attrs
import orjson
import trio
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive

from actgent.agents.session import Session
from actgent.errors import ParseError
from actgent.errors.printable import quoted, shown
from actgent.journal.base import SessionSummary
from actgent.support.strict_json import check_depth, loads
from actgent.tools.schemas import CheckedSchema, compile_schema
from actgent.web.bounds import GatewayLimits
from actgent.web.inside import Inside
from actgent.web.problems import Problem
from actgent.web.tokens import Caller, Scope

MAX_JSON_DEPTH = 64
UNKNOWN_BYTES = 4096
"""The longest body of who has no token: it is read before anything is known of them."""
MAX_QUERY = 4096
"""Bytes of a query."""
_SECRETS = {"token", "access_token", "key", "api_key", "apikey", "authorization", "bearer"}
Schema = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Endpoint:
    """One row: a verb and a path, what it needs and what it gives."""

    verb: str
    path: str
    """Below `/v1`, with `{names}` for its variable segments."""
    answer: "Callable[[HTTPCall], Awaitable[Response]]"
    """Its docstring is the summary for clients."""
    scope: Scope | None
    """What the token has to allow; None is that anybody may ask."""
    query: Mapping[str, Schema] = attrs.field(factory=dict)
    body: Schema | None = None
    """JSON Schema of the body; None: there is none."""
    has_parts: bool = False
    """True: its body may be as long as a message with pictures."""
    statuses: Sequence[int] = (200,)
    """Those of success."""
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """Headers of the request that mean something, with what they do."""
    gives: str = "application/json"
    """The media type of its answer."""
    streams: bool = False
    """True: it also answers as `text/event-stream`."""

    @cached_property
    def checker(self) -> CheckedSchema:
        """What checks its bodies."""
        return compile_schema(self.body or {}, owner=f"{self.verb} {self.path}")


@attrs.frozen(kw_only=True, eq=False)
class HTTPCall:
    """A request that has been checked, on its way to what answers it."""

    gateway: Inside
    caller: Caller
    headers: Mapping[str, str]
    """Of the request, by their names in lower case."""
    receive: Receive
    """Tells when the client has gone, behind the body."""
    address: str
    """The path as it was sent."""
    search: str
    """The query as it was sent."""
    id: str
    """Of the request, for logs and errors."""
    client: str
    """The address of the client, or of a proxy before it."""
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def shows_foreign(self) -> bool:
        """True if the caller sees the words of exceptions that are not ours."""
        return self.caller.allows("journal")

    def header(self, name: str) -> str:
        """A header of the request; empty where it has none."""
        return self.headers.get(name, "")

    async def head(self) -> SessionSummary:
        """What is known of the session that the address names; see `Reach.head`."""
        return await self.gateway.reach.head(self.caller, self.path["id"], self.query.get("agent"))

    async def session(self) -> Session:
        """The same session, opened; see `Reach.session`."""
        return await self.gateway.reach.session(self.caller, self.path["id"], self.query.get("agent"))

    async def readable_session(self) -> Session:
        """Return the session that the address names, for reading; see `Reach.readable`."""
        return await self.gateway.reach.readable(await self.head())


class JSON(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS, default=_plain)

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        self._given = headers

    @cached_property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override]  # made for who sends them: HTTP alone
        super().init_headers(self._given)
        return self.raw_headers


def _plain(value: object) -> Any:
    """What orjson knows nothing of, in values of a program's own."""
    if isinstance(value, bytes | bytearray):
        return {"bytes": len(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return quoted(value)


# --- reading a request ----------------------------------------------------------------------


def read_query(endpoint: Endpoint, text: str) -> dict[str, Any]:
    """The query of a request, each value as its schema has it.

    Raises:
        Problem: there is one that the endpoint does not know, twice, or of the wrong form.
    """
    if len(text) > MAX_QUERY:
        raise Problem("invalid", f"the query has more than {MAX_QUERY} bytes")
    try:
        pairs = _pairs_of(text)
    except (ValueError, UnicodeDecodeError):
        raise Problem("malformed-request", "the query cannot be read") from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name.lower() in _SECRETS and name not in endpoint.query:
            raise Problem(
                "malformed-request", "a token never stands in an address: send it as Authorization: Bearer"
            )
        if name not in endpoint.query:
            known = ", ".join(endpoint.query) or "none"
            raise Problem("invalid", f"the query has no {quoted(name, 40)} here; what is known: {known}")
        if name in found:
            raise Problem("invalid", f"the query has {name} twice")
        found[name] = _value_of(name, value, endpoint.query[name])
    return found


@lru_cache(maxsize=256)
def _pairs_of(text: str) -> Sequence[tuple[str, str]]:
    """The names and values of a query: that of most requests is `agent=`, or nothing."""
    return parse_qsl(
        text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=32
    )


def _value_of(name: str, text: str, schema: Schema) -> Any:
    kind = schema.get("type", "string")
    value: Any = text
    if kind == "integer":
        if not (text.isascii() and text.isdigit() and len(text) < 16):  # noqa: PLR2004 - below 2**53
            raise Problem("invalid", f"{name}= is a whole number, not {quoted(text, 40)}")
        value = int(text)
        if value < schema.get("minimum", 0):
            raise Problem("invalid", f"{name}= is at least {schema['minimum']}, not {value}")
    elif "enum" in schema and text not in schema["enum"]:
        raise Problem("invalid", f"{name}= is one of {', '.join(schema['enum'])}, not {quoted(text, 40)}")
    elif "\x00" in text or len(text) > schema.get("maxLength", 500):
        raise Problem("invalid", f"{name}= is a text of at most {schema.get('maxLength', 500)} characters")
    return value


async def read_body(endpoint: Endpoint, request: HTTPRequest, limits: GatewayLimits) -> Mapping[str, Any]:
    """The body of a request as its endpoint's schema has it.

    Raises:
        Problem: it is none, too large, too slow, or something else.
    """
    check_media(request.method, request.headers)
    if has_no_body(endpoint, request.method):
        return {}
    return to_body(endpoint, await _read_bytes(request, most_of(endpoint, limits), limits.body_seconds))


def has_no_body(endpoint: Endpoint, verb: str) -> bool:
    """Return True for a request whose body nobody looks at."""
    return endpoint.body is None and verb in ("GET", "DELETE", "HEAD")


def most_of(endpoint: Endpoint, limits: GatewayLimits) -> int:
    """Bytes of the longest body that an endpoint takes."""
    most = limits.parts_bytes if endpoint.has_parts else limits.body_bytes
    return min(most, UNKNOWN_BYTES) if endpoint.scope is None else most


def to_body(endpoint: Endpoint, data: bytes) -> Mapping[str, Any]:
    """The body that these bytes are, as its endpoint's schema has it.

    Raises:
        Problem: they are none.
    """
    value = _decode(data) if data else {}
    if not isinstance(value, dict):
        raise Problem("invalid", "the body is a JSON object")
    if endpoint.body is None and value:
        raise Problem("invalid", "this takes no body, or an empty object")
    if endpoint.body is not None and (reason := endpoint.checker.reason(value)):
        raise Problem("invalid", shown(reason, 1000))
    return value


def check_media(verb: str, headers: Mapping[str, str]) -> None:
    """Refuse what a page of another site could send without being asked, and what cannot be read.

    Raises:
        Problem: it is that.
    """
    _check_media(verb, headers.get("content-encoding", "identity"), headers.get("content-type", ""))


@lru_cache(maxsize=256)
def _check_media(verb: str, encoding: str, media: str) -> None:
    """Do that; nearly all requests say the same, and what is refused is looked at again."""
    if encoding != "identity":
        raise Problem("unsupported-media-type", "an encoded body is not taken: send it as it is")
    kind, _, rest = media.partition(";")
    is_json = kind.strip().lower() == "application/json"
    if is_json and rest.strip() and rest.replace(" ", "").replace('"', "").lower() != "charset=utf-8":
        raise Problem("unsupported-media-type", "JSON is sent as UTF-8")
    if verb in ("POST", "PUT", "PATCH") and not is_json:
        raise Problem("unsupported-media-type", "send content-type: application/json, also without a body")


async def _read_bytes(request: HTTPRequest, most: int, seconds: float) -> bytes:
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:16]) > most:
        raise too_large(most)
    data = bytearray()
    with trio.move_on_after(seconds) as limit:
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Problem("malformed-request", "the body ended too early")
            data += message.get("body", b"")
            if len(data) > most:
                raise too_large(most)
            if not message.get("more_body", False):
                break
    if limit.cancelled_caught:
        raise Problem(
            "timeout", f"the body did not come within {seconds:g} s", headers={"connection": "close"}
        )
    return bytes(data)


def too_large(most: int) -> Problem:
    """The error for a body of more bytes."""
    return Problem(
        "body-too-large", f"a body has at most {most} bytes here", headers={"connection": "close"}, limit=most
    )


def _decode(data: bytes) -> Any:
    try:
        value = loads(text := data.decode("utf-8"))
        if text.count("[") + text.count("{") > MAX_JSON_DEPTH:
            check_depth(value, MAX_JSON_DEPTH)
    except UnicodeDecodeError:
        raise Problem("malformed-request", "the body is not UTF-8") from None
    except ParseError as error:
        raise Problem("malformed-request", shown(error.reason, 300)) from None
    return value
