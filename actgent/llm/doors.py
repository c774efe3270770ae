"""What can be seen of who may call a provider next: the figures of its governors."""

from collections.abc import Mapping
from typing import Any, Protocol

import attrs


@attrs.frozen(kw_only=True)
class GovernorStatistics:
    """A snapshot of a governor."""

    waiting: int
    """Attempts that wait for admission."""
    running: int
    """Attempts that are with the provider."""
    window: float
    """How many may be there at once, over all models that were asked."""
    admitted: int
    """Attempts that were ever admitted."""
    refused: int
    """Of these, those that the provider refused: 429, 503 and 529."""
    waited: float
    """Seconds that all attempts together waited for admission."""


@attrs.frozen(kw_only=True)
class BucketStatistics:
    """A limit of requests or tokens, just now."""

    kind: str
    """`requests`, `tokens`, or what the provider calls it."""
    capacity: float
    """What can be spent at once."""
    level: float
    """What is there; below zero where a call took more than was thought."""
    rate: float
    """What comes back a second."""


@attrs.frozen(kw_only=True)
class LaneStatistics:
    """The calls to one model, just now."""

    model: str
    window: float
    """How many may run at once."""
    running: int
    waiting: Mapping[str, int]
    """By priority."""
    admitted: int
    paused: float
    """Seconds for which the provider has asked to wait; 0: it has not."""
    buckets: tuple[BucketStatistics, ...]
    """What its headers tell of."""


@attrs.frozen(kw_only=True)
class DoorStatistics:
    """A governor by its name, with all models whose calls pass it."""

    door: str
    """The provider's host and four characters that stand for the key, or the name of a model."""
    total: GovernorStatistics
    buckets: tuple[BucketStatistics, ...]
    """The limits that the program set."""
    models: tuple[LaneStatistics, ...]


class Lender(Protocol):
    """Lends out of what several processes may ask of a provider together; see `actgent.llm.governor.shares`."""

    def add(self, share: Any, door: str) -> None:
        """Lend to a `Share`, under the name that its limit has in all processes, whenever calls want it."""

    def remove(self, share: Any) -> None:
        """Lend to it no more."""


class Door(Protocol):
    """What calls of a model pass before they go to the provider: a governor."""

    def describe(self, door: str) -> DoorStatistics:
        """All of it, model by model, under a name for people."""

    def share(self, lender: Lender, door: str) -> None:
        """Share with other processes what the user granted, under a name that they have for it, too."""
