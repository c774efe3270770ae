"""Each promise of the five documents has a small program, and docs/specification/parity.md has its row.

A program was written from the document, not from our code. Its docstring is the row: the first paragraph is the promise, a line
`Document:` names the section, and a line `Differs:` says what differs and what a user writes instead. It imports public names,
and fails by an exception.

    python tests/seeds/test_programs.py   write the rows of the page from the programs
"""

import ast
import re
import runpy
import sys
from pathlib import Path

import attrs
import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "specification" / "parity.md"
TITLES = {"actgent": "actgent", "art": "ART", "acton": "acton", "appagent": "AppAgent", "tagent": "TAgent"}
PROGRAMS = sorted(HERE.glob("programs/*/p[0-9]*.py"))
PUBLIC = {"actgent", "actgent.testing", "actgent.events", "actgent.actors"}
"""Modules whose names are public, beside those that the reference names."""
LONGEST_PROGRAM = 60
"""Lines of a program: a longer one shows more than one promise."""


@attrs.frozen
class Promise:
    """The docstring of a program."""

    text: str
    """The promise, in one paragraph."""
    document: str
    """The section of the document."""
    differs: str
    """What differs and what a user writes instead; empty if the promise is kept."""


def promise_of(path):
    """Read the docstring of a program."""
    paragraphs = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).split("\n\n")
    joined = [" ".join(paragraph.split()) for paragraph in paragraphs]
    notes = {
        name: next(
            (each.removeprefix(f"{name}: ") for each in joined[1:] if each.startswith(f"{name}: ")), ""
        )
        for name in ("Document", "Differs")
    }
    return Promise(joined[0], notes["Document"], notes["Differs"])


def row_of(path):
    """Return the row of a program in the page."""
    promise = promise_of(path)
    here = f"differs: {promise.differs}" if promise.differs else "works"
    name = path.relative_to(HERE / "programs").as_posix()
    return f"| {promise.text} | {here.replace('|', chr(92) + '|')} | `{name}` |"


def tables():
    """Return the page's part that follows from the programs."""
    lines = []
    for folder, title in TITLES.items():
        found = [path for path in PROGRAMS if path.parent.name == folder]
        differing = sum(bool(promise_of(path).differs) for path in found)
        lines += [
            f"## {title}",
            "",
            f"{len(found)} promises: {len(found) - differing} work, {differing} differ.",
            "",
            "| promise | here | program |",
            "|---|---|---|",
            *map(row_of, found),
            "",
        ]
    return "\n".join(lines)


def reference_modules():
    """Return the modules whose names the reference documents."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    return set(re.findall(r"\bactgent(?:\.\w+)+", text))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_promise_is_kept(path, tmp_path, monkeypatch):
    """The program runs to its end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_program_uses_public_names(path):
    """It imports modules of the reference, reads no private attribute, asserts something, and is short."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    ours = {name for name in imported if name.partition(".")[0] == "actgent"}
    assert ours <= PUBLIC | reference_modules()
    private = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__")
    }
    assert private == set()
    assert any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(tree))
    assert len(text.splitlines()) <= LONGEST_PROGRAM
    promise = promise_of(path)
    assert promise.document
    assert not promise.differs or len(promise.differs.split()) >= 6  # a reason that a reader can weigh


def test_the_page_has_a_row_for_each_program():
    """The rows say what the programs say. `python tests/seeds/test_programs.py` writes them."""
    assert PAGE.read_text(encoding="utf-8").partition("## actgent")[1:] == (
        "## actgent",
        tables().partition("## actgent")[2],
    )


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition("## actgent")[0]
    PAGE.write_text(head + tables(), encoding="utf-8")
