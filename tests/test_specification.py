"""docs/specification.md holds what it says: each case of the specifications has a test that is there, or a reason."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "specification.md").read_text(encoding="utf-8")
SPECIFICATIONS = ROOT.parent / "shared" / "spec"
PAGES = {"steps": "acton.md", "goal": "tagent.md", "plan": "art.md"}
_REASON = 30
"""Characters of a row's last column that can be a reason."""
_TEST = re.compile(r"(?:\((\w)\) )?`(?:(tests/[\w/]+\.py)(?:::)?)?(test_\w+)?(\.\.\.)?`")
_FILE = re.compile(r"(?:\((\w)\), )?(?:marked with \((\w)\), )?in\s+`(tests/[\w/]+\.py)`")


def section_of(loop):
    """What the page says of a loop."""
    return re.search(rf"^## `{loop}`.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[0]


def rows_of(loop):
    """The first and the last column of each row, but for the head."""
    rows = [line.strip("| ").split(" | ") for line in section_of(loop).splitlines() if line.startswith("| ")]
    return [(row[0], row[-1]) for row in rows[1:] if len(row) > 1]


def numbers_in(words):
    """`1, 4, 6 to 8` as numbers."""
    found = set()
    for first, last in re.findall(r"\b(\d+)(?: to (\d+))?", words):
        found.update(range(int(first), int(last or first) + 1))
    return found


def files_of(loop):
    """The test files of a section by their marks; the protocol's own has none."""
    files = {}
    for mark, other, path in _FILE.findall(section_of(loop).split("| case |")[0]):
        files[mark or other] = path
    return files


@functools.cache
def names_in(path):
    """The names of the tests of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing_in(text, files):
    """The tests and files that a text names and that are not there; and how many it names."""
    named, missing, last = 0, [], ""
    for _, path, name, more in _TEST.findall(text):
        if not (path or name):
            continue
        named += 1
        last = path or last
        homes = [path] if path else [*files.values(), last]
        there = {test for home in homes if (ROOT / home).is_file() for test in names_in(home)}
        if path and not (ROOT / path).is_file():
            missing.append(path)
        if name and not any(test.startswith(name) if more else test == name for test in there):
            missing.append(name)
    return named, missing


@pytest.mark.parametrize("loop", PAGES)
def test_each_row_has_its_tests_or_a_reason(loop):
    """No name of a test that is not there, and no case that is only mentioned."""
    files = files_of(loop)
    assert files, loop
    for cases, held in rows_of(loop):
        named, missing = missing_in(held, files)
        assert not missing, (loop, cases, missing)
        assert named or len(held) >= _REASON, (loop, cases, held)


@pytest.mark.parametrize("loop", PAGES)
def test_each_test_that_the_page_names_is_there(loop):
    """Also those outside of the tables."""
    _, missing = missing_in(section_of(loop), files_of(loop))
    assert not missing


@pytest.mark.parametrize(("loop", "page"), PAGES.items())
def test_no_case_is_left_out(loop, page):
    """Each number of the specification's testable cases stands in the table."""
    if not (SPECIFICATIONS / page).is_file():
        pytest.skip("the specifications are not on this machine")
    text = (SPECIFICATIONS / page).read_text(encoding="utf-8")
    cases = re.search(r"^## \d\.3 Testable cases.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[0]
    asked = {
        int(number) for number in re.findall(r"(?:^\| |^|[.:;)] )(\d{1,2})(?: \||\. )", cases, re.MULTILINE)
    }
    assert set(range(1, max(asked) + 1)) == asked  # none was overlooked
    told = set().union(*(numbers_in(cases) for cases, _ in rows_of(loop)))
    assert asked <= told, sorted(asked - told)
