"""Start phase of a runtime: turns that resume from the journal wait for agents that the program has not started yet.

The phase ends with `Runtime.ready`, with the end of a `Runtime.starting` block, or `START_PHASE_SECONDS` seconds after the last
start of an agent. A turn that was not resumed does not wait: its call to an agent that is not running fails at once.
"""

import math
from collections.abc import Container
from weakref import WeakSet

import attrs
import trio

from actgent.sessions.session_context import SessionContext, running_turn
from actgent.support.attrs_class_repr import FieldRepr

from .waits_between_sessions import releasing_slot

START_PHASE_SECONDS = 10.0
"""Seconds after the last start of an agent until the start phase ends."""


@attrs.define(eq=False, repr=False)
class StartPhase(FieldRepr):
    """State of the runtime's start phase, with the resumed sessions that wait for missing agents."""

    is_over: bool = False
    blocks: int = 0
    """Number of `Runtime.starting` blocks that the program has entered and not left; the phase does not end before."""
    has_logged: bool = False
    """True if a warning about the missing agents was logged."""
    _ends_at: float = -math.inf
    """End of the start phase in seconds of `trio.current_time()`; minus infinity before the first start of an agent."""
    _resumed_sessions: "WeakSet[SessionContext]" = attrs.field(factory=WeakSet)
    """Sessions that were resumed from the journal during the start phase."""
    _changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def has_begun(self) -> bool:
        """True if at least one agent was started."""
        return self._ends_at > -math.inf

    def note_start(self) -> None:
        """Restart the timeout of the start phase after the start of an agent, and wake the turns that wait for agents."""
        self._ends_at = trio.current_time() + START_PHASE_SECONDS
        self._wake_waiters()

    def end(self) -> None:
        """End the start phase and wake all waiting sessions."""
        self.is_over = True
        self._resumed_sessions.clear()
        self._wake_waiters()

    def add_resumed(self, context: SessionContext) -> None:
        """Register a session that was resumed from the journal, so that its turns wait for missing agents.

        After the start phase, do nothing.
        """
        if self._is_open():
            self._resumed_sessions.add(context)

    async def wait_for(self, name: str, started: Container[str], context: SessionContext | None) -> None:
        """Wait until the agent `name` is in `started`, or the start phase has ended.

        `context` is the session of the calling turn. If it was not resumed from the journal, return at once. The turn releases
        its concurrency slot during the wait.
        """
        if name not in started and self._must_wait(context):
            with releasing_slot():
                while name not in started and self._is_open():
                    await self._wait_change()

    async def wait_all(self, context: SessionContext) -> None:
        """If `context` is a session that was resumed at startup, wait until the start phase ends.

        Return at once for other sessions.
        """
        if self._must_wait(context):
            with releasing_slot():
                await self.wait_ended()

    async def wait_next_start(self) -> None:
        """Wait until the next agent of the runtime is started, or until the start phase ends."""
        await self._changed.wait()

    async def wait_ended(self) -> None:
        """Wait until the phase has ended."""
        while self._is_open():
            await self._wait_change()

    def _is_open(self) -> bool:
        return not self.is_over and trio.current_time() < self._ends_at

    def _must_wait(self, context: SessionContext | None) -> bool:
        """Return True if calls of a session must wait for missing agents: the start phase is open, and the session or a parent was resumed."""
        if not self._is_open():
            return False
        while context is not None and context not in self._resumed_sessions:
            context = context.parent
        return context is not None

    async def _wait_change(self) -> None:
        with trio.move_on_at(self._ends_at):
            await self._changed.wait()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def wait_started(name: str) -> None:
    """Wait until an agent is started or the start phase has ended, if the calling turn was resumed from the journal."""
    turn = running_turn.get()
    if turn is not None and turn.host is not None:
        await turn.host.wait_started(name)
