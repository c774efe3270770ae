"""Decoder of server-sent events with event names and record numbers (WHATWG HTML, section 9.2)."""

from collections.abc import AsyncGenerator, AsyncIterator

from actgent.client.transport_interface import StreamEvent
from actgent.llm.http.sse import LineDecoder

from .http_request import decode_object


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
            name=name.decode(errors="replace"),
            data=decode_object(data, "the data of a server-sent event is not a JSON object"),
            number=int(number) if number.isdigit() else None,
        )


async def decode_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[StreamEvent | None, None]:
    """Decode server-sent events from the chunks of a response body.

    Yield each complete event, and None for each chunk, which shows that the connection works.
    """
    decoder = StreamDecoder()
    async for chunk in chunks:
        yield None
        for event in decoder.feed(chunk):
            yield event
