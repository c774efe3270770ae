"""Resolution of host names in dedicated threads.

The system's resolver may block on slow servers, and its thread cannot be stopped. Therefore lookups use a small number of
separate threads. A lookup that times out or is cancelled abandons its thread, which occupies its slot until it ends.
"""

import socket
from functools import partial
from typing import Any

import trio

LOOKUP_THREADS = 16
"""Maximum number of concurrent lookups; others wait."""
LOOKUP_TIMEOUT_SECONDS = 10.0
"""Maximum duration of a lookup, including its wait for a thread."""
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("actgent name lookups")


async def resolve_host(host: str, port: int) -> list[str]:
    """Return all addresses of a host, without duplicates.

    An IP address is returned without a lookup.

    Raises:
        OSError: The host has no address, or the lookup timed out.
    """
    try:
        found: list[Any] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    except socket.gaierror:
        found = await _resolve_with_timeout(host, port)
    else:
        await trio.lowlevel.checkpoint()
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def _resolve_with_timeout(host: str, port: int) -> list[Any]:
    """Resolve a host. Raise `socket.gaierror` after `LOOKUP_TIMEOUT_SECONDS`."""
    with trio.move_on_after(LOOKUP_TIMEOUT_SECONDS):
        return await _resolve(host, port)
    raise socket.gaierror(socket.EAI_AGAIN, f"no answer within {LOOKUP_TIMEOUT_SECONDS:g} s")


async def _resolve(host: str, port: int) -> list[Any]:
    """Resolve a host with trio's custom resolver if one is set, else in a thread by the system."""
    own = trio.socket.set_custom_hostname_resolver(None)  # trio has no getter
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
        _limiter.set(limiter := trio.CapacityLimiter(LOOKUP_THREADS))
        return limiter
