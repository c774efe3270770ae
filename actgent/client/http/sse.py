"""Server-sent events with their names and numbers (WHATWG HTML, section 9.2)."""

from typing import Any

import orjson

from actgent.client.transport import ConnectionLost, StreamEvent
from actgent.llm.http import LineDecoder


class StreamDecoder(LineDecoder[StreamEvent]):
    """Events with what the server says of each."""

    def __init__(self) -> None:
        super().__init__()
        self._name = self._number = b""
        self._data: list[bytes] = []

    @property
    def held(self) -> int:
        return sum(map(len, self._data))

    def take(self, line: bytes) -> StreamEvent | None:
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
        name, number, data = self._name, self._number, b"\n".join(self._data)
        self._name, self._number, self._data = b"", b"", []
        return StreamEvent(name=name.decode(), data=_decoded(data), number=int(number) if number else None)


def _decoded(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise ConnectionLost("an event of the server is no JSON", was_sent=True) from None
