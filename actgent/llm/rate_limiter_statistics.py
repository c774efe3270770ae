"""Statistics of the rate limiters of model providers, and the interface between rate limiters and other layers."""

from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from actgent.support.attrs_class_repr import FieldRepr


@attrs.frozen(kw_only=True, repr=False)
class RateLimiterCounters(FieldRepr):
    """Current counters of one rate limiter, over all its models."""

    waiting: int
    """Number of attempts that wait for admission."""
    running: int
    """Number of attempts that the provider is processing."""
    window: float
    """Maximum number of concurrent attempts at present, summed over the models in use."""
    admitted: int
    """Total number of admitted attempts."""
    refused: int
    """Total number of attempts that the provider refused with 429, 503 or 529."""
    waited: float
    """Total time that attempts waited for admission, in seconds."""


@attrs.frozen(kw_only=True, repr=False)
class BucketStatistics(FieldRepr):
    """State of one rate limit on requests or tokens (a token bucket)."""

    kind: str
    """Kind of the limit: `requests`, `tokens`, or the provider's name of the limit."""
    capacity: float
    """Maximum number of units (requests or tokens) that can be spent at once."""
    level: float
    """Number of available units; negative after a call that used more than its reservation."""
    rate: float
    """Number of units that become available per second."""


@attrs.frozen(kw_only=True, repr=False)
class ModelStatistics(FieldRepr):
    """State of the calls to one model in a rate limiter."""

    model: str
    window: float
    """Maximum number of concurrent calls at present."""
    running: int
    """Number of running model calls."""
    waiting: Mapping[str, int]
    """Number of waiting calls by priority name."""
    admitted: int
    """Total number of admitted calls."""
    paused: float
    """Remaining seconds of the pause that the provider requested by Retry-After; 0 without one."""
    buckets: tuple[BucketStatistics, ...]
    """Rate-limit buckets reported by the provider's response headers."""


@attrs.frozen(kw_only=True, repr=False)
class RateLimiterStatistics(FieldRepr):
    """State of one rate limiter with the models that it limits."""

    name: str
    """Name of the rate limiter: the provider's host with four characters that identify the key, or the name of a model."""
    total: RateLimiterCounters
    """Counters over all models."""
    buckets: tuple[BucketStatistics, ...]
    """The limits that the program configured."""
    models: tuple[ModelStatistics, ...]
    """State of each model that uses the rate limiter."""


class LimitLeaser(Protocol):
    """Interface that leases parts of a rate limit that several processes share."""

    def add(self, share: Any, name: str) -> None:
        """Start leasing units of a shared rate limit for `share`, the part of this process, whenever it needs units.

        `name` identifies the limit in all processes.
        """

    def remove(self, share: Any) -> None:
        """Stop leasing units for this share of a rate limit."""


class RateLimiterProtocol(Protocol):
    """Interface of a rate limiter that admits the calls of a model, such as `RateLimiter`."""

    def describe(self, name: str) -> RateLimiterStatistics:
        """Return the statistics of this rate limiter for all models.

        `name` becomes the display name in the result.
        """

    def share(self, leaser: LimitLeaser, name: str) -> None:
        """Share the configured limits with other processes. `name` identifies the limits in all processes."""
