"""The timers and schedules of a session, as data."""

import attrs
import trio

from actgent.control.durable_timer import DurableTimer
from actgent.control.schedule import Schedule


@attrs.define(eq=False)
class SessionTimers:
    """Timers that are set, and the schedules behind some of them; only a session that ever had one has this."""

    due: dict[str, DurableTimer] = attrs.field(factory=dict)
    """By their ids."""
    scheduled: dict[str, Schedule] = attrs.field(factory=dict)
    """Schedules that were set, by their ids, also those that have fired."""
    writing: dict[str, trio.Event] = attrs.field(factory=dict)
    """Schedules that are just being written, by their ids."""
