"""Bytes to frames. Nothing that comes makes it keep more than one frame, or raise anything but `ProtocolError`."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

from pamqp import base, body, constants, frame, header, heartbeat

from .failures import ProtocolError
from .frequent import Whole, decode_frequent, decode_whole, encode_frequent

AnyFrame = base.Frame | body.ContentBody | header.ContentHeader | heartbeat.Heartbeat
OVERHEAD = 8
"""Bytes of a frame round its payload: type, channel, size, and the mark of its end."""
FIRST_MAX = 131_072
"""Bytes of the longest frame before the two have agreed on another bound, and the longest that we offer."""
_PREFIX = struct.Struct(">BHI")
_SIZE = struct.Struct(">HHQ")
"""What a header begins with: its class, its weight, and the bytes of its message's body."""
_TYPES = (
    constants.FRAME_METHOD,
    constants.FRAME_HEADER,
    constants.FRAME_BODY,
    constants.FRAME_HEARTBEAT,
)


class UnreadHeader(header.ContentHeader):
    """The header of a message whose properties cannot be read: the broker passes on whatever a sender writes there."""


class FrameReader:
    """Cuts what comes into frames."""

    def __init__(self) -> None:
        self.max_size = FIRST_MAX
        """Bytes of the longest frame."""
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray) -> list[tuple[int, AnyFrame]]:
        """The frames that are whole by now, each with its channel; what is left waits for more.

        Raises:
            ProtocolError: these are none, or one is longer than was agreed on.
        """
        return list(self._feed(data, lambda _: None))

    def feed_whole(self, data: bytes | bytearray) -> list[tuple[int, AnyFrame | Whole]]:
        """The same, with messages that came as three frames as one; raises as `feed`."""
        return list(self._feed(data, lambda begin: decode_whole(self._rest, begin, self.max_size)))

    def _feed(
        self, data: bytes | bytearray, whole_at: Callable[[int], tuple[int, int, Whole] | None]
    ) -> Iterator[tuple[int, Any]]:
        rest = self._rest
        rest += data
        begin = 0
        while (size := self._size_at(begin)) and len(rest) - begin >= size:
            if (found := whole_at(begin)) is not None:
                channel, begin, whole = found
                yield channel, whole
            else:
                yield _decode(bytes(rest[begin : begin + size]))
                begin += size
        del rest[:begin]

    def _size_at(self, begin: int) -> int:
        """How many bytes the frame has that begins here; 0 where that is not known yet."""
        if len(self._rest) - begin < _PREFIX.size:
            return 0
        kind, _, payload = _PREFIX.unpack_from(self._rest, begin)
        if kind not in _TYPES:
            raise ProtocolError(f"no frame is of type {kind}")
        if payload + OVERHEAD > self.max_size:
            raise ProtocolError(
                f"a frame of {payload + OVERHEAD:,} bytes, where {self.max_size:,} were agreed on"
            )
        return int(payload) + OVERHEAD


def _decode(data: bytes) -> tuple[int, AnyFrame]:
    kind, channel, size = _PREFIX.unpack_from(data)
    if data[-1] != constants.FRAME_END:
        raise ProtocolError("a frame does not end where it should")
    if kind == constants.FRAME_HEARTBEAT:
        return channel, heartbeat.Heartbeat()
    if kind == constants.FRAME_BODY:
        return channel, body.ContentBody(data[_PREFIX.size : _PREFIX.size + size])
    if (frequent := decode_frequent(kind, data)) is not None:
        return channel, frequent
    try:
        _, _, decoded = frame.unmarshal(data)
    except (
        Exception
    ) as error:  # pamqp has no one error for what it cannot read: a table in tables ends its recursion
        if kind == constants.FRAME_HEADER and size >= _SIZE.size:
            return channel, UnreadHeader(body_size=_SIZE.unpack_from(data, _PREFIX.size)[2])
        raise ProtocolError(f"a frame cannot be read: {type(error).__name__}") from error
    if not isinstance(decoded, base.Frame | header.ContentHeader):
        raise ProtocolError("a frame is not what its type says")
    return channel, decoded


def encode_frames(channel: int, *frames: AnyFrame) -> bytes:
    """Frames as bytes, whole.

    Raises:
        ValueError: one holds what AMQP cannot carry.
    """
    try:
        return b"".join([encode_frequent(channel, each) or frame.marshal(each, channel) for each in frames])
    except (TypeError, AttributeError, struct.error, OverflowError) as error:
        raise ValueError(str(error)) from error
