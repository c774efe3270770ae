"""Checks of URLs that a developer or a document gives."""

from urllib.parse import urlsplit

import httpx2

_PORTS = {"http": 80, "https": 443}


def is_http_url(url: str) -> bool:
    """True for an absolute http or https URL with a host and a valid port, as the HTTP client reads it."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # read for its ValueError
        return parts.scheme in _PORTS and bool(parts.hostname) and bool(httpx2.URL(url).host)
    except (ValueError, UnicodeError, httpx2.InvalidURL):
        return False


def origin_of(url: str) -> str:
    """Return scheme, host and port of a valid http or https URL (RFC 6454), with the port written out."""
    parts = httpx2.URL(url)
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    return f"{parts.scheme}://{host.lower()}:{parts.port or _PORTS[parts.scheme]}"
