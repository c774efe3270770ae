"""The guard: every connection of a tool goes through it, so that nobody talks a tool into the network that it runs in.

A name is resolved once; each of its addresses is judged; what is connected to is an address that was judged, and never
the name again. So a name that resolves to something else a moment later (DNS rebinding) changes nothing, and neither does
a redirect: it is a connection like any other.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import attrs
import httpcore2
import httpx2

from actgent.errors import AddressRefused, ConfigurationError
from actgent.errors.printable import shown
from actgent.support.logs import logger_of

from .addresses import Address, Network, parsed, why_not_public
from .names import addresses_of

_log = logger_of(__name__)
_NAME = re.compile(r"(?!(.*\.)?\d+\.?$)(\w[\w-]*\.)*\w[\w-]*\.?")
"""A host's; with a number at the end it would be an address."""
CODINGS = frozenset({"deflate", "gzip"})
"""Content codings that `read_decoded` decodes. A zstd frame may demand a window of 128 MB, so zstd is not accepted."""
Wrap = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]


@attrs.frozen(init=False)
class Guard:
    """Which hosts a tool may reach: those with public addresses, and what is opened by name.

    Args:
        allow: Names of hosts (`intranet.example`, with all their addresses), addresses (`127.0.0.1`) and networks
            (`10.0.0.0/8`) besides the public ones.

    Raises:
        ConfigurationError: an entry is neither.
    """

    names: frozenset[str]
    """Hosts that are opened with all their addresses, in lower case."""
    networks: tuple[Network, ...]
    """Networks and single addresses that are opened."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        names, networks = set[str](), list[Network]()
        for entry in [allow] if isinstance(allow, str) else allow:
            network = _network(entry)
            if network is None:
                names.add(_checked_name(entry))
            else:
                networks.append(network)
        self.__attrs_init__(frozenset(names), tuple(networks))

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host and judge all of its addresses.

        Raises:
            AddressRefused: one of them is not public, and not opened.
            OSError: the name cannot be resolved.
        """
        literals = await addresses_of(host, port)
        if host.rstrip(".").lower() not in self.names:
            for literal in literals:
                self._judge(host, parsed(literal))
        return literals

    def _judge(self, host: str, address: Address) -> None:
        reason = why_not_public(address)
        if reason is None or any(address.version == net.version and address in net for net in self.networks):
            return
        _log.warning(
            "a tool was kept from connecting to %s (%s, %s); allow=[...] opens hosts and networks",
            shown(host),
            address,
            reason,
        )
        raise AddressRefused(host, reason)

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
    """httpx2's own, whose pool connects through the guard; it has no argument for that."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False),
            max_connections=100,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
            network_backend=_GuardedNetwork(guard),
        )


class _GuardedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that the guard has judged."""

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
        raise AddressRefused(path, "a socket of this host")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


def _network(entry: object) -> Network | None:
    try:
        return ipaddress.ip_network(str(entry), strict=False)
    except ValueError:
        return None


def _checked_name(entry: object) -> str:
    if not isinstance(entry, str) or _NAME.fullmatch(entry) is None:
        raise ConfigurationError(
            f"allow= takes names of hosts, addresses and networks such as '10.0.0.0/8', not {entry!r}"
        )
    return entry.rstrip(".").lower()
