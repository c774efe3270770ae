"""Cron lines: when the next time is, in a time zone.

Five fields: minute, hour, day of the month, month, day of the week, as Debian's cron reads them, names and `L`
(last), `LW` (last weekday), `MON#2` (second Monday) included. A minute is the least interval.

Where clocks go forward, a line for a time that is left out fires right after the gap. Where they go back, a line
for fixed times fires once, at the first of both; one whose minute or hour begins with `*` goes on through both hours.
"""

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from actgent.errors import ConfigurationError
from actgent.errors.printable import quoted

FIELDS = 5


def zone_of(name: str) -> tzinfo:
    """The time zone of an IANA name.

    Raises:
        ConfigurationError: this system knows none of that name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # a folder, a path outwards, no text
        raise ConfigurationError(
            f"{quoted(name)} is an unknown time zone: name one as 'Europe/Berlin' or 'UTC' (the package tzdata has them all)"
        ) from None


def next_time(line: str, zone: str, *, after: float) -> float:
    """The first time of a cron line after a Unix time, as Unix time.

    Raises:
        ConfigurationError: it is no cron line, or never comes, or there is no such zone.
    """
    if not isinstance(line, str) or len(line.split()) != FIELDS:  # type: ignore[redundant-expr]
        raise ConfigurationError(
            f"{quoted(line)} is an invalid cron expression: it needs five fields: minute, hour, day of the month, month, day of the week"
        )
    try:
        for found in CronSim(line, datetime.fromtimestamp(after, zone_of(zone))):
            if found.timestamp() > after:  # in the second of two equal hours it begins with the first
                return found.timestamp()
    except CronSimError as error:
        raise ConfigurationError(f"{quoted(line)} is an invalid cron expression: {error}") from None
    except OverflowError:
        pass
    raise ConfigurationError(f"the cron expression {quoted(line)} never comes")
