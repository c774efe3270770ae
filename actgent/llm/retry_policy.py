"""`Retry`: attempts and pauses of a model call, bounded by the caller's deadline."""

import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from actgent.errors import ModelError
from actgent.support.number_field_validators import bounded_number, whole_number

T = TypeVar("T")
OnFailure = Callable[[int, ModelError, float | None], None]
"""Callback after a failed attempt: number of the attempt from 0, its error, and seconds until the next one or None."""


@attrs.frozen(kw_only=True)
class Retry:
    """Retry policy of model calls. Only errors with `retryable` True are retried."""

    attempts: int = attrs.field(default=3, validator=whole_number(1))
    """Maximum number of attempts, the first included; 1 never retries."""
    first_delay: float = attrs.field(default=0.5, validator=bounded_number(least=0))
    """Pause before the first retry in seconds. It doubles with each retry."""
    max_delay: float = 20.0
    """Maximum pause in seconds, unless the provider's Retry-After is longer."""
    min_delay: float = attrs.field(default=0.0, validator=bounded_number(least=0))
    """Minimum pause in seconds, applied after the random spread."""
    max_retry_after: float = 120.0
    """Maximum Retry-After of a provider in seconds. A longer one fails the call, because providers have sent 49 days."""
    random: Callable[[], float] = random.random
    """Function that returns a random number from 0 to 1. It spreads the pauses of calls that failed at the same time."""

    @classmethod
    def exponential(
        cls, attempts: int = 3, *, multiplier: float = 2.0, least: float = 1.0, most: float = 60.0
    ) -> "Retry":
        """Create a policy with pauses of `multiplier * 2**n` seconds without random spread, like `wait_exponential` of tenacity.

        Args:
            attempts: Maximum number of attempts, the first included.
            multiplier: First pause in seconds.
            least: Minimum pause in seconds.
            most: Maximum pause in seconds.
        """
        return cls(
            attempts=attempts, first_delay=multiplier, max_delay=most, min_delay=least, random=lambda: 1.0
        )

    def delay(self, attempt: int, error: ModelError) -> float | None:
        """Return the pause in seconds after the failed attempt number `attempt` (0, 1, ...); None if the call must not be retried."""
        if attempt + 1 >= self.attempts or not error.retryable:
            return None
        # "Equal jitter": half the pause is certain, half is spread.
        pause = min(self.max_delay, self.first_delay * 2.0**attempt) * (0.5 + self.random() / 2)
        pause = max(self.min_delay, pause)
        wish: float | None = getattr(error, "retry_after", None)
        if wish is None:
            return pause
        return max(pause, wish) if wish <= self.max_retry_after else None

    async def run(
        self,
        call: Callable[[int], Awaitable[T]],
        *,
        deadline: float = math.inf,
        on_failure: OnFailure | None = None,
    ) -> T:
        """Await `call(attempt)` until it succeeds, and return its result.

        Args:
            call: Function that runs one attempt; its argument is the number of the attempt (0, 1, ...).
            deadline: Time by trio's clock after which no attempt starts.
            on_failure: Called after each failed attempt with its number, its error, and the seconds until the next attempt (None
                if there is none).

        Raises:
            ModelError: Error of the last attempt. It is raised at once if the pause would exceed the deadline or that of the
                surrounding cancel scope.
        """
        attempt = 0
        while True:
            try:
                return await call(attempt)
            except ModelError as error:
                pause = self._pause(attempt, error, deadline)
                if on_failure is not None:
                    on_failure(attempt, error, pause)
                if pause is None:
                    raise
            await trio.sleep(pause)
            attempt += 1

    def _pause(self, attempt: int, error: ModelError, deadline: float) -> float | None:
        """Return the seconds until the next attempt; None if no attempt is left or the next attempt would miss the deadline."""
        pause = self.delay(attempt, error)
        until = min(deadline, trio.current_effective_deadline())
        return None if pause is None or trio.current_time() + pause >= until else pause
