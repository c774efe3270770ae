"""Token buckets for rate limits, and the parsing of rate-limit response headers.

A `Bucket` is the token bucket of RFC 2697 without its second colour. It admits the same calls as the GCRA of ITU-T I.371. It
refills at `rate` up to `capacity`. A call takes its cost, or waits until the bucket holds it. Times are arguments, in seconds
of any monotonic clock.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import attrs

from actgent.messages import Usage

MIN_MEASURED_FRACTION = 0.1
"""Minimum spent fraction of a limit from which the reset time yields a refill rate."""
MAX_REFILL_SECONDS = 86_400.0
"""Maximum refill time of a limit in seconds. Some providers count per day."""
TOLERANCE_UNITS = 1e-6
"""Tolerance for rounding errors, in units."""


@attrs.frozen
class Cost:
    """Cost of a call in the units of rate limits: requests and tokens."""

    input_tokens: float = 0.0
    output_tokens: float = 0.0
    requests: float = 1.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.requests + other.requests,
        )

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.requests - other.requests,
        )

    def of(self, kind: str) -> float:
        """Return how many requests or tokens the model call costs in a limit of this kind.

        The kind is `requests`, `tokens`, `input-tokens` or `output-tokens`.
        """
        if kind == "requests":
            return self.requests
        if kind == "input-tokens":
            return self.input_tokens
        if kind == "output-tokens":
            return self.output_tokens
        return self.input_tokens + self.output_tokens

    @classmethod
    def used(cls, usage: Usage) -> "Cost":
        """Return the cost of a model call with this token usage: its tokens and one request."""
        return cls(usage.input_tokens, usage.output_tokens)


NO_COST = Cost(requests=0.0)


@attrs.define(eq=False)
class Bucket:
    """Token bucket of one rate limit, such as tokens per minute."""

    kind: str
    rate: float
    """Refill rate in units per second."""
    capacity: float
    """Maximum number of units in the bucket, so the maximum that can be spent at once."""
    level: float
    """Number of available units at the time `as_of`; negative after a call that used more than its reservation."""
    as_of: float
    """Time of the last refill, in seconds of the caller's clock."""

    @classmethod
    def full(cls, kind: str, *, rate: float, capacity: float, now: float) -> "Bucket":
        return cls(kind, rate, capacity, capacity, now)

    def fill(self, now: float) -> float:
        """Refill the bucket up to the time `now`, and return the number of available units."""
        if now > self.as_of:
            self.level = min(self.capacity, self.level + self.rate * (now - self.as_of))
            self.as_of = now
        return self.level

    def ready_at(self, cost: Cost, now: float) -> float:
        """Return the earliest time at which the bucket holds the cost of a call.

        For a cost above the capacity, this is the time at which the bucket is full.
        """
        missing = min(cost.of(self.kind), self.capacity) - self.fill(now)
        return now if missing <= TOLERANCE_UNITS else now + missing / self.rate

    def earliest_start(self, cost: Cost, now: float) -> float:
        """Return the earliest possible start time of a call with this cost, if no other call waits."""
        return self.ready_at(cost, now)

    def spend(self, cost: Cost, now: float) -> None:
        """Subtract the cost of a call from the level. A negative cost returns units."""
        self.level = min(self.capacity, self.fill(now) - cost.of(self.kind))

    def seconds(self, cost: Cost) -> float:
        """Return how many seconds the bucket needs to refill the units of this cost."""
        return cost.of(self.kind) / self.rate


@attrs.frozen
class Reading:
    """State of one rate limit as the response headers report it."""

    kind: str
    limit: float
    remaining: float
    reset: float | None
    """Seconds until all units are available again; None if the headers do not say it."""

    def rate(self, default: float) -> float:
        """Estimate the refill rate of the limit in units per second.

        A limit that is full again in `reset` seconds refills at `spent / reset`. Return `default` if less than a tenth of
        the limit is spent, which is too little for an estimate. The estimate also fits limits per day and fixed windows.
        """
        spent = self.limit - self.remaining
        if not self.reset or spent < MIN_MEASURED_FRACTION * self.limit:
            return default
        return max(spent / self.reset, self.limit / MAX_REFILL_SECONDS)


# --- headers ------------------------------------------------------------------------------

Headers = Mapping[str, str]

_OPENAI_KINDS = ("requests", "tokens")
_ANTHROPIC_KINDS = ("requests", "input-tokens", "output-tokens", "tokens")
_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_MAX_DURATION_CHARS = 100
"""Maximum length of a duration in characters."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")


def read_limits(headers: Headers) -> list[Reading]:
    """Parse the rate limits in response headers. Invalid headers are ignored.

    Supported headers are `x-ratelimit-*` (OpenAI and most other providers) and `anthropic-ratelimit-*` (Anthropic).
    """
    return [*_openai(headers), *_anthropic(headers)]


def _openai(headers: Headers) -> Iterator[Reading]:
    for kind in _OPENAI_KINDS:
        limit = _number(headers.get(f"x-ratelimit-limit-{kind}"))
        remaining = _number(headers.get(f"x-ratelimit-remaining-{kind}"))
        if limit and remaining is not None:
            reset = _duration(headers.get(f"x-ratelimit-reset-{kind}"))
            yield Reading(kind, limit, min(limit, remaining), reset)


def _anthropic(headers: Headers) -> Iterator[Reading]:
    default: set[str] = set()
    for kind in _ANTHROPIC_KINDS:
        if kind == "tokens" and "input-tokens" in default:
            continue  # This header repeats the tighter of the two limits.
        limit = _number(headers.get(f"anthropic-ratelimit-{kind}-limit"))
        remaining = _number(headers.get(f"anthropic-ratelimit-{kind}-remaining"))
        if limit and remaining is not None:
            default.add(kind)
            reset = _until(headers.get(f"anthropic-ratelimit-{kind}-reset"))
            yield Reading(kind, limit, min(limit, remaining), reset)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else -1.0
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _duration(text: str | None) -> float | None:
    """Parse a duration in the format of Go, such as `6m0s` or `120ms`, or a number of seconds.

    Return the seconds; None for an absent or invalid text.
    """
    if (seconds := _number(text)) is not None:
        return seconds
    text = (text or "").strip().lower()
    found = _DURATION.findall(text) if len(text) <= _MAX_DURATION_CHARS else []
    if not found or "".join(map("".join, found)) != text:
        return None
    return math.fsum(float(number) * _UNITS[unit] for number, unit in found)


def _until(text: str | None) -> float | None:
    """Return the seconds from now until an RFC 3339 time; None for an absent or invalid text.

    A provider truncates a time without a fraction, so a second is added to it.
    """
    try:
        when = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if when.tzinfo is None:
        return None
    cut = 0.0 if when.microsecond else 1.0
    return max(0.0, (when - datetime.now(UTC)).total_seconds() + cut)
