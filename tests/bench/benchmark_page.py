"""Generated parts of docs/benchmarks.md, each between two comments that name it."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def write_part(name: str, text: str, page: Path = PAGE) -> None:
    """Replace the text between the two comments `<!-- NAME: begin -->` and `<!-- NAME: end -->` of a page.

    Raises:
        ValueError: The page does not have both comments once each.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    whole = page.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page.name} does not have {begin} and {end} once each")
    head, rest = whole.split(begin)
    tail = rest.split(end)[1]
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")
