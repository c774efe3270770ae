"""`actgent journal search`: find messages of a journal by their words."""

from datetime import UTC, datetime

from actgent.cli.terminal_io import Terminal, one_line
from actgent.session_index import SearchFilter, SearchHit
from actgent.session_index.session_index import open_index

from .journal_commands import open_read_only

WORDS = 160
"""Maximum length of the printed part of a message, in characters."""


async def search(
    location: str, query: str, terminal: Terminal, *, search_filter: SearchFilter, limit: int
) -> int:
    """Print the newest messages that match a search, at most `limit`. Return 1 if no message matches, else 0.

    Args:
        location: Journal file or URL.
        query: Words to search for.
        terminal: Output of the command.
        search_filter: Conditions on messages and sessions.
        limit: Maximum number of messages.

    Raises:
        ConfigurationError: The journal has no index, or the query has no word.
    """
    async with open_read_only(location) as journal, open_index(journal, read_only=True) as index:
        page = await index.search(query, search_filter, limit=limit)
        hits = [hit for hit in page.hits if await journal.head(hit.agent, hit.session_id) is not None]
    for hit in hits:
        terminal.line(_describe(hit))
    return 0 if hits else 1


def _describe(hit: SearchHit) -> str:
    at = datetime.fromtimestamp(hit.at, UTC).strftime("%Y-%m-%d %H:%M")
    place = f"{one_line(hit.agent, 40)} {one_line(hit.session_id)} {one_line(hit.owner, 40)}"
    return f"{at} {place} {hit.role}: {one_line(hit.snippet, WORDS)}"
