"""Serialized state of a memory view, for the snapshot of its session."""

from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from actgent.messages import MEDIA_TAGS, PART_TAGS, ChatMessage, Medium, Part, Text
from actgent.support.tagged_codec import TaggedCodec

_WIRE = TaggedCodec({Medium: MEDIA_TAGS, Part: PART_TAGS})
_ROLES = ("user", "assistant", "tool", "system")


def pack(value: object) -> bytes:
    """Encode plain data as msgpack bytes."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def unpack(data: bytes) -> Any:
    """Decode the bytes of `pack`. Sequences become lists."""
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


def chat_to_plain(chat: Sequence[ChatMessage]) -> list[list[object]]:
    """Convert messages to plain data for `pack`."""
    return [[_ROLES.index(message.role), parts_to_plain(message.parts)] for message in chat]


def parts_to_plain(parts: tuple[Part, ...]) -> str | bytes:
    """Convert message parts to plain data. A single text, the usual case, is stored without a type tag."""
    if len(parts) == 1 and type(part := parts[0]) is Text:
        return part.text
    return _WIRE.encode(parts, Part)


def chat_from_plain(plain: Sequence[Sequence[Any]]) -> list[ChatMessage]:
    """Convert the plain data of `chat_to_plain` to messages."""
    return [ChatMessage(_ROLES[role], parts_from_plain(parts)) for role, parts in plain]  # type: ignore[arg-type]


def parts_from_plain(plain: str | bytes) -> tuple[Part, ...]:
    """Convert the plain data of `parts_to_plain` to message parts."""
    return (Text(plain),) if type(plain) is str else _WIRE.decode(plain, Part)  # type: ignore[arg-type]
