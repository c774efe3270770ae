"""`Schedule`, what a session is to be told and when, and its parsing."""

import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import NO_METADATA, Priority, checked_metadata

from .cron import next_time, zone_of

PAST_TOLERANCE = 60.0
"""Seconds by which a date may be over when it is set: it fires at once then. An older one is a mistake."""
LAST_DATE = 253_402_214_400.0
"""Unix time of 9999-12-31: later dates have no name."""


@attrs.frozen(kw_only=True)
class Schedule:
    """Something that a session is to be told at a time."""

    id: str
    """Unique in its session; it is removed by it."""
    description: str
    """What the session is told then."""
    at: float
    """Unix time in seconds of the next time."""
    cron: str = ""
    """The cron line; empty where it fires once."""
    zone: str = "UTC"
    """The IANA time zone that the cron line is read in."""
    priority: Priority = Priority.NORMAL
    """Of the message that it sends."""
    metadata: Mapping[str, Any] = attrs.field(default=NO_METADATA, hash=False)
    """Of the message that it sends: kept for programs, and never shown to a model."""
    is_delay: bool = False
    """True: it was set with `after=`, and takes as long, whoever sets the clock meanwhile."""
    request: str = attrs.field(default="", repr=False)
    """Digest of the client's request that set it under a key; empty: a program set it."""

    @property
    def due(self) -> datetime:
        """The next time, in the schedule's time zone."""
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
    """Make a schedule from one of `after`, `at` and `cron`.

    Raises:
        ConfigurationError: one of them is wrong, or not exactly one is given.
    """
    if not isinstance(description, str) or not description.strip():  # type: ignore[redundant-expr]
        raise ConfigurationError("a schedule needs a description that is not empty: what is to be done then?")
    if [after, at, cron].count(None) != 2:  # noqa: PLR2004 - of three
        raise ConfigurationError(
            "a schedule takes exactly one of after= (seconds), at= (a date) and cron= (a line)"
        )
    name = "UTC" if zone is None else zone
    zone_of(name)
    if cron is not None:
        first = next_time(cron, name, after=now)
    else:
        first = steady + _seconds(after) if at is None else _moment(at, zone, now)
    if not first < LAST_DATE:
        raise ConfigurationError("a schedule's time is before the year 9999 is over")
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
    """Make an id that is short, because models copy it."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _seconds(after: object) -> float:
    if isinstance(after, bool) or not isinstance(after, int | float) or not 0 <= after < math.inf:
        raise ConfigurationError(f"after= takes seconds, not {after!r}")
    return float(after)


def _moment(at: datetime, zone: str | None, now: float) -> float:
    """Return the Unix time of a date. If clocks skip it, it is as much later; if it comes twice, the first counts."""
    if not isinstance(at, datetime):
        raise ConfigurationError(f"at= takes a datetime, not {at!r}")
    if at.tzinfo is None:
        if zone is None:
            raise ConfigurationError(f"{at.isoformat()} has no time zone: give it one, or say zone=")
        at = at.replace(tzinfo=zone_of(zone))
    if at.timestamp() < now - PAST_TOLERANCE:
        raise ConfigurationError(f"{at.isoformat()} is in the past (now: {_utc(now)})")
    return at.timestamp()


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
