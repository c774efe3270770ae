"""Strict parser of request boundaries in front of the HTTP server. It forwards only complete and unambiguous request heads.

h11 accepts lines that end in a bare line feed, and waits for slow heads without limit. A request that a proxy in front might
parse differently (request smuggling) is rejected here: bare line feeds, folded lines, two lengths, trailers, other versions
than HTTP/1.0 and 1.1. Protocol upgrades are not supported, so their headers are removed. Source: RFC 9112, sections 2.2, 5, 6,
7 and 11.2.

    head    up to the empty line, buffered until it is complete
    body    content-length bytes; or chunks, up to the last chunk
"""

import re
from typing import Literal

import attrs

MAX_CHUNKS = 20_000
"""Maximum number of chunks in one body. Very small chunks would use too much CPU time."""
MAX_CHUNK_LINE_BYTES = 100
"""Maximum size in bytes of the size line of a chunk."""
INVALID_REQUEST = b"\x00\r\n\r\n"
"""Invalid bytes passed to the server for a rejected request, so that it answers 400 in order and closes the connection."""
_START = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e]+ HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[\x20-\x7e\t]*)?")
_GONE = {b"upgrade", b"http2-settings"}
DIRECT = "actgent.direct"
"""Key in the ASGI scope's `state` for the connection, to which the application writes the chunks of a stream directly."""
PLAIN = "actgent.plain"
"""Key in the ASGI scope's `state` for an object that sends a stream without HTTP chunks (relayed requests)."""
State = Literal["head", "length", "chunk", "chunk data", "chunk end", "last", "refused"]


class Malformed(Exception):
    """The received bytes are no HTTP request, or an ambiguous one."""


@attrs.define(eq=False)
class RequestParser:
    """Parser that finds the boundaries of the requests in the bytes of one connection."""

    header_bytes: int
    state: State = "head"
    _waiting: bytearray = attrs.field(factory=bytearray)
    """Received bytes of an incomplete head or chunk line, which were not forwarded yet."""
    _left: int = 0
    """Number of bytes that are still to be received of the request body, or of its current chunk."""
    _chunks: int = 0
    """Number of chunks of the current request body that were received so far."""

    @property
    def is_between(self) -> bool:
        """True between requests: the last request was received completely, and no byte of the next one has arrived."""
        return self.state == "head" and not self._waiting

    def feed(self, data: bytes) -> bytes:
        """Parse received bytes, and return the validated bytes for the HTTP server; empty while a request head is incomplete.

        After a rejected request, all further bytes are dropped.
        """
        if self.state == "refused":
            return b""
        passed = bytearray()
        self._waiting += data
        try:
            while self._waiting and (found := self._step()) is not None:
                passed += found
        except Malformed:
            self.state = "refused"
            passed += INVALID_REQUEST
        if self.state == "refused":
            self._waiting.clear()
        return bytes(passed)

    def _step(self) -> bytes | None:
        """Return the next validated bytes for the HTTP server; None if more bytes must arrive first."""
        if self.state == "head":
            return self._head()
        if self.state in ("length", "chunk data"):
            return self._data()
        return self._line()

    def _head(self) -> bytes | None:
        """Return the next request head if it is complete; None otherwise.

        Raise `Malformed` if the head is too long, or has line feeds without carriage returns.
        """
        end = self._waiting.find(b"\r\n\r\n")
        known = self._waiting if end < 0 else self._waiting[: end + 4]
        if len(known) > self.header_bytes or _has_bare_ends(known):
            raise Malformed
        if end < 0:
            return None
        del self._waiting[: end + 4]
        return self._read_head(bytes(known[:-4]).split(b"\r\n"))

    def _read_head(self, lines: list[bytes]) -> bytes:
        """Validate the lines of a request head, and return the head without upgrade headers.

        Raise `Malformed` if a line is ambiguous.
        """
        if not _START.fullmatch(lines[0]):
            raise Malformed
        fields = [_FIELD.fullmatch(line) for line in lines[1:]]
        named = [(found[1].lower(), found[2].strip()) for found in fields if found is not None]
        if len(named) != len(fields):
            raise Malformed
        self._begin_body(named, is_old=lines[0].endswith(b"1.0"))
        kept = [line for line, (name, _) in zip(lines[1:], named, strict=True) if name not in _GONE]
        return b"\r\n".join([lines[0], *kept, b"", b""])

    def _begin_body(self, fields: list[tuple[bytes, bytes]], *, is_old: bool) -> None:
        """Set the parser's state for the request body: with a length, chunked, or without a body.

        `is_old` is True for HTTP/1.0. Raise `Malformed` if the length is ambiguous.
        """
        lengths = [value for name, value in fields if name == b"content-length"]
        codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
        if len(lengths) + len(codings) > 1 or (codings and (is_old or codings != [b"chunked"])):
            raise Malformed
        if lengths and not (lengths[0].isdigit() and len(lengths[0]) < 16):  # noqa: PLR2004 - below 2**53
            raise Malformed
        self._chunks, self._left = 0, int(lengths[0]) if lengths else 0
        self.state = "chunk" if codings else ("length" if self._left else "head")

    def _data(self) -> bytes:
        """Return the received bytes of the current body or chunk.

        After the last byte, prepare for the next part of the request.
        """
        piece = bytes(self._waiting[: self._left])
        del self._waiting[: len(piece)]
        self._left -= len(piece)
        if not self._left:
            self.state = "head" if self.state == "length" else "chunk end"
        return piece

    def _line(self) -> bytes | None:
        """Return the next line between chunks if it is complete: the size of a chunk, or the empty line after it; else None."""
        end = self._waiting.find(b"\n")
        if end > MAX_CHUNK_LINE_BYTES or (end < 0 and len(self._waiting) > MAX_CHUNK_LINE_BYTES):
            raise Malformed
        if end < 0:
            return None
        line = bytes(self._waiting[: end + 1])
        del self._waiting[: end + 1]
        if not line.endswith(b"\r\n"):
            raise Malformed
        self._after_line(line[:-2])
        return line

    def _after_line(self, line: bytes) -> None:
        """Process a line between chunks. Raise `Malformed` for trailers, invalid sizes and too many chunks."""
        if self.state in ("chunk end", "last"):
            if line:  # trailers are not supported
                raise Malformed
            self.state = "chunk" if self.state == "chunk end" else "head"
            return
        found = _CHUNK.fullmatch(line)
        self._chunks += 1
        if found is None or self._chunks > MAX_CHUNKS:
            raise Malformed
        self._left = int(found[1], 16)
        self.state = "chunk data" if self._left else "last"


def chunked(data: bytes) -> bytes:
    """Encode data as one chunk of an HTTP response (RFC 9112, section 7.1).

    Empty data gives no bytes, because an empty chunk would end the body.
    """
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _has_bare_ends(text: bytes | bytearray) -> bool:
    """Return True if a line feed has no carriage return before it, or a carriage return has no line feed after it.

    A carriage return at the end of the text is ignored, because its line feed may not have arrived yet.
    """
    ends = text.count(b"\r\n")
    return text.count(b"\n") != ends or text.count(b"\r") - text.endswith(b"\r") != ends
