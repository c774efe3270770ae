"""Where the requests of a connection begin and end, followed beside the server, which is handed whole heads only.

h11 takes lines that end in a bare line feed, and a head as slowly as it comes. What a proxy in front might read otherwise
is refused here: line feeds alone, folded lines, two lengths, trailers, other versions than HTTP/1.0 and 1.1. A request
to change the protocol is taken out of the head: there is no other one. Source: RFC 9112, sections 2.2, 5, 6, 7 and 11.2.

    head    up to the empty line, kept until it is whole
    body    so many bytes; or chunks, up to the empty one
"""

import re
from typing import Literal

import attrs

MAX_CHUNKS = 20_000
"""Of one body: smaller ones cost more than they carry."""
MAX_CHUNK_LINE = 100
REFUSED = b"\x00\r\n\r\n"
"""What no server takes for a head or a chunk: it answers 400, in its turn, and closes."""
_START = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [\x21-\x7e]+ HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[\x20-\x7e\t]*)?")
_GONE = {b"upgrade", b"http2-settings"}
DIRECT = "actgent.direct"
"""Under which an application finds the connection in the `state` of its scope, to write chunks of an answer to by itself."""
PLAIN = "actgent.plain"
"""Under which it finds a way that takes a stream as it is, where there is no connection of HTTP."""
State = Literal["head", "length", "chunk", "chunk data", "chunk end", "last", "refused"]


class Malformed(Exception):
    """What came is no request, or one that could be read in two ways."""


@attrs.define(eq=False)
class Framing:
    """Follows one connection."""

    header_bytes: int
    state: State = "head"
    _waiting: bytearray = attrs.field(factory=bytearray)
    """What came of a head or of the line of a chunk."""
    _left: int = 0
    """Bytes of the body, or of its chunk."""
    _chunks: int = 0

    @property
    def is_between(self) -> bool:
        """True while nothing of a request has come."""
        return self.state == "head" and not self._waiting

    def take(self, data: bytes) -> bytes:
        """Return what the server may have of what came now and before; empty while a head is not whole.

        Nothing passes behind what was refused.
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
            passed += REFUSED
        if self.state == "refused":
            self._waiting.clear()
        return bytes(passed)

    def _step(self) -> bytes | None:
        """The next piece; None while more of it has to come."""
        if self.state == "head":
            return self._head()
        if self.state in ("length", "chunk data"):
            return self._data()
        return self._line()

    def _head(self) -> bytes | None:
        end = self._waiting.find(b"\r\n\r\n")
        known = self._waiting if end < 0 else self._waiting[: end + 4]
        if len(known) > self.header_bytes or _has_bare_ends(known):
            raise Malformed
        if end < 0:
            return None
        del self._waiting[: end + 4]
        return self._read_head(bytes(known[:-4]).split(b"\r\n"))

    def _read_head(self, lines: list[bytes]) -> bytes:
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
        lengths = [value for name, value in fields if name == b"content-length"]
        codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
        if len(lengths) + len(codings) > 1 or (codings and (is_old or codings != [b"chunked"])):
            raise Malformed
        if lengths and not (lengths[0].isdigit() and len(lengths[0]) < 16):  # noqa: PLR2004 - below 2**53
            raise Malformed
        self._chunks, self._left = 0, int(lengths[0]) if lengths else 0
        self.state = "chunk" if codings else ("length" if self._left else "head")

    def _data(self) -> bytes:
        piece = bytes(self._waiting[: self._left])
        del self._waiting[: len(piece)]
        self._left -= len(piece)
        if not self._left:
            self.state = "head" if self.state == "length" else "chunk end"
        return piece

    def _line(self) -> bytes | None:
        """The line before a chunk, or the end behind it."""
        end = self._waiting.find(b"\n")
        if end > MAX_CHUNK_LINE or (end < 0 and len(self._waiting) > MAX_CHUNK_LINE):
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
        if self.state in ("chunk end", "last"):
            if line:  # a trailer, which nobody here reads
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
    """Data as one chunk of an answer; RFC 9112, section 7.1. Empty data is none, as that would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _has_bare_ends(text: bytes | bytearray) -> bool:
    """Return True for a line feed without its carriage return, or the other way round but at the end."""
    ends = text.count(b"\r\n")
    return text.count(b"\n") != ends or text.count(b"\r") - text.endswith(b"\r") != ends
