"""Static files of the dashboard, and the documentation page of the API. They contain no secrets and need no token."""

import functools
import gzip
import hashlib
from collections.abc import Callable
from importlib import resources
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route as Path
from starlette.types import Receive, Scope as ASGIScope, Send

from . import api_documentation_page
from .problem_documents import Problem
from .routes.endpoint_table import ENDPOINTS
from .routes.openapi import document_of

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
    """Return the HTTP routes of the dashboard page and of its static files."""
    return [
        Path("/", _file("index.html")),
        *(Path(f"/static/{name}", _file(name)) for name in _names() if name != "index.html"),
    ]


def docs_route() -> Path:
    """Return the HTTP route of the API's documentation page."""
    return Path("/docs", _Page(_docs_content, ".html", api_documentation_page.POLICY))


def _file(name: str) -> "_Page":
    return _Page(functools.partial(_file_content, name), f".{name.rpartition('.')[2]}", POLICY)


class _Page:
    """ASGI application that serves one static page or file."""

    def __init__(self, content: Callable[..., tuple[bytes, str]], suffix: str, policy: str) -> None:
        """Create the ASGI application.

        Args:
            content: Returns the content of the page and its ETag; with `is_packed=True` the content is compressed with gzip.
            suffix: File name suffix that selects the media type, a key of `_TYPES`.
            policy: Value of the `Content-Security-Policy` header.
        """
        self._content, self._suffix, self._policy = content, suffix, policy

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Problem(
                "method-not-allowed", "static files support only GET and HEAD", headers={"allow": "GET, HEAD"}
            )
        request = HTTPRequest(scope)
        is_packed = _accepts_gzip(request.headers.get("accept-encoding", ""))
        content, tag = self._content(is_packed=is_packed)
        headers = {
            **({"content-encoding": "gzip"} if is_packed else {}),
            "vary": "accept-encoding",
            "content-type": _TYPES[self._suffix],
            "content-security-policy": self._policy,
            "cross-origin-opener-policy": "same-origin",
            "cache-control": "no-cache",
            "etag": tag,
        }
        known = request.headers.get("if-none-match") == tag
        response = Response(b"" if known else content, status_code=304 if known else 200, headers=headers)
        await response(scope, receive, send)


def _accepts_gzip(header: str) -> bool:
    """Return True if the value of an `Accept-Encoding` header accepts gzip."""
    codings = (each.replace(" ", "").lower() for each in header.split(","))
    return any(
        each == "gzip" or (each.startswith("gzip;q=") and each[7:].strip("0.") != "") for each in codings
    )


@functools.cache
def _file_content(name: str, *, is_packed: bool) -> tuple[bytes, str]:
    """Return the content and the ETag of a static file; with `is_packed`, the content compressed with gzip."""
    folder: Any = resources.files(__package__) / "static"
    return _tagged(folder.joinpath(*name.split("/")).read_bytes(), is_packed=is_packed)


@functools.cache
def _docs_content(*, is_packed: bool) -> tuple[bytes, str]:
    """Return the documentation page and its ETag. With `is_packed`, the page is compressed with gzip."""
    return _tagged(api_documentation_page.render_page(document_of(ENDPOINTS)), is_packed=is_packed)


def _tagged(content: bytes, *, is_packed: bool) -> tuple[bytes, str]:
    content = gzip.compress(content, mtime=0) if is_packed else content
    return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


@functools.cache
def _names() -> tuple[str, ...]:
    """Return the paths of all files that the server may send, relative to `static`.

    Files of unknown types are left out.
    """
    root: Any = resources.files(__package__) / "static"
    found = [each.name for each in root.iterdir() if each.is_file()]
    for folder in ("pages", "vendor"):
        found += [f"{folder}/{each.name}" for each in (root / folder).iterdir()]
    return tuple(sorted(name for name in found if f".{name.rpartition('.')[2]}" in _TYPES))
