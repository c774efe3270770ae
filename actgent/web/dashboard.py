"""The dashboard's files: a page that asks the API like any other client. They hold nothing secret, so they take no token."""

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
"""The page runs no script but its own files, and reaches nothing but this server; pictures and sound come from its memory (blob:)."""
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def routes() -> list[Path]:
    """The addresses of the page and its files."""
    return [
        Path("/", _File("index.html")),
        *(Path(f"/static/{name}", _File(name)) for name in _names() if name != "index.html"),
    ]


class _File:
    """One file, as an ASGI application."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Problem("method-not-allowed", "a file is only read", headers={"allow": "GET, HEAD"})
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
    """True if a client names gzip among what it can unpack, without refusing it."""
    codings = (each.replace(" ", "").lower() for each in accepted.split(","))
    return any(
        each == "gzip" or (each.startswith("gzip;q=") and each[7:].strip("0.") != "") for each in codings
    )


@functools.cache
def _content(name: str, *, is_packed: bool) -> tuple[bytes, str]:
    """A file, and what tells it from other versions of it."""
    place: Any = resources.files(__package__) / "static"
    content = place.joinpath(*name.split("/")).read_bytes()
    content = gzip.compress(content, mtime=0) if is_packed else content
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


@functools.cache
def _names() -> tuple[str, ...]:
    """The files that are served, as they are called below `static`."""
    place: Any = resources.files(__package__) / "static"
    found = [each.name for each in place.iterdir() if each.is_file()]
    for folder in ("pages", "vendor"):
        found += [f"{folder}/{each.name}" for each in (place / folder).iterdir()]
    return tuple(sorted(name for name in found if f".{name.rpartition('.')[2]}" in _TYPES))
