"""Tables that fit a terminal: figures are shown whole or not at all, and names are cut."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

LEAST = 12
"""Columns that names have at least."""
_GAP = 2


def fitted(rows: Sequence[Mapping[str, Text]], width: int, leave_out: Sequence[str]) -> Table:
    """A table of rows by their columns; the first is of names, which are cut to what the others leave.

    Args:
        rows: One or more, each with the same columns, in the order in which they are shown.
        width: Columns of the terminal.
        leave_out: Columns that go where there is no room, the first of them first.
    """
    columns = list(rows[0])
    widths = {name: max(len(name), *(row[name].cell_len for row in rows)) for name in columns}
    for name in leave_out:
        if _whole(columns, widths) > width and name in columns:
            columns.remove(name)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for number, name in enumerate(columns):
        left = None if number else max(LEAST, width - _others(columns, widths))
        table.add_column(
            name,
            justify="right" if number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=left,
            min_width=widths[name] if number else None,
        )
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def _others(columns: Sequence[str], widths: Mapping[str, int]) -> int:
    """The width of all columns but the first."""
    return sum(widths[name] + _GAP for name in columns[1:])


def _whole(columns: Sequence[str], widths: Mapping[str, int]) -> int:
    """The least width of these columns."""
    return min(LEAST, widths[columns[0]]) + _others(columns, widths)
