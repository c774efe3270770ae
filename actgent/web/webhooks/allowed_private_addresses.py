"""Non-public addresses that a webhook may connect to: hosts, IP addresses and networks, with a port and a path prefix."""

import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote, urlsplit

import attrs

from actgent.errors import ConfigurationError
from actgent.toolsets.http import Guard

_ENTRY = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\[\]]+)(?::(?P<port>\d{1,5}))?(?P<path>/.*)?")
_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65_535


@attrs.frozen
class AllowedReceiver:
    """One entry of `Webhook.allow`."""

    host: str
    """Host name, IP address or network, in the syntax of `Guard`."""
    port: int | None = None
    """Allowed port; None allows every port."""
    path: str = ""
    """Allowed path prefix; empty allows every path."""

    @classmethod
    def parse(cls, entry: object) -> "AllowedReceiver":
        """Parse `HOST`, `HOST:PORT`, `HOST/PATH`, `HOST:PORT/PATH`, an IP address (IPv6 in brackets before a port), or a network.

        Raises:
            ConfigurationError: The entry has another syntax.
        """
        text = entry if isinstance(entry, str) else ""
        if _is_plain(text):
            return cls(text)
        found = _ENTRY.fullmatch(text)
        port = None if found is None or found["port"] is None else int(found["port"])
        host = "" if found is None else found["host"].strip("[]")
        if found is None or not _is_plain(host) or (port is not None and not 0 < port <= MAX_PORT):
            raise ConfigurationError(
                "allow= of a webhook takes HOST, HOST:PORT, HOST:PORT/PATH, addresses such as 127.0.0.1:8080 or [::1]:8080, and "
                f"networks such as 10.0.0.0/8, not {entry!r:.200}"
            )
        return cls(host, port, (found["path"] or "").rstrip("/"))

    def matches(self, port: int, path: str) -> bool:
        """Return True if the entry allows this port and this path. The host is not compared."""
        is_below = not self.path or path == self.path or path.startswith(f"{self.path}/")
        return self.port in (None, port) and is_below


def _is_plain(host: str) -> bool:
    """Return True if `Guard` accepts the text as an entry: a host, an IP address or a network."""
    try:
        Guard([host])
    except ConfigurationError:
        return False
    return True


def _parse_all(entries: Iterable[object]) -> tuple[AllowedReceiver, ...]:
    return tuple(map(AllowedReceiver.parse, entries))


@attrs.frozen
class AllowedReceivers:
    """The entries of `Webhook.allow`.

    Raises:
        ConfigurationError: An entry is wrong.
    """

    entries: tuple[AllowedReceiver, ...] = attrs.field(converter=_parse_all)

    def guard(self, url: str) -> Guard:
        """Return the guard for connections to a URL: it opens the hosts of the entries that allow its port and path.

        Equal sets of entries give equal guards. A connection is reused under one guard only, so that a path that an entry
        does not allow never goes over the connection of another path.
        """
        parts = urlsplit(url)
        decoded = unquote(parts.path)
        # Servers may normalize such a path to another one.
        is_ambiguous = "\\" in decoded or not {".", ".."}.isdisjoint(decoded.split("/")) or "//" in decoded
        path = "" if is_ambiguous else decoded
        port = parts.port or _PORTS[parts.scheme]
        return _guard(tuple(each.host for each in self.entries if each.matches(port, path)))


@lru_cache(maxsize=256)
def _guard(hosts: Iterable[str]) -> Guard:
    return Guard(hosts)
