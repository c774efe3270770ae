"""Forks: a session that begins as a copy of another one, and goes its own way from there."""

from collections.abc import Iterator

from actgent.journal.listing import SessionKey
from actgent.journal.records import (
    AccountKey,
    Answered,
    Closed,
    Due,
    Fired,
    Opened,
    Record,
    Scheduled,
    Spent,
    Unscheduled,
)

from .exporting import ExportedSession
from .renaming import renamed

_LEFT_OUT = (Closed, Due, Scheduled, Fired, Unscheduled, Answered)
"""A fork is open, does not do again what its original is scheduled to do, and works for nobody."""


def forked(session: ExportedSession, session_id: str, agent: str, *, asker: str = "") -> ExportedSession:
    """The beginning of a fork of a session, as long as its records go, for an agent.

    A session that is bounded as a whole lends its budget: the fork spends from that of its original, whatever both
    have spent by then, and from those of the sessions above. A turn that is open goes on with what its own limits had
    left at that point. `asker` is that of `Opened`.
    """
    ids = {SessionKey(session.agent, session.session_id): session_id}
    copy = renamed(session, ids, agent=agent)
    return ExportedSession(session_id, agent, tuple(_kept(copy, session, asker)))


def _kept(copy: ExportedSession, original: ExportedSession, asker: str) -> Iterator[Record]:
    for record in copy.records:
        match record:
            case Opened():
                payer = AccountKey(session_id=original.session_id, agent=original.agent)
                yield _opened(record, payer, copy.agent, asker)
            case Spent(turn=""):
                pass  # it stands with the original, whose budget it was
            case _ if not isinstance(record, _LEFT_OUT):
                yield record


def _opened(record: Opened, original: AccountKey, agent: str, asker: str) -> Opened:
    within = (original, *record.within) if record.limits else record.within
    return Opened(
        agent=agent if record.agent else "",
        owner=record.owner,
        created_at=record.created_at,
        on_busy=record.on_busy,
        system=record.system,
        within=within,
        asker=asker,
    )
