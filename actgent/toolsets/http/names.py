"""Names of hosts to addresses, in threads of their own.

The system's resolver waits for slow servers, and a thread in it cannot be stopped. So these threads are few, and none of
those that the program uses for everything else; a lookup that takes too long, or is cancelled, leaves its thread behind,
which counts until it ends.
"""

import socket
from functools import partial
from typing import Any

import trio

THREADS = 16
"""Lookups at once; others wait."""
PATIENCE = 10.0
"""Seconds that one may take, with its wait."""
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("actgent name lookups")


async def addresses_of(host: str, port: int) -> list[str]:
    """All addresses of a host, each once.

    Raises:
        OSError: it has none, or they are not known in time.
    """
    try:
        found: list[Any] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        found = await _looked_up(host, port)
    else:
        await trio.lowlevel.checkpoint()
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _looked_up(host: str, port: int) -> list[Any]:
    with trio.move_on_after(PATIENCE):
        return await _by_resolver(host, port)
    raise socket.gaierror(socket.EAI_AGAIN, f"no answer within {PATIENCE:g} s")


async def _by_resolver(host: str, port: int) -> list[Any]:
    own = trio.socket.set_custom_hostname_resolver(None)  # the one way to know it
    trio.socket.set_custom_hostname_resolver(own)
    if own is not None:
        return list(await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found: list[Any] = await trio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=_threads())
    return found


def _threads() -> trio.CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(limiter := trio.CapacityLimiter(THREADS))
        return limiter
