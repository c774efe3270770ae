"""The frames that each message has, to bytes and back in a tenth of the time that pamqp takes, which knows all frames.

What is unusual about one of them is left to pamqp, which says what is wrong with it.
"""

import functools
import operator
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
_END = bytes((constants.FRAME_END,))
_MARKS = (constants.FRAME_END,) * 3
_OTHERS = ("headers", "timestamp")
"""Properties that are no texts and no small numbers."""
_NUMBERS = ("delivery_mode", "priority")
_PROPERTIES = tuple(
    (name, flag, name not in _NUMBERS)
    for name, flag in commands.Basic.Properties.flags.items()
    if name not in _OTHERS
)
"""In their order on the wire, each with its flag, and whether it is a text."""
_OWN = ("correlation_id", "message_id")
"""What each message has of its own; the others have few values in all messages of a process."""
_FLAG_OF_NUMBER, _FLAG_OF_ID = (commands.Basic.Properties.flags[name] for name in _OWN)
_SHARED = tuple(each for each in _PROPERTIES if each[0] not in _OWN)
_shared_of = operator.attrgetter(*(name for name, _, _ in _SHARED))
_KNOWN = sum(flag for _, flag, _ in _PROPERTIES)
Whole = tuple[commands.Basic.Deliver, commands.Basic.Properties, bytes]
"""A message that came as three frames: its method, properties and body."""


# --- to bytes ----------------------------------------------------------------------------


def encode_short(
    channel: int, method: bytes, properties: commands.Basic.Properties, data: bytes
) -> bytes | None:
    """A message whose body is one frame, behind its method; None where only pamqp can write its properties.

    Raises as `encode_frequent`.
    """
    about = _encode_properties(channel, len(data), properties)
    if about is None:
        return None
    body = _FRAME.pack(constants.FRAME_BODY, channel, len(data))
    return b"".join((method, about, body, data, _END)) if data else method + about


def encode_frequent(channel: int, given: object) -> bytes | None:
    """A frame as bytes; None for another one, and for what only pamqp can write.

    Raises:
        ValueError, TypeError, AttributeError, struct.error: it holds what AMQP cannot carry.
    """
    if isinstance(given, commands.Basic.Publish):
        return encode_method(channel, given.exchange, given.routing_key, given.mandatory, given.immediate)
    if isinstance(given, commands.Basic.Ack):
        return encode_ack(channel, given.delivery_tag, multiple=given.multiple)
    if isinstance(given, header.ContentHeader):
        return _encode_properties(channel, given.body_size, given.properties)
    return None


def encode_ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    """The word that a delivery was dealt with; raises as `encode_frequent`."""
    return _ACK_FRAME.pack(
        constants.FRAME_METHOD, channel, _ACK_SIZE, _ACK, tag, multiple, constants.FRAME_END
    )


@functools.lru_cache(maxsize=1000)
def encode_method(channel: int, exchange: str, key: str, mandatory: bool, immediate: bool = False) -> bytes:  # noqa: FBT001, FBT002 - as a key
    """The method of a message, which is the same for all that go into one queue; raises as `encode_frequent`."""
    method = commands.Basic.Publish(
        exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
    )
    return frame.marshal(method, channel)


def _encode_properties(channel: int, size: int, properties: commands.Basic.Properties) -> bytes | None:
    if properties.headers is not None or properties.timestamp is not None:
        return None
    flags, before, between, behind = _encode_shared(*_shared_of(properties))
    number, name = _short(properties.correlation_id), _short(properties.message_id)
    flags |= (_FLAG_OF_NUMBER if number else 0) | (_FLAG_OF_ID if name else 0)
    about = b"".join((before, number, between, name, behind))
    begin = _FRAME.pack(constants.FRAME_HEADER, channel, _HEADER.size + len(about))
    return b"".join((begin, _HEADER.pack(_BASIC, size, flags), about, _END))


@functools.lru_cache(maxsize=1000, typed=True)
def _encode_shared(*values: Any) -> tuple[int, bytes, bytes, bytes]:
    """The flags of properties that are not a message's own, and what stands before, between and behind its own."""
    flags, parts = 0, (bytearray(), bytearray(), bytearray())
    for value, (_, flag, is_text) in zip(values, _SHARED, strict=True):
        if value is not None and value != "":
            flags |= flag
            part = parts[(flag < _FLAG_OF_NUMBER) + (flag < _FLAG_OF_ID)]
            part += _short(value) if is_text else bytes((value,))
    before, between, behind = map(bytes, parts)
    return flags, before, between, behind


def _short(value: str | None) -> bytes:
    """A short text with its length; nothing for none."""
    if value is None or value == "":
        return b""
    data = value.encode()
    return bytes((len(data),)) + data


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


def decode_whole(data: bytearray, begin: int, most: int) -> tuple[int, int, Whole] | None:
    """The message that is delivered by the frames that begin here, its channel first, and where it ends; None for anything else.

    Three frames that came together are read at once, as nearly each message has them; `most` bounds each of them.
    """
    if data[begin + _BEGIN : begin + _BEGIN + 4] != _DELIVER:
        return None
    try:
        channel, about = _frame_at(data, begin, constants.FRAME_METHOD, most)
        of_about, body = _frame_at(data, about, constants.FRAME_HEADER, most)
        of_body, end = _frame_at(data, body, constants.FRAME_BODY, most)
        method, head = _decode_deliver(bytes(data[begin:about])), _decode_header(bytes(data[about:body]))
    except (ValueError, IndexError, struct.error):
        return None
    value = bytes(data[body + _BEGIN : end - 1])
    if method is None or head is None or not channel == of_about == of_body or head.body_size != len(value):
        return None
    return channel, end, (method, head.properties, value)


def _frame_at(data: bytearray, begin: int, kind: int, most: int) -> tuple[int, int]:
    """The channel of a frame of this kind, and where it ends.

    Raises:
        ValueError, IndexError, struct.error: there is none, or it is not there as a whole.
    """
    found, channel, size = _FRAME.unpack_from(data, begin)
    end = begin + size + _BEGIN + 1
    if found != kind or end - begin > most or data[end - 1] != constants.FRAME_END:
        raise ValueError
    return channel, end


def _decode_deliver(data: bytes) -> commands.Basic.Deliver | None:
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
            begin, end = end + 1, end + 1
            if is_text:
                end += data[begin - 1]
                known[name] = data[begin:end].decode()
            else:
                known[name] = data[begin - 1]
    if end != len(data) - 1:
        return None
    found = header.ContentHeader(body_size=size, properties=commands.Basic.Properties(**known))
    found.class_id = number
    return found


def _text(data: bytes, begin: int) -> tuple[str, int]:
    """A short text, and where it ends; what is cut off ends behind the data."""
    end = begin + 1 + data[begin]
    return data[begin + 1 : end].decode(), end
