"""Serves the static files of the dashboard. They contain no secrets and need no token; the page uses the API with a token."""

import functools
import gzip
import hashlib
from importlib import resources
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.types import Receive, Scope as ASGIScope, Send

from .problems import Problem

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content security policy: the page runs only its own scripts and connects only to this server. Media may be `blob:` URLs."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def routes() -> list[Path]:
    """Return the routes of the dashboard page and its files."""
    return [
        Path("/", _File("index.html")),
        *(Path(f"/static/{name}", _File(name)) for name in _names() if name != "index.html"),
    ]


class _File:
    """ASGI application that serves one static file."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Problem(
                "method-not-allowed", "static files support only GET and HEAD", headers={"allow": "GET, HEAD"}
            )
        request = HTTPRequest(scope)
        is_packed = _takes_gzip(request.headers.get("accept-encoding", ""))
        content, tag = _content(self.name, is_packed=is_packed)
        headers = {
            **({"content-encoding": "gzip"} if is_packed else {}),
            "vary": "accept-encoding",
            "content-type": _TYPES[f".{self.name.rpartition('.')[2]}"],
            "content-security-policy": POLICY,
            "cross-origin-opener-policy": "same-origin",
            "cache-control": "no-cache",
            "etag": tag,
        }
        known = request.headers.get("if-none-match") == tag
        response = Response(b"" if known else content, status_code=304 if known else 200, headers=headers)
        await response(scope, receive, send)


def _takes_gzip(accepted: str) -> bool:
    """True if an `Accept-Encoding` header accepts gzip."""
    codings = (each.replace(" ", "").lower() for each in accepted.split(","))
    return any(
        each == "gzip" or (each.startswith("gzip;q=") and each[7:].strip("0.") != "") for each in codings
    )


@functools.cache
def _content(name: str, *, is_packed: bool) -> tuple[bytes, str]:
    """Return the content and the ETag of a static file; with `is_packed`, the content compressed with gzip."""
    folder: Any = resources.files(__package__) / "static"
    content = folder.joinpath(*name.split("/")).read_bytes()
    content = gzip.compress(content, mtime=0) if is_packed else content
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


@functools.cache
def _names() -> tuple[str, ...]:
    """Return the paths of all served files, relative to `static`."""
    root: Any = resources.files(__package__) / "static"
    found = [each.name for each in root.iterdir() if each.is_file()]
    for folder in ("pages", "vendor"):
        found += [f"{folder}/{each.name}" for each in (root / folder).iterdir()]
    return tuple(sorted(name for name in found if f".{name.rpartition('.')[2]}" in _TYPES))
