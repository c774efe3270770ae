"""Supervision policy: restart a failed actor after a pause, alone or with its siblings; then stop it, or fail its parent."""

import math
import typing
from collections import deque

import attrs

from actgent.errors import ConfigurationError, nearest

Strategy = typing.Literal["one_for_one", "one_for_all"]

_MOST_DOUBLINGS = 64  # beyond, every back-off is longer than anyone waits, and soon no float


@attrs.frozen(kw_only=True)
class Supervision:
    """How a parent keeps the actors running that it started.

    Raises:
        ConfigurationError: there is no such strategy, or a number is out of its range.
    """

    strategy: Strategy = "one_for_one"
    """`one_for_one`: an actor that fails restarts alone. `one_for_all`: its siblings restart with it, for actors
    that are of no use without each other."""
    max_restarts: int = 5
    """Restarts within `within` seconds; one more failure stops the actor, or escalates. Each actor has its own count,
    siblings that restart together have one together."""
    within: float = 60.0
    """Seconds in which restarts are counted."""
    backoff: float = 0.1
    """Seconds of pause before the first restart; each further one within `within` doubles it."""
    max_backoff: float = 30.0
    """The longest pause."""
    deliveries: int = 3
    """A message that failed so often is a dead letter."""
    escalate: bool = False
    """False: an actor that fails too often stops (with `one_for_all` its siblings, too), and its queued messages become dead
    letters; all other actors keep running. True: its parent fails, and at the top the system or runtime with all actors."""

    def __attrs_post_init__(self) -> None:
        if self.strategy not in typing.get_args(Strategy):
            hint = nearest(str(self.strategy), typing.get_args(Strategy))
            raise ConfigurationError(f"strategy={self.strategy!r} is not a supervision strategy: {hint}")
        if not isinstance(self.escalate, bool):
            raise ConfigurationError(f"escalate= is True or False, not {self.escalate!r:.200}")
        for name, least in (
            ("max_restarts", 0),
            ("within", 0),
            ("backoff", 0),
            ("max_backoff", 0),
            ("deliveries", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or math.isnan(value) or value < least:
                raise ConfigurationError(f"{name}= must be at least {least}, got {value!r}")


@attrs.define
class Restarts:
    """The restarts of one actor that still count."""

    policy: Supervision
    """How many are too many."""
    _times: deque[float] = attrs.field(factory=deque)

    @property
    def count(self) -> int:
        """How many there were, of late."""
        return len(self._times)

    def next_delay(self, now: float) -> float | None:
        """Seconds to wait before the restart that is due at `now`; None when there were too many."""
        while self._times and self._times[0] <= now - self.policy.within:
            self._times.popleft()
        if len(self._times) >= self.policy.max_restarts:
            return None
        delay = self.policy.backoff * 2.0 ** min(len(self._times), _MOST_DOUBLINGS)
        self._times.append(now)
        return min(delay, self.policy.max_backoff)


def root_cause(error: Exception) -> Exception:
    """Unwrap a nursery's exception group that holds a single exception."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
