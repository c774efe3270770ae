"""Ids of new sessions. The id of a child session extends that of its parent, so that one process owns the whole tree."""

from actgent.errors import ConfigurationError
from actgent.messages import new_secret
from actgent.runtime.agent_actor import AgentActor
from actgent.sessions.pending.delegated_tasks import id_below
from actgent.sessions.session_context import SessionContext


def choose_session_id(running: AgentActor, session_id: str | None, parent: SessionContext | None) -> str:
    """Return the id of a new session: `session_id`, or a random id if it is None.

    The random id of a child session extends the id of its parent, so that one process owns both sessions.

    Raises:
        ConfigurationError: Another process may own sessions with that id, while this process owns the parent.
        Fenced: This process owns no sessions.
    """
    if session_id is None:
        if parent is not None:
            return id_below(parent.id, new_secret())
        return new_secret() if running.journal is None else running.journal.new_session_id()
    if parent is not None and id_in_tree(running, parent, session_id) != session_id:
        raise ConfigurationError(
            f"session_id {session_id!r} is outside of its parent's session tree, so another process may own it: name a child of "
            f"{parent.id!r} by an id such as {id_below(parent.id, session_id)!r}"
        )
    return session_id


def id_in_tree(running: AgentActor, parent: SessionContext, session_id: str) -> str:
    """Return `session_id` if this process owns it. Otherwise derive an id from it that is below the id of `parent`."""
    have_same_owner = running.journal is None or running.journal.have_same_owner(parent.id, session_id)
    return session_id if have_same_owner else id_below(parent.id, session_id)


async def choose_id(running: AgentActor, parent: SessionContext, plain: str, scoped: str) -> str:
    """Return the id of a child session: `plain`, or `scoped` if a session that is no child of `parent` has the id `plain`.

    Also return `scoped` if `parent` already has a child with the id `scoped`.
    """
    is_below = await _is_child(running, parent, plain)
    if is_below or (is_below is None and not await _is_child(running, parent, scoped)):
        return plain
    return scoped


async def _is_child(running: AgentActor, parent: SessionContext, session_id: str) -> bool | None:
    """Return True if the session `session_id` is a child of `parent`, False if it is another session.

    Return None if no session has this id.
    """
    context = running.sessions.get(session_id)
    if context is not None:
        return context.parent_key == parent.key
    head = None if running.journal is None else await running.journal.head(running.name, session_id)
    return None if head is None else head.parent == parent.key
