"""Authorization of an MCP server in a browser: a loopback HTTP server receives the redirect with the code (RFC 8252)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import h11
import trio
from mcp.shared.auth import AuthorizationCodeResult

from actgent.errors import ConfigurationError

from .oauth import LoginPrompt, check_authorization_url, delete_tokens, registered_port
from .oauth_token_file import OAuthSettings
from .server_toolset import MCPServer

LOGIN_TIMEOUT_SECONDS = 300.0
"""Time that the user has to authorize a server."""
_MAX_REQUEST_BYTES = 16_384
"""Maximum size of the browser's request."""
_PAGE = b"<!doctype html><title>actgent</title><p>%s You may close this window.</p>"


@asynccontextmanager
async def open_login(
    server: MCPServer,
    *,
    show: Callable[[str], Awaitable[None]],
    lines: Callable[[], Awaitable[str | None]] | None = None,
    again: bool = False,
) -> AsyncGenerator[LoginPrompt]:
    """Async context manager: receive a browser's redirect while the block calls `server.connected(login)`.

    A client that is already registered reuses its port. If the port is taken, the client registers again.

    Args:
        server: The server to authorize.
        show: Shows the authorization URL to the user.
        lines: Returns the next line that the user types, which may be the redirect URL; None at the end of the input.
        again: True deletes stored tokens first.

    Raises:
        ConfigurationError: The server has no OAuth settings, or its redirect port is taken.
    """
    settings = server.oauth
    if settings is None:
        raise ConfigurationError(f"{server!r} has no oauth=: pass MCPServer(..., oauth='mcp-tokens.json')")
    if again:
        await delete_tokens(settings, server.url)
    listeners = await _listeners(server, settings)
    async with open_redirect(listeners, show=show, lines=lines) as asked:
        yield asked


async def _listeners(server: MCPServer, settings: OAuthSettings) -> list[trio.SocketListener]:
    port = settings.redirect_port or registered_port(settings, server.url)
    try:
        return await trio.open_tcp_listeners(port, host="127.0.0.1")
    except OSError as error:
        if settings.redirect_port:
            raise ConfigurationError(
                f"cannot listen on port {port}, the redirect port of {server.name}: {error.strerror}"
            ) from error
    await delete_tokens(settings, server.url)
    return await trio.open_tcp_listeners(0, host="127.0.0.1")


class RedirectReceiver:
    """Receives the redirect of an authorization server, and recognizes it by the `state` of the authorization request."""

    def __init__(self) -> None:
        self._answered = trio.Event()
        self._state: str | None = None
        self._result: AuthorizationCodeResult | None = None
        self._refusal = ""

    def expect(self, url: str) -> None:
        """Set the authorization URL whose response is expected. From now on, responses with another `state` are rejected."""
        self._state = _single_parameter(parse_qs(urlsplit(url).query), "state")

    def accept(self, url: str) -> bool:
        """Process a redirect URL. Return False if it is not the response to the expected authorization request."""
        query = parse_qs(urlsplit(url).query)
        state = _single_parameter(query, "state")
        if state is None or state != self._state or self._answered.is_set():
            return False
        if (code := _single_parameter(query, "code")) is not None:
            self._result = AuthorizationCodeResult(
                code=code, state=state, iss=_single_parameter(query, "iss")
            )
        else:
            self._refusal = (
                _single_parameter(query, "error_description")
                or _single_parameter(query, "error")
                or "no reason given"
            )
        self._answered.set()
        return True

    async def receive(self) -> AuthorizationCodeResult:
        """Wait for the response of the authorization server, and return its authorization code.

        Raises:
            ConfigurationError: The user or the server denied the request, or no response arrived in time.
        """
        with trio.move_on_after(LOGIN_TIMEOUT_SECONDS):
            await self._answered.wait()
        if self._result is None:
            reason = self._refusal or f"no response within {LOGIN_TIMEOUT_SECONDS:g} s"
            raise ConfigurationError(f"the MCP server was not authorized: {reason[:500]}")
        return self._result


@asynccontextmanager
async def open_redirect(
    listeners: Sequence[trio.SocketListener],
    *,
    show: Callable[[str], Awaitable[None]],
    lines: Callable[[], Awaitable[str | None]] | None = None,
) -> AsyncGenerator[LoginPrompt]:
    """Async context manager: receive a browser's redirect on listening sockets while the block authorizes a server.

    Args:
        listeners: Sockets that the browser is redirected to.
        show: Shows the authorization URL to the user.
        lines: Returns the next line that the user types, e.g. a pasted redirect URL that the browser could not
            open.
    """
    redirect = RedirectReceiver()
    port = listeners[0].socket.getsockname()[1]

    async def tell(url: str) -> None:
        redirect.expect(check_authorization_url(url))
        await show(url)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, _make_redirect_handler(redirect), list(listeners))
        if lines is not None:
            nursery.start_soon(_read_lines, redirect, lines)
        yield LoginPrompt(
            redirect_uri=f"http://127.0.0.1:{port}/callback", show=tell, receive=redirect.receive
        )
        nursery.cancel_scope.cancel()


async def _read_lines(redirect: RedirectReceiver, lines: Callable[[], Awaitable[str | None]]) -> None:
    while (line := await lines()) is not None:
        redirect.accept(line.strip())


def _make_redirect_handler(redirect: RedirectReceiver) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def serve(stream: trio.SocketStream) -> None:
        with trio.move_on_after(10):
            async with stream:
                target = await _target(stream)
                if target is None:
                    return
                is_taken = urlsplit(target).path == "/callback" and redirect.accept(target)
                text = b"Done." if is_taken else b"This is not the expected response."
                page = _PAGE % text
                head = b"HTTP/1.1 %s\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                status = b"200 OK" if is_taken else b"404 Not Found"
                await stream.send_all(head % (status, len(page)) + page)

    async def safely(stream: trio.SocketStream) -> None:
        try:
            await serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            return

    return safely


async def _target(stream: trio.SocketStream) -> str | None:
    """Read the request of a browser, and return its target (path and query); None if the request is not a GET request."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_REQUEST_BYTES)
    while True:
        await trio.lowlevel.checkpoint()
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_MAX_REQUEST_BYTES))
        elif isinstance(event, h11.Request):
            return event.target.decode("ascii", "replace") if event.method == b"GET" else None
        else:
            return None


def _single_parameter(query: dict[str, list[str]], name: str) -> str | None:
    found = query.get(name)
    return found[0] if found and len(found[0]) < _MAX_REQUEST_BYTES else None
