"""Models that wrap another model: `CachedModel` stores answers, `RateLimitedModel` waits for a rate limiter, `RetryingModel` repeats failed calls."""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from actgent.errors import ConfigurationError, ModelError, ProviderUnavailable
from actgent.messages import NO_USAGE, Usage
from actgent.support.unknown_name_hints import lists_arguments

from .custom_model_adapters import ModelLike
from .custom_model_errors import as_model_error, wrap_as_model_error
from .model_call_spans import complete_as_span
from .model_interface import LLM, ModelRequest, ModelResponse, OnText
from .model_resolution import resolve_model
from .rate_limiter_statistics import RateLimiterProtocol
from .rate_limiting import RateLimiter
from .retry_policy import Retry


class WrappingModel(LLM):
    """Base class of models that wrap another model. Limits, prices and token counts are those of the wrapped model."""

    traces_attempts = True

    def __init__(self, llm: ModelLike | str) -> None:
        """Wrap a model: an `LLM`, an object with the same methods, or a name such as `openai:gpt-5.2`.

        Raises:
            ConfigurationError: The name is not a known model, or the object is not a model.
        """
        self.llm = inner = resolve_model(llm)
        self.name, self.max_tokens = inner.name, inner.max_tokens
        self.context_window, self.refuses_length = inner.context_window, inner.refuses_length
        self.dialect = inner.dialect  # type: ignore[misc] # ClassVar in LLM, but here it depends on the instance

    @property
    def counts_tokens(self) -> bool:
        return self.llm.counts_tokens

    async def count_tokens(self, chat: ModelRequest) -> int | None:
        return await self.llm.count_tokens(chat)

    def price_of(self, usage: Usage) -> float | None:
        return self.llm.price_of(usage)

    def waiting_seconds(self, session: str) -> float:
        return self.llm.waiting_seconds(session)

    def rate_limiters(self) -> Mapping[str, RateLimiterProtocol]:
        return self.llm.rate_limiters()

    async def aclose(self) -> None:
        await self.llm.aclose()


# --- rate limits ------------------------------------------------------------------------


@lists_arguments
class RateLimitedModel(WrappingModel):
    """A model whose calls wait for a rate limiter. Clients of providers (`Remote`) need no wrapper, as they have a rate limiter."""

    def __init__(self, llm: ModelLike | str, rate_limiter: RateLimiter) -> None:
        """Wrap a model, so that its calls wait for the rate limiter.

        Args:
            llm: An LLM, an object that works like one, or a model name.
            rate_limiter: Rate limiter of the calls. It can be shared by several models.
        """
        super().__init__(llm)
        self.rate_limiter = rate_limiter

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        size = _size(chat) if self.rate_limiter.counts_tokens else 0
        async with self.rate_limiter.admit(chat, model=self.name, size=size) as permit:
            if chat.watch is not None:
                chat.watch.begin(self.name, 0)
            answer = await complete_as_span(self.llm, chat, on_text=on_text)
            permit.report_usage(answer.usage)
            return answer

    def waiting_seconds(self, session: str) -> float:
        return self.rate_limiter.waiting_seconds(session)

    def rate_limiters(self) -> Mapping[str, RateLimiterProtocol]:
        return {self.name or repr(self.llm): self.rate_limiter, **self.llm.rate_limiters()}

    def __repr__(self) -> str:
        return f"RateLimitedModel({self.llm!r})"


def _size(chat: ModelRequest) -> int:
    texts = (getattr(part, "text", "") for message in chat.messages for part in message.parts)
    return len(chat.system) + sum(map(len, texts))


# --- retries ----------------------------------------------------------------------------


@lists_arguments
class RetryingModel(WrappingModel):
    """A model whose failed calls are retried with a `Retry` policy. Errors with `retryable` True and `retry_on` are retried.

    Connection errors, timeouts and HTTP statuses such as 429 and 503 of a custom client are retryable; other exceptions are not.
    """

    def __init__(
        self, llm: ModelLike | str, retry: Retry | None = None, *, retry_on: tuple[type[Exception], ...] = ()
    ) -> None:
        """Wrap a model, so that its failed calls are repeated.

        Args:
            llm: The model. Provider clients retry by themselves and need no wrapper.
            retry: Attempts and pauses; None uses the defaults of `Retry`.
            retry_on: Further exception classes of a custom client that are retried.
        """
        super().__init__(llm)
        self.retry, self.retry_on = retry or Retry(), retry_on

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        watch = chat.watch

        async def attempt(number: int) -> ModelResponse:
            if watch is not None:
                watch.begin(self.name, number)
            try:
                return await complete_as_span(
                    self.llm, chat, on_text=None if on_text is None else _count_up(on_text, number)
                )
            except self.retry_on as error:
                if isinstance(error, ModelError):
                    raise
                raise wrap_as_model_error(error, ProviderUnavailable, model=self.name) from error
            except Exception as error:
                failure = as_model_error(error, self.name)
                if failure is error:
                    raise
                raise failure from failure.__cause__

        def failed(number: int, error: ModelError, pause: float | None) -> None:
            if watch is not None:
                watch.fail(self.name, number, error, pause)

        return await self.retry.run(attempt, deadline=chat.deadline, on_failure=failed)

    def __repr__(self) -> str:
        return f"RetryingModel({self.llm!r}, {attrs.evolve(self.retry)!r})"


def _count_up(on_text: OnText, number: int) -> OnText:
    async def pass_on(text: str, attempt: int) -> None:
        await on_text(text, number + attempt)

    return pass_on


# --- stored answers ---------------------------------------------------------------------

_IDS = frozenset(("id", "call_id", "provider_id"))
"""Names of request fields that hold an id. Ids differ in each session and only connect a call with its result."""
_OURS = re.compile(r"\b[0-9a-f]{12}-[0-9a-f]{8,}\b")
"""Pattern of an id that `new_id` created, within a text."""


@lists_arguments
class CachedModel(WrappingModel):
    """A model that returns a stored answer if it has answered an equal request of the same owner.

    Requests are equal if system prompt, conversation, tools, temperature, maximum tokens and response format are equal. Ids of
    calls are compared by position, since they differ in each session. A stored answer has no usage and no cost. Only complete
    answers are stored, not truncated or refused ones. Two equal requests at the same time both reach the model.
    """

    def __init__(self, llm: ModelLike | str, *, capacity: int = 1000) -> None:
        """Wrap a model, so that its answers to equal requests are reused.

        Args:
            llm: The model.
            capacity: Maximum number of stored answers. The least recently used one is evicted.

        Raises:
            ConfigurationError: The capacity is below 1, or a name is not a known model.
        """
        if type(capacity) is not int or capacity < 1:
            raise ConfigurationError(
                f"CachedModel(capacity=...) must be a whole number of at least 1, not {capacity!r}"
            )
        super().__init__(llm)
        self.capacity = capacity
        self.hits = self.misses = 0
        self._answers: OrderedDict[bytes, ModelResponse] = OrderedDict()

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        key = _key_of(chat)
        if key is not None and (known := self._answers.get(key)) is not None:
            await trio.lowlevel.checkpoint()
            self._answers[key] = known
            self._answers.move_to_end(key)
            self.hits += 1
            if on_text is not None and known.text:
                await on_text(known.text, 0)
            return known
        self.misses += 1
        answer = await complete_as_span(self.llm, chat, on_text=on_text)
        if key is not None and answer.stop in ("end", "tool_calls") and not _mentions_id(answer):
            self._store(key, answer)
        return answer

    def _store(self, key: bytes, answer: ModelResponse) -> None:
        self._answers[key] = attrs.evolve(answer, usage=NO_USAGE, id=None)
        self._answers.move_to_end(key)
        while len(self._answers) > self.capacity:
            self._answers.popitem(last=False)

    def clear(self) -> None:
        """Remove all stored answers from the cache."""
        self._answers.clear()

    async def aclose(self) -> None:
        self.clear()
        await super().aclose()

    def __repr__(self) -> str:
        return f"CachedModel({self.llm!r}, capacity={self.capacity})"


def _mentions_id(answer: ModelResponse) -> bool:
    """Return True if an answer contains an id that actgent assigned.

    Such an answer is not cached, because other sessions cannot use it.
    """
    texts = [answer.text, *(str(call.arguments) for call in answer.tool_calls)]
    return any(map(_OURS.search, texts))


def _key_of(chat: ModelRequest) -> bytes | None:
    """Return the cache key of a request, which is a digest of the content and the owner or session.

    Return None if the request has neither an owner nor a session.
    """
    scope = ["owner", chat.owner] if chat.owner else ["session", chat.session]
    if not scope[1]:
        return None
    shown = [chat.system, chat.messages, chat.tools, chat.temperature, chat.max_tokens, chat.response_format]
    ids: dict[str, int] = {}
    text = json.dumps([scope, *(_normalize(each, ids) for each in shown)], sort_keys=True)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _normalize(value: Any, ids: dict[str, int]) -> Any:
    """Convert a value to plain JSON data in which each id is replaced by its number in the order of appearance.

    `ids` has the numbers of the ids so far. Fields that do not count for equality, such as the times of a tool, are left out.
    """
    if attrs.has(type(value)):
        fields = {field.name: getattr(value, field.name) for field in attrs.fields(type(value)) if field.eq}
        numbered = {name: _number_id(id_, ids) for name, id_ in fields.items() if name in _IDS and id_}
        rest = {name: _normalize(each, ids) for name, each in fields.items() if name not in _IDS}
        return [type(value).__name__, numbered, rest]
    if isinstance(value, Mapping):
        return {str(name): _normalize(each, ids) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_normalize(each, ids) for each in value]
    if isinstance(value, str):
        return _OURS.sub(lambda match: f"id-{_number_id(match[0], ids)}", value)
    return value if isinstance(value, int | float | None) else repr(value)


def _number_id(id_: str, ids: dict[str, int]) -> int:
    return ids.setdefault(id_, len(ids))
