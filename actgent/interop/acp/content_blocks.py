"""Conversion between content blocks of ACP and parts of messages."""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

from actgent.messages import File, Image, Part, Text

from .json_rpc import INVALID_PARAMS, RPCError, Wire

_EMPTY: Wire = {"type": "text", "text": ""}
"""Block that some editors send next to an image."""


def parts_of_prompt(blocks: object) -> list[Part]:
    """Convert the ACP content blocks of a prompt to parts of a message. Empty text blocks are ignored.

    Raises:
        RPCError: A block is invalid, or has a type that the server did not announce to the client.
    """
    kept = [each for each in blocks if each != _EMPTY] if isinstance(blocks, list) else []
    if not kept:
        raise RPCError(INVALID_PARAMS, "prompt must be a list of content blocks that is not empty")
    return [_part_of(each) for each in kept]


def _part_of(block: Any) -> Part:
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "text":
            return Text(_text(block, "text"))
        case "image":
            return Image(media_type=_text(block, "mimeType"), data=_decode(_text(block, "data")))
        case "resource_link":
            return Text(f"{block.get('title') or _text(block, 'name')}: {_text(block, 'uri')}")
        case "resource" if isinstance(block.get("resource"), dict):
            return _resource(block["resource"])
    raise RPCError(
        INVALID_PARAMS, "the type of a content block must be text, image, resource or resource_link"
    )


def _resource(resource: dict[str, Any]) -> Part:
    uri, media_type = _text(resource, "uri"), resource.get("mimeType")
    if isinstance(resource.get("text"), str):
        return Text(f"The file {uri}:\n\n{resource['text']}")
    kind = media_type if isinstance(media_type, str) and media_type else "application/octet-stream"
    data = _decode(_text(resource, "blob"))
    if kind.startswith("image/"):
        return Image(media_type=kind, data=data)
    return File(media_type=kind, data=data, name=uri.rpartition("/")[2] or "file")


def _text(block: dict[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str) or not value or "\x00" in value:
        raise RPCError(INVALID_PARAMS, f"{name} of a content block must be a string that is not empty")
    return value


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RPCError(INVALID_PARAMS, "the data of a content block must be base64 (RFC 4648)") from None


def to_blocks(parts: Sequence[Part]) -> Iterator[Wire]:
    """Yield the texts and images of message parts as ACP content blocks. Other parts are left out."""
    for part in parts:
        if isinstance(part, Text) and part.text:
            yield text_block(part.text)
        elif isinstance(part, Image) and part.data:
            yield {"type": "image", "mimeType": part.media_type, "data": base64.b64encode(part.data).decode()}


def text_block(text: str) -> Wire:
    """Wrap a text as an ACP content block."""
    return {"type": "text", "text": text}
