"""Shared classes of the benchmarks on public material: the origin of material, and tables of results."""

import time
from collections.abc import Callable
from pathlib import Path

import attrs

REFERENCE_S = 0.0078
"""CPU seconds of `fixed_loop` on the undisturbed machine of docs/benchmarks.md."""
Progress = Callable[[str], None]
"""Function that takes one line of text about the current step."""


class MaterialMissing(Exception):
    """A file of the material is missing, or the material has a version that the benchmark cannot read."""


@attrs.frozen(kw_only=True)
class Source:
    """The files of a benchmark and their origin."""

    title: str
    """Name and version of the material."""
    files: tuple[str, ...]
    """Paths or glob patterns below the folder of the benchmark. Each of them must match a file."""
    origin: str
    """Origin of the files: a command or a public address."""
    licence: str
    """Licence of the material, and the use that it allows here."""

    def missing(self, folder: Path) -> list[str]:
        """Return the patterns of `files` that match no file below the folder."""
        return [pattern for pattern in self.files if next(folder.glob(pattern), None) is None]


@attrs.frozen(kw_only=True)
class Table:
    """Results of a benchmark as text, for the terminal and docs/benchmarks.md."""

    title: str
    """One line above the table."""
    heads: tuple[str, ...]
    """Column heads. The first column is aligned to the left, all others to the right."""
    rows: tuple[tuple[str, ...], ...]
    """Cells; each row has one cell per head."""
    note: str = ""
    """Sentences below the table. Empty if no explanation is needed."""
    failures: tuple[str, ...] = ()
    """Missed bars, one sentence each. If there are any, the command exits with 1."""

    def __attrs_post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"{self.title}: the row {row} has {len(row)} cells, not {len(self.heads)}")

    def markdown(self) -> str:
        """Return the table as Markdown, with the title above and the note below."""
        lines = [f"**{self.title}**", "", _row(self.heads), "|---|" + "---:|" * (len(self.heads) - 1)]
        lines += [_row(row) for row in self.rows]
        if self.note:
            lines += ["", *self.note.splitlines()]
        return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def fixed_loop() -> float:
    """Return the CPU seconds of a small fixed loop, the minimum of five runs."""
    return min(_timed_loop() for _ in range(5))


def _timed_loop() -> float:
    started = time.process_time()
    table: dict[int, int] = {}
    for number in range(200_000):
        table[number & 1023] = number
    return time.process_time() - started
