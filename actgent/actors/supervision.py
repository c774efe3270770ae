"""What happens when an actor raises: again after a pause, or up to its parent."""

from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import trio

from actgent.errors import ActorFailed
from actgent.events import ActorRestarted, EventStream
from actgent.logs import logger_of

_log = logger_of(__name__)

_MOST_DOUBLINGS = 64  # beyond, every back-off is longer than anyone waits, and soon no float


@attrs.frozen(kw_only=True)
class Supervision:
    """How an actor is kept running.

    The pause before a restart doubles from `backoff` to `max_backoff` seconds. More than
    `max_restarts` within `within` seconds escalate to the parent. A message that failed
    `deliveries` times is a dead letter.
    """

    max_restarts: int = 5
    within: float = 60.0
    backoff: float = 0.1
    max_backoff: float = 30.0
    deliveries: int = 3


@attrs.define
class Restarts:
    """The restarts of one actor that still count."""

    policy: Supervision
    _times: deque[float] = attrs.field(factory=deque)

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


async def supervise(
    body: Callable[[], Awaitable[None]], *, name: str, policy: Supervision, events: EventStream
) -> None:
    """Run `body` until it returns, again after each exception, as the policy says.

    Raises:
        ActorFailed: it failed too often; out of a nursery, this is the parent's failure.
    """
    restarts = Restarts(policy)
    while True:
        try:
            await body()
        except Exception as wrapped:  # noqa: BLE001 - the supervisor's edge: this is what it is for
            error = root_cause(wrapped)
            delay = restarts.next_delay(trio.current_time())
            if delay is None:
                raise ActorFailed(
                    name, f"it failed {policy.max_restarts + 1} times in {policy.within:g} s"
                ) from error
            _log.warning("actor %s failed and restarts in %.3g s", name, delay, exc_info=error)
            if events.watched:
                events.publish(ActorRestarted(actor=name, error=type(error).__name__, delay=delay))
            await trio.sleep(delay)
        else:
            return
