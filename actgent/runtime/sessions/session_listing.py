"""Pages of session summaries, from the journal, or from memory if there is no journal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import trio

from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.journal.journal_interface import Journal, SessionSummary
from actgent.journal.session_list_queries import Cursor, SessionFilter, State, is_internal
from actgent.journal.session_tags_and_metadata import check_session_metadata, check_tags
from actgent.limits_and_schedules.id_and_number_validation import at_least_one
from actgent.messages import Sender
from actgent.sessions.session_context import SessionContext


def filter_of(
    owner: Sender | str | None,
    agent: str | None,
    state: State | None,
    tags: Iterable[str],
    metadata: Mapping[str, str] | None,
) -> SessionFilter:
    """Build the filter for listed sessions by owner, agent, state, tags and metadata; None and empty `tags` match all sessions.

    Raises:
        ConfigurationError: The state is unknown, or a tag or the metadata is invalid.
    """
    if state is not None and state not in get_args(State):
        raise ConfigurationError(
            f"state={state!r} is not a state of sessions: {did_you_mean_or_list(str(state), get_args(State))}"
        )
    name = owner.name if isinstance(owner, Sender) else owner
    return SessionFilter(
        owner=name,
        agent=agent,
        state=state,
        tags=check_tags("tags", tags),
        metadata=check_session_metadata(metadata),
    )


async def page_of(
    journal: Journal | None,
    contexts: Iterable[SessionContext],
    session_filter: SessionFilter,
    *,
    after: SessionSummary | Cursor | None,
    limit: int,
) -> Sequence[SessionSummary]:
    """Return at most `limit` matching sessions after `after`, sorted by their last change, newest first.

    Without a journal, the sessions in `contexts` are listed.

    Raises:
        ConfigurationError: The limit is below 1.
        JournalError: The journal cannot be read.
    """
    at_least_one("limit", limit)
    cursor = after.cursor if isinstance(after, SessionSummary) else after
    if journal is not None:
        return await _from_journal(journal, session_filter, cursor, limit)
    await trio.lowlevel.checkpoint()
    known = [each for each in map(summary_of, contexts) if session_filter.takes(each)]
    known.sort(key=lambda each: each.cursor, reverse=True)
    return [each for each in known if cursor is None or each.cursor < cursor][:limit]


async def _from_journal(
    journal: Journal, session_filter: SessionFilter, cursor: Cursor | None, limit: int
) -> Sequence[SessionSummary]:
    """Return at most `limit` session summaries after a cursor; no summary after the last page.

    The internal sessions that store the quotas of owners are omitted.
    """
    while page := await journal.page(session_filter, after=cursor, limit=limit):
        if found := [each for each in page if not is_internal(each)]:
            return found
        cursor = page[-1].cursor
    return []


def summary_of(context: SessionContext) -> SessionSummary:
    """Build the summary of a session in memory. Its creation and change times are those of the first and the last message."""
    messages, parent, root = context.conversation.messages, context.parent_key, context
    while root.parent is not None:
        root = root.parent
    return SessionSummary(
        session_id=context.id,
        agent=context.agent,
        owner=context.owner.name,
        parent_id=None if parent is None else parent.session_id,
        parent_agent=None if parent is None else parent.agent,
        created_at=messages[0].created_at if messages else 0.0,
        updated_at=messages[-1].created_at if messages else 0.0,
        unfinished=context.pending,
        closed=context.closed,
        suspended=context.suspension is not None,
        root_agent=root.agent,
        root_id=root.id,
        annotations=context.annotations,
    )
