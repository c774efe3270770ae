"""The limits of a provider: requests and tokens a minute, calls at once, and what its headers say of them.

Counted by the generic cell rate algorithm (ITU-T I.371), with time passed in. A request has to have room for itself, its
input and, where OpenAI's wire names one, its `max_tokens`; when it is answered, what it really used is counted.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import Usage
from actgent.testing.dialects import ProviderRequest, ReplyPlan, error_plan

_ANTHROPIC_STEP = 1000
"""Anthropic tells remaining tokens to the nearest thousand."""


@attrs.frozen(kw_only=True)
class RateLimits:
    """What a loopback provider grants; what goes beyond is answered with 429.

    Raises:
        ConfigurationError: a number makes no sense.
    """

    requests: float | None = None
    """A period; None is no limit."""
    tokens: float | None = None
    """A period, of requests and answers together."""
    concurrency: int | None = None
    """Requests at once."""
    period: float = 60.0
    """The length of its minute, in seconds."""
    burst: float = 1.0
    """The share of a period's allowance that may be spent at once."""
    is_told: bool = True
    """True if headers of every answer tell the limits, in the API's own words."""
    is_wished: bool = True
    """True if a 429 says when to come again."""

    def __attrs_post_init__(self) -> None:
        for name in ("requests", "tokens", "concurrency", "period", "burst"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"RateLimits({name}=...) is a number above 0, not {value!r}")


@attrs.define(eq=False)
class _Cell:
    """One limit. `_full_at` is when all that was spent will be back (the theoretical arrival time)."""

    kind: str
    limit: float
    rate: float
    depth: float
    """Units at once."""
    _full_at: float = -math.inf

    def wait(self, units: float, now: float) -> float:
        """Seconds until there is room for so many, at most for all that ever fit."""
        back = max(self._full_at, now) + min(units, self.depth) / self.rate
        return max(0.0, back - now - self.depth / self.rate)

    def spend(self, units: float, now: float) -> None:
        self._full_at = max(self._full_at, now) + units / self.rate

    def remaining(self, now: float) -> float:
        return max(0.0, self.depth - self.reset(now) * self.rate)

    def reset(self, now: float) -> float:
        return max(0.0, self._full_at - now)


class Meter:
    """Counts the requests of one provider against its limits."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._cells = [
            _Cell(kind, limit, limit / limits.period, max(1.0, limit * limits.burst))
            for kind, limit in (("requests", limits.requests), ("tokens", limits.tokens))
            if limit is not None
        ]
        self._running: dict[int, tuple[float, float]] = {}
        """Number of a request -> tokens reserved, and tokens used."""
        self.refused = 0

    def enter(self, request: ProviderRequest, now: float) -> ReplyPlan | None:
        """Take a request in, or the 429 that it gets."""
        most = self._limits.concurrency
        if most is not None and len(self._running) >= most:
            return self._refuse(request, f"too many requests at once, {most} are allowed", None, now)
        tokens = _reserved(request)
        for cell in self._cells:
            if wait := cell.wait(1 if cell.kind == "requests" else tokens, now):
                wish = f", try again in {wait:.3f}s" if self._limits.is_wished else ""
                text = f"Rate limit reached for {cell.kind} per min. Limit {cell.limit:g}{wish}."
                return self._refuse(request, text, wait, now)
        for cell in self._cells:
            cell.spend(1 if cell.kind == "requests" else tokens, now)
        self._running[request.number] = (tokens, tokens)
        return None

    def use(self, number: int, usage: Usage) -> None:
        """Return what a request will have used when it is answered."""
        if number in self._running:
            reserved, _ = self._running[number]
            self._running[number] = (reserved, usage.input_tokens + usage.output_tokens)

    def leave(self, number: int, now: float) -> None:
        """A request is answered, or its client went away."""
        reserved, used = self._running.pop(number, (0.0, 0.0))
        for cell in self._cells:
            if cell.kind == "tokens":
                cell.spend(used - reserved, now)

    def _refuse(self, request: ProviderRequest, text: str, wait: float | None, now: float) -> ReplyPlan:
        self.refused += 1
        plan = error_plan(request.dialect.error(429, message=text))
        headers = {**plan.headers, **self.headers(request, now)}
        if wait is not None and self._limits.is_wished:
            headers |= {"retry-after": str(math.ceil(wait))}
            if request.dialect.name != "anthropic":
                headers |= {"retry-after-ms": str(math.ceil(wait * 1000))}
        return attrs.evolve(plan, headers=headers)

    def headers(self, request: ProviderRequest, now: float) -> Mapping[str, str]:
        """Return the headers in which an answer tells of the limits."""
        if not self._limits.is_told:
            return {}
        name = _anthropic_headers if request.dialect.name == "anthropic" else _openai_headers
        return dict(pair for cell in self._cells for pair in name(cell, now))


def _reserved(request: ProviderRequest) -> float:
    body = request.json
    longest = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    is_counted = request.dialect.name != "anthropic" and isinstance(longest, int)
    return 1 + len(request.body) // 4 + (longest if is_counted and isinstance(longest, int) else 0)


def _openai_headers(cell: _Cell, now: float) -> Iterator[tuple[str, str]]:
    yield f"x-ratelimit-limit-{cell.kind}", f"{cell.limit:.0f}"
    yield f"x-ratelimit-remaining-{cell.kind}", f"{math.floor(cell.remaining(now))}"
    yield f"x-ratelimit-reset-{cell.kind}", _go_duration(cell.reset(now))


def _anthropic_headers(cell: _Cell, now: float) -> Iterator[tuple[str, str]]:
    remaining = cell.remaining(now)
    if cell.kind == "tokens" and cell.limit > 10 * _ANTHROPIC_STEP:
        remaining = round(remaining / _ANTHROPIC_STEP) * _ANTHROPIC_STEP
    until = datetime.now(UTC) + timedelta(seconds=cell.reset(now))
    yield f"anthropic-ratelimit-{cell.kind}-limit", f"{cell.limit:.0f}"
    yield f"anthropic-ratelimit-{cell.kind}-remaining", f"{math.floor(remaining)}"
    yield f"anthropic-ratelimit-{cell.kind}-reset", until.strftime("%Y-%m-%dT%H:%M:%SZ")


def _go_duration(seconds: float) -> str:
    """As Go writes it, and OpenAI sends it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
