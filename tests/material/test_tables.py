from . import tables


def test_missing_names_patterns_without_a_file(tmp_path):
    """A pattern that matches a file is not missing; all others are, in order."""
    (tmp_path / "a.json").touch()
    source = tables.Source(title="t", files=("b.json", "*.json", "deep/*.json"), origin="o", licence="l")
    assert source.missing(tmp_path) == ["b.json", "deep/*.json"]


def test_markdown_escapes_pipes():
    """A cell with a pipe remains one cell."""
    table = tables.Table(title="T", heads=("a", "b"), rows=(("x|y", "1"),), note="N.")
    assert table.markdown().splitlines() == [
        "**T**",
        "",
        "| a | b |",
        "|---|---:|",
        "| x\\|y | 1 |",
        "",
        "N.",
    ]
