"""Wrapper models report the properties of their wrapped model."""

import pytest

from actgent import CachedModel, ModelResponse, RateLimitedModel, RateLimiter, RetryingModel, Usage
from actgent.llm.model_interface import LLM


class Told(LLM):
    """A model with a value for every property that a model can report."""

    name, max_tokens, context_window, refuses_length, dialect = "told:model", 700, 9000, True, "told"
    closed = 0

    def __init__(self):
        self.rate_limiter = RateLimiter()

    async def complete(self, chat, *, on_text=None):
        return ModelResponse(parts=())

    @property
    def counts_tokens(self):
        return True

    async def count_tokens(self, chat):
        return 42

    def price_of(self, usage):
        return 0.5

    def waiting_seconds(self, session):
        return 3.0 if session == "s" else 0.0

    def rate_limiters(self):
        return {"told": self.rate_limiter}

    async def aclose(self):
        self.closed += 1


@pytest.mark.parametrize(
    "wrap", [CachedModel, RetryingModel, lambda llm: RateLimitedModel(llm, RateLimiter())]
)
async def test_wrapper_reports_properties_of_its_model(wrap):
    """Limits, token counts, price and rate limiters are the wrapped model's.

    Closing the wrapper closes it.
    """
    llm = wrap(inner := Told())
    said = (llm.name, llm.max_tokens, llm.context_window, llm.refuses_length, llm.dialect)
    assert said == ("told:model", 700, 9000, True, "told")
    assert (llm.counts_tokens, await llm.count_tokens(None), llm.price_of(Usage())) == (True, 42, 0.5)
    assert llm.rate_limiters()["told"] is inner.rate_limiter
    assert llm.traces_attempts
    await llm.aclose()
    assert inner.closed == 1


@pytest.mark.parametrize("wrap", [CachedModel, RetryingModel])
def test_wrapper_reports_waits_of_its_model(wrap):
    """The wait for a provider limit is visible at the outermost model."""
    assert (wrap(Told()).waiting_seconds("s"), wrap(Told()).waiting_seconds("t")) == (3.0, 0.0)
