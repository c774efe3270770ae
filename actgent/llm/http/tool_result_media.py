"""Images and files of tool results in requests.

A client attaches images and files of the media types that its API accepts. The text of the result names the omitted files.
A provider may still reject the request, such as for a corrupt image, or for an image to a text-only model. Then the request
is sent again without media, and the rejected media are omitted from later requests (`RefusedMedia`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

import attrs

from actgent.llm.model_interface import ChatMessage, ModelRequest
from actgent.messages import Medium, Part, ToolResult

from .wire_encoding import result_text

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
_MAX_REMEMBERED = 1000
"""Maximum number of rejected media that are remembered."""
AcceptsMedium = Callable[[Medium], bool]
"""Returns True for a medium that the API accepts inside a tool result."""


def attach_media(result: ToolResult, accepts: AcceptsMedium) -> tuple[str, tuple[Medium, ...]]:
    """Split a tool result into its text and the media that the API accepts. The text names the media that are omitted."""
    text = result.text if result.native else result_text(result)
    if not result.media:
        return text, ()
    accepted = tuple([medium for medium in result.media if accepts(medium)])
    omitted = sorted({medium.media_type for medium in result.media if medium not in accepted})
    return (f"{text}\n[not shown to you: {', '.join(omitted)}]" if omitted else text), accepted


def media_in(chat: ModelRequest) -> Iterator[Medium]:
    """Yield the images and files of all tool results in a request."""
    for message in chat.messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                yield from part.media


@attrs.define(eq=False)
class RefusedMedia:
    """Record of the last 1,000 images and files that the provider rejected, which are left out of later requests."""

    _keys: OrderedDict[int, None] = attrs.field(factory=OrderedDict)
    """Hashes of the rejected media. The media themselves would take much memory. After a hash collision, an accepted
    medium is omitted as well.
    """

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, chat: ModelRequest) -> None:
        """Record that the provider rejected the media of a request. Later requests omit these media."""
        for medium in media_in(chat):
            self._keys[hash(medium)] = None
            self._keys.move_to_end(hash(medium))
        while len(self._keys) > _MAX_REMEMBERED:
            self._keys.popitem(last=False)

    def omit_from(self, chat: ModelRequest) -> ModelRequest:
        """Return a copy of a request without rejected media. The texts of the tool results name the omitted media."""
        return _omit_media(chat, lambda medium: hash(medium) in self._keys)


def without_media(chat: ModelRequest) -> ModelRequest:
    """Return a copy of a request without any image or file in tool results."""
    return _omit_media(chat, lambda _: True)


def _omit_media(chat: ModelRequest, omits: AcceptsMedium) -> ModelRequest:
    messages = tuple([_message(message, omits) for message in chat.messages])
    return attrs.evolve(chat, messages=messages)


def _message(message: ChatMessage, omits: AcceptsMedium) -> ChatMessage:
    if not any(isinstance(part, ToolResult) and part.media for part in message.parts):
        return message
    return ChatMessage(message.role, tuple([_part(part, omits) for part in message.parts]))


def _part(part: Part, omits: AcceptsMedium) -> Part:
    if not isinstance(part, ToolResult) or not (left := [each for each in part.media if omits(each)]):
        return part
    kept = tuple([each for each in part.media if each not in left])
    kinds = ", ".join(sorted({each.media_type for each in left}))
    return attrs.evolve(part, media=kept, content=f"{part.content}\n[not shown to you: {kinds}]")
