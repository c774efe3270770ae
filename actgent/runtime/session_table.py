"""The sessions of a running agent: those in memory, which of them rest, and those that sleep."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from actgent.errors import SessionClosed, SessionExists, SessionNotFound
from actgent.sessions.context import SessionContext

AWAKE = 1000
"""How many idle sessions stay in memory where a journal can bring them back."""


class SessionTable(Mapping[str, SessionContext]):
    """The sessions in memory, by their ids. With a journal, those that have been idle the longest sleep: they leave memory."""

    def __init__(self, agent: str, *, can_sleep: bool, on_sleep: Callable[[str], object]) -> None:
        self._agent = agent
        self._can_sleep = can_sleep
        self._on_sleep = on_sleep
        self._awake: dict[str, SessionContext] = {}
        self._idle: dict[str, None] = {}
        """Sessions with nothing to do, the longest first; kept only where a journal could bring them back."""
        self._asleep: WeakValueDictionary[str, Any] = WeakValueDictionary()
        """The `Session`s of those that sleep, as long as someone outside holds them."""

    def __getitem__(self, session_id: str) -> SessionContext:
        return self._awake[session_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._awake)

    def __len__(self) -> int:
        return len(self._awake)

    def find(self, session_id: str) -> SessionContext:
        """The open session of this id.

        Raises:
            SessionNotFound: there is none in memory.
        """
        context = self._awake.get(session_id)
        if context is None or context.closed:
            raise SessionNotFound(self._agent, session_id)
        return context

    def find_asleep(self, session_id: str) -> Any:
        """The `Session` of this id that sleeps but is still held by someone, or None."""
        return self._asleep.get(session_id)

    def find_any(self, session_id: str) -> SessionContext | None:
        """The session of this id in memory, also one that sleeps and is held by someone; nobody is woken."""
        context = self._awake.get(session_id)
        asleep = self._asleep.get(session_id) if context is None else None
        return context if asleep is None else asleep._held  # noqa: SLF001

    def forget_asleep(self, session_id: str) -> None:
        """Whoever holds a session that sleeps holds one that is no more."""
        self._asleep.pop(session_id, None)

    def works_for(self, session_id: str) -> str:
        """For whom a session in memory works."""
        context = self._awake.get(session_id)
        return "" if context is None else context.works_for

    def check_member(self, context: SessionContext) -> None:
        """Refuse the session of another agent, or of an earlier run of this one.

        Raises:
            SessionClosed: it was closed.
            SessionNotFound: it is not this agent's.
        """
        if context.closed:
            raise SessionClosed(context.id)
        if self._awake.get(context.id) is not context:
            raise SessionNotFound(self._agent, context.id)

    def add(self, context: SessionContext) -> None:
        """Enter a session.

        Raises:
            SessionExists: its id is taken.
        """
        if context.id in self._awake:
            raise SessionExists(self._agent, context.id)
        self._awake[context.id] = context
        self.rest(context)

    def remove(self, context: SessionContext) -> bool:
        """Forget a session; False where it was not here."""
        if self._awake.get(context.id) is not context:
            return False
        del self._awake[context.id]
        self._idle.pop(context.id, None)
        return True

    # --- sleep -----------------------------------------------------------------------------

    def stir(self, context: SessionContext) -> None:
        """A session gets something to do."""
        self._idle.pop(context.id, None)

    def rest(self, context: SessionContext) -> None:
        """Count a session among the idle ones if it is, and let the longest idle one sleep."""
        if not self._can_sleep or context.is_busy or context.closed:
            return
        self._idle.pop(context.id, None)
        self._idle[context.id] = None
        if len(self._idle) > AWAKE:
            longest = next(iter(self._idle))
            del self._idle[longest]
            self._let_sleep(self._awake[longest])

    def _let_sleep(self, context: SessionContext) -> None:
        """Let go of a session that a journal can bring back; those in a tree stay."""
        if context.is_busy or context.turn is not None or context.parent is not None or context.children:
            return
        if context.log is not None:
            context.log.flush_soon()  # what was to go with the next step: it is another's
        del self._awake[context.id]
        self._on_sleep(context.id)
        self._asleep[context.id] = context.session
        context.session = None  # or the two would hold each other

    def wake(self, context: SessionContext, session: Any) -> None:
        """A session that slept is used again."""
        context.session = session
        self._asleep.pop(context.id, None)
        if not context.closed:
            self._awake[context.id] = context
            self.rest(context)
