"""docs/specification/parity.md holds what it says: each feature works or differs for a reason, and has tests that are collected."""

import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "specification" / "parity.md"
AUDIT = ROOT.parent / "shared" / "parity.md"
FEATURES = {"actgent": 57, "ART": 30, "acton": 32, "AppAgent": 20, "TAgent": 39}
"""How many features of each system the audit went through."""
OPEN: set[tuple[str, str]] = set()
"""What is still missing. A row leaves this list and never comes to it."""
MOST_OPEN = 0
"""How many there may be; it only gets smaller."""
_NAME = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")
_DIFFERS = "differs, because "
_REASON = 30
"""Characters that can be a reason."""


@attrs.frozen
class Row:
    """A feature, what is said of it, and the tests that hold it."""

    seed: str
    feature: str
    state: str
    tests: tuple[str, ...]


def rows():
    """The rows of the page's tables of features."""
    found, seed = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            seed = line[3:]
        elif seed in FEATURES and line.startswith("|") and not line.startswith(("| feature", "|---")):
            feature, state, held = (cell.strip() for cell in line.removesuffix("|")[1:].split(" | ", 2))
            found.append(Row(seed, feature, state, tuple(_NAME.findall(held))))
    return found


def says_enough(row):
    """True for a row that works or differs for a reason, and has a test."""
    is_reason = row.state.startswith(_DIFFERS) and len(row.state) >= len(_DIFFERS) + _REASON
    return bool(row.tests) and (row.state == "works" or is_reason)


def missing_from(names, known=frozenset()):
    """Those of some names of tests that pytest does not collect; of some it is known that it does."""
    names = set(names) - known
    if not names:
        return []
    files = sorted({name.partition("::")[0] for name in names if (ROOT / name.partition("::")[0]).is_file()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    there = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    return sorted(names - there)


def test_every_feature_has_its_row():
    """As many as the audit has, each once."""
    features = [(row.seed, row.feature) for row in rows()]
    assert len(features) == len(set(features))
    assert {seed: sum(each == seed for each, _ in features) for seed in FEATURES} == FEATURES


def test_each_row_works_or_differs_for_a_reason():
    """But for those that are open, by name; and what is open says what is there instead."""
    found = rows()
    wanting = {(row.seed, row.feature) for row in found if not says_enough(row)}
    assert wanting == OPEN
    assert len(OPEN) <= MOST_OPEN
    for row in found:
        if (row.seed, row.feature) in OPEN:
            assert row.state.startswith("open: ")
            assert len(row.state) > _REASON


def test_each_test_that_is_named_is_collected(request):
    """Delete or rename one, and its row is left without. A run of all tests has collected them."""
    known = {item.nodeid.partition("[")[0] for item in request.session.items}
    named = sorted({name for row in rows() for name in row.tests})
    assert len(named) > len(FEATURES)
    assert missing_from(named, known) == []


def test_a_row_without_its_test_is_noticed():
    """Of a test that is not there, and of a file."""
    gone = ["tests/test_parity.py::test_that_nobody_wrote", "tests/test_that_is_gone.py::test_anything"]
    assert missing_from(["tests/test_parity.py::test_every_feature_has_its_row", *gone]) == gone
    assert not says_enough(Row("x", "feature", "works", ()))
    assert not says_enough(Row("x", "feature", "differs, because so", ("tests/test_parity.py::test_x",)))


def test_the_features_are_those_of_the_audit():
    """Word for word and in its order, where the audit is on this machine."""
    if not AUDIT.is_file():
        pytest.skip("the audit is not on this machine")
    text = AUDIT.read_text(encoding="utf-8").partition("# The seeds' own")[0]
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith(HEADS)]
    pairs = list(zip(lines, rows(), strict=True))
    assert [row.feature for line, row in pairs if not words(line).startswith(words(row.feature))] == []


HEADS = ("| feature", "|---")


def words(line):
    """The words of a feature, without `or` for the stroke that a table cannot hold."""
    return " ".join(re.sub(r"[|\s]|\bor\b", " ", line).split())
