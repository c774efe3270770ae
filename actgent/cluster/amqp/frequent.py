"""The frames that each message has, to bytes and back in a tenth of the time that pamqp takes, which knows all frames.

What is unusual about one of them is left to pamqp, which says what is wrong with it.
"""

import functools
import struct
from typing import Any

from pamqp import base, commands, constants, frame, header

_BASIC = commands.Basic.frame_id
_DELIVER = commands.Basic.Deliver.index.to_bytes(4, "big")
_ACK = commands.Basic.Ack.index.to_bytes(4, "big")
_BEGIN = 7
"""Bytes of a frame before its payload: type, channel and size; one byte behind it marks its end."""
_ACK_FRAME = struct.Struct(">BHI4sQBB")
_ACK_SIZE = 13
_HEADER = struct.Struct(">HxxQH")
_NUMBER = struct.Struct(">QB")
_FRAME = struct.Struct(">BHI")
_OTHERS = ("headers", "timestamp")
"""Properties that are no texts and no small numbers."""
_NUMBERS = ("delivery_mode", "priority")
_PROPERTIES = tuple(
    (name, flag, name not in _NUMBERS)
    for name, flag in commands.Basic.Properties.flags.items()
    if name not in _OTHERS
)
"""In their order on the wire, each with its flag, and whether it is a text."""
_KNOWN = sum(flag for _, flag, _ in _PROPERTIES)


# --- to bytes ----------------------------------------------------------------------------


def encode_frequent(channel: int, given: object) -> bytes | None:
    """A frame as bytes; None for another one, and for what only pamqp can write.

    Raises:
        ValueError, TypeError, AttributeError, struct.error: it holds what AMQP cannot carry.
    """
    if isinstance(given, commands.Basic.Publish):
        return _publish(channel, given.exchange, given.routing_key, given.mandatory, given.immediate)
    if isinstance(given, commands.Basic.Ack):
        return _ACK_FRAME.pack(
            constants.FRAME_METHOD,
            channel,
            _ACK_SIZE,
            _ACK,
            given.delivery_tag,
            given.multiple,
            constants.FRAME_END,
        )
    return _encode_header(channel, given) if isinstance(given, header.ContentHeader) else None


@functools.lru_cache(maxsize=1000)
def _publish(channel: int, exchange: str, key: str, mandatory: bool, immediate: bool) -> bytes:  # noqa: FBT001 - as a key
    """The method of a message, which is the same for all that go into one queue."""
    method = commands.Basic.Publish(
        exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
    )
    return frame.marshal(method, channel)


def _encode_header(channel: int, given: header.ContentHeader) -> bytes | None:
    properties = given.properties
    if properties.headers is not None or properties.timestamp is not None:
        return None
    flags, parts = 0, bytearray()
    for name, flag, is_text in _PROPERTIES:
        value = getattr(properties, name)
        if value is not None and value != "":
            flags |= flag
            data = value.encode() if is_text else b""
            parts.append(len(data) if is_text else value)
            parts += data
    payload = _HEADER.pack(_BASIC, given.body_size, flags) + parts
    return (
        _FRAME.pack(constants.FRAME_HEADER, channel, len(payload)) + payload + bytes((constants.FRAME_END,))
    )


# --- and back ----------------------------------------------------------------------------


def decode_frequent(kind: int, data: bytes) -> base.Frame | header.ContentHeader | None:
    """The frame that these bytes are, whole; None for another one, and for what only pamqp can read."""
    try:
        if kind == constants.FRAME_HEADER:
            return _decode_header(data)
        method = data[_BEGIN : _BEGIN + 4]
        if method == _DELIVER:
            return _decode_deliver(data)
        return _decode_ack(data) if method == _ACK else None
    except (ValueError, IndexError, struct.error):
        return None


def _decode_deliver(data: bytes) -> base.Frame | None:
    tag, end = _text(data, _BEGIN + 4)
    number, bits = _NUMBER.unpack_from(data, end)
    exchange, end = _text(data, end + _NUMBER.size)
    key, end = _text(data, end)
    if end != len(data) - 1:
        return None
    return commands.Basic.Deliver(tag, number, bool(bits & 1), exchange, key)


def _decode_ack(data: bytes) -> base.Frame | None:
    if len(data) != _ACK_FRAME.size:
        return None
    number, bits = _NUMBER.unpack_from(data, _BEGIN + 4)
    return commands.Basic.Ack(number, bool(bits & 1))


def _decode_header(data: bytes) -> header.ContentHeader | None:
    number, size, flags = _HEADER.unpack_from(data, _BEGIN)
    if flags & ~_KNOWN:
        return None
    known: dict[str, Any] = {}
    end = _BEGIN + _HEADER.size
    for name, flag, is_text in _PROPERTIES:
        if flags & flag:
            known[name], end = _text(data, end) if is_text else (data[end], end + 1)
    if end != len(data) - 1:
        return None
    found = header.ContentHeader(body_size=size, properties=commands.Basic.Properties(**known))
    found.class_id = number
    return found


def _text(data: bytes, begin: int) -> tuple[str, int]:
    """A short text, and where it ends; what is cut off ends behind the data."""
    end = begin + 1 + data[begin]
    return data[begin + 1 : end].decode(), end
