"""What the sessions of one owner may take together in a day or a month."""

from datetime import UTC, datetime, timedelta
from typing import Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.support.leads import for_quotas

from .cron import zone_of
from .limits import Limits

Unit = Literal["day", "month"]


@attrs.frozen
class Period:
    """One day or month."""

    unit: Unit
    """Of what it is one."""
    name: str
    """E.g. `2026-11-22` or `2026-11`; periods of a unit sort by it."""
    ends_at: float
    """Unix time in seconds."""


@for_quotas
@attrs.frozen(kw_only=True)
class Quotas:
    """The bounds of each owner over all sessions of a runtime; of them the calls, tokens and cost count.

    They are paid like the limits of a session: reserved before a model call, settled after it, with all that the owner's
    sessions have other agents do. A turn belongs to the day and the month in which it began.

    Raises:
        ConfigurationError: no bound is set, one of another kind is, or there is no such time zone.
    """

    day: Limits | None = None
    """What an owner may take from midnight to midnight; None: no bound."""
    month: Limits | None = None
    """What an owner may take from the first to the last day of a month; None: no bound."""
    zone: str = "UTC"
    """The time zone in which a day begins."""

    def __attrs_post_init__(self) -> None:
        zone_of(self.zone)
        if self.day is None and self.month is None:
            raise ConfigurationError("Quotas() bounds nothing: write Quotas(day=Limits(cost=1)) or month=")
        for unit, limits in self.limits.items():
            if not isinstance(limits, Limits):
                raise ConfigurationError(f"Quotas({unit}=...) is a Limits, not {limits!r:.100}")
            if not limits.shared or "seconds" in limits.shared:
                raise ConfigurationError(
                    f"Quotas({unit}=...) takes Limits of model_calls, tool_calls, tokens or cost, and no seconds"
                )
            if limits.bounds_of_turns:
                raise ConfigurationError(
                    f"Quotas({unit}=...) takes Limits of model_calls, tool_calls, tokens or cost, "
                    f"and not {next(iter(limits.bounds_of_turns))}, which bounds turns: set it with Agent(limits=...)"
                )

    @property
    def limits(self) -> dict[Unit, Limits]:
        """Those that are set."""
        given: dict[Unit, Limits | None] = {"day": self.day, "month": self.month}
        return {unit: limits for unit, limits in given.items() if limits is not None}

    def period(self, unit: Unit, now: float) -> Period:
        """The day or month of a Unix time in seconds."""
        zone = zone_of(self.zone)
        moment = datetime.fromtimestamp(now, UTC).astimezone(zone)
        begins = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        if unit == "day":
            ends = begins + timedelta(days=1)
            return Period(unit, f"{begins:%Y-%m-%d}", ends.timestamp())
        ends = (begins.replace(day=1) + timedelta(days=32)).replace(day=1)
        return Period(unit, f"{begins:%Y-%m}", ends.timestamp())
