"""`Quotas`: limits of each owner per day or month, over all sessions of the owner."""

from datetime import UTC, datetime, timedelta
from typing import Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_quotas

from .cron_expressions import zone_of
from .limits import Limits

Unit = Literal["day", "month"]


@attrs.frozen(repr=False)
class Period(FieldRepr):
    """One day or one month of a quota."""

    unit: Unit
    """Kind of the period: `day` or `month`."""
    name: str
    """Date of the period, such as `2026-11-22` or `2026-11`. The dates of one unit sort by time."""
    ends_at: float
    """End of the period as Unix time in seconds."""


@hints_for_quotas
@attrs.frozen(kw_only=True, repr=False)
class Quotas(FieldRepr):
    """Limits of each owner over all sessions of a runtime, for calls, tokens and cost.

    Quotas work like session limits: an amount is reserved before a model call, and the real usage replaces it after the call. Work that other agents do
    for the owner's sessions counts as well. A turn belongs to the day and month in which it began.

    Raises:
        ConfigurationError: No limit is set, a limit of another kind is set, or the time zone is unknown.
    """

    day: Limits | None = None
    """Limits of each owner from midnight to midnight; None disables them."""
    month: Limits | None = None
    """Limits of each owner in a calendar month; None disables them."""
    zone: str = "UTC"
    """IANA time zone in which days and months begin."""

    def __attrs_post_init__(self) -> None:
        zone_of(self.zone)
        if self.day is None and self.month is None:
            raise ConfigurationError(
                "Quotas() has no limits: pass day= or month=, such as Quotas(day=Limits(cost=1))"
            )
        for unit, limits in self.limits.items():
            if not isinstance(limits, Limits):
                raise ConfigurationError(f"Quotas({unit}=...) must be Limits(...), not {limits!r:.100}")
            if not limits.shared or "seconds" in limits.shared:
                raise ConfigurationError(
                    f"Quotas({unit}=...) takes Limits of model_calls, tool_calls, tokens or cost, and no seconds"
                )
            if limits.changed_turn_limits:
                raise ConfigurationError(
                    f"Quotas({unit}=...) takes Limits of model_calls, tool_calls, tokens or cost, "
                    f"and not {next(iter(limits.changed_turn_limits))}, which bounds turns: set it with Agent(limits=...)"
                )

    @property
    def limits(self) -> dict[Unit, Limits]:
        """The limits that are set, by unit."""
        given: dict[Unit, Limits | None] = {"day": self.day, "month": self.month}
        return {unit: limits for unit, limits in given.items() if limits is not None}

    def period(self, unit: Unit, now: float) -> Period:
        """Return the day or month that contains a Unix time in seconds, in the time zone of the quotas."""
        zone = zone_of(self.zone)
        moment = datetime.fromtimestamp(now, UTC).astimezone(zone)
        begins = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        if unit == "day":
            ends = begins + timedelta(days=1)
            return Period(unit, f"{begins:%Y-%m-%d}", ends.timestamp())
        ends = (begins.replace(day=1) + timedelta(days=32)).replace(day=1)
        return Period(unit, f"{begins:%Y-%m}", ends.timestamp())
