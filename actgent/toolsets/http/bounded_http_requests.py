"""HTTP requests of tools, with limits on time, size and redirects. Secrets never go to another origin.

_send           follows redirects, each as a separate request
  _exchange     sends one request, and converts exceptions of httpx2 to actgent's
    read_decoded  reads the body up to the limit
"""

import codecs
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx2
import trio

from actgent.errors import AddressBlocked, HTTPToolError
from actgent.errors.text_escaping import counted, shown
from actgent.support.user_code_calls import explained_text

from .api_credentials import NO_CREDENTIALS, Credentials
from .internal_address_blocking import CODINGS, Guard

_PORTS = {"http": 80, "https": 443}


def is_http_url(url: str) -> bool:
    """Return True if `url` is an absolute http or https URL with a host, and with a valid port or none."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
        return parts.scheme in _PORTS and bool(parts.hostname) and bool(httpx2.URL(url).host)
    except (ValueError, UnicodeError, httpx2.InvalidURL):
        return False


def origin_of(url: str) -> str:
    """Return scheme, host and port of a valid http or https URL (RFC 6454), with the port written out."""
    parts = httpx2.URL(url)
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return f"{parts.scheme}://{host.lower()}:{parts.port or _PORTS[parts.scheme]}"


MAX_ERROR_CHARACTERS = 2_000
"""Maximum number of characters of an error response that the model reads."""
_MIN_SECRET_CHARACTERS = 8
"""Minimum length of a secret that is removed from results. A shorter secret, such as `test`, is a common word."""
_REDIRECTS = (301, 302, 303, 307, 308)
_RETRYABLE_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which a retry may succeed."""

_MAX_RETRY_WAIT_SECONDS = 2
"""Maximum `Retry-After` of a response after which the tool retries a request itself."""


class RetryableHTTPToolError(HTTPToolError):
    """Failure of a request, after which a retry of the same request may succeed."""


@attrs.frozen(kw_only=True)
class APIRequest:
    """HTTP request to an API."""

    method: str
    url: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = attrs.field(factory=dict)
    content: bytes | None = None
    credentials: Credentials = NO_CREDENTIALS
    """Credentials of the request; sent only to the origin of `url`."""
    redirects: int = 5
    """Maximum number of redirects to follow."""
    max_bytes: int = 1_000_000
    """Maximum size of the decoded response body in bytes; a longer body is truncated."""


@attrs.frozen
class APIResponse:
    """HTTP response of an API."""

    status: int
    headers: httpx2.Headers
    body: bytes
    is_truncated: bool
    """True if the body is longer than `max_bytes`."""
    url: str
    """URL of the response after all redirects."""

    @property
    def text(self) -> str:
        """Body as text, decoded by the charset of the response, or UTF-8.

        A note follows if the body was truncated.
        """
        text = decode_text(self.body, httpx2.Response(200, headers=self.headers).charset_encoding)
        return f"{text}\n[truncated after {counted(len(self.body), 'byte')}]" if self.is_truncated else text


class Connections:
    """Pool of HTTP connections that several tools share. Outside of a `keep_open` block, each request opens a connection."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._open: dict[object, tuple[httpx2.AsyncClient, int]] = {}
        """HTTP client and number of open blocks, by the trio run that they belong to."""

    @asynccontextmanager
    async def keep_open(self) -> AsyncIterator[httpx2.AsyncClient]:
        """Async context manager: keep connections open until the block exits, so that requests reuse them.

        The block gets the HTTP client.
        """
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
        """Send a request and follow its redirects. Credentials and bodies never go to another origin.

        Raises:
            AddressBlocked: The request or a redirect leads to an address that is not public.
            HTTPToolError: No response, an error status, too many redirects, or a redirect that must not be followed.
        """
        kept = self._open.get(trio.lowlevel.current_trio_token())
        if kept is not None:
            return await _send(kept[0], request)
        async with self.keep_open() as client:
            return await _send(client, request)


async def _send(client: httpx2.AsyncClient, request: APIRequest) -> APIResponse:
    secrets = request.credentials.secrets
    for _ in range(request.redirects + 1):
        response = await _exchange(client, request)
        if response.status not in _REDIRECTS or "location" not in response.headers:
            return _check_response(response, secrets)
        request = _follow_redirect(request, response)
    raise HTTPToolError(f"the API redirected more than {counted(request.redirects, 'time')}")


def _follow_redirect(request: APIRequest, response: APIResponse) -> APIRequest:
    """Build the request to the target of a redirect response.

    Raises:
        HTTPToolError: The redirect would send a body to another origin, drop the body of a moved POST, or leave TLS.
    """
    here = httpx2.URL(request.url)
    try:
        there = here.join(response.headers["location"])
    except (httpx2.InvalidURL, ValueError):
        raise HTTPToolError("the API redirected to an invalid URL") from None
    if here.scheme == "https" and there.scheme != "https":
        raise HTTPToolError(
            f"the API redirected from https to {shown(str(there.scheme))}, which is not followed"
        )
    is_same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
    keeps_method = (
        response.status in (307, 308)
        or request.method in ("GET", "HEAD")
        or (response.status in (301, 302) and request.method != "POST")  # as in browsers
    )
    if response.status == 301 and not keeps_method:  # noqa: PLR2004 - moved permanently: a GET would not do the work
        raise HTTPToolError(
            f"the API moved to {shown(str(there.copy_with(query=None)))}, and POST is not redirected: use that URL"
        )
    if keeps_method and request.content is not None and not is_same:
        raise HTTPToolError(
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
    """Send one request with its credentials, and return the response.

    Raises:
        AddressBlocked: The address is not public.
        HTTPToolError: The request is invalid, or no readable response arrived.
    """
    secret = request.credentials
    query = _exclude_names(request.query, secret.query) + tuple(secret.query.items())
    headers = dict(_exclude_names(tuple(request.headers.items()), secret.headers))
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
            body, is_truncated = await read_decoded(response, request.max_bytes)
            return APIResponse(response.status_code, response.headers, body, is_truncated, request.url)
    except (AddressBlocked, HTTPToolError):
        raise
    except (
        httpx2.UnsupportedProtocol,
        httpx2.InvalidURL,
        httpx2.LocalProtocolError,
        ValueError,
        OverflowError,
    ) as error:
        raise HTTPToolError(f"the request cannot be sent: {_redact(error, secret)}") from None
    except httpx2.TransportError as error:
        raise RetryableHTTPToolError(
            f"the API sent no response: {type(error).__name__}: {_redact(explained_text(error), secret)}"
        ) from None
    except httpx2.HTTPError as error:
        raise HTTPToolError(f"the response cannot be read: {_redact(error, secret)}") from None


def _exclude_names(
    pairs: tuple[tuple[str, str], ...], reserved: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the headers or query parameters of `pairs` whose names are not in `reserved`.

    `reserved` are those that the credentials set, so a model cannot override them.
    """
    taken = {name.lower() for name in reserved}
    return tuple((name, text) for name, text in pairs if name.lower() not in taken)


@asynccontextmanager
async def _answer(client: httpx2.AsyncClient, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
    """Async context manager: send a request, and keep the response open for reading until the block exits."""
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
        HTTPToolError: The body has a content coding that was not requested, or several nested codings.
    """
    codings = response.headers.get_list("content-encoding", split_commas=True)
    used = [coding for each in codings if (coding := each.strip().lower()) not in ("", "identity")]
    if len(used) > 1 or not CODINGS.issuperset(used):
        raise HTTPToolError(
            f"the response must have at most one content coding, one of {', '.join(sorted(CODINGS))}, "
            f"not {shown(', '.join(used))}"
        )
    body = bytearray()
    async for piece in response.aiter_bytes(65_536):
        body += piece
        if len(body) > max_bytes:
            return bytes(body[:max_bytes]), True
    return bytes(body), False


_SLOW_CODECS = frozenset({"idna", "punycode"})
"""Names of Python's text codecs that take quadratic time."""


def decode_text(body: bytes, charset: str | None) -> str:
    """Decode a response body by the charset that the server names.

    Use UTF-8 if the charset is None, unknown, or slow to decode.
    """
    try:
        codec = codecs.lookup(charset or "utf-8").name
        text = body.decode("utf-8" if codec in _SLOW_CODECS else codec, "replace")
    except (LookupError, ValueError):
        text = body.decode("utf-8", "replace")
    return text.removeprefix("\ufeff")


def _check_response(response: APIResponse, secrets: Sequence[str]) -> APIResponse:
    """Return a response with the request's secrets replaced, because some APIs send them back.

    Raises:
        HTTPToolError: The status is an error.
    """
    is_error = response.status >= 400  # noqa: PLR2004 - RFC 9110: errors start at 400
    body = response.body
    for secret in secrets:
        if is_error or len(secret) >= _MIN_SECRET_CHARACTERS:
            body = body.replace(secret.encode(), b"[secret]")
    response = attrs.evolve(response, body=body)
    if not is_error:
        return response
    phrase = httpx2.codes.get_reason_phrase(response.status)
    reason = f"the API answered {response.status} {phrase}".rstrip()
    is_retryable = response.status in _RETRYABLE_STATUSES
    if wait := response.headers.get("retry-after", "")[:40]:
        reason += f"; retry after {wait} s" if wait.isdecimal() else f"; retry after {wait}"
        is_retryable = is_retryable and wait.isdecimal() and int(wait) <= _MAX_RETRY_WAIT_SECONDS
    kind = RetryableHTTPToolError if is_retryable else HTTPToolError
    error_text = response.text[:MAX_ERROR_CHARACTERS]
    raise kind(f"{reason}: {error_text}".rstrip(": "), status=response.status)


def _redact(text: Any, credentials: Credentials) -> str:
    """Convert a value to text, and replace the secrets of the credentials by `[secret]`."""
    clean = str(text)
    for secret in credentials.secrets:
        clean = clean.replace(secret, "[secret]")
    return clean
