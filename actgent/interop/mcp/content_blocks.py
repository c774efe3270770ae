"""Conversion of values of functions to MCP: content blocks of tool results, messages of prompts, contents of resources."""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import mcp_types as types

from actgent.information_flow_labels import TRUSTED, Label, from_ifc, source_name, to_ifc
from actgent.messages import ChatMessage, File, Image, Medium, Text
from actgent.tools.outputs.result_text import to_result_text

_TEXT_TYPE = re.compile(r"text/.+|application/(.+\+)?(json|xml|yaml|x-yaml|javascript|x-ndjson)")
"""Media types whose content is sent as text."""


def meta_of(label: Label) -> dict[str, Any] | None:
    """Return the field `_meta` of a result, with the label as its member `ifc`; None if the label restricts nothing.

    A result without restrictions makes no claim, because most functions do not declare whether they return untrusted text.
    """
    ifc = to_ifc(label)
    return None if ifc is None else {"ifc": ifc}


def call_label(meta: Mapping[str, Any] | None, owner: str) -> Label:
    """Return the label that a client has set for its call in `_meta.ifc`. Without this member, the call is trusted.

    Args:
        meta: Field `_meta` of the request.
        owner: Owner of the client's token, who names the source of an untrusted call.
    """
    if meta is None or "ifc" not in meta:
        return TRUSTED
    return from_ifc(meta["ifc"], source=source_name("mcp-client", owner), owner=owner)


def blocks_of(value: object) -> list[types.ContentBlock]:
    """Convert a tool's value to MCP content blocks: one block for each item of a list with images or files, else one text."""
    if _has_media(value):
        return [_block(item) for item in _items(value)]
    return [_block(value)]


def messages_of(value: object) -> list[types.PromptMessage]:
    """Convert a prompt's value to MCP prompt messages. Texts, images and files become messages of the user."""
    is_list = isinstance(value, (list, tuple)) and any(
        isinstance(item, (str, Text, Image, File, ChatMessage)) for item in value
    )
    found: list[types.PromptMessage] = []
    for item in _items(value) if is_list else (value,):
        if isinstance(item, ChatMessage):
            role: Any = "assistant" if item.role == "assistant" else "user"
            found += [types.PromptMessage(role=role, content=_block(part)) for part in item.parts]
        else:
            found.append(types.PromptMessage(role="user", content=_block(item)))
    return found


def contents_of(
    value: object, uri: str, media_type: str
) -> list[types.TextResourceContents | types.BlobResourceContents]:
    """Convert a resource's value to contents of an MCP resource with this URI.

    Images and files have their own media type, other items have `media_type`.
    """
    items = _items(value) if _has_media(value) else (value,)
    return [_contents(item, uri, media_type) for item in items]


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _has_media(value: object) -> bool:
    return any(isinstance(item, (Image, File)) for item in _items(value))


def _block(item: object) -> types.ContentBlock:
    if isinstance(item, (Image, File)):
        return _medium(item)
    return types.TextContent(type="text", text=item.text if isinstance(item, Text) else to_result_text(item))


def _medium(medium: Medium) -> types.ContentBlock:
    kind = medium.media_type
    name = medium.name if isinstance(medium, File) else "image"
    if medium.data is None:
        return types.ResourceLink(type="resource_link", name=name, uri=medium.url or "", mime_type=kind)
    if isinstance(medium, Image):
        return types.ImageContent(type="image", data=_base64(medium.data), mime_type=kind)
    if kind.startswith("audio/"):
        return types.AudioContent(type="audio", data=_base64(medium.data), mime_type=kind)
    uri = f"actgent://files/{quote(name, safe='')}"
    return types.EmbeddedResource(type="resource", resource=_data(medium.data, uri, kind))


def _contents(
    item: object, uri: str, media_type: str
) -> types.TextResourceContents | types.BlobResourceContents:
    if isinstance(item, (Image, File)):
        if item.data is None:
            return types.TextResourceContents(uri=uri, mime_type="text/uri-list", text=item.url or "")
        return _data(item.data, uri, item.media_type)
    if isinstance(item, (bytes, bytearray)):
        return types.BlobResourceContents(uri=uri, mime_type=media_type, blob=_base64(bytes(item)))
    return types.TextResourceContents(uri=uri, mime_type=media_type, text=to_result_text(item))


def _data(data: bytes, uri: str, media_type: str) -> types.TextResourceContents | types.BlobResourceContents:
    if _TEXT_TYPE.fullmatch(media_type):
        try:
            return types.TextResourceContents(uri=uri, mime_type=media_type, text=data.decode())
        except UnicodeDecodeError:
            pass
    return types.BlobResourceContents(uri=uri, mime_type=media_type, blob=_base64(data))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
