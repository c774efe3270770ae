"""Forks: new sessions that start as a copy of an existing session."""

from collections.abc import Iterator

from actgent.journal.record_types import (
    AccountKey,
    NextTimerRecord,
    Record,
    ScheduleFiredRecord,
    ScheduleRecord,
    ScheduleRemovedRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    TaskOutcomeRecord,
    UsageRecord,
)
from actgent.journal.session_list_queries import SessionKey

from .export_file import ExportedSession
from .id_remapping import renamed

_LEFT_OUT = (
    SessionClosedRecord,
    NextTimerRecord,
    ScheduleRecord,
    ScheduleFiredRecord,
    ScheduleRemovedRecord,
    TaskOutcomeRecord,
)
"""Record classes that a fork does not copy. A fork is open, has no schedules and reports to no parent session."""


def forked(session: ExportedSession, session_id: str, agent: str, *, asker: str = "") -> ExportedSession:
    """Build a fork of a session: a copy of its records under a new id and agent.

    A session that was created with limits shares its budget: the fork draws on the budgets of the original and of its
    parent sessions. An unfinished turn resumes with the rest of its limits at that point. `asker` identifies the request
    for the fork, and is stored as `SessionCreatedRecord.asker`.
    """
    ids = {SessionKey(session.agent, session.session_id): session_id}
    copy = renamed(session, ids, agent=agent)
    return ExportedSession(session_id, agent, tuple(_records_of_fork(copy, session, asker)))


def _records_of_fork(copy: ExportedSession, original: ExportedSession, asker: str) -> Iterator[Record]:
    for record in copy.records:
        match record:
            case SessionCreatedRecord():
                payer = AccountKey(session_id=original.session_id, agent=original.agent)
                yield _creation_record_of_fork(record, payer, copy.agent, asker)
            case UsageRecord(turn=""):
                pass  # recorded in the original session, whose budget it is
            case _ if not isinstance(record, _LEFT_OUT):
                yield record


def _creation_record_of_fork(
    record: SessionCreatedRecord, original: AccountKey, agent: str, asker: str
) -> SessionCreatedRecord:
    within = (original, *record.within) if record.limits else record.within
    return SessionCreatedRecord(
        agent=agent if record.agent else "",
        owner=record.owner,
        created_at=record.created_at,
        on_busy=record.on_busy,
        system=record.system,
        within=within,
        asker=asker,
        tags=record.tags,
        metadata=record.metadata,
    )
