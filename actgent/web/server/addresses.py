"""Addresses to listen at."""

import ipaddress

from actgent.errors import ConfigurationError


def split_address(bind: str) -> tuple[str, int]:
    """The host and the port of an address; a host of IPv6 stands in brackets.

    Raises:
        ConfigurationError: it is none.
    """
    host, _, port = bind.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:  # noqa: PLR2004 - ports
        raise ConfigurationError(f"bind= (--bind) is HOST:PORT, such as 127.0.0.1:8300, not {bind!r:.200}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return True for an address that only this machine reaches."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
