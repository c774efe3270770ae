"""Each case of the specifications has a row in docs/specification.md, with an existing test or a reason."""

import ast
import functools
import re
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "specification.md").read_text(encoding="utf-8")
SPECIFICATIONS = ROOT.parent / "shared" / "spec"
PAGES = {
    "`steps`: plan, step, final answer": "acton.md",
    "`goal`: decide, act, evaluate": "tagent.md",
    "`plan`: plan, execute, synthesize": "art.md",
    "Modes: AppAgent": "appagent.md",
    "`bare`, `simple`, `react`, `router`: classification": "actgent.md",
}
"""Sections that have a row for each case of a page, with the file name of this page."""
OPEN: set[str] = set()
"""Pages without a section. Do not add pages."""
_REASON = 30
"""Minimum characters of a reason in the last column of a row."""
_NAME = re.compile(r"`(?:(tests/[\w/]+\.py)(?:::)?)?(test_\w+)?`")
_CASE = re.compile(r"^test_(?:\w+_)?case_\d")
_HOME = re.compile(r"in\s+`(tests/[\w/]+\.py)`|in\s+`(test_\w+\.py)`|(?:,|and)\s+`(test_\w+\.py)`")


@attrs.frozen
class Row:
    """A row of a table: its cases, and the tests or the reason."""

    cases: str
    held: str


def sections():
    """Return the sections of the page by their headings, in order."""
    found = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def rows_of(section):
    """Return the rows of all tables of a section, without the table heads."""
    rows, is_head = [], True
    for line in section.splitlines():
        if not line.startswith("|"):
            is_head = True
        elif is_head:
            is_head = False
        elif not set(line) <= set("|- "):
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            rows.append(Row(cells[0], cells[-1]))
    return rows


def numbers_in(text):
    """Return the numbers in a text such as `1, 4, 6 to 8`."""
    found = set()
    for first, last in re.findall(r"\b(\d+)(?: to (\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def homes_of(section):
    """Return the test files that a section names before its first table."""
    homes, folder = [], "tests/agents"
    for path, *names in _HOME.findall(re.split(r"^\|", section, flags=re.MULTILINE)[0]):
        name = path or f"{folder}/{next(filter(None, names))}"
        folder = name.rpartition("/")[0]
        homes.append(name)
    return homes


@functools.cache
def names_in(path):
    """Return the names of the top-level functions in a test file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


def check(text, homes):
    """Return the number of tests and files that a text names, and the missing ones."""
    named, missing = 0, []
    for path, name in _NAME.findall(text):
        if not (path or name):
            continue
        named += 1
        there = {test for place in ([path] if path else homes) for test in names_in(place)}
        if name not in there if name else not any(test.startswith("test_") for test in there):
            missing.append(name or path)
    return named, missing


def asked_of(page):
    """Return the numbers of the testable cases of a page."""
    text = (SPECIFICATIONS / page).read_text(encoding="utf-8")
    cases = re.search(r"^## \d\.3 Testable cases.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[0]
    cases = re.sub(r"^(\| \d+ \|).*", r"\1", cases, flags=re.MULTILINE)  # a row's number is its first cell
    numbers = re.findall(r"(?:^\| |^|[.:;)\"] )(\d{1,2})(?: \||\. )", cases, re.MULTILINE)
    return [int(number) for number in numbers]


def test_each_section_is_read():
    """Each section has a table, and each page of `PAGES` has a section."""
    assert [heading for heading in sections() if not rows_of(sections()[heading])] == []
    assert set(PAGES) <= set(sections())


@pytest.mark.parametrize("heading", sections())
def test_each_row_occurs_once(heading):
    """A wrong merge must not repeat a row."""
    rows = rows_of(sections()[heading])
    assert [row for index, row in enumerate(rows) if row in rows[:index]] == []


@pytest.mark.parametrize("heading", sections())
def test_each_row_has_its_tests_or_a_reason(heading):
    """Each test that a row names exists. A row without a test has a reason."""
    section = sections()[heading]
    homes = homes_of(section)
    assert homes
    assert not [home for home in homes if not names_in(home)]
    for row in rows_of(section):
        named, missing = check(row.held, homes)
        assert not missing, (row.cases, missing)
        assert named or len(row.held) >= _REASON, row


@pytest.mark.parametrize("heading", sections())
def test_each_named_test_exists(heading):
    """Tests named outside of tables exist, and each test of a numbered case is named."""
    section = sections()[heading]
    homes = homes_of(section)
    assert not check(section, homes)[1]
    numbered = {name for home in homes for name in names_in(home) if _CASE.search(name)}
    assert not numbered - {name for _, name in _NAME.findall(section)}


@pytest.mark.parametrize(("heading", "page"), PAGES.items())
def test_no_case_is_left_out(heading, page):
    """A section has exactly the numbers of the testable cases of its page."""
    if not SPECIFICATIONS.is_dir():
        pytest.skip("the specifications are not on this machine")
    asked = asked_of(page)
    assert sorted(asked) == list(range(1, max(asked) + 1))  # each number was read exactly once
    told = set().union(*(numbers_in(row.cases) for row in rows_of(sections()[heading])))
    assert told == set(asked)


def test_each_page_has_a_section_or_is_open():
    """Each page of the specifications is in `PAGES` or in `OPEN`."""
    if not SPECIFICATIONS.is_dir():
        pytest.skip("the specifications are not on this machine")
    assert {page.name for page in SPECIFICATIONS.glob("*.md")} == {*PAGES.values(), *OPEN}
    assert not OPEN  # each page has its section


def test_missing_test_of_a_row_is_reported(monkeypatch):
    """If any test of a row is missing, the check reports this row."""
    for heading in PAGES:
        section = sections()[heading]
        homes = homes_of(section)
        for row in rows_of(section):
            named, _ = check(row.held, homes)
            if not named:
                continue
            with monkeypatch.context() as patched:
                patched.setitem(globals(), "names_in", lambda _: frozenset())
                assert len(check(row.held, homes)[1]) == named, row
