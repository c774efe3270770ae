"""`TimerService` fires the due timers of an agent's sessions.

One timer of the runtime is armed for the session that is due first. Workers load due sessions and fire their timers. They pause
while the inbox is half full, so that many due sessions are queued by id instead of being loaded. A session whose timers failed
is retried later.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager

import trio

from actgent.actors.deadline_timer import Timer, TimerHandle
from actgent.actors.inbox import PriorityInbox
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
from actgent.limits_and_schedules.durable_timer import DueIndex, DurableTimer
from actgent.messages import Message
from actgent.sessions.session_context import SessionContext
from actgent.support.safe_logging import LogVariable, logger_of

_log = logger_of(__name__)

WORKERS = 128
"""Maximum number of sessions that fire at the same time; they share reads and writes of the journal."""
COALESCE_SECONDS = 0.05
"""Minimum seconds between two checks for due sessions, so that close timers share journal work."""
CLOCK_CHECK_SECONDS = 2.0
"""Seconds between checks whether the system clock was set."""
RETRY_FULL_SECONDS = 1.0
"""Seconds until a timer is retried after the inbox was full."""
RETRY_FAILED_SECONDS = 30.0
"""Seconds until a timer is retried after its action failed."""
INBOX_POLL_SECONDS = 0.05
"""Seconds between checks of an inbox that has no room for messages of timers."""

TimerHandlers = Mapping[type[DurableTimer], Callable[..., Awaitable[None]]]
"""Function per timer class that executes a due timer, called with the loaded session and the timer.

The function removes the timer or sets its next time, in one journal batch with its effect. A timer that stays due is retried
after `RETRY_FULL_SECONDS` if the inbox was full, or after `RETRY_FAILED_SECONDS` if another error occurred.
"""
LoadSession = Callable[[str], AbstractAsyncContextManager[SessionContext]]
"""Function of a session id that returns a block during which this session is in memory."""


class TimerService:
    """Fires the due timers of an agent's sessions while the agent accepts messages."""

    def __init__(
        self,
        agent: str,
        *,
        index: DueIndex,
        inbox: PriorityInbox[Message],
        timer: Timer,
        start_soon: Callable[[Callable[[], Awaitable[None]]], bool],
    ) -> None:
        """Args: `start_soon` starts a task of the agent; it returns False if the agent is not running."""
        self.index = index
        self._agent = agent
        self._inbox = inbox
        self._timer = timer
        self._load_session: LoadSession
        self._make_handlers: Callable[[], TimerHandlers]
        self._start_soon = start_soon
        self._queue: deque[str] | tuple[()] = ()
        """Ids of due sessions; a deque from the first one on, because an empty deque takes 700 bytes."""
        self._firing = 0
        """Number of sessions whose timers are being fired by workers."""
        self._workers = 0
        self._is_on = False
        """True from `begin` to `end`: timers fire."""
        self._handle: TimerHandle | None = None
        self._handle_at = 0.0
        """Time in seconds of `Clock.steady` at which the armed runtime timer fires."""
        self._looked_at = -math.inf
        """Time of the last check in seconds of trio's clock; -inf before the first."""
        index.on_push = self._arm_for

    # --- life ------------------------------------------------------------------------------

    def connect(self, load_session: LoadSession, make_handlers: Callable[[], TimerHandlers]) -> None:
        """Set the functions that load sessions and create the timer handlers. Call this method before `begin`.

        `make_handlers` is called when a session is first due, because most agents never have a timer.
        """
        self._load_session = load_session
        self._make_handlers = make_handlers

    def begin(self) -> None:
        """Start to fire the timers of the agent's sessions when they are due."""
        self._is_on = True
        self._start_workers()
        self._arm()

    def end(self) -> None:
        """Stop firing timers. Workers finish the sessions that they are processing."""
        self._is_on = False
        self._disarm()

    def load(self, times: Iterable[tuple[str, float]]) -> None:
        """Add sessions to the timer index. Each item of `times` is a session id and the Unix time in seconds of its next timer."""
        self.index.load(times)
        self._arm()

    # --- when the earliest session is due ------------------------------------------------------

    def _arm_for(self, at: float) -> None:
        """Arm the runtime timer for the Unix time `at` in seconds, unless it is armed for an earlier time."""
        if self._handle is None or at < self._handle_at:
            self._arm()

    def _arm(self) -> None:
        """Arm the runtime timer for the earliest session."""
        self._disarm()
        if self._is_on and (first := self.index.first) < math.inf:
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
        """Move the due sessions to the queue, and start workers."""
        self._looked_at = trio.current_time()
        if (jump := self.index.clock.take_adjustment()) > 0:
            self.index.advance(jump)
        self._queue = deque((*self._queue, *self.index.pop()))
        self._start_workers()
        self._arm()

    # --- workers -----------------------------------------------------------------------------

    def _start_workers(self) -> None:
        """Start workers for the queue of due sessions.

        The maximum number is `WORKERS`, or less if the inbox has less room. If the queue is not empty, at least one worker runs.
        """
        if self._is_on:
            wanted = min(len(self._queue), WORKERS - self._workers, self._room)
            for _ in range(wanted or int(not self._workers and bool(self._queue))):
                self._workers += self._start_soon(self._work)

    @property
    def _room(self) -> int:
        """Number of further sessions whose timers may fire now. Half of the inbox is reserved for other senders."""
        share = max(1, self._inbox.capacity // 2)
        return max(0, share - len(self._inbox) - self._firing)

    async def _work(self) -> None:
        try:
            while self._queue and self._is_on:
                if self._room:
                    session_id = self._queue.popleft()
                    self._firing += 1
                    self._start_workers()  # there may be room for more by now
                    await self._fire_session(session_id)
                elif self._workers > 1:
                    return  # one worker is enough to poll for room
                else:
                    await trio.sleep(INBOX_POLL_SECONDS)
        finally:
            self._workers -= 1

    async def _fire_session(self, session_id: str) -> None:
        """Load a session and fire its due timers. If that fails, log the error and schedule a retry.

        A session that is closed, unknown, damaged or without its deps is removed from the timer index.
        """
        delay = 0.0
        try:
            async with self._load_session(session_id) as context:
                delay = await self._fire_due(context)
        except (SessionNotFound, SessionClosed, SessionMoved):
            self.index.set(session_id, 0)
        except (JournalDamaged, WireError) as error:
            self.index.set(session_id, 0)
            _log.error("agent %s skips a session with a due timer: %s", self._agent, error)
        except DepsMissing as error:
            if error.__cause__ is None:  # until the session is opened with deps
                self.index.set(session_id, 0)
            else:
                delay = RETRY_FAILED_SECONDS
            _log.error("agent %s skips a session with a due timer: %s", self._agent, error)
        except Exception:  # noqa: BLE001 - e.g. of a user's `on_session`; timers of other sessions must fire anyway
            delay = RETRY_FAILED_SECONDS
            _log.exception(
                "agent %s: session %s is due and cannot be opened", self._agent, LogVariable(session_id)
            )
        finally:
            self._firing -= 1
            self.index.put_back(session_id, delay=delay)

    async def _fire_due(self, context: SessionContext) -> float:
        """Fire the due timers of a session, earliest first. A failing timer does not stop the others.

        Return the seconds until failed timers are retried; 0 if none failed.
        """
        delays, handlers = [0.0], self._make_handlers()
        for timer in sorted(context.timers.values(), key=lambda each: each.at):
            if not timer.is_due(self.index.clock):
                continue
            try:
                await handlers[type(timer)](context, timer)
            except (SessionClosed, SessionMoved, NotRunning):
                break  # the session ended or moved; its next owner fires the recorded timer
            except InboxFull:
                delays.append(RETRY_FULL_SECONDS)
            except Exception:  # noqa: BLE001 - e.g. a full disk or a bug: the other timers must fire anyway
                delays.append(RETRY_FAILED_SECONDS)
                _log.exception(
                    "agent %s: %s of session %s failed",
                    self._agent,
                    LogVariable(timer.id),
                    LogVariable(context.id),
                )
        context.report_next_timer()  # recompute with the current time
        return max(delays)
