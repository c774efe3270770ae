"""Next time of a cron expression in a time zone.

An expression has five fields: minute, hour, day of the month, month, day of the week, with the syntax of Debian's cron. Names,
`L` (last), `LW` (last weekday) and `MON#2` (second Monday) are supported. The smallest interval is one minute.

If a daylight saving change skips the time of a schedule, the schedule fires directly after the gap. If the change repeats an hour,
an expression with a fixed time fires once, in the first of the two hours. An expression whose minute or hour begins with `*` fires
in both hours.
"""

from datetime import UTC, datetime, tzinfo

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted

FIELDS = 5


def zone_of(name: str) -> tzinfo:
    """Return the time zone of an IANA name.

    Raises:
        ConfigurationError: The system has no time zone with this name.
    """
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - loads 6 modules, which few agents need

    try:
        return ZoneInfo(name)
    except (
        KeyError,
        ValueError,
        OSError,
        TypeError,
    ):  # the name is a folder, a path outside the database, or not a text
        raise ConfigurationError(
            f"{quoted(name)} is an unknown time zone: pass an IANA name such as 'Europe/Berlin' or 'UTC'; the package tzdata has all "
            "zones"
        ) from None


def next_time(line: str, zone: str, *, after: float) -> float:
    """Return the first time of a cron expression after the Unix time `after`, as Unix time in seconds.

    Raises:
        ConfigurationError: The expression or the time zone is invalid, or the expression has no future time.
    """
    if not isinstance(line, str) or len(line.split()) != FIELDS:  # type: ignore[redundant-expr]
        raise ConfigurationError(
            f"{quoted(line)} is an invalid cron expression: it needs five fields: minute, hour, day of the month, month, day of the week"
        )
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - few agents have cron schedules

    try:
        for found in CronSim(line, datetime.fromtimestamp(after, zone_of(zone))):
            if (
                found.timestamp() > after
            ):  # at the end of daylight saving time the iterator starts with the first of the two equal hours
                return found.timestamp()
    except CronSimError as error:
        raise ConfigurationError(f"{quoted(line)} is an invalid cron expression: {error}") from None
    except OverflowError:
        pass
    raise ConfigurationError(
        f"the cron expression {quoted(line)} has no future time, so it would never fire: correct its date"
    )
