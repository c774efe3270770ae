"""Prices and context windows of models from the tables of genai-prices, which work offline."""

import math
from collections.abc import Mapping
from typing import Any

from actgent.errors import ConfigurationError
from actgent.messages import Usage


def cost_of(usage: Usage, model: str, *, url: str) -> float | None:
    """Return the price of `usage` in US dollars for a model at an API's base URL; None if the tables do not have it."""
    # Imported at the first price: the tables take 0.1 s to load, and most programs never need them.
    import genai_prices  # noqa: PLC0415

    tokens = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        return float(genai_prices.calc_price(tokens, model, provider_api_url=url).total_price)
    except (LookupError, ValueError):
        return None  # an unknown model, or contradictory token counts


def window_of(model: str, *, url: str) -> int | None:
    """Return the context window of a model at an API's base URL, in tokens; None if the tables do not have it."""
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - as above

    try:
        _, known = get_snapshot().find_provider_model(model, None, None, url)
    except LookupError:
        return None
    return known.context_window


def reported_cost(usage: Mapping[str, Any]) -> float | None:
    """Return the cost in US dollars that the provider reports in its usage, as OpenRouter does; else None."""
    cost = usage.get("cost")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost) and cost >= 0
    return float(cost) if known and cost is not None else None


def check_price(price: object) -> tuple[float, float] | None:
    """Validate `price=`, the US dollars for a million prompt and answer tokens.

    Return it as two floats; None stays None.

    Raises:
        ConfigurationError: The price is not a pair of amounts in US dollars.
    """
    if price is None:
        return None
    match price:
        case (int() | float() as prompt, int() | float() as answer) if (
            0 <= prompt < math.inf and 0 <= answer < math.inf
        ):
            return float(prompt), float(answer)
    raise ConfigurationError(
        f"price= is US dollars for a million tokens of prompts and of answers, e.g. (1.25, 10), not {price!r}"
    )
