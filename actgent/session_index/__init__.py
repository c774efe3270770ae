"""Index of a journal's sessions: full-text search over their messages, and statistics by day.

`SessionIndex` fills the index in the background. The index is derived data: if it is deleted, it is built again from
the journal.
"""

from .index import SessionIndex, open_index
from .queries import Group, SearchFilter, SearchHit, SearchPage, Trend, Trends

__all__ = [
    "Group",
    "SearchFilter",
    "SearchHit",
    "SearchPage",
    "SessionIndex",
    "Trend",
    "Trends",
    "open_index",
]
