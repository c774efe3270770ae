"""Months that a question names, such as "in August 2023". Memories created then are more likely to answer it."""

import re
from collections.abc import Iterator
from datetime import MAXYEAR, UTC, datetime
from typing import TypeAlias

Period: TypeAlias = tuple[float, float]
"""Start (inclusive) and end (exclusive) as Unix times in seconds."""

_NAMES = "january february march april may june july august september october november december".split()
_MONTHS = {name[:3]: number for number, name in enumerate(_NAMES, 1)}
_NAMED = re.compile(
    rf"\b({'|'.join(name[:3] for name in _NAMES)})(?:{'|'.join(filter(None, (name[3:] for name in _NAMES)))}|t)?\b\.?"
    r"(?:\s+\d{1,2}(?:st|nd|rd|th)?)?,?\s+(?:of\s+)?(\d{4})\b",
    re.IGNORECASE,
)
"""Pattern of an English month with its year, with or without a day between them."""
_NUMBERED = re.compile(r"\b(\d{4})-(\d\d)(?:-\d\d)?\b")
"""Pattern of a month or date in ISO 8601 format."""


def named_months(question: str) -> tuple[Period, ...]:
    """Return the months of the dates in a question, in UTC. A month without a year and invalid dates are ignored."""
    found = dict.fromkeys(_dates(question))
    return tuple(
        _month(year, month) for year, month in found if 0 < year < MAXYEAR and 0 < month <= len(_NAMES)
    )


def _dates(question: str) -> Iterator[tuple[int, int]]:
    """Yield year and month of each date in a text."""
    for month, year in _NAMED.findall(question):
        yield int(year), _MONTHS[month.lower()]
    for year, month in _NUMBERED.findall(question):
        yield int(year), int(month)


def _month(year: int, month: int) -> Period:
    start = datetime(year, month, 1, tzinfo=UTC)
    following = divmod(year * 12 + month, 12)
    return start.timestamp(), datetime(following[0], following[1] + 1, 1, tzinfo=UTC).timestamp()
