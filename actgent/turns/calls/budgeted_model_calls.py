"""Model calls that are charged to a budget: reserve the estimate before the call, reconcile with the real usage after it."""

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
import trio

from actgent.errors import (
    BadRequest,
    NotAuthorized,
    PriceUnknown,
    ProviderUnavailable,
    QuotaExhausted,
    RateLimited,
)
from actgent.limits_and_schedules.budget import ANSWER_TOKENS, NOTHING, Account, Amounts, Budget, Price
from actgent.llm.model_call_spans import complete_as_span
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText, check_answer
from actgent.llm.prompt_token_estimator import PromptEstimator
from actgent.messages import Usage
from actgent.sessions.session_context import Turn
from actgent.support.attrs_class_repr import FieldRepr

UNCHARGED_ERRORS = (BadRequest, NotAuthorized, QuotaExhausted, RateLimited, ProviderUnavailable)
"""Errors after which a provider charges no tokens and no money; only the model call itself is counted."""
MAX_UNSEEN_TOKENS = 1000
"""Maximum tokens that are added to an estimate for prompt text which only the provider sees.

Larger differences between estimate and usage come from tools that run at the provider.
"""


@attrs.define(eq=False, repr=False)
class MeteredModelCaller(FieldRepr):
    """Calls models, and charges each call to a budget of a turn or session."""

    _estimator: PromptEstimator = attrs.field(factory=PromptEstimator)
    _unseen: dict[str, int] = attrs.field(factory=dict)
    """Number of tokens by which the model's last prompt was larger than estimated, by model name."""

    async def complete(
        self, turn: Turn, budget: Budget, llm: LLM, chat: ModelRequest, *, on_text: OnText | None
    ) -> ModelResponse:
        """Call the model once and charge the call to `budget`, the budget of a turn.

        The call is charged with the usage that the provider reports, or with the estimate if the provider reports none. A
        cancelled or interrupted call is charged with its estimate. A call that the provider rejects is charged without tokens
        and money. If the budget is too small for a full answer, `max_tokens` is lowered to the remaining budget. The call
        waits while running calls hold reservations that may be released. With a journal, the reservation is durable before
        the model is called, so a call is also charged if the process dies.

        Raises:
            LimitReached: The budget does not allow the call.
            PriceUnknown: The budget limits cost, and the model has no price.
            JournalError: The reservation could not be written; the model was not called.
            ModelError: The model call failed.
        """
        return await self._call_and_charge(budget, llm, chat, partial(_begin, turn, budget), on_text=on_text)

    async def complete_outside_turn(self, budget: Budget, llm: LLM, chat: ModelRequest) -> ModelResponse:
        """Call the model once outside of a turn, and charge the call to a budget as `complete` does.

        Raises:
            LimitReached: The budget does not allow the call.
            PriceUnknown: The budget limits cost, and the model has no price.
            JournalError: The reservation could not be written; the model was not called.
            ModelError: The model call failed.
        """
        return await self._call_and_charge(budget, llm, chat, partial(_write_all, budget), on_text=None)

    async def _call_and_charge(
        self,
        budget: Budget,
        llm: LLM,
        chat: ModelRequest,
        begin: Callable[[], Awaitable[None]],
        *,
        on_text: OnText | None,
    ) -> ModelResponse:
        """Reserve the estimated amounts in the budget, await `begin`, call the model, and charge the real usage."""
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
            taken = _charged_amounts(answer.usage, llm, reserved)
            if counts and answer.usage.input_tokens:
                self._unseen[llm.name] = max(0, min(answer.usage.input_tokens - seen, MAX_UNSEEN_TOKENS))
        except UNCHARGED_ERRORS:
            taken = Amounts(model_calls=1)
            raise
        finally:
            budget.settle(reserved, taken, now=trio.current_time())
        if room.account is not None and answer.stop == "length":
            budget.cut = room.account.reached(room.why)
        return answer


async def _begin(turn: Turn, budget: Budget) -> None:
    """Count the next model call of a turn. If the budget needs exact accounting, first write the reservation to the journal.

    An interruption of the turn does not cancel the write.
    """
    if budget.own.log is not None and budget.is_exact:
        turn.cover()
        await budget.own.log.flush()
        turn.expose()
    turn.progress.calls += 1


async def _write_all(budget: Budget) -> None:
    """Write the reservation of a model call outside of a turn to the journal, if the budget requires it."""
    if budget.own.log is not None and budget.is_exact:
        await budget.own.log.flush()


def _free(_prompt: int, _answer: int) -> float:
    """Return 0.0. Price function for budgets without a cost limit."""
    return 0.0


def _price_of(llm: LLM) -> Price:
    """Return a function that computes the price of a call in US dollars from its prompt and answer tokens.

    The function raises `PriceUnknown` if the model has no price.
    """

    def price(prompt: int, answer: int) -> float:
        dollars = llm.price_of(Usage(input_tokens=prompt, output_tokens=answer))
        if dollars is None:
            raise PriceUnknown(llm.name or type(llm).__name__)
        return dollars

    return price


def _charged_amounts(usage: Usage, llm: LLM, reserved: Amounts) -> Amounts:
    """Return the amounts to charge for a model call: the reported usage, or the reservation if no tokens were reported."""
    tokens = usage.input_tokens + usage.output_tokens
    if not tokens:
        return reserved
    cost = usage.cost or (llm.price_of(usage) if reserved.cost else None)
    return Amounts(model_calls=1, tokens=tokens, cost=reserved.cost if cost is None else cost)
