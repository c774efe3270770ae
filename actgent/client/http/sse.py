"""Decoder of server-sent events with event names and record numbers (WHATWG HTML, section 9.2)."""

from typing import Any

import orjson

from actgent.client.transport_interface import ConnectionLost, StreamEvent
from actgent.llm.http import LineDecoder


class StreamDecoder(LineDecoder[StreamEvent]):
    """Decoder of a byte stream of server-sent events to `StreamEvent` objects. The `id` of an event is its record number."""

    def __init__(self) -> None:
        super().__init__()
        self._name = self._number = b""
        self._data: list[bytes] = []

    @property
    def held(self) -> int:
        return sum(map(len, self._data))

    def decode_line(self, line: bytes) -> StreamEvent | None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        elif field == b"id":
            self._number = value
        elif not line and self._data:
            return self._event()
        return None

    def _event(self) -> StreamEvent:
        """Return the event from the lines since the last blank line, and begin a new event."""
        name, number, data = self._name, self._number, b"\n".join(self._data)
        self._name, self._number, self._data = b"", b"", []
        return StreamEvent(
            name=name.decode(), data=_decode_json(data), number=int(number) if number else None
        )


def _decode_json(data: bytes) -> Any:
    """Decode the JSON data of an event. Raise `ConnectionLost` if it is not JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ConnectionLost("the data of a server-sent event is not JSON", was_sent=True) from None
