"""Tool that returns the current time in a time zone."""

import datetime as dt
import zoneinfo

from actgent.errors import ToolError
from actgent.tools.function_tool import tool


@tool(thread=False, effect="pure")
def current_time(zone: str = "UTC") -> dict[str, str]:
    """Return the current date, time and weekday.

    Args:
        zone: The name of a time zone, such as Europe/Oslo.
    """
    try:
        where = zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise ToolError(f"unknown time zone {zone[:80]!r}: use a name such as UTC or Europe/Oslo") from error
    now = dt.datetime.now(where)
    return {"time": now.isoformat(timespec="seconds"), "zone": zone, "weekday": now.strftime("%A")}
