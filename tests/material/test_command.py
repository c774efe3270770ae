"""`make material`: its error for missing material, and the page of its tables."""

import sys
from pathlib import Path

import pytest

from tests.material import __main__ as command
from tests.material.tables import Table

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@pytest.mark.parametrize("name", command.NAMES)
def test_missing_material_is_named(name, tmp_path, monkeypatch, capsys):
    """Without its files, a benchmark measures nothing, and the exit code is 2."""
    monkeypatch.setattr(sys, "argv", ["material", str(tmp_path), "--only", name])
    assert command.main() == command.MISSING
    assert f"{name}: skipped, because {tmp_path / name} lacks " in capsys.readouterr().out


@pytest.mark.parametrize("name", command.NAMES)
def test_each_benchmark_has_a_place_in_the_page(name):
    """`--write-docs` replaces the text between two comments, which the page has once for each benchmark."""
    page = PAGE.read_text(encoding="utf-8")
    assert [page.count(f"<!-- {name}: {mark} -->") for mark in ("begin", "end")] == [1, 1]


def test_tables_are_written_to_the_page(tmp_path):
    """The new table replaces the old part of the page. Other parts do not change."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bfcl: begin -->\nold\n<!-- bfcl: end -->\nafter\n", encoding="utf-8")
    table = Table(title="Results", heads=("kind", "count"), rows=(("states", "796"),), note="", failures=())
    command._write_docs("bfcl", [table], page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- bfcl: begin -->\n")
    assert text.endswith("<!-- bfcl: end -->\nafter\n")
    assert "| states | 796 |" in text
    assert "old" not in text
