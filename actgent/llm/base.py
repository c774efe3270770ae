"""A model as the rest of actgent sees it: a `Chat` goes in, an `Answer` comes out."""

import abc
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs
import trio

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
from actgent.support.quick_init import quick_init

from .doors import Door

__all__ = [
    "LLM",
    "Answer",
    "CallWatch",
    "Chat",
    "ChatMessage",
    "OnText",
    "ResponseFormat",
    "Role",
    "StopReason",
]

StopReason = Literal["end", "tool_calls", "length", "refusal", "filter", "pause"]
OnText = Callable[[str, int], Awaitable[None]]
"""Called with each piece of text and the number of the attempt that it belongs to (0, 1, ...)."""


@attrs.frozen
class ResponseFormat:
    """The JSON Schema that the whole text of an answer has to fit."""

    name: str
    """Providers want one beside the schema."""
    schema: Mapping[str, Any]
    """JSON Schema of the whole answer."""


@attrs.define(eq=False)
class CallWatch:
    """What becomes of one model call on its way to an answer; whoever wants to know puts one into its chat."""

    waited: float = 0.0
    """Seconds that its attempts have waited for the provider's limits."""

    def wait(self, seconds: float, model: str) -> None:
        """An attempt has waited so long for the provider's limits."""
        self.waited += seconds

    def begin(self, model: str, attempt: int) -> None:
        """An attempt (0, 1, ... of a model) goes to the provider."""

    def fail(self, model: str, attempt: int, error: Exception, again: float | None) -> None:
        """An attempt has failed; the next one follows in so many seconds, or none if None."""


@attrs.define(kw_only=True)
class Chat:
    """One request: everything that a model call depends on. Made for that call alone; clients change nothing of it."""

    system: str = ""
    """The system prompt; empty: none is sent."""
    messages: Sequence[ChatMessage] = ()
    """The conversation, oldest first; never changed by a client."""
    tools: Sequence[ToolSpec] = ()
    """Those that may be called; empty: none is offered."""
    temperature: float | None = None
    """None is the provider's default."""
    max_tokens: int | None = None
    """Of the answer; None is the client's default."""
    response_format: ResponseFormat | None = None
    """What form the answer has to have; None: any."""
    session: str = ""
    """Who asks; sessions of an owner take turns where calls have to wait. The model is not told."""
    owner: str = ""
    """For whom; owners take turns where calls have to wait. Empty is the session itself. The model is not told."""
    priority: Priority = Priority.NORMAL
    """Who goes first where calls have to wait. The model is not told."""
    deadline: float = attrs.field(default=math.inf, eq=False)
    """By trio's clock until when the answer is of use; infinite: whenever. No wait is begun that cannot end before."""
    watch: CallWatch | None = attrs.field(default=None, eq=False, repr=False)
    """Is told of the attempts that the call takes; None: nobody wants to know."""


@quick_init
@attrs.frozen(kw_only=True)
class Answer:
    """What a model said, whole."""

    parts: tuple[Part, ...]
    """What was said, thought and called, in its order."""
    stop: StopReason = "end"
    """Why the model stopped."""
    usage: Usage = NO_USAGE
    """What the call took."""
    model: str = ""
    """The model's name, as the provider gives it back; empty: it does not."""
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
    context_window: int | None = None
    """Tokens of a prompt and its answer together; None: not known, so that nothing is cut to fit."""
    refuses_length: bool = False
    """True: somebody at the other end may find a request too long, even where no window is known."""
    traces_attempts: ClassVar[bool] = False
    """True: it makes a span of each attempt itself; see `spans`."""
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

    @property
    def counts_tokens(self) -> bool:
        """True: `count_tokens` asks somebody who knows."""
        return False

    async def count_tokens(self, chat: Chat) -> int | None:
        """Return how many tokens the prompt of a chat takes, as its provider says; None where nobody says so in time.

        It is asked for where an estimate does not tell whether a request fits into the context window.
        """
        await trio.lowlevel.checkpoint()
        return None

    def price_of(self, usage: Usage) -> float | None:
        """US dollars for so many tokens, before or after they are used; None where nobody knows."""
        return None

    def waited(self, session: str) -> float:
        """Seconds for which a call of this session has been waiting for the provider's limits by now; 0 if none waits."""
        return 0.0

    def doors(self) -> Mapping[str, Door]:
        """The governors that its calls pass, by names for people; none where it has none."""
        return {}

    async def aclose(self) -> None:
        """Close the connections; the client may not be used afterwards."""
