"""Schedules webhook deliveries: sessions of one receiver take turns, and failed deliveries wait for their retry time.

Each receiver has `SLOTS_PER_RECEIVER` concurrent attempts, so a slow receiver does not delay others.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import attrs
import trio

from actgent.journal.session_list_queries import SessionKey

from .signatures import SigningKeys

SLOTS_PER_RECEIVER = 8
"""Maximum number of concurrent attempts for one receiver."""
MAX_SLOTS = 96
"""Maximum number of concurrent attempts in total: below the connection limit of a guarded client."""


@attrs.frozen(kw_only=True)
class Target:
    """Receiver of the notifications of a session: URL, events and signing keys."""

    url: str
    events: tuple[str, ...]
    """Names of the events for which notifications are sent."""
    keys: SigningKeys | None = None
    """Keys that sign the notifications; None uses the keys of the webhook."""

    @property
    def origin(self) -> str:
        """Scheme, host and port of the URL, which identify the receiver."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}".lower()


@attrs.define(eq=False)
class DeliveryStream:
    """Pending notifications of one session, delivered in order."""

    key: SessionKey
    target: Target
    seen: int
    """Number of the last record of the session that was processed."""
    last: int
    """Number of the last record of the session that may need a notification."""
    redelivered_id: str = ""
    """Id of the one notification to send again. If empty, all notifications after `seen` are sent."""
    attempts: int = 0
    """Number of failed attempts to send the next notification."""
    first_failed_at: float = 0.0
    """Time of the first failed attempt to send the next notification, in seconds of trio's clock."""
    is_erased: bool = False
    """True if the session was erased, so that its notifications are dropped."""


@attrs.define(eq=False)
class _ReceiverQueue:
    """Streams of one receiver that are ready for delivery, and the number of running delivery attempts."""

    ready: deque[DeliveryStream] = attrs.field(factory=deque)
    running: int = 0


class DeliveryQueue:
    """Queue of delivery streams. It runs their deliveries, at most one at a time for each stream.

    Args:
        deliver: Delivers notifications of a stream. Returns the seconds until a retry, or None if all succeeded.
        finish: Called with each stream that has no more notifications.
    """

    def __init__(
        self,
        deliver: Callable[[DeliveryStream], Awaitable[float | None]],
        finish: Callable[[DeliveryStream], object],
    ) -> None:
        self._deliver = deliver
        self._finish = finish
        self._queue: dict[str, _ReceiverQueue] = {}
        self._running = 0
        self._retries: list[tuple[float, int, DeliveryStream]] = []
        """Heap of (retry time, serial number, stream)."""
        self._order = itertools.count()
        self._alarm = trio.Event()
        self._nursery: trio.Nursery | None = None

    def waiting_for_retry(self, maximum: int) -> list[DeliveryStream]:
        """Return at most `maximum` streams that wait for their next attempt. The stream with the earliest attempt is first."""
        return [stream for _, _, stream in heapq.nsmallest(maximum, self._retries)]

    async def run(self) -> None:
        """Deliver queued streams until cancelled.

        Each receiver has a limited number of parallel deliveries.
        """
        async with trio.open_nursery() as self._nursery:
            for receiver in list(self._queue.values()):
                self._pump(receiver)
            await self._watch_time()

    def add(self, stream: DeliveryStream) -> None:
        """Queue a stream for delivery to its receiver."""
        receiver = self._queue.setdefault(stream.target.origin, _ReceiverQueue())
        receiver.ready.append(stream)
        self._pump(receiver)

    async def _watch_time(self) -> None:
        while True:
            self._alarm = trio.Event()
            while self._retries and self._retries[0][0] <= trio.current_time():
                self.add(heapq.heappop(self._retries)[2])
            with trio.move_on_at(self._retries[0][0] if self._retries else math.inf):
                await self._alarm.wait()

    def _pump(self, receiver: _ReceiverQueue) -> None:
        while (
            self._nursery
            and receiver.ready
            and receiver.running < SLOTS_PER_RECEIVER
            and self._running < MAX_SLOTS
        ):
            receiver.running += 1
            self._running += 1
            self._nursery.start_soon(self._work, receiver.ready.popleft(), receiver)

    async def _work(self, stream: DeliveryStream, receiver: _ReceiverQueue) -> None:
        pause = None if stream.is_erased else await self._deliver(stream)
        was_full = self._running >= MAX_SLOTS
        receiver.running -= 1
        self._running -= 1
        if pause is not None:
            heapq.heappush(self._retries, (trio.current_time() + pause, next(self._order), stream))
            self._alarm.set()
        elif stream.seen < stream.last and not stream.is_erased:
            receiver.ready.append(stream)
        else:
            self._finish(stream)
        for each in list(self._queue.values()) if was_full else [receiver]:
            self._pump(each)
        if not receiver.ready and not receiver.running and self._queue.get(stream.target.origin) is receiver:
            del self._queue[stream.target.origin]
