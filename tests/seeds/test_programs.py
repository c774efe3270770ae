"""Each promise of the five documents has a small program here and a row in docs/specification/parity.md.

A program follows the document, not the code of this package. The row comes from the docstring of the program: the first
paragraph is the promise, a line `Document:` names the section, and a line `Differs:` states the difference and the
replacement. A program imports public names only, and raises an exception if the promise is broken.

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
"""Modules with public names, in addition to the modules that the reference names."""
LONGEST_PROGRAM = 60
"""Maximum lines of a program. A longer program shows more than one promise."""


@attrs.frozen
class Promise:
    """The docstring of a program."""

    text: str
    """The promise, in one paragraph."""
    document: str
    """The section of the document."""
    differs: str
    """The difference and the replacement. Empty if the promise is kept."""


def promise_of(path):
    """Parse the docstring of a program."""
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
    """Return the generated part of the page."""
    lines = []
    for folder, title in TITLES.items():
        found = [path for path in PROGRAMS if path.parent.name == folder]
        differing = sum(bool(promise_of(path).differs) for path in found)
        lines += [
            f"## {title}",
            "",
            f"Of the {len(found)} promised features, {len(found) - differing} work in actgent in the same way, and {differing} work differently.",
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
    """The program runs to its end without an exception."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_program_uses_public_names(path):
    """A program imports modules of the reference, reads no private attribute, has an assertion, and is short."""
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
    """The rows equal the docstrings of the programs. `python tests/seeds/test_programs.py` writes the rows."""
    assert PAGE.read_text(encoding="utf-8").partition("## actgent")[1:] == (
        "## actgent",
        tables().partition("## actgent")[2],
    )


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition("## actgent")[0]
    PAGE.write_text(head + tables(), encoding="utf-8")
