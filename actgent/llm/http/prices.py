"""What model calls cost and how long they may be, by the tables of genai-prices (offline)."""

import math
from collections.abc import Mapping
from typing import Any

from actgent.errors import ConfigurationError
from actgent.messages import Usage


def cost_of(usage: Usage, model: str, *, url: str) -> float | None:
    """US dollars for `usage` of `model` at the provider whose API stands at `url`; None if no table has it."""
    # Imported at the first cost: the tables take 0.1 s, and most programs that import actgent never need them.
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
        return None  # An unknown model, or token counts that contradict each other: no price, but an answer.


def window_of(model: str, *, url: str) -> int | None:
    """Tokens of the context window of `model` at the provider whose API stands at `url`; None if no table has it."""
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - as above

    try:
        _, known = get_snapshot().find_provider_model(model, None, None, url)
    except LookupError:
        return None
    return known.context_window


def reported_cost(usage: Mapping[str, Any]) -> float | None:
    """The price that the provider itself put into its usage (OpenRouter does), in US dollars."""
    cost = usage.get("cost")
    known = isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost) and cost >= 0
    return float(cost) if known and cost is not None else None


def check_price(price: object) -> tuple[float, float] | None:
    """A price as it was given, or None.

    Raises:
        ConfigurationError: it is no two amounts of US dollars.
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
