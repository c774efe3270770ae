"""Table of an agent's sessions: active, idle, and unloaded sessions whose handle the program still holds."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from weakref import WeakSet, WeakValueDictionary

from actgent.errors import SessionExists, SessionNotFound
from actgent.journal.session_list_queries import SessionKey
from actgent.sessions.session_context import SessionContext
from actgent.sessions.subscriptions import LiveText

MAX_LOADED_IDLE = 1000
"""Maximum number of idle sessions in memory with a journal. Above it, the sessions that are idle longest are unloaded."""
PURGE_THRESHOLD = 100
"""Number of child sessions without a loaded parent above which entries of unloaded children are removed."""


class SessionTable(Mapping[str, SessionContext]):
    """Sessions of one agent in memory, by id. With a journal, the sessions that have been idle longest are unloaded."""

    def __init__(
        self,
        agent: str,
        *,
        can_unload: bool,
        on_unload: Callable[[str], object],
        internal_context: Callable[[object], SessionContext],
    ) -> None:
        """Create an empty table.

        Args:
            agent: Name of the agent.
            can_unload: True if a journal can restore unloaded sessions.
            on_unload: Called with the id of each unloaded session.
            internal_context: Returns the session context of a public session handle.
        """
        self.agent = agent
        self._held_by = internal_context
        self._can_unload = can_unload
        self._on_unload = on_unload
        self._loaded: dict[str, SessionContext] = {}
        self._idle: dict[str, None] = {}
        """Ids of the sessions that may be unloaded, longest idle first; used only with a journal. Some may be busy again."""
        self.followed: dict[str, LiveText] = {}
        """Partial answers of the sessions that have followers, by session id."""
        self.on_reloaded: Callable[[SessionContext], object] = _ignore
        """Called with each unloaded session that is put back into the table. It attaches the loaded child sessions."""
        self._unloaded: MutableMapping[str, object] = WeakValueDictionary() if can_unload else {}
        """Public handles of unloaded sessions, while the program holds them."""

    def __getitem__(self, session_id: str) -> SessionContext:
        return self._loaded[session_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def find(self, session_id: str) -> SessionContext:
        """Return the open session with this id.

        Raises:
            SessionNotFound: No such session is in memory.
            SessionClosed, SessionMoved: The session is being closed or is moving.
        """
        context = self._loaded.get(session_id)
        if context is None:
            raise SessionNotFound(self.agent, session_id)
        if context.closed:
            raise context.refusal
        return context

    def find_unloaded(self, session_id: str) -> object | None:
        """Return the public `Session` object of an unloaded session, if the program still holds it; None otherwise."""
        return self._unloaded.get(session_id)

    def find_any(self, session_id: str) -> SessionContext | None:
        """Return the context of a session in memory, or of an unloaded session whose handle the program holds.

        An unloaded session stays unloaded. Return None for other sessions.
        """
        context = self._loaded.get(session_id)
        unloaded = self._unloaded.get(session_id) if context is None else None
        return context if unloaded is None else self._held_by(unloaded)

    def reload_any(self, session_id: str) -> SessionContext | None:
        """Return the context of a session in memory; None for other sessions.

        If the session was unloaded and the program still holds its handle, put the session back into the table first.
        """
        context = self._loaded.get(session_id)
        unloaded = self._unloaded.get(session_id) if context is None else None
        return context if unloaded is None else self.loaded(unloaded)

    def known_ids(self) -> list[str]:
        """Return the ids of sessions in memory, and of unloaded sessions whose handle the program holds."""
        return [*self._loaded, *self._unloaded]

    def forget_unloaded(self, session_id: str) -> None:
        """Remove the entry for the handle of an unloaded session, because the session has ended."""
        self._unloaded.pop(session_id, None)

    def quota_owner(self, session_id: str) -> str:
        """Return the name of the owner whose quota a session uses; empty if the session is not in memory."""
        context = self._loaded.get(session_id)
        return "" if context is None else context.quota_owner

    def check_member(self, context: SessionContext) -> None:
        """Raise if a session is not in the table, because it has ended or belongs to another agent or an earlier run of the agent.

        Raises:
            SessionClosed: The session was closed.
            SessionMoved: Another process owns the session.
            SessionNotFound: The session belongs to another agent or an earlier run.
        """
        if context.closed:
            raise context.refusal
        if self._loaded.get(context.id) is not context:
            raise self._not_found_error(context)

    def _not_found_error(self, context: SessionContext) -> SessionNotFound:
        """Build the error for a session that is not in the table. The text names the session's agent if it is another one."""
        error = SessionNotFound(self.agent, context.id)
        if context.agent != self.agent:
            text = f"session {context.id} belongs to agent {context.agent!r}, not to agent {self.agent!r}"
            error.args = (f"{text}: call agent {context.agent!r}, or create a session with create_session()",)
        return error

    def add(self, context: SessionContext) -> None:
        """Add a session to the table.

        Raises:
            SessionExists: The id is taken.
        """
        if context.id in self._loaded:
            raise SessionExists(self.agent, context.id)
        self._loaded[context.id] = context
        if self.followed and (live := self.followed.get(context.id)) is not None:
            live.attach(context)
        if self._can_unload:
            self.mark_idle(context)

    def remove(self, context: SessionContext) -> bool:
        """Remove a session from the table. Return False if it is unknown."""
        if self._loaded.get(context.id) is not context:
            return False
        del self._loaded[context.id]
        self._idle.pop(context.id, None)
        return True

    # --- loading and unloading --------------------------------------------------------------

    def mark_idle(self, context: SessionContext) -> None:
        """Mark a session as idle if it has no work. If too many sessions are idle, unload the session that is idle longest.

        Without a journal, do nothing.
        """
        if not self._can_unload or context.is_busy or context.closed:
            return
        self._idle.pop(context.id, None)
        self._idle[context.id] = None
        if len(self._idle) > MAX_LOADED_IDLE:
            longest = next(iter(self._idle))
            del self._idle[longest]
            self._unload(self._loaded[longest])

    def _unload(self, context: SessionContext) -> None:
        """Unload an idle session from memory. The journal can restore the session.

        A session with work, a parent or children stays in memory.
        """
        is_needed = context.parent is not None or context.children
        if context.is_busy or context.closed or context.turn is not None or is_needed:
            return
        if context.log is not None:
            context.log.flush_soon()  # pending records would otherwise wait for its next step
        if not self.remove(context):  # the flush found that another process owns its partition
            return
        self._on_unload(context.id)
        self._unloaded[context.id] = context.public_session
        context.public_session = None  # breaks the reference cycle between context and handle

    def loaded(self, handle: object) -> SessionContext:
        """Return the session context of a public handle. If the session was unloaded, put it back into the table first."""
        context = self._held_by(handle)
        if context.public_session is None:
            self.reload(context, handle)
        return context

    def reload(self, context: SessionContext, handle: object) -> None:
        """Put an unloaded session back into the table, and connect it with its public handle `handle`.

        A closed session gets its handle, but is not added to the table.
        """
        context.public_session = handle
        self._unloaded.pop(context.id, None)
        if not context.closed:
            self._loaded[context.id] = context
            self.on_reloaded(context)
            self.mark_idle(context)


class SessionTrees:
    """Index of the session trees in memory, across all agents of a runtime."""

    def __init__(self) -> None:
        self._tables: dict[str, SessionTable] = {}
        self._parentless: dict[SessionKey, WeakSet[SessionContext]] = {}
        """Loaded child sessions whose parent is not loaded, by the key of the parent. Some may be unloaded by now."""
        self._purged_at = PURGE_THRESHOLD

    def add(self, table: SessionTable) -> None:
        """Add the session table of a started agent, so that sessions find parents and children of this agent."""
        self._tables[table.agent] = table
        table.on_reloaded = self.attach_children

    def remove(self, agent: str) -> None:
        """Remove the session table of a stopped agent. Its sessions are detached from their child sessions of other agents."""
        table = self._tables.pop(agent, None)
        for parent in () if table is None else table.values():
            for child in (parent.children or {}).values():
                if self.find(child.key) is child:
                    self._detach(child)

    def _detach(self, child: SessionContext) -> None:
        """Detach a child session from its parent. The child is attached again when the parent is loaded."""
        tree = child.open_tree()
        tree.root_owner, tree.parent = child.root_owner, None
        if child.task is not None:
            child.task.is_unclaimed = True
        if tree.parent_key is not None:
            self.wait_for_parent(tree.parent_key, child)

    def find(self, key: SessionKey) -> SessionContext | None:
        """Return the session with this key (agent and id) if it is in memory; None otherwise."""
        table = self._tables.get(key.agent)
        context = None if table is None else table.get(key.session_id)
        return None if context is None or context.closed else context

    def wait_for_parent(self, parent: SessionKey, child: SessionContext) -> None:
        """Register a loaded child session whose parent is not loaded, so that `attach_children` can attach it later."""
        if len(self._parentless) >= self._purged_at:
            self._parentless = {key: waiting for key, waiting in self._parentless.items() if waiting}
            self._purged_at = max(PURGE_THRESHOLD, 2 * len(self._parentless))
        self._parentless.setdefault(parent, WeakSet()).add(child)

    def attach_children(self, parent: SessionContext) -> None:
        """Attach the registered child sessions of `parent`, which was just loaded."""
        for child in self._parentless.pop(parent.key, ()):
            if not child.closed:
                child.open_tree().parent = parent
                if child.public_session is not None or self._reload(child):
                    parent.add_child(child)

    def _reload(self, child: SessionContext) -> bool:
        """Put an unloaded child session back into memory. Return False if the program no longer holds its `Session` object."""
        table = self._tables.get(child.agent)
        return table is not None and table.reload_any(child.id) is child


def _ignore(_: SessionContext) -> None:
    pass
