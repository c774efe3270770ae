"""Guard of all connections of tools, so that a model cannot make a tool reach the internal network.

A host name is resolved once, each of its addresses is checked, and the connection is made to a checked address, never
to the name
again. So a name that resolves differently later (DNS rebinding) has no effect. A redirect is checked like any other
connection.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import attrs
import httpcore2
import httpx2

from actgent.errors import AddressBlocked, ConfigurationError
from actgent.errors.text_escaping import shown
from actgent.support.safe_logging import logger_of

from .dns_resolution import resolve_host
from .public_ip_addresses import Address, Network, non_public_reason, parse_address

_log = logger_of(__name__)
_HOST_NAME = re.compile(r"(?!(.*\.)?\d+\.?$)(\w[\w-]*\.)*\w[\w-]*\.?")
"""Pattern of a host name. Names that end with a number are excluded, because they would be IP addresses."""
KEEPALIVE_SECONDS = 2.0
"""Seconds for which an idle connection is kept. Node and uvicorn close one after 5 s, and a request in that moment fails."""
CODINGS = frozenset({"deflate", "gzip"})
"""Content codings that `read_decoded` decodes. A zstd frame may demand a window of 128 MB, so zstd is not accepted."""
Wrap = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]


@attrs.frozen(init=False)
class Guard:
    """Hosts that a tool may reach: all public addresses, and hosts and networks that are allowed explicitly.

    Args:
        allow: Host names (`intranet.example`, with all their addresses), addresses (`127.0.0.1`) and networks
            (`10.0.0.0/8`) in addition to the public addresses.

    Raises:
        ConfigurationError: An entry is not a host name, an address or a network.
    """

    names: frozenset[str]
    """Allowed host names in lower case."""
    networks: tuple[Network, ...]
    """Allowed networks and single addresses."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        names, networks = set[str](), list[Network]()
        for entry in [allow] if isinstance(allow, str) else allow:
            network = _parse_network(entry)
            if network is None:
                names.add(_parse_host(entry))
            else:
                networks.append(network)
        self.__attrs_init__(frozenset(names), tuple(networks))

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host and return its addresses, after a check that all of them may be reached.

        A host that is allowed by name is not checked.

        Raises:
            AddressBlocked: An address is neither public nor allowed.
            OSError: The host name cannot be resolved.
        """
        literals = await resolve_host(host, port)
        if host.rstrip(".").lower() not in self.names:
            for literal in literals:
                self._check_address(host, parse_address(literal))
        return literals

    def _check_address(self, host: str, address: Address) -> None:
        """Raise `AddressBlocked` if an address is neither public nor allowed. Log how to allow it."""
        reason = non_public_reason(address)
        if reason is None or any(address.version == net.version and address in net for net in self.networks):
            return
        _log.warning(
            "blocked a tool's connection to %s (%s, %s); allow it by allow=[...]",
            shown(host),
            address,
            reason,
        )
        raise AddressBlocked(host, reason)

    def client(self, *, wrap: Wrap | None = None, **options: Any) -> httpx2.AsyncClient:
        """Make an HTTP client that connects through the guard, follows no redirects and ignores the environment.

        The client stores no cookies: it serves the sessions of all owners, and a stored login would serve them all.

        Args:
            wrap: Returns the transport that the client uses, given the guarded transport.
            **options: Further arguments of `httpx2.AsyncClient`.
        """
        guarded = _GuardedTransport(self)
        transport = guarded if wrap is None else wrap(guarded)
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        client = httpx2.AsyncClient(
            transport=transport, trust_env=False, follow_redirects=False, cookies=cookies, **options
        )
        client.headers["Accept-Encoding"] = ", ".join(sorted(CODINGS))
        return client


class _GuardedTransport(httpx2.AsyncHTTPTransport):
    """httpx2's transport with a connection pool that connects through the guard; httpx2 has no option for that."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=_GuardedNetwork(guard),
        )


class _GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Network backend that connects only to addresses that the guard has checked."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._network = httpcore2.TrioBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            addresses = await self._guard.addresses(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(f"the host's name cannot be resolved ({error.strerror})") from error
        last = httpcore2.ConnectError("the host has no address")
        for address in addresses:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as error:
                last = error
        raise last

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's signature
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise AddressBlocked(path, "a socket of this host")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


def _parse_network(entry: object) -> Network | None:
    try:
        return ipaddress.ip_network(str(entry), strict=False)
    except ValueError:
        return None


def _parse_host(entry: object) -> str:
    if not isinstance(entry, str) or _HOST_NAME.fullmatch(entry) is None:
        raise ConfigurationError(
            f"allow= must contain host names, addresses and networks such as '10.0.0.0/8', not {entry!r}"
        )
    return entry.rstrip(".").lower()
