"""`Schedule`: a message to a session at a later time, once or repeatedly."""

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import NO_METADATA, Priority, checked_metadata
from actgent.support.attrs_class_repr import FieldRepr

from .cron_expressions import next_time, zone_of

PAST_TOLERANCE_SECONDS = 60.0
"""Maximum age in seconds of a date when it is set. A date within this tolerance fires at once; an older date is an
error.
"""
LAST_DATE = 253_402_214_400.0
"""Unix time of 9999-12-31, the last date that `datetime` supports."""


@attrs.frozen(kw_only=True, repr=False)
class Schedule(FieldRepr):
    """A message that is sent to a session at a later time, once or repeatedly."""

    id: str
    """Id of the schedule, unique in the session; `unschedule` removes the schedule by its id."""
    description: str
    """Text of the message that is sent."""
    at: float
    """Unix time in seconds at which the message is sent next."""
    cron: str = ""
    """Cron expression; empty for a schedule that fires once."""
    zone: str = "UTC"
    """IANA time zone of the cron expression."""
    priority: Priority = Priority.NORMAL
    """Priority of the message that is sent."""
    metadata: Mapping[str, Any] = attrs.field(default=NO_METADATA, hash=False)
    """Metadata of the message that is sent, for programs. Models never see it."""
    is_delay: bool = False
    """True for a delay (`after=`), which ignores adjustments of the wall clock."""
    request: str = attrs.field(default="", repr=False)
    """Digest of the client request that set the schedule under an idempotency key; empty otherwise."""

    @property
    def due(self) -> datetime:
        """Time at which the message is sent next, in the time zone of the schedule."""
        return datetime.fromtimestamp(self.at, zone_of(self.zone))


def parse_schedule(
    description: str,
    *,
    now: float,
    steady: float,
    after: float | None = None,
    at: datetime | None = None,
    cron: str | None = None,
    zone: str | None = None,
    key: str | None = None,
    priority: Priority | str = Priority.NORMAL,
    metadata: Mapping[str, Any] | None = None,
    request: str = "",
) -> Schedule:
    """Return a schedule from exactly one of `after` (seconds), `at` (date) and `cron` (expression).

    `now` is the wall-clock time and `steady` the time of `Clock.steady`, both in Unix seconds. `zone` is the
    time zone of `cron` or of a date without one. The same `key` gives the same id.

    Raises:
        ConfigurationError: An argument is invalid, or not exactly one of the three is given.
    """
    if not isinstance(description, str) or not description.strip():  # type: ignore[redundant-expr]
        raise ConfigurationError(
            "the description of a schedule is empty: describe the task that runs at its time"
        )
    if [after, at, cron].count(None) != 2:  # noqa: PLR2004 - of three
        raise ConfigurationError(
            "a schedule needs exactly one of after= (seconds), at= (a datetime) and cron= (a cron expression)"
        )
    name = "UTC" if zone is None else zone
    zone_of(name)
    if cron is not None:
        first = next_time(cron, name, after=now)
    else:
        first = steady + _seconds(after) if at is None else _moment(at, zone, now)
    if not first < LAST_DATE:
        raise ConfigurationError("the time of a schedule must be before the year 10000")
    return Schedule(
        id=_id_of(key) if key else token_hex(6),
        description=description,
        at=first,
        cron=cron or "",
        zone=name,
        priority=Priority.named(priority),
        metadata=NO_METADATA if metadata is None else checked_metadata(metadata),
        is_delay=after is not None,
        request=request,
    )


def _id_of(key: str) -> str:
    """Return an id that is derived from `key`. The id is short, because models must copy it."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _seconds(after: object) -> float:
    if isinstance(after, bool) or not isinstance(after, int | float) or not 0 <= after < math.inf:
        raise ConfigurationError(f"after= must be a number of seconds, not {after!r}")
    return float(after)


def _moment(at: datetime, zone: str | None, now: float) -> float:
    """Convert a date to Unix time in seconds. `zone` is the time zone of a date without one.

    If a daylight saving change skips the time, return the end of the gap. If the change repeats the time, return its first
    occurrence.
    """
    if not isinstance(at, datetime):
        raise ConfigurationError(f"at= must be a datetime, not {at!r}")
    if at.tzinfo is None:
        if zone is None:
            raise ConfigurationError(
                f"{at.isoformat()} has no time zone: use an aware datetime, or pass zone="
            )
        at = at.replace(tzinfo=zone_of(zone))
    if at.timestamp() < now - PAST_TOLERANCE_SECONDS:
        raise ConfigurationError(f"{at.isoformat()} is in the past: pass a time after {_utc(now)}")
    return at.timestamp()


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
