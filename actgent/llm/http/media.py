"""Pictures and files of tool results on their way to a provider.

A client attaches those whose types its API takes; of the others the words say that they are not shown. Some a provider
refuses all the same, with the whole conversation: a picture that is none, one for a model that reads only text. Then the
request is sent again without them, and they stay left out (`RefusedMedia`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

import attrs

from actgent.llm.base import Chat, ChatMessage
from actgent.messages import Medium, Part, ToolResult

from .wire import result_text

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
PDF = "application/pdf"
_REMEMBERED = 1000
Takes = Callable[[Medium], bool]
"""True for what the API takes as part of a result."""


def attached(result: ToolResult, takes: Takes) -> tuple[str, tuple[Medium, ...]]:
    """The text of a result as this client sends it, and the pictures and files beside it."""
    text = result.text if result.native else result_text(result)
    if not result.media:
        return text, ()
    taken = tuple([medium for medium in result.media if takes(medium)])
    left = sorted({medium.media_type for medium in result.media if medium not in taken})
    return (f"{text}\n[not shown to you: {', '.join(left)}]" if left else text), taken


def media_in(chat: Chat) -> Iterator[Medium]:
    """All pictures and files of results in a chat."""
    for message in chat.messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                yield from part.media


@attrs.define(eq=False)
class RefusedMedia:
    """Which pictures and files a provider has refused, the latest thousand."""

    _keys: OrderedDict[int, None] = attrs.field(factory=OrderedDict)
    """Their hashes: the objects themselves would stay in memory. One that is taken for another is named, and not shown."""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, chat: Chat) -> None:
        """Leave out from now on all that a chat shows."""
        for medium in media_in(chat):
            self._keys[hash(medium)] = None
            self._keys.move_to_end(hash(medium))
        while len(self._keys) > _REMEMBERED:
            self._keys.popitem(last=False)

    def left_out(self, chat: Chat) -> Chat:
        """The chat without those that were refused."""
        return _without(chat, lambda medium: hash(medium) in self._keys)


def without_media(chat: Chat) -> Chat:
    """The chat without any picture or file of a result."""
    return _without(chat, lambda _: True)


def _without(chat: Chat, leaves: Takes) -> Chat:
    messages = tuple([_message(message, leaves) for message in chat.messages])
    return attrs.evolve(chat, messages=messages)


def _message(message: ChatMessage, leaves: Takes) -> ChatMessage:
    if not any(isinstance(part, ToolResult) and part.media for part in message.parts):
        return message
    return ChatMessage(message.role, tuple([_part(part, leaves) for part in message.parts]))


def _part(part: Part, leaves: Takes) -> Part:
    if not isinstance(part, ToolResult) or not (left := [each for each in part.media if leaves(each)]):
        return part
    kept = tuple([each for each in part.media if each not in left])
    kinds = ", ".join(sorted({each.media_type for each in left}))
    return attrs.evolve(part, media=kept, content=f"{part.content}\n[not shown to you: {kinds}]")
