"""Decoder of server-sent events (WHATWG HTML, section 9.2), limited to what model providers use."""

import abc
from collections.abc import Iterator
from typing import Generic, TypeVar

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Maximum size of one event. The largest real events contain an image."""
E = TypeVar("E")


class EventTooLarge(ValueError):
    """Error: an event of the stream exceeds `MAX_EVENT_BYTES`."""


class LineDecoder(abc.ABC, Generic[E]):
    """Splits received bytes into lines, and decodes events from the lines.

    Data stays bytes: the JSON decoder takes bytes, and a character that is split between two chunks needs no special case.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._begun = False

    @abc.abstractmethod
    def decode_line(self, line: bytes) -> E | None:
        """Process one line of the stream.

        Return the event that the line completes; None if the event needs more lines.
        """

    @property
    @abc.abstractmethod
    def held(self) -> int:
        """Size in bytes of the incomplete event that is buffered."""

    def feed(self, chunk: bytes) -> Iterator[E]:
        """Decode a chunk of received bytes, and yield the events that are complete after this chunk.

        Raises:
            EventTooLarge: The incomplete event exceeds `MAX_EVENT_BYTES`.
        """
        self._size += len(chunk)
        if self._size > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event of the stream has more than {MAX_EVENT_BYTES} bytes")
        self._pieces.append(chunk)
        if b"\n" in chunk or b"\r" in chunk:
            yield from self._split()

    def close(self) -> Iterator[E]:
        """At the end of the stream, yield the last event if the server has omitted the blank line after the event."""
        self._pieces.append(b"\n\n")
        yield from self._split()

    def _split(self) -> Iterator[E]:
        text = b"".join(self._pieces)
        if not self._begun:
            self._begun = True
            text = text.removeprefix(b"\xef\xbb\xbf")
        # A "\r" at the end may be the first half of "\r\n", so it is kept for the next chunk.
        whole = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
        self._pieces = [text[whole:]]
        for line in text[:whole].splitlines():
            if (event := self.decode_line(line)) is not None:
                yield event
        self._size = len(self._pieces[0]) + self.held


class EventDecoder(LineDecoder[bytes]):
    """Decodes the `data` fields of events, and ignores all other fields."""

    def __init__(self) -> None:
        super().__init__()
        self._data: list[bytes] = []
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def decode_line(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._held += len(self._data[-1]) + 1
        elif not line and self._data:
            event, self._data, self._held = b"\n".join(self._data), [], 0
            return event
        return None
