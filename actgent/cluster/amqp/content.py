"""A message over several frames: a method, a header with its properties, and its body in pieces."""

import struct
from collections.abc import Iterator

import attrs
from pamqp import body, commands, header

from .failures import ProtocolError
from .framing import OVERHEAD, AnyFrame, UnreadHeader, encode_frames
from .frequent import encode_method, encode_short

MAX_MESSAGE = 16_000_000
"""Bytes of the longest message that is sent or taken."""
LONGEST = 536_870_912
"""Bytes of the longest message that RabbitMQ takes from anybody, however it is configured."""
Carrier = commands.Basic.Deliver | commands.Basic.Return
"""The methods that a message from the broker begins with."""


@attrs.frozen
class Content:
    """A message that came, and how."""

    method: Carrier
    properties: commands.Basic.Properties
    body: bytes
    is_readable: bool = True
    """False: its sender wrote properties that cannot be read, or too much; nothing of it is here."""


class Assembly:
    """Puts the messages of one channel together again."""

    def __init__(self) -> None:
        self._method: Carrier | None = None
        self._properties: commands.Basic.Properties | None = None
        self._is_readable = True
        self._missing = 0
        self._pieces: list[bytes] = []

    def add(self, frame: AnyFrame) -> Content | None:
        """Take the next frame of the channel if it is of a message; returns the message that is whole with it.

        Raises:
            ProtocolError: this is not what comes next.
        """
        if isinstance(frame, commands.Basic.Deliver | commands.Basic.Return) and self._method is None:
            self._method = frame
            return None
        if isinstance(frame, header.ContentHeader) and self._method is not None and self._properties is None:
            self._begin(frame)
        elif isinstance(frame, body.ContentBody) and self._properties is not None:
            self._missing -= len(frame.value)
            if self._is_readable:
                self._pieces.append(frame.value)
        else:
            raise ProtocolError(f"a {frame.name} came where a message goes on, or none was begun")
        if self._missing < 0:
            raise ProtocolError("a message is longer than it said")
        return None if self._missing else self._end()

    @property
    def is_begun(self) -> bool:
        """True if a message is in the middle."""
        return self._method is not None

    def _begin(self, frame: header.ContentHeader) -> None:
        if frame.body_size > LONGEST:
            raise ProtocolError(f"a message of {frame.body_size:,} bytes; no broker takes such")
        self._properties, self._missing = frame.properties, frame.body_size
        self._is_readable = frame.body_size <= MAX_MESSAGE and not isinstance(frame, UnreadHeader)

    def _end(self) -> Content:
        assert self._method is not None  # noqa: S101 - a header came behind it
        assert self._properties is not None  # noqa: S101
        whole = Content(self._method, self._properties, b"".join(self._pieces), self._is_readable)
        self._method = self._properties = None
        self._pieces = []
        return whole


def encode_content(
    channel: int,
    exchange: str,
    key: str,
    body: bytes,
    properties: commands.Basic.Properties,
    *,
    mandatory: bool,
    frame_max: int,
) -> bytes:
    """A message as bytes, none of its frames longer than `frame_max`.

    Raises:
        ValueError: it holds what AMQP cannot carry.
    """
    try:
        method = encode_method(channel, exchange, key, mandatory)
        if len(body) + OVERHEAD <= frame_max:
            data = encode_short(channel, method, properties, body)
            if data is not None:
                return data
        return method + encode_frames(channel, *cut(body, properties, frame_max))
    except (TypeError, AttributeError, struct.error, OverflowError) as error:
        raise ValueError(str(error)) from error


def cut(data: bytes, properties: commands.Basic.Properties, frame_max: int) -> Iterator[AnyFrame]:
    """The frames of a message behind its method, none longer than `frame_max`."""
    yield header.ContentHeader(body_size=len(data), properties=properties)
    size = frame_max - OVERHEAD
    for begin in range(0, len(data), size):
        yield body.ContentBody(data[begin : begin + size])
