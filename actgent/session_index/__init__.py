"""Index of a journal's sessions: full-text search over their messages, and statistics by day.

`index.SessionIndex` fills the index in the background. The index is derived data: if it is deleted, it is built again
from the journal.
"""

from .search_and_trend_queries import Group, IndexQueries, SearchFilter, SearchHit, SearchPage, Trend, Trends

__all__ = ["Group", "IndexQueries", "SearchFilter", "SearchHit", "SearchPage", "Trend", "Trends"]
