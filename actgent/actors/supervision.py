"""Supervision policy: restart a failed actor after a pause, alone or with its siblings; then stop it, or fail its parent."""

import math
import typing
from collections.abc import Sequence

import attrs

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.support.attrs_class_repr import FieldRepr

Strategy = typing.Literal["one_for_one", "one_for_all"]

_MAX_DOUBLINGS = 64  # a larger exponent exceeds every max_backoff and overflows a float soon


@attrs.frozen(kw_only=True, repr=False)
class Supervision(FieldRepr):
    """Restart policy of a parent for its child actors.

    Raises:
        ConfigurationError: The strategy is unknown, or a number is out of range.
    """

    strategy: Strategy = "one_for_one"
    """`one_for_one` restarts only the failed actor. `one_for_all` also restarts its siblings, for actors that depend on each
    other."""
    max_restarts: int = 5
    """Maximum number of restarts within `within` seconds. One more failure stops the actor, or escalates. With `one_for_all`
    the siblings share one count; otherwise each actor has a separate count."""
    within: float = 60.0
    """Length in seconds of the time window in which restarts are counted for `max_restarts`."""
    backoff: float = 0.1
    """Pause before the first restart, in seconds. Each further restart within the window doubles the pause."""
    max_backoff: float = 30.0
    """Maximum pause before a restart, in seconds."""
    deliveries: int = 3
    """Number of failed attempts to process a message after which it becomes a dead letter."""
    escalate: bool = False
    """False: an actor that fails too often stops, with `one_for_all` also its siblings.
    Its queued messages become dead letters. All other actors keep running. True: the failure is passed to the parent of
    the actor. An actor without a parent passes it to the whole system or runtime.
    """

    def __attrs_post_init__(self) -> None:
        if self.strategy not in typing.get_args(Strategy):
            hint = did_you_mean_or_list(str(self.strategy), typing.get_args(Strategy))
            raise ConfigurationError(f"strategy={self.strategy!r} is not a supervision strategy: {hint}")
        if not isinstance(self.escalate, bool):
            raise ConfigurationError(f"escalate= must be True or False, not {self.escalate!r:.200}")
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


@attrs.define(repr=False)
class Restarts(FieldRepr):
    """The recent restarts of one actor, or of one group of siblings."""

    policy: Supervision
    """Policy with the maximum number of restarts and the time window."""
    _times: Sequence[float] = ()

    @property
    def count(self) -> int:
        """Number of recent restarts, within the time window of the policy."""
        return len(self._times)

    def next_delay(self, now: float) -> float | None:
        """Count a restart at `now`, and return the pause in seconds before it; None if there were too many restarts."""
        self._times = recent = [each for each in self._times if each > now - self.policy.within]
        if len(recent) >= self.policy.max_restarts:
            return None
        delay = self.policy.backoff * 2.0 ** min(len(recent), _MAX_DOUBLINGS)
        recent.append(now)
        return min(delay, self.policy.max_backoff)


def root_cause(error: Exception) -> Exception:
    """Return the only exception inside nested exception groups, or the error itself."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
