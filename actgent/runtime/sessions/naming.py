"""The ids of new sessions: of a tree where they stand below others, so that whoever owns one of them owns all."""

from actgent.errors import ConfigurationError
from actgent.messages import new_secret
from actgent.runtime.actor import AgentActor
from actgent.sessions.context import SessionContext
from actgent.sessions.waiting.tasks import id_below


def id_for(running: AgentActor, session_id: str | None, parent: SessionContext | None) -> str:
    """The id of a new session: the one that was asked for, or one that nobody can guess.

    Raises:
        ConfigurationError: others may own sessions of that id, while the parent is here.
        Fenced: this process owns no sessions at all.
    """
    if session_id is None:
        if parent is not None:
            return id_below(parent.id, new_secret())
        return new_secret() if running.journal is None else running.journal.new_session_id()
    if parent is not None and id_in_tree(running, parent, session_id) != session_id:
        raise ConfigurationError(
            f"session_id {session_id!r} is that of another tree, which another process may own: name a session below "
            f"{parent.id!r} by an id such as {id_below(parent.id, session_id)!r}"
        )
    return session_id


def id_in_tree(running: AgentActor, parent: SessionContext, session_id: str) -> str:
    """This id, or one made of it where others may own sessions of this one while its parent is here."""
    is_together = running.journal is None or running.journal.is_together(parent.id, session_id)
    return session_id if is_together else id_below(parent.id, session_id)


async def choose_id(running: AgentActor, parent: SessionContext, plain: str, scoped: str) -> str:
    """The id of a session below another one: the plain one, or the scoped one where another session has that."""
    is_below = await _is_below(running, parent, plain)
    if is_below or (is_below is None and not await _is_below(running, parent, scoped)):
        return plain
    return scoped


async def _is_below(running: AgentActor, parent: SessionContext, session_id: str) -> bool | None:
    """Return True if this session is the parent of the one with this id; None if there is no such session."""
    context = running.sessions.get(session_id)
    if context is not None:
        return context.parent_key == parent.key
    head = None if running.journal is None else await running.journal.head(running.name, session_id)
    return None if head is None else head.parent == parent.key
