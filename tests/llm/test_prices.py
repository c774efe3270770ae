"""What a call costs."""

import pytest

from actgent.llm.prices import cost_of, reported_cost
from actgent.messages import Usage

OPENAI = "https://api.openai.com/v1"


def test_a_known_model_has_a_price():
    """A million tokens of a model whose price is public and has not moved for years."""
    assert cost_of(Usage(input_tokens=1_000_000), "gpt-3.5-turbo-0125", url=OPENAI) == pytest.approx(0.5)


def test_cached_tokens_are_cheaper():
    """The cached part of the input has its own price."""
    full = cost_of(Usage(input_tokens=1000), "gpt-4o", url=OPENAI)
    cached = cost_of(Usage(input_tokens=1000, cached_tokens=900), "gpt-4o", url=OPENAI)
    assert full is not None
    assert cached is not None
    assert cached < full


@pytest.mark.parametrize(
    ("model", "url"),
    [("no-such-model", OPENAI), ("gpt-4o", "http://localhost:8000/v1"), ("", OPENAI), ("gpt-4o", "")],
)
def test_unknown_is_none(model, url):
    """A model or a server that no table has costs nobody knows what."""
    assert cost_of(Usage(input_tokens=1000), model, url=url) is None


def test_impossible_counts_are_none():
    """Contradicting counts of a provider give no price, and no exception."""
    assert cost_of(Usage(input_tokens=10, cached_tokens=900), "gpt-4o", url=OPENAI) is None


@pytest.mark.parametrize(
    ("cost", "read"),
    [(0.5, 0.5), (0, 0.0), (-1, None), (True, None), ("0.5", None), (None, None), (float("nan"), None)],
)
def test_reported_costs(cost, read):
    """The provider's own price is believed if it is one."""
    assert reported_cost({"cost": cost}) == read
