"""The sessions of a running agent: those in memory, which of them are idle, and those that were unloaded."""

from collections.abc import Callable, Iterator, Mapping
from weakref import WeakSet, WeakValueDictionary

from actgent.errors import SessionExists, SessionNotFound
from actgent.journal.listing import SessionKey
from actgent.sessions.context import SessionContext
from actgent.sessions.following import LiveText

MAX_LOADED_IDLE = 1000
"""Idle sessions that stay in memory if a journal can restore them; more are unloaded."""
PURGED_FROM = 100
"""Sessions that others wait for, of which it is not looked yet whether those are still there."""


class SessionTable(Mapping[str, SessionContext]):
    """The sessions in memory, by their ids. With a journal, those that have been idle the longest are unloaded."""

    def __init__(
        self,
        agent: str,
        *,
        can_unload: bool,
        on_unload: Callable[[str], object],
        held_by: Callable[[object], SessionContext],
    ) -> None:
        """Args: `held_by` knows whose the user's end of a session is."""
        self.agent = agent
        self._held_by = held_by
        self._can_unload = can_unload
        self._on_unload = on_unload
        self._loaded: dict[str, SessionContext] = {}
        self._idle: dict[str, None] = {}
        """Sessions with nothing to do, the longest first; kept only where a journal could bring them back."""
        self.followed: dict[str, LiveText] = {}
        """What grows in the sessions that somebody follows, by their ids."""
        self._unloaded: WeakValueDictionary[str, object] = WeakValueDictionary()
        """The user's ends of those that were unloaded, as long as someone outside holds them."""

    def __getitem__(self, session_id: str) -> SessionContext:
        return self._loaded[session_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def find(self, session_id: str) -> SessionContext:
        """The open session of this id.

        Raises:
            SessionNotFound: there is none in memory.
            SessionClosed, SessionMoved: it is just being closed, or leaves.
        """
        context = self._loaded.get(session_id)
        if context is None:
            raise SessionNotFound(self.agent, session_id)
        if context.closed:
            raise context.refusal
        return context

    def find_unloaded(self, session_id: str) -> object | None:
        """The user's end of an unloaded session that someone still holds, or None."""
        return self._unloaded.get(session_id)

    def find_any(self, session_id: str) -> SessionContext | None:
        """The session of this id in memory, also one that was unloaded and is held by someone; nothing is reloaded."""
        context = self._loaded.get(session_id)
        unloaded = self._unloaded.get(session_id) if context is None else None
        return context if unloaded is None else self._held_by(unloaded)

    def reload_any(self, session_id: str) -> SessionContext | None:
        """The session of this id in memory; one that was unloaded and is held by someone is reloaded."""
        context = self._loaded.get(session_id)
        unloaded = self._unloaded.get(session_id) if context is None else None
        return context if unloaded is None else self.loaded(unloaded)

    def known_ids(self) -> list[str]:
        """The ids of the sessions in memory, and of those that were unloaded and are held by someone."""
        return [*self._loaded, *self._unloaded]

    def forget_unloaded(self, session_id: str) -> None:
        """Forget an unloaded session: whoever holds it holds one that is no more."""
        self._unloaded.pop(session_id, None)

    def works_for(self, session_id: str) -> str:
        """For whom a session in memory works."""
        context = self._loaded.get(session_id)
        return "" if context is None else context.works_for

    def check_member(self, context: SessionContext) -> None:
        """Refuse the session of another agent, or of an earlier run of this one.

        Raises:
            SessionClosed: it was closed.
            SessionMoved: another process goes on with it.
            SessionNotFound: it is not this agent's.
        """
        if context.closed:
            raise context.refusal
        if self._loaded.get(context.id) is not context:
            raise SessionNotFound(self.agent, context.id)

    def add(self, context: SessionContext) -> None:
        """Enter a session.

        Raises:
            SessionExists: its id is taken.
        """
        if context.id in self._loaded:
            raise SessionExists(self.agent, context.id)
        self._loaded[context.id] = context
        if self.followed and (live := self.followed.get(context.id)) is not None:
            live.attach(context)
        self.mark_idle(context)

    def remove(self, context: SessionContext) -> bool:
        """Forget a session; False where it was not here."""
        if self._loaded.get(context.id) is not context:
            return False
        del self._loaded[context.id]
        self._idle.pop(context.id, None)
        return True

    # --- loading and unloading --------------------------------------------------------------

    def mark_active(self, context: SessionContext) -> None:
        """A session gets something to do."""
        self._idle.pop(context.id, None)

    def mark_idle(self, context: SessionContext) -> None:
        """Count a session among the idle ones if it is, and unload the one that has been idle the longest."""
        if not self._can_unload or context.is_busy or context.closed:
            return
        self._idle.pop(context.id, None)
        self._idle[context.id] = None
        if len(self._idle) > MAX_LOADED_IDLE:
            longest = next(iter(self._idle))
            del self._idle[longest]
            self._unload(self._loaded[longest])

    def _unload(self, context: SessionContext) -> None:
        """Unload an idle session that a journal can restore; sessions with a parent or children stay in memory."""
        if context.is_busy or context.turn is not None or context.parent is not None or context.children:
            return
        if context.log is not None:
            context.log.flush_soon()  # what was to go with the next step: it is another's
        if not self.remove(context):  # its partition was found to be another process's by that
            return
        self._on_unload(context.id)
        self._unloaded[context.id] = context.face
        context.face = None  # or the two would hold each other

    def loaded(self, face: object) -> SessionContext:
        """The session whose user's end this is, reloaded if it was unloaded."""
        context = self._held_by(face)
        if context.face is None:
            self.reload(context, face)
        return context

    def reload(self, context: SessionContext, face: object) -> None:
        """Reload a session that was unloaded."""
        context.face = face
        self._unloaded.pop(context.id, None)
        if not context.closed:
            self._loaded[context.id] = context
            self.mark_idle(context)


class Trees:
    """The trees of the sessions in memory, of all agents of a runtime."""

    def __init__(self) -> None:
        self._tables: dict[str, SessionTable] = {}
        self._parentless: dict[SessionKey, WeakSet[SessionContext]] = {}
        """By the keys of those that they belong to, sessions that wait for them; some have left memory meanwhile."""
        self._purged_at = PURGED_FROM

    def add(self, table: SessionTable) -> None:
        """Enter the sessions of an agent that has started."""
        self._tables[table.agent] = table

    def remove(self, agent: str) -> None:
        """Forget the sessions of an agent that has stopped."""
        self._tables.pop(agent, None)

    def find(self, key: SessionKey) -> SessionContext | None:
        """An agent's session of this id, if it is in memory."""
        table = self._tables.get(key.agent)
        context = None if table is None else table.get(key.session_id)
        return None if context is None or context.closed else context

    def wait_for_parent(self, parent: SessionKey, child: SessionContext) -> None:
        """A session came back before the one that it belongs to."""
        if len(self._parentless) >= self._purged_at:
            self._parentless = {key: waiting for key, waiting in self._parentless.items() if waiting}
            self._purged_at = max(PURGED_FROM, 2 * len(self._parentless))
        self._parentless.setdefault(parent, WeakSet()).add(child)

    def attach_children(self, parent: SessionContext) -> None:
        """A session came back that others have waited for."""
        for child in self._parentless.pop(parent.key, ()):
            if not child.closed:
                child.tree.parent = parent
                if child.face is not None or self._reload(child):
                    parent.add_child(child)

    def _reload(self, child: SessionContext) -> bool:
        """Reload a session that was unloaded, as those with a parent stay in memory; False if nobody holds it."""
        table = self._tables.get(child.agent)
        return table is not None and table.reload_any(child.id) is child
