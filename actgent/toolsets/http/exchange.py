"""One request of a tool and its answer: bounded in time and size, redirects included, and no secret goes elsewhere.

send          follows redirects, each a request of its own
  _exchange   one request; foreign exceptions become ours here and nowhere else
    read_decoded  the answer, as far as it may go
"""

import codecs
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2
import trio

from actgent.errors import AddressRefused, RequestFailed
from actgent.errors.printable import counted, shown
from actgent.support.foreign import telling_text

from .auth import NO_CREDENTIALS, Credentials
from .guard import CODINGS, Guard

SHOWN = 2_000
"""Characters of an error's body that the model reads."""
_LONG_SECRET = 8
"""Characters from which a secret is removed from results; a shorter one, such as `test`, is a word of many answers."""
_REDIRECTS = (301, 302, 303, 307, 308)
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
"""Answers after which the same request may go well."""


class WorthRepeating(RequestFailed):
    """A failure after which the same request may go well."""


@attrs.frozen(kw_only=True)
class APIRequest:
    """What is to be sent."""

    method: str
    url: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    content: bytes | None = None
    credentials: Credentials = NO_CREDENTIALS
    """For the origin of `url`, and no other."""
    redirects: int = 5
    """How many redirects are followed."""
    max_bytes: int = 1_000_000
    """The longest answer, unpacked; a longer one is cut."""


@attrs.frozen
class APIResponse:
    """What came back."""

    status: int
    headers: httpx2.Headers
    body: bytes
    is_cut: bool
    url: str
    """Where it came from after redirects."""

    @property
    def text(self) -> str:
        """The body as text, by the charset that the answer names, or UTF-8."""
        text = decode_text(self.body, httpx2.Response(200, headers=self.headers).charset_encoding)
        return f"{text}\n[cut after {counted(len(self.body), 'byte')}]" if self.is_cut else text


class Connections:
    """The connections of some tools, kept while they are open; without that, each request makes its own."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._open: dict[object, tuple[httpx2.AsyncClient, int]] = {}
        """By the run of trio that they belong to, and how many blocks hold them."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[httpx2.AsyncClient]:
        """A block in which connections are kept and used again."""
        run = trio.lowlevel.current_trio_token()
        client, holders = self._open.get(run) or (self.guard.client(), 0)
        self._open[run] = client, holders + 1
        try:
            yield client
        finally:
            client, holders = self._open.pop(run)
            if holders > 1:
                self._open[run] = client, holders - 1
            else:
                with trio.CancelScope(deadline=trio.current_time() + 1, shield=True):
                    await client.aclose()

    async def send(self, request: APIRequest) -> APIResponse:
        """Send a request and follow its redirects; credentials and a body never go to another origin.

        Raises:
            AddressRefused: it would lead to an address that is not public.
            RequestFailed: no answer, too many redirects, or one that must not be followed.
        """
        kept = self._open.get(trio.lowlevel.current_trio_token())
        if kept is not None:
            return await _send(kept[0], request)
        async with self.opened() as client:
            return await _send(client, request)


async def _send(client: httpx2.AsyncClient, request: APIRequest) -> APIResponse:
    secrets = request.credentials.secrets
    for _ in range(request.redirects + 1):
        response = await _exchange(client, request)
        if response.status not in _REDIRECTS or "location" not in response.headers:
            return _checked(response, secrets)
        request = _redirected(request, response)
    raise RequestFailed(f"the API redirected more than {counted(request.redirects, 'time')}")


def _redirected(request: APIRequest, response: APIResponse) -> APIRequest:
    """The request that a redirect asks for.

    Raises:
        RequestFailed: it would take a body to another origin, or leave TLS.
    """
    here = httpx2.URL(request.url)
    try:
        there = here.join(response.headers["location"])
    except (httpx2.InvalidURL, ValueError):
        raise RequestFailed("the API redirected to what is no URL") from None
    if here.scheme == "https" and there.scheme != "https":
        raise RequestFailed(
            f"the API redirected from https to {shown(str(there.scheme))}, which is not followed"
        )
    is_same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
    keeps_method = response.status in (307, 308) or request.method in ("GET", "HEAD")
    if keeps_method and request.content is not None and not is_same:
        raise RequestFailed(
            f"the API redirected a request with a body to {shown(there.host)}, which is not followed"
        )
    return attrs.evolve(
        request,
        url=str(there),
        query=(),
        method=request.method if keeps_method else "GET",
        content=request.content if keeps_method else None,
        headers=request.headers if is_same else {"Accept": request.headers.get("Accept", "*/*")},
        credentials=request.credentials if is_same else NO_CREDENTIALS,
    )


async def _exchange(client: httpx2.AsyncClient, request: APIRequest) -> APIResponse:
    secret = request.credentials
    query = _without(request.query, secret.query) + tuple(secret.query.items())
    headers = dict(_without(tuple(request.headers.items()), secret.headers))
    try:
        url = httpx2.URL(request.url)
        sent = client.build_request(
            request.method,
            url.copy_merge_params(query) if query else url,
            headers={**headers, **secret.headers},
            content=request.content,
            timeout=None,
        )
        async with _answer(client, sent) as response:
            body, is_cut = await read_decoded(response, request.max_bytes)
            return APIResponse(response.status_code, response.headers, body, is_cut, request.url)
    except (AddressRefused, RequestFailed):
        raise
    except (
        httpx2.UnsupportedProtocol,
        httpx2.InvalidURL,
        httpx2.LocalProtocolError,
        ValueError,
        OverflowError,
    ) as error:
        raise RequestFailed(f"the request cannot be sent: {_clean(error, secret)}") from None
    except httpx2.TransportError as error:
        raise WorthRepeating(
            f"no answer from the API: {type(error).__name__}: {_clean(telling_text(error), secret)}"
        ) from None
    except httpx2.HTTPError as error:
        raise RequestFailed(f"the answer cannot be read: {_clean(error, secret)}") from None


def _without(pairs: tuple[tuple[str, str], ...], ours: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Leave out what the model gave under a name of the credentials, however it is written."""
    taken = {name.lower() for name in ours}
    return tuple((name, text) for name, text in pairs if name.lower() not in taken)


@asynccontextmanager
async def _answer(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
    response = await client.send(request, stream=True)
    try:
        yield response
    finally:
        with trio.CancelScope(deadline=trio.current_time() + 1, shield=True):
            await response.aclose()


async def read_decoded(response: httpx2.Response, max_bytes: int) -> tuple[bytes, bool]:
    """Return at most `max_bytes` of the decoded body of a response, and True if the body is longer.

    httpx2 decodes gzip and deflate in pieces of 1 MiB, so a short packed body takes no more memory than a plain body.

    Raises:
        RequestFailed: The body has a content coding that was not asked for, or several codings on top of each other.
    """
    codings = response.headers.get_list("content-encoding", split_commas=True)
    used = [coding for each in codings if (coding := each.strip().lower()) not in ("", "identity")]
    if len(used) > 1 or not CODINGS.issuperset(used):
        raise RequestFailed(
            f"the answer has the content coding {shown(', '.join(used))}, "
            f"and the request accepts one of {', '.join(sorted(CODINGS))}"
        )
    body = bytearray()
    async for piece in response.aiter_bytes(65_536):
        body += piece
        if len(body) > max_bytes:
            return bytes(body[:max_bytes]), True
    return bytes(body), False


_SLOW_CODECS = frozenset({"idna", "punycode"})
"""Text codecs of Python that take quadratic time."""


def decode_text(body: bytes, charset: str | None) -> str:
    """Decode a body by the charset that its server names; by UTF-8 if the charset is absent, unknown or slow."""
    try:
        codec = codecs.lookup(charset or "utf-8").name
        return body.decode("utf-8" if codec in _SLOW_CODECS else codec, "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")


def _checked(response: APIResponse, secrets: Sequence[str]) -> APIResponse:
    """Return an answer without the secrets of its request, which some APIs send back.

    Raises:
        RequestFailed: The status is an error.
    """
    is_error = response.status >= 400  # noqa: PLR2004 - RFC 9110: the client errors begin here
    body = response.body
    for secret in secrets:
        if is_error or len(secret) >= _LONG_SECRET:
            body = body.replace(secret.encode(), b"[secret]")
    response = attrs.evolve(response, body=body)
    if not is_error:
        return response
    said = response.text[:SHOWN]
    phrase = httpx2.codes.get_reason_phrase(response.status)
    kind = WorthRepeating if response.status in _AGAIN else RequestFailed
    raise kind(f"the API answered {response.status} {phrase}: {said}".rstrip(": "), status=response.status)


def _clean(text: Any, credentials: Credentials) -> str:
    """Text without secrets in it."""
    clean = str(text)
    for secret in credentials.secrets:
        clean = clean.replace(secret, "[secret]")
    return clean
