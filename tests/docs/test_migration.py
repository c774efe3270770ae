"""The migration pages: a program that moves to this package does not become longer."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "migration"
FRAMEWORKS = ("autogen-core", "langgraph", "openai-agents", "pydantic-ai")
"""Python frameworks, whose programs are compared line by line."""
PAGES = [FOLDER / f"{name}.md" for name in FRAMEWORKS]


def lines_of(block):
    """Return the lines of a program that are not empty."""
    return [line for line in block.splitlines() if line.strip()]


def test_each_framework_has_a_migration_page():
    """The pages cover the most used frameworks and the systems whose documents this package implements."""
    pages = {page.stem for page in FOLDER.glob("*.md")}
    assert pages == {*FRAMEWORKS, "index", "actgent", "acton", "appagent", "art", "tagent"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_actgent_programs_are_not_longer(page):
    """Each page has both programs. The program of this package, which test_blocks.py runs, is not longer than the other."""
    text = page.read_text(encoding="utf-8")
    theirs = re.search(r"^```\{code-block\} \w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    ours = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    assert len(lines_of(ours)) <= len(lines_of(theirs))
