"""What a view shows of a conversation as bytes, for a snapshot of its session."""

from collections.abc import Sequence
from typing import Any

import msgpack  # type: ignore[import-untyped]

from actgent.messages import MEDIA_TAGS, PART_TAGS, ChatMessage, Medium, Part, Text
from actgent.support.wire import Wire

_WIRE = Wire({Medium: MEDIA_TAGS, Part: PART_TAGS})
_ROLES = ("user", "assistant", "tool", "system")


def pack(value: object) -> bytes:
    """Plain data as bytes."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def unpack(data: bytes) -> Any:
    """The plain data again; lists are lists."""
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


def plain_chat(chat: Sequence[ChatMessage]) -> list[list[object]]:
    """Messages as plain data; a text alone, as most are, takes no tag."""
    return [[_ROLES.index(said.role), plain_parts(said.parts)] for said in chat]


def plain_parts(parts: tuple[Part, ...]) -> str | bytes:
    """Parts as plain data."""
    if len(parts) == 1 and type(part := parts[0]) is Text:
        return part.text
    return _WIRE.encode(parts, Part)


def read_chat(plain: Sequence[Sequence[Any]]) -> list[ChatMessage]:
    """The messages again."""
    return [ChatMessage(_ROLES[role], read_parts(parts)) for role, parts in plain]  # type: ignore[arg-type]


def read_parts(plain: str | bytes) -> tuple[Part, ...]:
    """The parts again."""
    return (Text(plain),) if type(plain) is str else _WIRE.decode(plain, Part)  # type: ignore[arg-type]
