"""What has a date in a session: schedules, and the deadlines of what waits for a person."""

import abc
from typing import Any

from .clock import Clock


class Dated(abc.ABC):
    """Something in a session that has to happen at a time, also where the session sleeps or the process ended meanwhile.

    `SessionContext.set_due` enters it and `drop_due` takes it out. Where there is a journal, records of its own have to
    bring it back when the session is restored: the journal itself keeps only the earliest time of a session.
    """

    id: str
    """Unique in the session."""
    at: float
    """Unix time in seconds."""
    is_delay: bool = False
    """True: it was said as seconds from then on, so it goes by `Clock.steady`, whoever sets the clock."""

    @abc.abstractmethod
    async def ring(self, agent: Any, context: Any) -> None:
        """It is due: do it, and take it out or set its next time, in one step of the journal.

        `agent` is the `RunningAgent`, `context` the `SessionContext`, which is awake. Where it stays due it is rung
        again, a second later after `InboxFull`, half a minute later after another exception.
        """


def earliest(dues: "dict[str, Dated] | None") -> float:
    """The Unix time at which the first of them is due; 0 where there is none."""
    return min((dated.at for dated in dues.values()), default=0.0) if dues else 0.0


def earliest_ring(dues: "dict[str, Dated] | None", clock: Clock) -> float:
    """When the first of them is due by `clock.steady`; 0 where there is none."""
    return min((_ring_of(dated, clock) for dated in dues.values()), default=0.0) if dues else 0.0


def is_due(dated: Dated, clock: Clock, *, early: float) -> bool:
    """Return True if it is time, give or take `early` seconds."""
    return dated.at <= (clock.steady() if dated.is_delay else clock.now()) + early


def _ring_of(dated: Dated, clock: Clock) -> float:
    return dated.at if dated.is_delay else clock.steady_of(dated.at)
