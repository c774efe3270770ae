"""When the sessions of a running agent are due: one heap, and one alarm of the runtime's timer for the earliest.

A session that sleeps, or that was never read since the start, costs an id and a number here. When it is due some
workers open it and ring what is due in it; they wait while the agent's inbox is half full, so that a crowd of dates becomes
a queue and not a crowd of sessions in memory. A session that could not be rung is due again a little later.
"""

import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio

from actgent.actors.inbox import PriorityInbox
from actgent.actors.timer import Alarm, Timer
from actgent.control.clock import Clock
from actgent.control.durable_timer import is_due
from actgent.errors import InboxFull, JournalDamaged, NotRunning, SessionClosed, SessionNotFound, WireError
from actgent.logs import Each, logger_of
from actgent.messages import Message

from .context import SessionContext

_log = logger_of(__name__)

WORKERS = 128
"""Sessions that are rung side by side: those share each read and each write of the journal, however slow its disk is."""
EARLY = 0.001
"""Seconds by which something may be rung too soon: clocks round."""
TOGETHER = 0.05
"""Seconds from one date to the next look for others: those that follow closely share reads and writes of the journal."""
LOOK = 2.0
"""Seconds after which the clock is looked at again, since someone may have set it."""
RETRY_FULL = 1.0
"""Seconds until a session whose inbox is full is rung again."""
RETRY_FAILED = 30.0
"""Seconds until a session is rung again in which that failed."""
ROOM = 0.05
"""Seconds between two looks at an agent's inbox without room for dates."""
COMPACT_FROM = 1000
"""A shorter heap is never looked through for dates that were changed."""


class Alarms:
    """Rings sessions when they are due, while their agent takes messages."""

    def __init__(self, agent: Any, *, inbox: PriorityInbox[Message], timer: Timer, clock: Clock) -> None:
        self.clock = clock
        self.find: Callable[[str], Awaitable[Any]] | None = None
        """Opens a session; without it nothing is rung."""
        self._agent = agent
        self._inbox = inbox
        self._timer = timer
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        """What is not in `_at` was changed since, and is passed over."""
        self._queue: deque[str] = deque()
        self._ringing: set[str] = set()
        """Sessions in the queue or with a worker."""
        self._workers = 0
        self._nursery: trio.Nursery | None = None
        self._alarm: Alarm | None = None
        self._alarm_at = 0.0
        self._rang = -math.inf
        """When the alarm rang last, by trio's clock."""

    def __len__(self) -> int:
        """How many sessions have a date."""
        return len(self._at)

    # --- life ------------------------------------------------------------------------------

    def begin(self, nursery: trio.Nursery) -> None:
        """Ring from now on, in tasks of this nursery."""
        self._nursery = nursery
        self._start_workers()
        self._arm()

    def end(self) -> None:
        """Ring no more; what is being rung goes on."""
        self._nursery = None
        self._disarm()

    # --- dates -----------------------------------------------------------------------------

    def set(self, session_id: str, at: float) -> None:
        """A session is due at this time of `Clock.steady`, and at none that was said before; 0 is never."""
        if not at:
            self._at.pop(session_id, None)
        elif self._at.get(session_id) != at:
            self._at[session_id] = at
            if session_id not in self._ringing:
                self._push(at, session_id)

    def load(self, dates: Iterable[tuple[str, float]]) -> None:
        """Take what a journal lists; what is known already is newer."""
        for session_id, at in dates:
            self._at.setdefault(session_id, at)
        self._rebuild()
        self._arm()

    def _push(self, at: float, session_id: str) -> None:
        heapq.heappush(self._heap, (at, session_id))
        if len(self._heap) > max(COMPACT_FROM, 2 * len(self._at)):
            self._rebuild()
        if self._alarm is None or at < self._alarm_at:
            self._arm()

    def _rebuild(self) -> None:
        self._heap = [(at, key) for key, at in self._at.items() if key not in self._ringing]
        heapq.heapify(self._heap)

    # --- ringing ---------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have the timer call for the earliest date."""
        self._disarm()
        if self._heap and self._nursery is not None:
            self._alarm_at = self._heap[0][0]
            wait = max(0.0, self._alarm_at - self.clock.steady())
            if self.clock.may_be_set:
                wait = min(wait, LOOK)
            at = max(trio.current_time() + wait, self._rang + TOGETHER)
            self._alarm = self._timer.call_at(at, self._ring)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _ring(self) -> None:
        """Queue the sessions that are due."""
        self._rang = trio.current_time()
        if (jump := self.clock.look()) > 0:
            self._advance(jump)
        now = self.clock.steady() + EARLY
        while self._heap and self._heap[0][0] <= now:
            at, session_id = heapq.heappop(self._heap)
            if self._at.get(session_id) == at and session_id not in self._ringing:
                self._ringing.add(session_id)
                self._queue.append(session_id)
        self._start_workers()
        self._arm()

    def _advance(self, seconds: float) -> None:
        """The clock was set forward: what has a date comes sooner. What does not is looked at once more, and waits on."""
        self._at = {session_id: at - seconds for session_id, at in self._at.items()}
        self._rebuild()

    def _start_workers(self) -> None:
        """Have as many workers as there is work and room for; one where there is work and no room."""
        if self._nursery is not None:
            wanted = min(len(self._queue), WORKERS - self._workers, self._room)
            for _ in range(wanted or int(not self._workers and bool(self._queue))):
                self._workers += 1
                self._nursery.start_soon(self._work, name="alarms")

    @property
    def _room(self) -> int:
        """How many further sessions may be rung, each with a message for the inbox, of which half is left to people."""
        share = max(1, self._inbox.capacity // 2)
        return max(0, share - len(self._inbox) - len(self._ringing) + len(self._queue))

    async def _work(self) -> None:
        try:
            while self._queue and self._nursery is not None:
                if self._room:
                    session_id = self._queue.popleft()
                    self._start_workers()  # there may be room for more by now
                    await self._ring_session(session_id)
                elif self._workers > 1:
                    return  # one is enough to look for room
                else:
                    await trio.sleep(ROOM)
        finally:
            self._workers -= 1

    async def _ring_session(self, session_id: str) -> None:
        """Open a session and ring what is due in it; whatever happens, its next date is watched."""
        delay = 0.0
        try:
            delay = await self._ring_dues(session_id)
        except (SessionNotFound, SessionClosed):
            self._at.pop(session_id, None)
        except (JournalDamaged, WireError) as error:
            self._at.pop(session_id, None)
            _log.error("agent %s leaves a session out that is due: %s", self._agent.name, error)
        except Exception:  # noqa: BLE001 - perhaps of a developer's `on_session`; other sessions are rung all the same
            delay = RETRY_FAILED
            _log.exception(
                "agent %s: session %s is due and cannot be opened", self._agent.name, Each(session_id)
            )
        finally:
            self._ringing.discard(session_id)
            self._watch(session_id, delay)

    async def _ring_dues(self, session_id: str) -> float:
        """Ring what is due in a session, each by itself; returns the seconds until those that failed are rung again."""
        if self.find is None:
            return RETRY_FAILED
        session = await self.find(session_id)
        with self._agent.kept(session._context):  # noqa: SLF001 - which wakes it
            return await self._ring_all(session._context)  # noqa: SLF001

    async def _ring_all(self, context: SessionContext) -> float:
        delays = [0.0]
        for dated in sorted((context.dues or {}).values(), key=lambda each: each.at):
            if not is_due(dated, self.clock, early=EARLY):
                continue
            try:
                await dated.ring(self._agent, context)
            except (SessionClosed, NotRunning):
                break  # by now; with a journal the next start rings it
            except InboxFull:
                delays.append(RETRY_FULL)
            except Exception:  # noqa: BLE001 - a disk that is full, or a bug: the others are rung all the same
                delays.append(RETRY_FAILED)
                _log.exception(
                    "agent %s: %s of session %s failed", self._agent.name, Each(dated.id), Each(context.id)
                )
        context.tell_due()  # by the clock as it is now
        return max(delays)

    def _watch(self, session_id: str, delay: float) -> None:
        """Watch a session's next date, which is at least `delay` seconds away."""
        at = self._at.get(session_id)
        if at is not None:
            now = self.clock.steady()
            if delay or at <= now:
                at = self._at[session_id] = max(at, now + (delay or RETRY_FULL))
            self._push(at, session_id)
