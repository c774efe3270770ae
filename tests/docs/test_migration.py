"""A program that moves here does not get longer."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "migration"
FRAMEWORKS = ("autogen-core", "langgraph", "openai-agents", "pydantic-ai")
"""Python frameworks, whose programs are compared line by line."""
PAGES = [FOLDER / f"{name}.md" for name in FRAMEWORKS]


def lines_of(block):
    """The lines of a program that are not empty."""
    return [line for line in block.splitlines() if line.strip()]


def test_each_framework_has_a_migration_page():
    """Those that most programs come from, and the systems whose documents this one follows."""
    pages = {page.stem for page in FOLDER.glob("*.md")}
    assert pages == {*FRAMEWORKS, "index", "actgent", "acton", "appagent", "art", "tagent"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_actgent_programs_are_not_longer(page):
    """Each page has both programs, and the one that runs in test_blocks.py is not the longer one."""
    text = page.read_text(encoding="utf-8")
    theirs = re.search(r"^```\{code-block\} \w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    ours = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    assert len(lines_of(ours)) <= len(lines_of(theirs))
