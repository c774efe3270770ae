"""A model as the rest of actgent sees it: a `Chat` goes in, an `Answer` comes out."""

import abc
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs

from actgent.messages import (
    NO_USAGE,
    ChatMessage,
    Part,
    Priority,
    Role,
    Text,
    ToolCall,
    ToolSpec,
    Usage,
)

__all__ = ["LLM", "Answer", "Chat", "ChatMessage", "OnText", "ResponseFormat", "Role", "StopReason"]

StopReason = Literal["end", "tool_calls", "length", "refusal", "filter", "pause"]
OnText = Callable[[str, int], Awaitable[None]]
"""Called with each piece of text and the number of the attempt that it belongs to (0, 1, ...)."""


@attrs.frozen
class ResponseFormat:
    """The JSON Schema that the whole text of an answer has to fit."""

    name: str
    schema: Mapping[str, Any]


@attrs.define(kw_only=True)
class Chat:
    """One request: everything that a model call depends on. Made for that call alone; clients change nothing of it."""

    system: str = ""
    messages: Sequence[ChatMessage] = ()
    """The conversation, oldest first; never changed by a client."""
    tools: Sequence[ToolSpec] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    response_format: ResponseFormat | None = None
    session: str = ""
    """Who asks; sessions of an owner take turns where calls have to wait. The model is not told."""
    owner: str = ""
    """For whom; owners take turns where calls have to wait. Empty is the session itself. The model is not told."""
    priority: Priority = Priority.NORMAL
    """Who goes first where calls have to wait. The model is not told."""
    deadline: float = attrs.field(default=math.inf, eq=False)
    """By trio's clock until when the answer is of use; infinite: whenever. No wait is begun that cannot end before."""


@attrs.frozen(kw_only=True)
class Answer:
    """What a model said, whole."""

    parts: tuple[Part, ...]
    stop: StopReason = "end"
    usage: Usage = NO_USAGE
    model: str = ""
    id: str | None = None
    """The provider's id of the answer."""

    @property
    def text(self) -> str:
        parts = self.parts
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
        return "".join(part.text for part in parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is Text:  # the usual case
            return ()
        return tuple([part for part in parts if isinstance(part, ToolCall)])


class LLM(abc.ABC):
    """A model client. One object serves any number of concurrent calls."""

    name: str = ""
    """`provider:model`, for people and logs."""
    max_tokens: int | None = None
    """The longest answer where a chat does not say; None: not known here."""
    dialect: ClassVar[str] = ""
    """The API format it speaks; thinking blocks go back only to the dialect that wrote them."""

    @abc.abstractmethod
    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        """Answer one chat.

        With `on_text` the text is passed on as it comes; the answer is the same. A cancelled
        call leaves no connection behind. Retries end at the chat's deadline, and at that of the surrounding cancel scope.

        Raises:
            ModelError: no answer, or a broken one. A refusal, a content filter and a cut at
                `max_tokens` are answers with that `stop`, not errors.
        """

    def price_of(self, usage: Usage) -> float | None:
        """US dollars for so many tokens, before or after they are used; None where nobody knows."""
        return None

    def waited(self, session: str) -> float:
        """Seconds for which a call of this session has been waiting for the provider's limits by now; 0 if none waits."""
        return 0.0

    async def aclose(self) -> None:
        """Close the connections; the client may not be used afterwards."""
