"""Rate limits of the loopback provider: requests and tokens per minute, concurrent requests, and their response headers.

Uses the generic cell rate algorithm (ITU-T I.371); the caller passes the time. A request reserves its input tokens and,
with OpenAI's APIs, its `max_tokens`. After the answer the real usage is counted.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import Usage
from actgent.testing.provider_apis import ProviderRequest, ReplyPlan, error_plan

_ANTHROPIC_STEP = 1000
"""Anthropic rounds remaining tokens to multiples of this number."""


@attrs.frozen(kw_only=True)
class RateLimits:
    """Limits of a loopback provider; requests above them receive status 429.

    Raises:
        ConfigurationError: A number is not above 0.
    """

    requests: float | None = None
    """Maximum number of requests per period; None sets no limit."""
    tokens: float | None = None
    """Maximum number of tokens per period, input and output together; None sets no limit."""
    concurrency: int | None = None
    """Maximum number of concurrent requests; None sets no limit."""
    period: float = 60.0
    """Length of a period in seconds."""
    burst: float = 1.0
    """Share of the limit of a period that can be used at once, from 0 to 1."""
    has_rate_limit_headers: bool = True
    """True if answers report the limits in the headers that the provider's API defines."""
    has_retry_after: bool = True
    """True if a 429 answer contains the header Retry-After."""

    def __attrs_post_init__(self) -> None:
        for name in ("requests", "tokens", "concurrency", "period", "burst"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"RateLimits({name}=...) must be a number above 0, not {value!r}")


@attrs.define(eq=False)
class _Cell:
    """State of one rate limit. `_full_at` is the time at which all units are available again (theoretical arrival time)."""

    kind: str
    """Kind of the limit: requests or tokens."""
    limit: float
    """Number of units that are allowed per period."""
    rate: float
    """Number of units that become available per second."""
    depth: float
    """Maximum number of units that can be used at once."""
    _full_at: float = -math.inf

    def wait(self, units: float, now: float) -> float:
        """Return the seconds until `units` units are available. For more units than the maximum, this is until all are available."""
        back = max(self._full_at, now) + min(units, self.depth) / self.rate
        return max(0.0, back - now - self.depth / self.rate)

    def spend(self, units: float, now: float) -> None:
        self._full_at = max(self._full_at, now) + units / self.rate

    def remaining(self, now: float) -> float:
        return max(0.0, self.depth - self.reset(now) * self.rate)

    def reset(self, now: float) -> float:
        return max(0.0, self._full_at - now)


class Meter:
    """Counts the requests to one scripted provider against its rate limits."""

    def __init__(self, limits: RateLimits) -> None:
        self._limits = limits
        self._cells = [
            _Cell(kind, limit, limit / limits.period, max(1.0, limit * limits.burst))
            for kind, limit in (("requests", limits.requests), ("tokens", limits.tokens))
            if limit is not None
        ]
        self._running: dict[int, tuple[float, float]] = {}
        """Tokens of each request that is not completely answered: reserved and used, by request number."""
        self.refused = 0

    def enter(self, request: ProviderRequest, now: float) -> ReplyPlan | None:
        """Count a request against the rate limits, and return None if it is admitted.

        If the request exceeds a limit, return the plan of the reply with status 429.
        """
        most = self._limits.concurrency
        if most is not None and len(self._running) >= most:
            return self._refuse(request, f"too many requests at once, {most} are allowed", None, now)
        tokens = _reserved(request)
        for cell in self._cells:
            if wait := cell.wait(1 if cell.kind == "requests" else tokens, now):
                wish = f", try again in {wait:.3f}s" if self._limits.has_retry_after else ""
                text = f"Rate limit reached for {cell.kind} per min. Limit {cell.limit:g}{wish}."
                return self._refuse(request, text, wait, now)
        for cell in self._cells:
            cell.spend(1 if cell.kind == "requests" else tokens, now)
        self._running[request.number] = (tokens, tokens)
        return None

    def use(self, number: int, usage: Usage) -> None:
        """Set the token usage of the running request `number`. The usage is charged to the token limits when the request ends."""
        if number in self._running:
            reserved, _ = self._running[number]
            self._running[number] = (reserved, usage.input_tokens + usage.output_tokens)

    def leave(self, number: int, now: float) -> None:
        """End the request `number`: charge its token usage to the token limits, and free the tokens that it reserved."""
        reserved, used = self._running.pop(number, (0.0, 0.0))
        for cell in self._cells:
            if cell.kind == "tokens":
                cell.spend(used - reserved, now)

    def _refuse(self, request: ProviderRequest, text: str, wait: float | None, now: float) -> ReplyPlan:
        self.refused += 1
        plan = error_plan(request.dialect.error(429, message=text))
        headers = {**plan.headers, **self.headers(request, now)}
        if wait is not None and self._limits.has_retry_after:
            headers |= {"retry-after": str(math.ceil(wait))}
            if request.dialect.name != "anthropic":
                headers |= {"retry-after-ms": str(math.ceil(wait * 1000))}
        return attrs.evolve(plan, headers=headers)

    def headers(self, request: ProviderRequest, now: float) -> Mapping[str, str]:
        """Return the rate limit headers of an answer, in the format of the provider's API.

        Return no headers if the limits are configured without headers.
        """
        if not self._limits.has_rate_limit_headers:
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
    """Format a duration as Go does and OpenAI sends it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
