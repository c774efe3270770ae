"""Interface of a model client: `LLM.complete` takes a `ModelRequest` and returns a `ModelResponse`."""

import abc
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs
import trio

from actgent.errors import StreamInterrupted
from actgent.messages import (
    NO_USAGE,
    ChatMessage,
    Part,
    Priority,
    Role,
    Text,
    TextFromParts,
    ToolCall,
    ToolSpec,
    Usage,
)
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_init

from .rate_limiter_statistics import RateLimiterProtocol

__all__ = [
    "LLM",
    "CallWatch",
    "ChatMessage",
    "ModelRequest",
    "ModelResponse",
    "OnText",
    "ResponseFormat",
    "Role",
    "StopReason",
]

StopReason = Literal["end", "tool_calls", "length", "refusal", "filter", "pause"]
OnText = Callable[[str, int], Awaitable[None]]
"""Callback for streamed text. Its arguments are a piece of text and the number of its attempt (0, 1, ...)."""


@attrs.frozen(repr=False)
class ResponseFormat(FieldRepr):
    """JSON Schema that the text of an answer must match."""

    name: str
    """Name of the JSON Schema, which some providers require in a request."""
    schema: Mapping[str, Any]
    """JSON Schema of the complete answer text."""


@attrs.define(eq=False, repr=False)
class CallWatch(FieldRepr):
    """Observer of the attempts of one model call. Set it as `ModelRequest.watch`, and override the methods that you need."""

    waited: float = 0.0
    """Total seconds that attempts of this call waited for the provider's rate limit."""
    failures: int = 0
    """Number of failed attempts of this call so far."""

    def wait(self, seconds: float, model: str) -> None:
        """Record that an attempt waited `seconds` for the rate limit of `model` before it was sent."""
        self.waited += seconds

    def begin(self, model: str, attempt: int) -> None:
        """Observe that an attempt is about to be sent to the provider. `attempt` counts from 0 for each model."""

    def fail(self, model: str, attempt: int, error: Exception, retry_seconds: float | None) -> None:
        """Record a failed attempt of this model call.

        Args:
            model: Name of the model, `provider:model`.
            attempt: Number of the failed attempt, from 0.
            error: Error of the attempt.
            retry_seconds: Seconds until the next attempt; None if no attempt follows.
        """
        self.failures += 1


@attrs.define(kw_only=True, repr=False)
class ModelRequest(FieldRepr):
    """One request to a model with everything that its answer depends on. Model clients never change it."""

    system: str = ""
    """System prompt; if empty, none is sent."""
    messages: Sequence[ChatMessage] = ()
    """Conversation, oldest message first."""
    tools: Sequence[ToolSpec] = ()
    """Tools that the model may call; if empty, none are offered."""
    temperature: float | None = None
    """Sampling temperature; None uses the provider's default."""
    max_tokens: int | None = None
    """Maximum tokens of the answer; None uses the client's default."""
    response_format: ResponseFormat | None = None
    """JSON Schema that the answer must match; None allows any text."""
    session: str = ""
    """Session id, for fair queueing in the rate limiter: sessions of an owner alternate. Not sent to the model."""
    owner: str = ""
    """Owner id, for fair queueing in the rate limiter: owners alternate. Empty uses the session id. Not sent to the model."""
    priority: Priority = Priority.NORMAL
    """Priority of the call in the queue of the rate limiter. Not sent to the model."""
    deadline: float = attrs.field(default=math.inf, eq=False)
    """Time of `trio.current_time()` after which the answer is useless; infinity means no deadline.

    A wait for a rate limit or a retry that would exceed the deadline fails immediately.
    """
    watch: CallWatch | None = attrs.field(default=None, eq=False, repr=False)
    """Observer of the call's attempts; None without an observer."""


@fast_init
@attrs.frozen(kw_only=True, repr=False)
class ModelResponse(TextFromParts, FieldRepr):
    """Complete answer of a model, with stop reason and usage."""

    parts: tuple[Part, ...]
    """Text, thinking and tool calls of the answer, in order."""
    stop: StopReason = "end"
    """Reason why the model stopped, such as `length`."""
    usage: Usage = NO_USAGE
    """Tokens and cost of the call as the provider reports them."""
    model: str = ""
    """Model name in the provider's response; empty if the response has none."""
    id: str | None = None
    """Provider's id of the answer; None if the response has none."""

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Tool calls of the answer, in order."""
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is Text:  # the usual case
            return ()
        return tuple([part for part in parts if isinstance(part, ToolCall)])


class LLM(abc.ABC):
    """Base class of model clients. One client serves any number of concurrent calls."""

    name: str = ""
    """`provider:model`, used in logs, spans and rate limits."""
    max_tokens: int | None = None
    """Maximum tokens of an answer whose chat sets no maximum; None if unknown."""
    context_window: int | None = None
    """Maximum tokens of prompt and answer together; None if unknown, in which case no conversation is shortened to fit."""
    refuses_length: bool = False
    """True if the provider may reject a request as too long, even if `context_window` is None."""
    traces_attempts: ClassVar[bool] = False
    """True if the client creates a trace span for each attempt. Otherwise the caller creates one span per call."""
    dialect: ClassVar[str] = ""
    """Name of the client's wire format. Thinking blocks are only sent back in the wire format in which they were received."""

    @abc.abstractmethod
    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        """Send a chat to the model and return the complete answer.

        A cancelled call closes its connection. Retries stop at the earlier of the chat's deadline and the deadline of the
        surrounding cancel scope.

        Args:
            chat: The request.
            on_text: Called with each piece of text while the answer is received. The returned answer is the same without it.

        Raises:
            ModelError: The model gave no answer, or an incomplete one. A refusal, a content filter and an answer that
                reached `max_tokens` are not errors: they are answers with that `stop`.
        """

    @property
    def counts_tokens(self) -> bool:
        """True if `count_tokens` requests a count from the provider."""
        return False

    async def count_tokens(self, chat: ModelRequest) -> int | None:
        """Request the number of prompt tokens of `chat` from the provider; None if the provider does not answer in time.

        Callers use it only if an estimate cannot decide whether the request fits. The default returns None.
        """
        await trio.lowlevel.checkpoint()
        return None

    def price_of(self, usage: Usage) -> float | None:
        """Return the price in US dollars of used or planned tokens (`usage`); None if the price is unknown.

        Budgets use the price before a call. `complete` reports the actual cost in `Usage(cost=...)`.
        """
        return None

    def waiting_seconds(self, session: str) -> float:
        """Return the seconds that a call of the session has been waiting for a rate limit; 0 if no call waits."""
        return 0.0

    def rate_limiters(self) -> Mapping[str, RateLimiterProtocol]:
        """Return the rate limiters of this client by display name; empty if the client has no rate limiter."""
        return {}

    async def aclose(self) -> None:
        """Close the connections of the client.

        Call it once after the last request; later requests may fail.
        """


def check_answer(answer: object, llm: LLM) -> ModelResponse:
    """Return the result of `LLM.complete()` if it is a `ModelResponse`.

    Raises:
        StreamInterrupted: The model client returned another type; the error names the client class.
    """
    if isinstance(answer, ModelResponse):
        return answer
    raise StreamInterrupted(
        f"{type(llm).__name__}.complete() must return a ModelResponse, not {type(answer).__name__}",
        model=llm.name,
    )
