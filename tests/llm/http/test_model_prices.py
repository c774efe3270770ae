"""Prices of model calls."""

import pytest

from actgent import OpenAI
from actgent.errors import ConfigurationError
from actgent.llm.fallback_model import FallbackModel
from actgent.llm.http.base_provider_client import cost_of, reported_cost
from actgent.llm.scripted_model import ScriptedLLM
from actgent.messages import Usage

URL = "https://api.openai.com/v1"


def test_a_known_model_has_a_price():
    """A million tokens of a model with a stable public price cost that price."""
    assert cost_of(Usage(input_tokens=1_000_000), "gpt-3.5-turbo-0125", url=URL) == pytest.approx(0.5)


def test_cached_tokens_are_cheaper():
    """Cached input tokens have their own price."""
    full = cost_of(Usage(input_tokens=1000), "gpt-4o", url=URL)
    cached = cost_of(Usage(input_tokens=1000, cached_tokens=900), "gpt-4o", url=URL)
    assert full is not None
    assert cached is not None
    assert cached < full


@pytest.mark.parametrize(
    ("model", "url"),
    [("no-such-model", URL), ("gpt-4o", "http://localhost:8000/v1"), ("", URL), ("gpt-4o", "")],
)
def test_price_of_an_unknown_model_is_none(model, url):
    """Models and servers that are not in the price table have no cost."""
    assert cost_of(Usage(input_tokens=1000), model, url=url) is None


def test_impossible_token_counts_give_no_price():
    """Contradictory token counts of a provider give no price and raise nothing."""
    assert cost_of(Usage(input_tokens=10, cached_tokens=900), "gpt-4o", url=URL) is None


@pytest.mark.parametrize(
    ("cost", "read"),
    [(0.5, 0.5), (0, 0.0), (-1, None), (True, None), ("0.5", None), (None, None), (float("nan"), None)],
)
def test_valid_reported_costs_are_used(cost, read):
    """A cost that the provider reports is used if it is a valid cost."""
    assert reported_cost({"cost": cost}) == read


async def test_a_client_accepts_explicit_prices():
    """`price=` in dollars per million input and output tokens replaces the tables.

    A chain has its highest price.
    """
    usage = Usage(input_tokens=1_000_000, output_tokens=500_000)
    told = OpenAI("own", api_key="x", base_url="http://localhost:9/v1", price=(2, 10))
    known = OpenAI("gpt-3.5-turbo-0125", api_key="x", base_url=URL)
    assert told.price_of(usage) == pytest.approx(7)
    assert told.priced(usage, "own", {}).cost == pytest.approx(7)
    assert known.price_of(usage) == pytest.approx(1.25)
    assert FallbackModel(known, told).price_of(usage) == pytest.approx(7)
    assert FallbackModel(told, ScriptedLLM(["?"])).price_of(usage) is None
    for client in (told, known):
        await client.aclose()


@pytest.mark.parametrize("price", [3, (1,), (1, -1), ("1", "2"), (1, float("nan")), (1, 2, 3)])
def test_an_invalid_price_is_rejected(price):
    """The error describes the expected value."""
    with pytest.raises(ConfigurationError, match="price="):
        OpenAI("own", api_key="x", price=price)
