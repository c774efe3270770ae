"""A model call that is paid from a budget: reserved before, settled after, whatever comes of it."""

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from actgent.control.budget import ANSWER_TOKENS, NOTHING, Account, Amounts, Budget, Price
from actgent.errors import (
    BadRequest,
    NotAuthorized,
    PriceUnknown,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
)
from actgent.llm.base import LLM, Answer, Chat, OnText
from actgent.llm.estimate import PromptEstimator
from actgent.llm.spans import complete_as_span
from actgent.messages import Usage
from actgent.sessions.turn import Turn

from .answers import check_answer

REFUSED = (BadRequest, NotAuthorized, QuotaExhausted, RateLimited, ProviderUnavailable)
"""The provider gave no answer and takes no money for that: only the call counts."""
MOST_UNSEEN = 1000
"""Tokens that a provider is expected to add to a prompt; what is more comes from tools on its side, and not each time."""


@attrs.define(eq=False)
class Spending:
    """Asks models for turns that have a budget."""

    _estimator: PromptEstimator = attrs.field(factory=PromptEstimator)
    _unseen: dict[str, int] = attrs.field(factory=dict)
    """By the names of models: tokens by which the last prompt was longer than its estimate."""

    async def complete(
        self, turn: Turn, budget: Budget, llm: LLM, chat: Chat, *, on_text: OnText | None
    ) -> Answer:
        """Answer one chat out of a turn's budget.

        The call counts as one, with what its answer says that it used, or with the estimate where that says nothing.
        A cancelled or broken call counts with its estimate, since it may be billed up to that; what the provider
        refused takes no tokens and no money. Where too little is left for an answer of full length, `max_tokens`
        is lowered to what there is. Waits while calls under way hold what may come back. With a journal the estimate is
        durable before the model is asked, so a call whose process dies counts with it, too.

        Raises:
            LimitReached: a limit does not allow it, or cut the answer short.
            PriceUnknown: there is a cost limit, and the model has no price.
            JournalError: the estimate could not be written; nothing is asked.
            ModelError: as `LLM.complete`.
        """
        return await self._pay(budget, llm, chat, partial(_begin, turn, budget), on_text=on_text)

    async def complete_beside(self, budget: Budget, llm: LLM, chat: Chat) -> Answer:
        """Answer a chat that belongs to no turn, in the same way.

        Raises:
            LimitReached, PriceUnknown, JournalError, ModelError: see `complete`.
        """
        return await self._pay(budget, llm, chat, partial(_write_all, budget), on_text=None)

    async def _pay(
        self,
        budget: Budget,
        llm: LLM,
        chat: Chat,
        begin: Callable[[], Awaitable[None]],
        *,
        on_text: OnText | None,
    ) -> Answer:
        counts = budget.bounds("tokens", "cost")
        price = _price_of(llm) if budget.bounds("cost") else _free
        seen = self._estimator.tokens(chat) if counts else 0
        prompt = seen + self._unseen.get(llm.name, 0)
        wanted = (chat.max_tokens or llm.max_tokens or ANSWER_TOKENS) if counts else 0
        while isinstance(room := budget.plan(prompt, wanted, price), Account):
            await room.wait_settled()
        if room.account is not None:
            chat = attrs.evolve(chat, max_tokens=room.answer)
        reserved = Amounts(model_calls=1, tokens=prompt + room.answer, cost=price(prompt, room.answer))
        budget.reserve(reserved)
        taken = NOTHING
        try:
            await begin()
            taken = reserved
            answer = check_answer(await complete_as_span(llm, chat, on_text=on_text), llm)
            taken = _taken(answer.usage, llm, reserved)
            if counts and answer.usage.input_tokens:
                self._unseen[llm.name] = max(0, min(answer.usage.input_tokens - seen, MOST_UNSEEN))
        except REFUSED:
            taken = Amounts(model_calls=1)
            raise
        finally:
            budget.settle(reserved, taken, now=trio.current_time())
        if room.account is not None and answer.stop == "length":
            budget.cut = room.account.reached(room.why)
        return answer


async def _begin(turn: Turn, budget: Budget) -> None:
    """Have the journal know what is set apart, and count the call; nothing cuts the write."""
    if budget.own.log is not None and budget.is_exact:
        turn.control.cover()
        await budget.own.log.flush()
        turn.control.expose()
    turn.progress.calls += 1


async def _write_all(budget: Budget) -> None:
    """Have the journal know what is set apart beside a turn."""
    if budget.own.log is not None and budget.is_exact:
        await budget.own.log.flush()


def _free(_prompt: int, _answer: int) -> float:
    """Where nobody counts money."""
    return 0.0


def _price_of(llm: LLM) -> Price:
    """Return the function that prices a model's calls."""

    def price(prompt: int, answer: int) -> float:
        dollars = llm.price_of(Usage(input_tokens=prompt, output_tokens=answer))
        if dollars is None:
            raise PriceUnknown(llm.name or type(llm).__name__)
        return dollars

    return price


def _taken(usage: Usage, llm: LLM, reserved: Amounts) -> Amounts:
    """Count what a call used by its provider's figures, or by the estimate if there are none."""
    tokens = usage.input_tokens + usage.output_tokens
    if not tokens:
        return reserved
    cost = usage.cost or (llm.price_of(usage) if reserved.cost else None)
    return Amounts(model_calls=1, tokens=tokens, cost=reserved.cost if cost is None else cost)
