"""The time in which the agents of a runtime are started, one after the other.

A turn that the journal brought back may call an agent that the program has not started yet: without this, it would
hear that there is no such agent. While agents are still being started, such a call waits for the agent. The time is
over when the program says so (`Runtime.ready`, the end of `Runtime.starting`), or `GRACE` seconds after the last start.
Only sessions from the journal wait; a call in a new session is answered at once.
"""

import math
from collections.abc import Container
from weakref import WeakSet

import attrs
import trio

from actgent.sessions.context import SessionContext
from actgent.sessions.turn import running_turn

from .slots import slot_lent

GRACE = 10.0
"""Seconds after the last start in which another agent may still be started."""


@attrs.define(eq=False)
class Starting:
    """Whether agents are still being started, and which sessions wait for that."""

    is_over: bool = False
    blocks: int = 0
    """The number of blocks of `Runtime.starting` that are open."""
    has_told: bool = False
    """True if the log has named the agents that are missed."""
    _over_at: float = -math.inf
    """By trio's clock."""
    _came_back: "WeakSet[SessionContext]" = attrs.field(factory=WeakSet)
    """Sessions that the journal brought back meanwhile."""
    _changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def has_begun(self) -> bool:
        """True if an agent was started."""
        return self._over_at > -math.inf

    def note_start(self) -> None:
        """An agent was started: another one may follow."""
        self._over_at = trio.current_time() + GRACE
        self._tell()

    def end(self) -> None:
        """All agents are there."""
        self.is_over = True
        self._came_back.clear()
        self._tell()

    def note_return(self, context: SessionContext) -> None:
        """A session came back from the journal."""
        if self._is_open():
            self._came_back.add(context)

    async def wait_for(self, name: str, started: Container[str], context: SessionContext | None) -> None:
        """Let a session from the journal wait until an agent is started, or none will be any more."""
        if name not in started and self._waits(context):
            with slot_lent():
                while name not in started and self._is_open():
                    await self._wait_change()

    async def wait_all(self, context: SessionContext) -> None:
        """Let a session from the journal wait until all agents are started."""
        if self._waits(context):
            with slot_lent():
                await self.wait_over()

    async def wait_over(self) -> None:
        """Wait until no agent is expected any more."""
        while self._is_open():
            await self._wait_change()

    def _is_open(self) -> bool:
        return not self.is_over and trio.current_time() < self._over_at

    def _waits(self, context: SessionContext | None) -> bool:
        """Return True if a session came back from the journal while agents were started, or works for one that did."""
        if not self._is_open():
            return False
        while context is not None and context not in self._came_back:
            context = context.parent
        return context is not None

    async def _wait_change(self) -> None:
        with trio.move_on_at(self._over_at):
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


async def wait_started(name: str) -> None:
    """Let the turn that calls an agent that does not run wait for it, as `Starting.wait_for`; a task of one's own does not wait."""
    turn = running_turn.get()
    if turn is not None and turn.host is not None:
        await turn.host.wait_started(name)
