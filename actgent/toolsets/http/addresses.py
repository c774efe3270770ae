"""Which addresses are public: all others are somebody's inside, and no tool goes there by itself.

An IPv6 address may carry an IPv4 one, by which it is judged: mapped (RFC 4291), compatible (RFC 4291), NAT64 (RFC 6052),
6to4 (RFC 3056), Teredo (RFC 4380) and ISATAP (RFC 5214). What is special is listed by the registries of IANA (RFC 6890);
Python's `is_global` and `is_private` do not know all of it.
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
"""The first half of an ISATAP interface's id."""
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


def why_not_public(address: Address) -> str | None:
    """Tell in a word or two why an address is not public; None: it is."""
    if isinstance(address, ipaddress.IPv6Address):
        carried = list(_carried(address))
        if carried:
            return next(filter(None, map(_why_special, carried)), None)
        return _why_special(address) or (None if address in _GLOBAL_UNICAST else "not global unicast")
    return _why_special(address)


def parsed(text: str) -> Address:
    """Read an address as the system's resolver gives it, without the zone of a link-local one.

    Raises:
        ValueError: it is none.
    """
    return ipaddress.ip_address(text.partition("%")[0])


def _why_special(address: Address) -> str | None:
    for network, reason in _SPECIAL:
        if address.version == network.version and address in network:
            return reason
    kinds = ("is_loopback", "is_link_local", "is_multicast", "is_unspecified", "is_private", "is_reserved")
    for kind in kinds:
        if getattr(address, kind):
            return kind.removeprefix("is_").replace("_", "-")
    return None if address.is_global else "not global"


def _carried(address: ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address carries."""
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
