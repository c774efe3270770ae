"""Tasks of other pools that are to be stopped: said again until the other pool has confirmed it, whatever is killed.

Each of them is a session of its own, with one message, in the tree of the session that asked: what is unfinished in it goes on
at the next start and at the next owner, as with any other. It leaves the journal at its end.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import trio

from actgent.messages import new_secret
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.slots import slot_lent
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handlers
from actgent.sessions.incoming import message_to
from actgent.sessions.waiting.tasks import id_below

from .pools import PoolReport, Pools, PoolTask

STOPPED = "stopped"
"""The key of the state under which such a session has its task."""
PROMPT = 2.0
"""Seconds for which a stopped task is waited for; then it is stopped without anybody waiting for that."""
LATE = 60.0
"""Seconds after the deadline of a task for which it is still stopped; by then it has ended by itself."""
_KEPT = ("session_id", "agent", "asker", "owner", "limits", "deadline", "seconds")


@attrs.frozen(eq=False)
class PoolStops:
    """What the sessions of one agent have stopped in another pool."""

    pools: Pools
    pool: str
    """The name of the other one."""
    _waiting: dict[str, tuple[trio.Event, list[PoolReport]]] = attrs.field(factory=dict)
    """By the session of a task, who waits for its end, and what is told then."""

    async def stop(self, opener: SessionOpener, asker: SessionContext, task: PoolTask) -> PoolReport:
        """Have a task stopped; on return that is certain, and it is waited for no longer than `PROMPT`.

        Returns what it came to; what says nothing if that is not known by then.

        Raises:
            SessionMoved: another process goes on with who asked.
            JournalError: nobody has heard of it.
        """
        ended, told = self._waiting.setdefault(task.session_id, (trio.Event(), []))
        try:
            await self._begin(opener, asker, task)
            with slot_lent(), trio.move_on_after(PROMPT):
                await ended.wait()
        finally:
            self._waiting.pop(task.session_id, None)
        return told[0] if told else PoolReport()

    async def _begin(self, opener: SessionOpener, asker: SessionContext, task: PoolTask) -> None:
        """Note in the journal what is to be stopped, and begin with it."""
        context = opener.new(asker.owner, session_id=id_below(asker.id, new_secret()), is_transient=True)
        kept = attrs.asdict(task, filter=lambda field, _: field.name in _KEPT)
        context.state.dispatch((STOPPED, kept))
        async with opener.beginning(context):
            await opener.intake.accept(context, message_to(context, "stop it"), is_granted=True)

    async def go_on(self, context: SessionContext, kept: Mapping[str, Any], *, now: float) -> None:
        """Tell the other pool until it has stopped a task, or the task has ended by itself; `now` is steady Unix time."""
        context.handlers = Handlers()  # nobody is told of it
        task = PoolTask(**kept)
        with slot_lent(), trio.move_on_after(max(task.deadline - now, 0.0) + LATE):
            report = await self.pools.cancel(self.pool, task)
            ended, told = self._waiting.get(task.session_id, (trio.Event(), []))
            told.append(report)
            ended.set()
