"""Guard of all connections of tools, so that a model cannot make a tool reach the internal network.

A host name is resolved once, and each of its addresses is checked. The connection is made to a checked address, not to the name.
So a name that resolves differently later (DNS rebinding) has no effect. A redirect is checked like any other connection.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import attrs
import httpcore2
import httpx2
import trio

from actgent.errors import AddressBlocked, ConfigurationError
from actgent.errors.text_escaping import shown
from actgent.support.safe_logging import logger_of
from actgent.support.unknown_name_hints import lists_arguments

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LOW_32 = 0xFFFF_FFFF
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_TEREDO = ipaddress.IPv6Network("2001::/32")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""First half of the interface id of an ISATAP address, as bits."""
_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(network), reason)
    for network, reason in (
        ("169.254.169.254/32", "cloud metadata"),
        ("169.254.170.0/24", "cloud metadata"),
        ("100.100.100.200/32", "cloud metadata"),
        ("168.63.129.16/32", "cloud metadata"),
        ("192.0.0.0/24", "reserved"),
        ("0.0.0.0/8", "this host"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "reserved"),
        ("198.18.0.0/15", "benchmarks"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("240.0.0.0/4", "reserved"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("2001:2::/48", "benchmarks"),
        ("2001:10::/28", "reserved"),
        ("2001:20::/28", "reserved"),
    )
)
"""Networks that are not public, with the reason."""


def non_public_reason(address: Address) -> str | None:
    """Return a short reason why an IP address is not public, e.g. "loopback"; None if the address is public."""
    if isinstance(address, ipaddress.IPv6Address):
        carried = list(_embedded_ipv4(address))
        if carried:
            return next(filter(None, map(_special_reason, carried)), None)
        return _special_reason(address) or (None if address in _GLOBAL_UNICAST else "not global unicast")
    return _special_reason(address)


def parse_address(text: str) -> Address:
    """Parse an IP address as the system's resolver formats it, without the zone of a link-local address.

    Raises:
        ValueError: The text is not an IP address.
    """
    return ipaddress.ip_address(text.partition("%")[0])


def _special_reason(address: Address) -> str | None:
    """Return a short reason why an IP address is not public, ignoring IPv4 addresses inside of it; None if it is public."""
    for network, reason in _SPECIAL:
        if address.version == network.version and address in network:
            return reason
    kinds = ("is_loopback", "is_link_local", "is_multicast", "is_unspecified", "is_private", "is_reserved")
    for kind in kinds:
        if getattr(address, kind):
            return kind.removeprefix("is_").replace("_", "-")
    return None if address.is_global else "not global"


def _embedded_ipv4(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses that an IPv6 address contains, for example in IPv4-mapped or NAT64 addresses.

    A connection to the IPv6 address may reach the embedded address.
    """
    bits = int(address)
    low = ipaddress.IPv4Address(bits & _LOW_32)
    if address.ipv4_mapped is not None or address in _NAT64 or (address in _COMPATIBLE and bits > 1):
        yield low
    elif address in _TEREDO:
        yield ipaddress.IPv4Address(bits >> 64 & _LOW_32)
        yield ipaddress.IPv4Address(~bits & _LOW_32)
    elif address in _SIX_TO_FOUR:
        yield ipaddress.IPv4Address(bits >> 80 & _LOW_32)
    elif bits >> 32 & _LOW_32 in _ISATAP:
        yield low


_log = logger_of(__name__)
_HOST_NAME = re.compile(r"(?!(.*\.)?\d+\.?$)(\w[\w-]*\.)*\w[\w-]*\.?")
"""Pattern of a host name. Names that end with a number are excluded, because they would be IP addresses."""
KEEPALIVE_SECONDS = 2.0
"""Seconds for which an idle connection is kept. Node and uvicorn close one after 5 s, and a request in that moment fails."""
CODINGS = frozenset({"deflate", "gzip"})
"""Content codings that `read_decoded` decodes. A zstd frame may demand a window of 128 MB, so zstd is not accepted."""
Wrap = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]


@lists_arguments
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
    """Allowed host names in lower case, with all their addresses."""
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
        """Resolve a host, check that the guard allows all its IP addresses, and return these addresses.

        The addresses of a host that is allowed by name are not checked.

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
    """HTTP transport of httpx2 whose connection pool connects through the guard."""

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


# --- dns resolution --------------------------------------------------------------------------

LOOKUP_THREADS = 16
"""Maximum number of concurrent lookups; others wait."""
LOOKUP_TIMEOUT_SECONDS = 10.0
"""Maximum duration of a lookup, including its wait for a thread."""
_limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("actgent name lookups")


async def resolve_host(host: str, port: int) -> list[str]:
    """Return all IP addresses of a host, without duplicates.

    If `host` is an IP address, return it without a lookup.

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
    """Resolve a host like `socket.getaddrinfo`. Raise `socket.gaierror` after `LOOKUP_TIMEOUT_SECONDS`."""
    with trio.move_on_after(LOOKUP_TIMEOUT_SECONDS):
        return await _resolve(host, port)
    raise socket.gaierror(socket.EAI_AGAIN, f"the lookup took longer than {LOOKUP_TIMEOUT_SECONDS:g} s")


async def _resolve(host: str, port: int) -> list[Any]:
    """Resolve a host name to addresses, with trio's custom resolver if one is set, otherwise with the system in a thread."""
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
