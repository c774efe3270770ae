"""When a failed model call is tried again: one policy, under the deadline of whoever waits."""

import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from actgent.errors import ModelError

T = TypeVar("T")
OnFailure = Callable[[int, ModelError, float | None], None]


@attrs.frozen(kw_only=True)
class Retry:
    """How often and after which pause a model call is repeated. Only errors that say `retryable` are."""

    attempts: int = attrs.field(default=3, validator=attrs.validators.ge(1))
    """Calls in all; 1 never repeats."""
    first_delay: float = attrs.field(default=0.5, validator=attrs.validators.ge(0))
    """Seconds before the first repetition; doubles each time."""
    max_delay: float = 20.0
    """The longest pause of our own, in seconds."""
    min_delay: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))
    """The shortest one, in seconds, whatever chance says."""
    max_retry_after: float = 120.0
    """The longest wish of a provider (Retry-After) that is granted, in seconds; providers have asked for 49 days."""
    random: Callable[[], float] = random.random
    """From 0 to 1: spreads callers that failed together."""

    @classmethod
    def exponential(
        cls, attempts: int = 3, *, multiplier: float = 2.0, least: float = 1.0, most: float = 60.0
    ) -> "Retry":
        """Make the policy of tenacity's `wait_exponential` with these numbers: `multiplier`, doubled each time, without chance.

        Args:
            attempts: Calls in all.
            multiplier: Seconds of the first pause.
            least: The shortest pause, in seconds.
            most: The longest one, in seconds.
        """
        return cls(
            attempts=attempts, first_delay=multiplier, max_delay=most, min_delay=least, random=lambda: 1.0
        )

    def delay(self, attempt: int, error: ModelError) -> float | None:
        """Seconds to wait after `attempt` (0, 1, ...) failed with `error`; None gives up."""
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

        `on_failure(attempt, error, pause)` hears of each attempt that failed, and of the seconds to the next; None: none follows.

        Raises:
            ModelError: of the last attempt; at once if the pause would outlast the deadline, or the surrounding one.
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
        """Seconds to the next attempt; None where there is none, or it would be too late."""
        pause = self.delay(attempt, error)
        until = min(deadline, trio.current_effective_deadline())
        return None if pause is None or trio.current_time() + pause >= until else pause
