"""Check if an IP address is public. Tools connect to other addresses only if they are allowed explicitly.

An IPv6 address that embeds an IPv4 address is judged by the IPv4 address: mapped and compatible (RFC 4291), NAT64
(RFC 6052),
6to4 (RFC 3056), Teredo (RFC 4380) and ISATAP (RFC 5214). The special ranges are from the IANA registries (RFC 6890);
Python's
`is_global` and `is_private` do not cover all of them.
"""

import ipaddress
from collections.abc import Iterator

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
    """Return a short reason why an IP address is not public, e.g. "loopback"; None if it is public."""
    if isinstance(address, ipaddress.IPv6Address):
        carried = list(_embedded_ipv4(address))
        if carried:
            return next(filter(None, map(_special_reason, carried)), None)
        return _special_reason(address) or (None if address in _GLOBAL_UNICAST else "not global unicast")
    return _special_reason(address)


def parse_address(text: str) -> Address:
    """Parse an address as the system's resolver formats it, ignoring the zone of a link-local address.

    Raises:
        ValueError: The text is not an IP address.
    """
    return ipaddress.ip_address(text.partition("%")[0])


def _special_reason(address: Address) -> str | None:
    """Return why an address is not public, without looking at embedded addresses; None if it is public."""
    for network, reason in _SPECIAL:
        if address.version == network.version and address in network:
            return reason
    kinds = ("is_loopback", "is_link_local", "is_multicast", "is_unspecified", "is_private", "is_reserved")
    for kind in kinds:
        if getattr(address, kind):
            return kind.removeprefix("is_").replace("_", "-")
    return None if address.is_global else "not global"


def _embedded_ipv4(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """Yield the IPv4 addresses that an IPv6 address embeds, such as IPv4-mapped or NAT64 addresses.

    A connection may end there.
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
