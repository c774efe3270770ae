"""Statistics of the rate limiters of model providers, and the interface between rate limiters and other layers."""

from collections.abc import Mapping
from typing import Any, Protocol

import attrs


@attrs.frozen(kw_only=True)
class GovernorStatistics:
    """Counters of one governor at one moment."""

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


@attrs.frozen(kw_only=True)
class BucketStatistics:
    """State of one limit on requests or tokens."""

    kind: str
    """`requests`, `tokens`, or the provider's name of the limit."""
    capacity: float
    """Maximum number of units that can be spent at once."""
    level: float
    """Available units. Negative after a call that used more than its reservation."""
    rate: float
    """Units that become available per second."""


@attrs.frozen(kw_only=True)
class LaneStatistics:
    """State of the calls to one model."""

    model: str
    window: float
    """Maximum number of concurrent calls at present."""
    running: int
    """Number of running calls."""
    waiting: Mapping[str, int]
    """Number of waiting calls by priority name."""
    admitted: int
    """Total number of admitted calls."""
    paused: float
    """Remaining seconds of a Retry-After of the provider; 0 without one."""
    buckets: tuple[BucketStatistics, ...]
    """Rate-limit buckets reported by the provider's response headers."""


@attrs.frozen(kw_only=True)
class DoorStatistics:
    """State of one governor with the models that it limits."""

    door: str
    """Name of the governor: the provider's host with four characters that identify the key, or the name of a model."""
    total: GovernorStatistics
    """Counters over all models."""
    buckets: tuple[BucketStatistics, ...]
    """The limits that the program configured."""
    models: tuple[LaneStatistics, ...]
    """State of each model."""


class Lender(Protocol):
    """Leases parts of a rate limit that several processes share; see `actgent.llm.governor.shares`."""

    def add(self, share: Any, door: str) -> None:
        """Start leasing units to a `Share` on demand. `door` is the name of the limit in all processes."""

    def remove(self, share: Any) -> None:
        """Stop leasing units to a share."""


class Door(Protocol):
    """A rate limiter that admits the calls of a model, such as `Governor`."""

    def describe(self, door: str) -> DoorStatistics:
        """Return the statistics of all models. `door` is the name in the result."""

    def share(self, lender: Lender, door: str) -> None:
        """Share the configured limits with other processes. `door` is the name of the limits in all processes."""
