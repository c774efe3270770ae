"""`FallbackModel`: a chain of models in which the next model answers if one is unavailable."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import attrs
import trio

from actgent.errors import (
    ConfigurationError,
    ModelError,
    ModelTimeout,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
    StreamInterrupted,
)
from actgent.messages import Usage
from actgent.support.unknown_name_hints import lists_arguments
from actgent.support.user_code_calls import convert_user_error

from .custom_model_adapters import ModelLike
from .custom_model_errors import as_model_error
from .model_call_spans import complete_as_span
from .model_interface import LLM, ModelRequest, ModelResponse, OnText
from .model_resolution import resolve_model
from .rate_limiter_statistics import RateLimiterProtocol

_UNAVAILABLE = (ProviderUnavailable, RateLimited, ModelTimeout, StreamInterrupted, QuotaExhausted)


def is_unavailable(error: ModelError) -> bool:
    """Return True if another model may succeed after this error.

    Such errors are overload, rate limit, exhausted quota, no connection and an incomplete answer.

    A bad request or a rejected key needs a fix by the caller, and often also fails with the next model.
    """
    return error.retryable or isinstance(error, _UNAVAILABLE)


@lists_arguments
class FallbackModel(LLM):
    """A chain of models: calls the first, and after an error for which `when(error)` is True, the next.

    Each model retries by itself before the next one is asked, so give the first models few attempts. If the chat has a deadline,
    the remaining time is divided equally between the remaining models. A model that has started to stream may use all of it.
    Thinking of one wire format is never sent to another. If all models fail, the last error is raised, with a note for each
    earlier error.
    """

    traces_attempts = True

    def __init__(
        self,
        *models: ModelLike | str | Iterable[ModelLike | str],
        when: Callable[[ModelError], bool] = is_unavailable,
    ) -> None:
        """Create a chain of models, given one by one or as a list.

        Args:
            models: Clients, or names such as `openai:gpt-5.2`, in the order in which they are called.
            when: Returns True for an error after which the next model is called.

        Raises:
            ConfigurationError: No model is given, or a name is not a known model.
        """
        self.models = tuple(resolve_model(model) for given in models for model in _each(given))
        if not self.models:
            raise ConfigurationError("FallbackModel(...) requires at least one model")
        self.name = f"fallback({', '.join(model.name for model in self.models)})"
        self.max_tokens = (
            max(bounds) if all(bounds := [model.max_tokens or 0 for model in self.models]) else None
        )
        windows = [model.context_window for model in self.models if model.context_window is not None]
        self.context_window = min(windows, default=None)  # any of them may answer
        self.refuses_length = any(model.refuses_length for model in self.models)
        self._when = when

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        attempts = None if on_text is None else _RisingAttempts(on_text)
        failures: list[ModelError] = []
        for place, model in enumerate(self.models):
            try:
                shares = len(self.models) - place
                return await _call_within_share(model, chat, shares, attempts.next() if attempts else None)
            except Exception as raised:  # the edge to a client of the program, which may raise anything
                error = as_model_error(raised, model.name)
                if not isinstance(error, ModelError):
                    raise
                if len(failures) + 1 == len(self.models) or not self._when(error):
                    raise _add_failure_notes(error, failures) from error.__cause__
                failures.append(error)
        raise AssertionError("unreachable: the last model either answers or raises")

    @property
    def counts_tokens(self) -> bool:
        return self.models[0].counts_tokens

    async def count_tokens(self, chat: ModelRequest) -> int | None:
        """Return the token count of the first model of the chain; None if that model cannot count."""
        return await self.models[0].count_tokens(chat)

    def price_of(self, usage: Usage) -> float | None:
        """Return the highest price of all models in the chain, because each of them may answer; None if a price is unknown."""
        prices = [price for model in self.models if (price := model.price_of(usage)) is not None]
        return max(prices) if len(prices) == len(self.models) else None

    def waiting_seconds(self, session: str) -> float:
        return max(model.waiting_seconds(session) for model in self.models)

    def rate_limiters(self) -> Mapping[str, RateLimiterProtocol]:
        return {name: limiter for model in self.models for name, limiter in model.rate_limiters().items()}

    async def aclose(self) -> None:
        for model in self.models:
            await model.aclose()

    def __repr__(self) -> str:
        return f"FallbackModel({', '.join(map(repr, self.models))})"


def _each(given: ModelLike | str | Iterable[ModelLike | str]) -> Iterable[ModelLike | str]:
    return given if isinstance(given, list | tuple) else (given,)


async def _call_within_share(
    model: LLM, chat: ModelRequest, shares: int, on_text: OnText | None
) -> ModelResponse:
    """Call one model of a chain within its share of the time until the deadline: the time divided by `shares`.

    Raises:
        ModelTimeout: The share passed before the answer was complete and before any text was streamed.
    """
    now = trio.current_time()
    if shares == 1 or not now < chat.deadline < math.inf:
        return await complete_as_span(model, chat, on_text=on_text)
    seconds = (chat.deadline - now) / shares
    with trio.move_on_after(seconds) as scope:
        forward = None if on_text is None else partial(_forward_text, scope, on_text)
        try:
            chat = attrs.evolve(chat, deadline=now + seconds)
            return await complete_as_span(model, chat, on_text=forward)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - only inside the scope a timeout of ours differs from an error of the model
            error = convert_user_error(raised, "model", model.name)
        raise error
    raise ModelTimeout(f"no complete answer within its share of the time, {seconds:.3g} s", model=model.name)


async def _forward_text(scope: trio.CancelScope, on_text: OnText, text: str, attempt: int) -> None:
    scope.deadline = math.inf  # an answer that has started to stream may use all of the time
    await on_text(text, attempt)


class _RisingAttempts:
    """Creates `on_text` callbacks for the models of a chain, so that attempt numbers continue from model to model."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._highest = -1

    def next(self) -> OnText:
        first = self._highest + 1

        async def on_text(text: str, attempt: int) -> None:
            self._highest = max(self._highest, first + attempt)
            await self._on_text(text, first + attempt)

        return on_text


def _add_failure_notes(error: ModelError, failures: list[ModelError]) -> ModelError:
    for failure in failures:
        error.add_note(f"before that, {type(failure).__name__}: {failure}")
    return error
