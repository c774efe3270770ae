"""Deprecated names and the policy that they are held to."""

import re
import tomllib
import warnings
from pathlib import Path

import pytest

from actgent.support.deprecations import DEPRECATED, warn_deprecated

ROOT = Path(__file__).parents[2]
MINOR_RELEASES = 2
MONTHS = 6


def minor(version):
    """A version as (major, minor)."""
    return tuple(int(part) for part in version.split(".")[:2])


def this_version():
    return minor(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


@pytest.mark.parametrize("name", DEPRECATED)
def test_each_name_lives_as_long_as_the_policy_says(name):
    """Two minor releases at least from the one that warns first, or the next major; and it is not overdue."""
    known = DEPRECATED[name]
    since, removal = minor(known.since), minor(known.removal)
    assert removal >= (since[0], since[1] + MINOR_RELEASES)
    assert since <= this_version() < removal, f"{name} is to go, or the table to say until when it stays"


def test_all_warnings_come_from_the_table():
    """No other module warns by itself, and each name of the table is used by one."""
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "actgent").rglob("*.py")}
    table = ROOT / "actgent" / "support" / "deprecations.py"
    assert [path for path, text in sources.items() if "DeprecationWarning" in text] == [table]
    others = "".join(text for path, text in sources.items() if path != table)
    for name in DEPRECATED:
        method = name.removesuffix("(deadline=)").removeprefix("Agent.")
        assert f'"{name}"' in others or f'"{method}"' in others, name


def test_the_page_on_versions_has_the_same_table():
    """Users read what the package does, and by which day the last of them may go."""
    page = (ROOT / "docs" / "help" / "versions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert rows == [(name, each.new, each.since, each.removal) for name, each in DEPRECATED.items()]
    days = {each.day for each in DEPRECATED.values()}
    assert {(day.month - 1 + MONTHS) % 12 + 1 for day in days} == {5}
    assert "none of them goes before May 2027" in page


def test_a_warning_names_the_new_name_and_both_versions():
    """At the line of the program that uses the old one."""

    def old():
        warn_deprecated("GoalResult.result")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old()
    (warned,) = caught
    assert warned.filename == __file__
    said = "GoalResult.result is called GoalResult.data (deprecated since 0.1; 0.3 may be without it)"
    assert str(warned.message) == said
