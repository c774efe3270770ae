"""Checks of URLs from developers and documents."""

from urllib.parse import urlsplit

import httpx2

_PORTS = {"http": 80, "https": 443}


def is_http_url(url: str) -> bool:
    """Return True if `url` is an absolute http or https URL with a host, and with a valid port or none."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
        return parts.scheme in _PORTS and bool(parts.hostname) and bool(httpx2.URL(url).host)
    except (ValueError, UnicodeError, httpx2.InvalidURL):
        return False


def origin_of(url: str) -> str:
    """Return scheme, host and port of a valid http or https URL (RFC 6454), with the port written out."""
    parts = httpx2.URL(url)
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return f"{parts.scheme}://{host.lower()}:{parts.port or _PORTS[parts.scheme]}"
