"""Search for the sessions of an owner in a journal."""

from actgent.messages import Sender

from .journal_interface import Journal
from .record_types import SessionCreatedRecord
from .session_list_queries import SessionFilter, SessionKey

_PAGE = 500


async def root_sessions_of(journal: Journal, owner: Sender) -> list[SessionKey]:
    """Return the sessions of an owner that have no parent session.

    Session lists hold only names, which a user and an agent may share, so the first record of each session is read.
    """
    found: list[SessionKey] = []
    wanted, after = SessionFilter(owner=owner.name, roots=True), None
    while page := await journal.page(wanted, after=after, limit=_PAGE):
        found += [each.key for each in page if await _is_owned_by(journal, each.key, owner)]
        after = page[-1].cursor
    return found


async def _is_owned_by(journal: Journal, key: SessionKey, owner: Sender) -> bool:
    """Return True if a session belongs to this user or agent. Return False if the session was erased in the meantime."""
    records = await journal.read(key.session_id, agent=key.agent, limit=1)
    return bool(records) and isinstance(records[0], SessionCreatedRecord) and records[0].owner == owner
