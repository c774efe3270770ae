"""Counters of a journal's writes, and its current failure."""

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class JournalStatistics:
    """Counters since the journal was opened."""

    commits: int = 0
    steps: int = 0
    bytes: int = 0
    """Bytes of the written records, as stored."""
    erased: int = 0
    """Number of sessions that `erase_trees` removed."""
    failure: str = ""
    """Class name of the error of the last transaction; empty if it succeeded."""
    failed_at: float = 0.0
    """Time of that failure on trio's clock, in seconds."""
    on_commit: Callable[[float], object] | None = None
    """Callback for the duration of each transaction in seconds; None for no callback."""
