"""Parser of listen addresses such as `127.0.0.1:8300`."""

import ipaddress

from actgent.errors import ConfigurationError


def split_address(bind: object) -> tuple[str, int]:
    """Split an address `HOST:PORT` into host and port. The brackets of an IPv6 host are removed.

    Raises:
        ConfigurationError: The value is not a text, does not have the form `HOST:PORT`, or the port is above 65535.
    """
    host, _, port = bind.rpartition(":") if isinstance(bind, str) else ("", "", "")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:  # noqa: PLR2004 - ports
        raise ConfigurationError(
            f"bind= (--bind) must be HOST:PORT, such as 127.0.0.1:8300, not {bind!r:.200}"
        )
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return True if the host is `localhost` or a loopback address, which only this machine can reach."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
