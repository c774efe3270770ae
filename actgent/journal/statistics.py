"""What a journal has written, and whether it does."""

from collections.abc import Callable

import attrs


@attrs.define(eq=False)
class JournalStatistics:
    """What a journal has written since its block was opened."""

    commits: int = 0
    steps: int = 0
    bytes: int = 0
    """Of the records, as they are stored."""
    erased: int = 0
    """Sessions that were removed by `erase_trees`."""
    failure: str = ""
    """The class of the error with which the last transaction failed; empty since one succeeded."""
    failed_at: float = 0.0
    """When that was, by trio's clock."""
    on_commit: Callable[[float], object] | None = None
    """Called with the seconds that each transaction took; None: nobody wants to know."""
