"""`TimerService` fires the timers of an agent's sessions when they are due; what each type does is a table that it is given.

One handle of the runtime's timer stands for the earliest session. When sessions are due, workers load them and fire their
timers. The workers wait while the agent's inbox is half full, so that many due sessions form a queue instead of filling
the memory. A session whose timers could not fire is due again a little later.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

import trio

from actgent.actors.inbox import PriorityInbox
from actgent.actors.timer import Timer, TimerHandle
from actgent.control.durable_timer import DueIndex, DurableTimer
from actgent.errors import (
    DepsMissing,
    InboxFull,
    JournalDamaged,
    NotRunning,
    SessionClosed,
    SessionMoved,
    SessionNotFound,
    WireError,
)
from actgent.messages import Message
from actgent.sessions.context import SessionContext
from actgent.support.logs import Each, logger_of

_log = logger_of(__name__)

WORKERS = 128
"""The number of sessions that fire side by side: they share reads and writes of the journal, however slow its disk is."""
COALESCE_SECONDS = 0.05
"""The pause after one look at what is due, until the next: timers close to each other share the journal's work."""
CLOCK_CHECK_SECONDS = 2.0
"""The interval at which the clock is checked, since somebody may have set it."""
RETRY_FULL_SECONDS = 1.0
"""When a timer fires again whose message found the inbox full."""
RETRY_FAILED_SECONDS = 30.0
"""When a timer fires again whose handler failed."""
INBOX_POLL_SECONDS = 0.05
"""The interval at which an inbox without capacity for timers is looked at."""

TimerHandlers = Mapping[type[DurableTimer], Callable[..., Awaitable[None]]]
"""Handlers of timers, by their type: called with the session's context, which is loaded, and the timer, which is of that type.

A handler removes the timer or sets its next time, in one step of the journal with what it does. If the timer stays due, it
fires again: a second later after `InboxFull`, half a minute later after another exception.
"""
LoadSession = Callable[[str], AbstractAsyncContextManager[SessionContext]]
"""Loads the session of an id, and keeps it in memory for the block."""


class TimerService:
    """Fires the timers of sessions when they are due, while their agent takes messages."""

    def __init__(self, agent: str, *, index: DueIndex, inbox: PriorityInbox[Message], timer: Timer) -> None:
        self.index = index
        self._agent = agent
        self._inbox = inbox
        self._timer = timer
        self._load_session: LoadSession
        self._handlers: TimerHandlers
        self._queue: deque[str] = deque()
        self._firing = 0
        """The number of sessions that are with a worker."""
        self._workers = 0
        self._nursery: trio.Nursery | None = None
        self._handle: TimerHandle | None = None
        self._handle_at = 0.0
        """When it calls, by `Clock.steady`."""
        self._looked_at = -math.inf
        """When the handle called last, by trio's clock."""
        index.on_push = self._arm_for

    # --- life ------------------------------------------------------------------------------

    def connect(self, load_session: LoadSession, handlers: TimerHandlers) -> None:
        """Say how sessions are loaded and what timers do in them, before it begins."""
        self._load_session = load_session
        self._handlers = handlers

    def begin(self, nursery: trio.Nursery) -> None:
        """Fire from now on, in tasks of this nursery."""
        self._nursery = nursery
        self._start_workers()
        self._arm()

    def end(self) -> None:
        """Fire no more; sessions that are with a worker go on."""
        self._nursery = None
        self._disarm()

    def load(self, times: Iterable[tuple[str, float]]) -> None:
        """Add the sessions that a journal lists as due, and when."""
        self.index.load(times)
        self._arm()

    # --- when the earliest session is due ------------------------------------------------------

    def _arm_for(self, at: float) -> None:
        """Call the timer earlier, if needed for a time that was just set."""
        if self._handle is None or at < self._handle_at:
            self._arm()

    def _arm(self) -> None:
        """Have the timer call for the earliest session."""
        self._disarm()
        if self._nursery is not None and (first := self.index.first) < math.inf:
            self._handle_at = first
            wait = max(0.0, first - self.index.clock.steady())
            if self.index.clock.may_be_set:
                wait = min(wait, CLOCK_CHECK_SECONDS)
            at = max(trio.current_time() + wait, self._looked_at + COALESCE_SECONDS)
            self._handle = self._timer.call_at(at, self._queue_due)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _queue_due(self) -> None:
        """Queue the sessions that are due."""
        self._looked_at = trio.current_time()
        if (jump := self.index.clock.take_adjustment()) > 0:
            self.index.advance(jump)
        self._queue += self.index.pop()
        self._start_workers()
        self._arm()

    # --- workers -----------------------------------------------------------------------------

    def _start_workers(self) -> None:
        """Start as many workers as there is work and room for, and at least one if there is work."""
        if self._nursery is not None:
            wanted = min(len(self._queue), WORKERS - self._workers, self._room)
            for _ in range(wanted or int(not self._workers and bool(self._queue))):
                self._workers += 1
                self._nursery.start_soon(self._work, name="timers")

    @property
    def _room(self) -> int:
        """The number of sessions that may still fire, each with a message; half of the inbox is left to people."""
        share = max(1, self._inbox.capacity // 2)
        return max(0, share - len(self._inbox) - self._firing)

    async def _work(self) -> None:
        try:
            while self._queue and self._nursery is not None:
                if self._room:
                    session_id = self._queue.popleft()
                    self._firing += 1
                    self._start_workers()  # there may be room for more by now
                    await self._fire_session(session_id)
                elif self._workers > 1:
                    return  # one is enough to look for room
                else:
                    await trio.sleep(INBOX_POLL_SECONDS)
        finally:
            self._workers -= 1

    async def _fire_session(self, session_id: str) -> None:
        """Load a session and fire what is due in it. Whatever happens, its next time is watched."""
        delay = 0.0
        try:
            async with self._load_session(session_id) as context:
                delay = await self._fire_due(context)
        except (SessionNotFound, SessionClosed, SessionMoved):
            self.index.set(session_id, 0)
        except (JournalDamaged, WireError) as error:
            self.index.set(session_id, 0)
            _log.error("agent %s leaves a session out that is due: %s", self._agent, error)
        except DepsMissing as error:
            if error.__cause__ is None:  # until somebody opens it with deps
                self.index.set(session_id, 0)
            else:
                delay = RETRY_FAILED_SECONDS
            _log.error("agent %s leaves a session out that is due: %s", self._agent, error)
        except Exception:  # noqa: BLE001 - perhaps of a developer's `on_session`; other sessions fire all the same
            delay = RETRY_FAILED_SECONDS
            _log.exception("agent %s: session %s is due and cannot be opened", self._agent, Each(session_id))
        finally:
            self._firing -= 1
            self.index.put_back(session_id, delay=delay)

    async def _fire_due(self, context: SessionContext) -> float:
        """Fire the due timers of a session, each by itself; returns the seconds until those that failed fire again."""
        delays = [0.0]
        for timer in sorted(context.timers.values(), key=lambda each: each.at):
            if not timer.is_due(self.index.clock):
                continue
            try:
                await self._handlers[type(timer)](context, timer)
            except (SessionClosed, SessionMoved, NotRunning):
                break  # by now; with a journal the next start, or whoever goes on with it, fires it
            except InboxFull:
                delays.append(RETRY_FULL_SECONDS)
            except Exception:  # noqa: BLE001 - a disk that is full, or a bug: the others fire all the same
                delays.append(RETRY_FAILED_SECONDS)
                _log.exception(
                    "agent %s: %s of session %s failed", self._agent, Each(timer.id), Each(context.id)
                )
        context.report_next_timer()  # by the clock as it is now
        return max(delays)
