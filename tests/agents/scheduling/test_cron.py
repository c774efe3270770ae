"""Cron expressions in time zones: daylight-saving changes and invalid expressions."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from actgent import ConfigurationError
from actgent.limits_and_schedules.cron_expressions import next_time, zone_of

BERLIN = "Europe/Berlin"


def times(line, start, count, zone=BERLIN):
    """Return the next times of a cron expression, formatted in its zone."""
    at = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).timestamp()
    found = []
    for _ in range(count):
        at = next_time(line, zone, after=at)
        found.append(datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%d %H:%M%z"))
    return found


@pytest.mark.parametrize(
    ("line", "start", "expected"),
    [
        ("0 9 * * mon-fri", "2026-11-20T09:00", ["23 09:00+0100", "24 09:00+0100"]),
        ("*/20 8-9 * * *", "2026-11-20T09:30", ["20 09:40+0100", "21 08:00+0100"]),
        ("0 0 L * *", "2026-02-01T00:00", ["28 00:00+0100", "31 00:00+0200"]),
        ("0 12 * * MON#2", "2026-11-20T00:00", ["14 12:00+0100"]),
        ("0 0 29 2 *", "2026-11-20T00:00", ["29 00:00+0100"]),
        # On 29 March the clocks change from 2:00 to 3:00.
        ("30 2 * * *", "2026-03-28T03:00", ["29 03:00+0200", "30 02:30+0200"]),
        ("*/30 * * * *", "2026-03-29T01:00", ["29 01:30+0100", "29 03:00+0200"]),
        # On 25 October the clocks change from 3:00 to 2:00.
        ("30 2 * * *", "2026-10-24T03:00", ["25 02:30+0200", "26 02:30+0100"]),
        (
            "0,30 * * * *",
            "2026-10-25T01:30",
            ["25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100"],
        ),
        ("0 9 * * *", "2026-10-24T10:00", ["25 09:00+0100", "26 09:00+0100"]),
    ],
)
def test_next_times_of_a_cron_expression(line, start, expected):
    """Successive times are in order, without omissions or repetitions."""
    assert times(line, start, len(expected)) == expected


def test_inside_the_doubled_hour_time_does_not_go_back():
    """An expression for a fixed time fires once in the night with a repeated hour."""
    inside = datetime(2026, 10, 25, 2, 15, tzinfo=ZoneInfo(BERLIN), fold=1).timestamp()
    found = next_time("30 2 * * *", BERLIN, after=inside)
    assert datetime.fromtimestamp(found, UTC) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "line",
    ["", "* * * *", "* * * * * *", "60 * * * *", "x * * * *", "0 0 31 2 *", "0 0 30 2 *", "-1 * * * *"],
)
def test_invalid_cron_expressions_are_rejected(line):
    """Expressions that never fire or have a wrong number of fields also raise an error."""
    with pytest.raises(ConfigurationError, match=r"cron expression"):
        next_time(line, "UTC", after=0.0)


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "Europe", "\0"])
def test_an_unknown_time_zone_is_rejected(name):
    """Unknown zones and file paths raise an error."""
    with pytest.raises(ConfigurationError, match="time zone"):
        zone_of(name)
