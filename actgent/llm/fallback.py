"""A chain of models: when one is not available, the next one answers."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import attrs
import trio

from actgent.errors import (
    BrokenAnswer,
    ConfigurationError,
    ModelError,
    ModelTimeout,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
)
from actgent.messages import Usage
from actgent.support.foreign import failure_of

from .adapters import ModelLike
from .base import LLM, Answer, Chat, OnText
from .client_errors import as_model_error
from .doors import Door
from .models import resolve_model
from .spans import complete_as_span

_UNAVAILABLE = (ProviderUnavailable, RateLimited, ModelTimeout, BrokenAnswer, QuotaExhausted)


def is_unavailable(error: ModelError) -> bool:
    """Return True if another model may do better: overload, limits, no credit, no connection, a broken answer.

    A bad request or a refused key is the caller's to mend, and the same mistake would often fail the next model too.
    """
    return error.retryable or isinstance(error, _UNAVAILABLE)


class Fallback(LLM):
    """Asks the first model, and each next one when `when(error)` says so (default: `is_unavailable`).

    Each model's own retries come first, so give the first ones few. Where the chat has a deadline, each model has an equal
    share of the time that is left, and one that cannot answer in it is not waited for; whose text has begun to stream keeps
    all of it. Thinking of one dialect is never sent to another. The error of the last model is raised, with a note for
    each model before it.
    """

    traces_attempts = True

    def __init__(
        self,
        *models: ModelLike | str | Iterable[ModelLike | str],
        when: Callable[[ModelError], bool] = is_unavailable,
    ) -> None:
        """Models are given as clients or as texts, `provider:model`, one by one or as a list.

        Raises:
            ConfigurationError: there is none, or a text names no model.
        """
        self.models = tuple(resolve_model(model) for given in models for model in _each(given))
        if not self.models:
            raise ConfigurationError("Fallback(...) takes at least one model")
        self.name = f"fallback({', '.join(model.name for model in self.models)})"
        self.max_tokens = (
            max(bounds) if all(bounds := [model.max_tokens or 0 for model in self.models]) else None
        )
        windows = [model.context_window for model in self.models if model.context_window is not None]
        self.context_window = min(windows, default=None)  # any of them may answer
        self.refuses_length = any(model.refuses_length for model in self.models)
        self._when = when

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        attempts = None if on_text is None else _RisingAttempts(on_text)
        failures: list[ModelError] = []
        for place, model in enumerate(self.models):
            try:
                shares = len(self.models) - place
                return await _in_its_share(model, chat, shares, attempts.next() if attempts else None)
            except Exception as raised:  # the edge to a client of the program, which may raise anything
                error = as_model_error(raised, model.name)
                if not isinstance(error, ModelError):
                    raise
                if len(failures) + 1 == len(self.models) or not self._when(error):
                    raise _with_notes(error, failures) from error.__cause__
                failures.append(error)
        raise AssertionError("unreachable: the last model either answers or raises")

    @property
    def counts_tokens(self) -> bool:
        return self.models[0].counts_tokens

    async def count_tokens(self, chat: Chat) -> int | None:
        """By the first model, which is to answer."""
        return await self.models[0].count_tokens(chat)

    def price_of(self, usage: Usage) -> float | None:
        """The dearest model's, since any of them may answer; None where one has none."""
        prices = [price for model in self.models if (price := model.price_of(usage)) is not None]
        return max(prices) if len(prices) == len(self.models) else None

    def waited(self, session: str) -> float:
        return max(model.waited(session) for model in self.models)

    def doors(self) -> Mapping[str, Door]:
        return {door: governor for model in self.models for door, governor in model.doors().items()}

    async def aclose(self) -> None:
        for model in self.models:
            await model.aclose()

    def __repr__(self) -> str:
        return f"Fallback({', '.join(map(repr, self.models))})"


def _each(given: ModelLike | str | Iterable[ModelLike | str]) -> Iterable[ModelLike | str]:
    return given if isinstance(given, list | tuple) else (given,)


async def _in_its_share(model: LLM, chat: Chat, shares: int, on_text: OnText | None) -> Answer:
    """One model's answer, within the first of so many equal shares of the time that is left.

    Raises:
        ModelTimeout: it was not there by then, and had not begun to stream.
    """
    now = trio.current_time()
    if shares == 1 or not now < chat.deadline < math.inf:
        return await complete_as_span(model, chat, on_text=on_text)
    seconds = (chat.deadline - now) / shares
    with trio.move_on_after(seconds) as scope:
        heard = None if on_text is None else partial(_hear, scope, on_text)
        try:
            chat = attrs.evolve(chat, deadline=now + seconds)
            return await complete_as_span(model, chat, on_text=heard)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - here, our own time can be told from what it raised
            error = failure_of(raised, "model", model.name)
        raise error
    raise ModelTimeout(f"no answer within its share of the time, {seconds:.3g} s", model=model.name)


async def _hear(scope: trio.CancelScope, on_text: OnText, text: str, attempt: int) -> None:
    scope.deadline = math.inf
    await on_text(text, attempt)


class _RisingAttempts:
    """Gives each model attempt numbers above all those that the models before it have used."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._highest = -1

    def next(self) -> OnText:
        first = self._highest + 1

        async def on_text(text: str, attempt: int) -> None:
            self._highest = max(self._highest, first + attempt)
            await self._on_text(text, first + attempt)

        return on_text


def _with_notes(error: ModelError, failures: list[ModelError]) -> ModelError:
    for failure in failures:
        error.add_note(f"before that, {type(failure).__name__}: {failure}")
    return error
