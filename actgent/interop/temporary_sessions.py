"""Temporary sessions, which end with the answer to one message. The last request that reads the answer ends the session."""

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
    """State of one temporary session, which the requests that read its answer share."""

    session: Session | None = None
    """The open session; None if it is not open, or if another process owns it and will end it."""
    readers: int = 0
    """Number of requests that currently read the answer."""
    is_over: bool = False
    """True if a request has read the run of the message until its end."""
    is_kept: bool = False
    """True if a client has received the approvals or calls for which the turn waits, and may continue the turn later."""


_open: WeakKeyDictionary[AgentActor, dict[str, TemporarySession]] = WeakKeyDictionary()
"""Open temporary sessions by agent and session id."""


@asynccontextmanager
async def temporary_session(
    opener: SessionOpener, session_id: str, message_id: str
) -> AsyncGenerator[TemporarySession, None]:
    """Count a reader of a temporary session during the `async with` block. After the last reader, end the session and its turn.

    A session whose message was not accepted is removed. A suspended session stays open if a client may continue it.

    Args:
        opener: Object that opens the agent's sessions.
        session_id: Id of the session, which may not exist yet.
        message_id: Id of the message that will be sent; empty if it was sent before the block.
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
