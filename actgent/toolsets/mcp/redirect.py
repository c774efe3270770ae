"""The end of an authorization on this machine: a server on loopback to which the browser is redirected (RFC 8252)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import h11
import trio
from mcp.shared.auth import AuthorizationCodeResult

from actgent.errors import ConfigurationError

from .oauth import AskedForCode, checked_address

PATIENCE = 300.0
"""Seconds that a person has to authorize a server."""
_LONGEST = 16_384
_PAGE = b"<!doctype html><title>actgent</title><p>%s You may close this window.</p>"


class Redirect:
    """Waits for the answer of an authorization server, which names the state of the request."""

    def __init__(self) -> None:
        self._answered = trio.Event()
        self._state: str | None = None
        self._result: AuthorizationCodeResult | None = None
        self._refusal = ""

    def expect(self, url: str) -> None:
        """From now on an answer to this request is taken, and no other."""
        self._state = _one(parse_qs(urlsplit(url).query), "state")

    def take(self, url: str) -> bool:
        """Take the address to which a browser was redirected; False: it is no answer to the request."""
        query = parse_qs(urlsplit(url).query)
        state = _one(query, "state")
        if state is None or state != self._state or self._answered.is_set():
            return False
        if (code := _one(query, "code")) is not None:
            self._result = AuthorizationCodeResult(code=code, state=state, iss=_one(query, "iss"))
        else:
            self._refusal = _one(query, "error_description") or _one(query, "error") or "it says no reason"
        self._answered.set()
        return True

    async def receive(self) -> AuthorizationCodeResult:
        """The answer.

        Raises:
            ConfigurationError: the person or the server refused, or nobody answered in time.
        """
        with trio.move_on_after(PATIENCE):
            await self._answered.wait()
        if self._result is None:
            reason = self._refusal or f"nobody did so within {PATIENCE:g} s"
            raise ConfigurationError(f"the server was not authorized: {reason[:500]}")
        return self._result


@asynccontextmanager
async def open_redirect(
    listeners: Sequence[trio.SocketListener],
    *,
    show: Callable[[str], Awaitable[None]],
    lines: Callable[[], Awaitable[str | None]] | None = None,
) -> AsyncGenerator[AskedForCode]:
    """Listen on loopback for a browser, for a block that authorizes a server.

    Args:
        listeners: Where the browser comes to.
        show: Shows a person the address to open.
        lines: The next line that a person types, who may paste the address that the browser could not reach.
    """
    redirect = Redirect()
    port = listeners[0].socket.getsockname()[1]

    async def tell(url: str) -> None:
        redirect.expect(checked_address(url))
        await show(url)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, _serving(redirect), list(listeners))
        if lines is not None:
            nursery.start_soon(_read_lines, redirect, lines)
        yield AskedForCode(
            redirect_uri=f"http://127.0.0.1:{port}/callback", show=tell, receive=redirect.receive
        )
        nursery.cancel_scope.cancel()


async def _read_lines(redirect: Redirect, lines: Callable[[], Awaitable[str | None]]) -> None:
    while (line := await lines()) is not None:
        redirect.take(line.strip())


def _serving(redirect: Redirect) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def serve(stream: trio.SocketStream) -> None:
        with trio.move_on_after(10):
            async with stream:
                target = await _target(stream)
                if target is None:
                    return
                is_taken = urlsplit(target).path == "/callback" and redirect.take(target)
                said = b"Done." if is_taken else b"This is no answer that is waited for."
                page = _PAGE % said
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
    """Return what a browser asks for; None: it asks for nothing."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST)
    while True:
        await trio.lowlevel.checkpoint()
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_LONGEST))
        elif isinstance(event, h11.Request):
            return event.target.decode("ascii", "replace") if event.method == b"GET" else None
        else:
            return None


def _one(query: dict[str, list[str]], name: str) -> str | None:
    found = query.get(name)
    return found[0] if found and len(found[0]) < _LONGEST else None
