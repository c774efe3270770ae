"""Server-sent events (WHATWG HTML, section 9.2), as far as model providers use them."""

import abc
from collections.abc import Iterator
from typing import Generic, TypeVar

MAX_EVENT = 64 * 1024 * 1024
"""Bytes that one event may have; the largest real ones carry an image."""
E = TypeVar("E")


class EventTooLarge(ValueError):
    """One event is larger than any provider sends."""


class LineDecoder(abc.ABC, Generic[E]):
    """Bytes as they come from the wire in, what their lines say out.

    Kept as bytes: the JSON decoder takes them so, and a character cut in two by the network
    never has to be put together here.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._begun = False

    @abc.abstractmethod
    def take(self, line: bytes) -> E | None:
        """Take one line; returns the event that it ends."""

    @property
    @abc.abstractmethod
    def held(self) -> int:
        """Bytes of the event that has begun."""

    def feed(self, chunk: bytes) -> Iterator[E]:
        """The events that `chunk` completes."""
        self._size += len(chunk)
        if self._size > MAX_EVENT:
            raise EventTooLarge(f"one event has more than {MAX_EVENT} bytes")
        self._pieces.append(chunk)
        if b"\n" in chunk or b"\r" in chunk:
            yield from self._split()

    def close(self) -> Iterator[E]:
        """Return the event behind the last line end: some servers leave it out after their last event."""
        self._pieces.append(b"\n\n")
        yield from self._split()

    def _split(self) -> Iterator[E]:
        text = b"".join(self._pieces)
        if not self._begun:
            self._begun = True
            text = text.removeprefix(b"\xef\xbb\xbf")
        # A "\r" at the end may be the first half of "\r\n", so it waits.
        whole = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
        self._pieces = [text[whole:]]
        for line in text[:whole].splitlines():
            if (event := self.take(line)) is not None:
                yield event
        self._size = len(self._pieces[0]) + self.held


class EventDecoder(LineDecoder[bytes]):
    """The `data` of whole events alone."""

    def __init__(self) -> None:
        super().__init__()
        self._data: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def take(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._held += len(self._data[-1]) + 1
        elif not line and self._data:
            event, self._data, self._held = b"\n".join(self._data), [], 0
            return event
        return None
