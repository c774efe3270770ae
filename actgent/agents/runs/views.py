"""A session as it is now, wherever it lives: what results of runs are made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.agents.session import Session
from actgent.approvals import Approval
from actgent.errors import SessionMoved
from actgent.journal.listing import SessionKey
from actgent.messages import Message, Usage
from actgent.runtime.insight import need_journal, records_up_to
from actgent.runtime.sessions.opener import SessionOpener
from actgent.sessions.context import Status
from actgent.sessions.restore import rebuild

from .elsewhere import moved_of


@attrs.frozen(kw_only=True)
class SessionView:
    """What is known of a session, all of one moment."""

    status: Status
    history: Sequence[Message]
    state: Mapping[str, Any]
    usage: Usage
    approvals: tuple[Approval, ...]
    """What it waits for, of a session that is suspended."""


async def view_session(opener: SessionOpener, session: object) -> SessionView:
    """Look at a session: one that lives here as it is, any other one as its process says, and as the journal has it.

    Raises:
        ConfigurationError: it is no session.
        SessionMoved: another process has it, and there is no way to that.
        JournalError: the journal could not be read.
    """
    if not isinstance(session, Session):
        return await _view_elsewhere(opener, moved_of(opener, session))
    try:
        return SessionView(
            status=session.status,
            history=session.history,
            state=session.state,
            usage=session.usage,
            approvals=session.approvals,
        )
    except SessionMoved as moved:
        return await _view_elsewhere(opener, moved)


async def _view_elsewhere(opener: SessionOpener, moved: SessionMoved) -> SessionView:
    if opener.elsewhere is None:
        raise moved
    there = opener.elsewhere.session(moved.agent, moved.session_id, owner="user")
    status = await there.status()
    waiting = await there.approvals() if status == "suspended" else ()
    key = SessionKey(moved.agent, moved.session_id)
    found = await rebuild(await records_up_to(need_journal(opener.running.journal), key, None))
    return SessionView(
        status=status, history=found.history, state=found.state, usage=found.usage, approvals=waiting
    )
