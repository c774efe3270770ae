"""Seeded random choices: each has a name and a number, and its value depends only on these and the seed.

Leaving out one choice therefore does not change any other. The shrinker uses this: it repeats a failing seed with some of its
optional events left out.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import attrs

T = TypeVar("T")
EventKey = tuple[str, int]
"""Name and number of an optional event, for example `("kill life 1", 0)`."""


@attrs.define(eq=False)
class Choices:
    """Source of all random choices of one run of a seed."""

    seed: int
    """Seed of the run."""
    left_out: frozenset[EventKey] = frozenset()
    """Optional events that do not happen in this run although the seed has drawn them."""
    happened: list[EventKey] = attrs.field(factory=list, init=False)
    """Optional events that happened in this run, in order."""
    _counts: Counter[str] = attrs.field(factory=Counter, init=False)
    """Number of choices made so far, by name."""

    def fraction(self, name: str) -> float:
        """Draw a number from 0 up to, but not including, 1.

        `name` identifies the decision: the same seed and name give the same sequence.
        """
        return self._draw(name, self._next_number(name))

    def number(self, name: str, low: int, high: int) -> int:
        """Draw a whole number from `low` to `high`, both included. `name` identifies the decision."""
        return low + int(self.fraction(name) * (high - low + 1))

    def pick(self, name: str, options: Sequence[T]) -> T:
        """Draw one of the options for the decision `name`.

        An option that is listed twice is twice as likely.
        """
        return options[int(self.fraction(name) * len(options))]

    def happens(self, name: str, chance: float) -> bool:
        """Draw if the optional event `name` happens, with a probability of `chance`.

        Always False if this run leaves the event out.
        """
        key = (name, self._next_number(name))
        if self._draw(*key) >= chance or key in self.left_out:
            return False
        self.happened.append(key)
        return True

    def generator(self, name: str) -> random.Random:
        """Return a random number generator that depends only on the seed and `name`."""
        return random.Random(f"{self.seed}/{name}")  # noqa: S311 - not for cryptography

    def _next_number(self, name: str) -> int:
        number = self._counts[name]
        self._counts[name] = number + 1
        return number

    def _draw(self, name: str, number: int) -> float:
        digest = hashlib.blake2b(f"{self.seed}/{name}/{number}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest) >> 11) / 2**53
