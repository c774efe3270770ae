"""The authorization of a server by a person at a terminal."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from actgent.errors import ConfigurationError

from .oauth import AskedForCode, forget, registered_port
from .redirect import open_redirect
from .server import MCPServer
from .tokens import OAuthSettings


@asynccontextmanager
async def open_login(
    server: MCPServer,
    *,
    show: Callable[[str], Awaitable[None]],
    lines: Callable[[], Awaitable[str | None]] | None = None,
    again: bool = False,
) -> AsyncGenerator[AskedForCode]:
    """Listen for a browser, for a block in which a person authorizes a server: `server.connected(asked)`.

    A client that registered itself before uses its port again; where that is taken, it registers anew.

    Raises:
        ConfigurationError: the server has no OAuth, or the port that it is to use is taken.
    """
    settings = server.oauth
    if settings is None:
        raise ConfigurationError(f"{server!r} has no oauth=: write MCPServer(..., oauth=OAuth(...))")
    if again:
        await forget(settings, server.url)
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
                f"port {port} of this machine, which {server.name} redirects to, cannot be listened to: {error.strerror}"
            ) from error
    await forget(settings, server.url)
    return await trio.open_tcp_listeners(0, host="127.0.0.1")
