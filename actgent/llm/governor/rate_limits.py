"""What a provider grants in a time: buckets that fill by themselves, and what its headers say of them.

A `Bucket` is the token bucket of RFC 2697 without its second colour, which admits the same calls as the GCRA of
ITU-T I.371: it fills at `rate` up to `capacity`, a call takes its cost out, and one that costs more than there is
waits until there is. Time is passed in, in seconds of any clock that does not go back.
"""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import attrs

from actgent.messages import Usage

MEASURABLE = 0.1
"""From this share of a limit on, what is spent and when it will be back tell how fast the limit fills."""
SLOWEST = 86_400.0
"""Seconds in which the slowest limit that is believed fills: some providers count by the day."""
DUST = 1e-6
"""Parts of a unit that rounding may cost."""


@attrs.frozen
class Cost:
    """What a call takes of its provider's limits: itself, and tokens."""

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
        """Return what the call takes of a limit on `requests`, `tokens`, `input-tokens` or `output-tokens`."""
        if kind == "requests":
            return self.requests
        if kind == "input-tokens":
            return self.input_tokens
        if kind == "output-tokens":
            return self.output_tokens
        return self.input_tokens + self.output_tokens

    @classmethod
    def used(cls, usage: Usage) -> "Cost":
        """Return what an answered call took."""
        return cls(usage.input_tokens, usage.output_tokens)


NO_COST = Cost(requests=0.0)


@attrs.define(eq=False)
class Bucket:
    """One limit, e.g. on tokens a minute. Its level may fall below zero, where a call took more than was thought."""

    kind: str
    rate: float
    """Units a second."""
    capacity: float
    """Units that can be spent at once."""
    level: float
    as_of: float

    @classmethod
    def full(cls, kind: str, *, rate: float, capacity: float, now: float) -> "Bucket":
        return cls(kind, rate, capacity, capacity, now)

    def fill(self, now: float) -> float:
        """The level at `now`."""
        if now > self.as_of:
            self.level = min(self.capacity, self.level + self.rate * (now - self.as_of))
            self.as_of = now
        return self.level

    def ready_at(self, cost: Cost, now: float) -> float:
        """When there will be enough for a call; one that costs more than ever fits goes when the bucket is full."""
        missing = min(cost.of(self.kind), self.capacity) - self.fill(now)
        return now if missing <= DUST else now + missing / self.rate

    def soonest(self, cost: Cost, now: float) -> float:
        """No sooner than this can a call start."""
        return self.ready_at(cost, now)

    def take(self, cost: Cost, now: float) -> None:
        """Take a cost out; a negative one is given back."""
        self.level = min(self.capacity, self.fill(now) - cost.of(self.kind))

    def seconds(self, cost: Cost) -> float:
        """Return how long the limit takes to grant a call of this cost."""
        return cost.of(self.kind) / self.rate


@attrs.frozen
class Reading:
    """What the headers of one answer say of one limit."""

    kind: str
    limit: float
    remaining: float
    reset: float | None
    """Seconds until all of it is there again; None if they do not say."""

    def rate(self, known: float) -> float:
        """Units a second: `known`, unless enough is spent to tell.

        A bucket that is full again in `reset` seconds fills at `spent / reset`; this also finds limits
        by the day, and of a fixed window it predicts the moment at which it opens again.
        """
        spent = self.limit - self.remaining
        if not self.reset or spent < MEASURABLE * self.limit:
            return known
        return max(spent / self.reset, self.limit / SLOWEST)


# --- headers ------------------------------------------------------------------------------

Headers = Mapping[str, str]

_OPENAI_KINDS = ("requests", "tokens")
_ANTHROPIC_KINDS = ("requests", "input-tokens", "output-tokens", "tokens")
_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_LONGEST_DURATION = 100
"""Characters; what is longer comes from no clock."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")


def read_limits(headers: Headers) -> list[Reading]:
    """Read the provider's limits from an answer's headers; headers that make no sense are ignored.

    `x-ratelimit-*` as OpenAI sends them and most others copy, `anthropic-ratelimit-*` as Anthropic does.
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
    known: set[str] = set()
    for kind in _ANTHROPIC_KINDS:
        if kind == "tokens" and "input-tokens" in known:
            continue  # It repeats the tightest of the two.
        limit = _number(headers.get(f"anthropic-ratelimit-{kind}-limit"))
        remaining = _number(headers.get(f"anthropic-ratelimit-{kind}-remaining"))
        if limit and remaining is not None:
            known.add(kind)
            reset = _until(headers.get(f"anthropic-ratelimit-{kind}-reset"))
            yield Reading(kind, limit, min(limit, remaining), reset)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else -1.0
    except ValueError:
        return None
    return value if value >= 0 and math.isfinite(value) else None


def _duration(text: str | None) -> float | None:
    """Seconds in a duration as Go writes it, `6m0s` or `120ms`; a number without unit is seconds."""
    if (seconds := _number(text)) is not None:
        return seconds
    text = (text or "").strip().lower()
    found = _DURATION.findall(text) if len(text) <= _LONGEST_DURATION else []
    if not found or "".join(map("".join, found)) != text:
        return None
    return math.fsum(float(number) * _UNITS[unit] for number, unit in found)


def _until(text: str | None) -> float | None:
    """Seconds until a time of RFC 3339. One in whole seconds was cut, so it may be a second later."""
    try:
        when = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if when.tzinfo is None:
        return None
    cut = 0.0 if when.microsecond else 1.0
    return max(0.0, (when - datetime.now(UTC)).total_seconds() + cut)
