"""Sessions that live in another process of the cluster: asked for there, by the words that they have here.

Nothing of this is looked at before something is refused here because it lives elsewhere, so one process pays nothing for it.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from actgent.agents.session import Session
from actgent.errors import ConfigurationError, Fenced, SessionMoved, SessionNotFound
from actgent.messages import Reply
from actgent.runtime.sessions.leaving import check_sendable
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.slots import running_session

from .question import Question


def agent_elsewhere(opener: SessionOpener, moved: Fenced, **given: object) -> Any:
    """The agent as other processes have it, for a session that lives there.

    Raises:
        Fenced: `moved`, as there is no other process; or as the turn that we are in has moved itself.
        ConfigurationError: what was given stays in its process.
    """
    asker = running_session()
    if opener.elsewhere is None or (asker is not None and asker.has_moved):
        raise moved
    check_sendable(given, moved)
    return opener.elsewhere.agent(opener.running.name)


def moved_of(opener: SessionOpener, session: object) -> SessionMoved:
    """Return the error of a session that another process has.

    Raises:
        ConfigurationError: it is no session.
    """
    if opener.elsewhere is None or (session_id := opener.elsewhere.id_of(session)) is None:
        raise ConfigurationError(f"session= takes a Session, not {session!r:.200}")
    return SessionMoved(opener.running.name, session_id)


async def run_elsewhere(
    opener: SessionOpener, said: Question, moved: Fenced, own: Sequence[str]
) -> Reply[Any]:
    """Say something where its session lives, or a fresh one may, and wait for the answer; see `Agent.run`.

    Args:
        opener: Of the agent here.
        said: What is said.
        moved: Why it is not answered here.
        own: Names of options that were given for this run alone, which cannot be sent.

    Raises:
        SessionMoved: the fresh session of this question ended there before its answer was asked for.
    """
    agent, addressed = agent_elsewhere(opener, moved, sender=said.sender), _addressed(opener, said, moved)
    check_sendable(dict.fromkeys(own, True), moved)
    try:
        reply: Reply[Any] = await agent.run(said.content, **addressed)
    except SessionNotFound:
        if said.session is None:
            raise moved from None
        raise
    return reply


def stream_elsewhere(
    opener: SessionOpener, said: Question, moved: Fenced, own: Sequence[str]
) -> AbstractAsyncContextManager[Any]:
    """Say something where its session lives, and read what comes of it; see `Agent.stream`."""
    agent, addressed = agent_elsewhere(opener, moved, sender=said.sender), _addressed(opener, said, moved)
    check_sendable(dict.fromkeys(own, True), moved)
    stream: AbstractAsyncContextManager[Any] = agent.stream(said.content, timeout=said.timeout, **addressed)
    return stream


def _addressed(opener: SessionOpener, said: Question, moved: Fenced) -> dict[str, Any]:
    """The session and the id of what is said: if it may have been accepted here, it is the same message there."""
    session: Any = said.session
    known = ""
    if isinstance(moved, SessionMoved) and opener.elsewhere is not None:
        known = moved.message_id
        if isinstance(session, Session) or (session is None and known):
            owner = "user" if session is None else session.owner.name
            session = opener.elsewhere.session(opener.running.name, moved.session_id, owner=owner)
    return {
        "session": session,
        "message_id": None if session is None else known or said.message_id,
        "priority": said.priority,
        "metadata": said.metadata,
    }
