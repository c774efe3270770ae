"""Sessions that end with the answer to one message. Several requests may read one answer, and the last of them ends the session."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from weakref import WeakKeyDictionary

import attrs
import trio

from actgent.agents.session import Session, context_of
from actgent.errors import ActgentError, JournalError
from actgent.runtime.agent_actor import AgentActor
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.support.safe_logging import LogVariable, logger_of

CLOSE_SECONDS = 30
"""Seconds to wait for the end of a temporary session."""
_log = logger_of(__name__)


@attrs.define(eq=False)
class TemporarySession:
    """State shared by the requests that read the answer of one temporary session."""

    session: Session | None = None
    """The session; None if it is not open, or if another process ends it."""
    readers: int = 0
    """Number of requests that currently read the answer."""
    is_over: bool = False
    """True if a request has read the end of the run."""
    is_kept: bool = False
    """True if a client has received the approvals or calls that the turn waits for. It may continue the turn later."""


_open: WeakKeyDictionary[AgentActor, dict[str, TemporarySession]] = WeakKeyDictionary()
"""Open temporary sessions by agent and session id."""


@asynccontextmanager
async def temporary_session(
    opener: SessionOpener, session_id: str, message_id: str
) -> AsyncGenerator[TemporarySession, None]:
    """Count a reader of a temporary session inside the block. After the last block the session ends, and its turn is stopped.

    A session whose message was not accepted is removed. A suspended session stays open if a client may continue it.

    Args:
        opener: Opens sessions of the agent.
        session_id: Id of the session, which may not exist yet.
        message_id: Id of the message; empty if the session had a message before the block.
    """
    sessions = _open.setdefault(opener.running, {})
    shared = sessions.setdefault(session_id, TemporarySession())
    shared.readers += 1
    try:
        yield shared
    finally:
        shared.readers -= 1
        if not shared.readers:
            del sessions[session_id]
            if shared.session is not None:
                await _end(opener, shared.session, shared, message_id)  # noqa: ASYNC102 - it shields itself


async def _end(opener: SessionOpener, session: Session, shared: TemporarySession, message_id: str) -> None:
    with trio.move_on_after(CLOSE_SECONDS, shield=True):
        try:
            context = context_of(session)
            if shared.is_kept and not shared.is_over and context.suspension is not None:
                return
            if message_id and not context.has_accepted(message_id):
                await opener.withdraw(context)
                return
            if not shared.is_over:
                with suppress(JournalError):  # then the close of the session is recorded
                    await session.interrupt("the client has disconnected")
            await session.aclose()
        except ActgentError as error:  # e.g. it was closed already, or its agent is stopping
            _log.debug("session %s was not ended: %s", LogVariable(session.id), error)
