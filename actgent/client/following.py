"""The events of a session over any number of connections: nothing is lost, and nothing is told twice.

The events of one record come together with its number, which is the cursor. A connection that ends in the middle of them
has told nothing of that record. What grows has no number, and is shown at once.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import attrs
import trio

from actgent.errors import CursorUnknown
from actgent.support.logs import Each, logger_of

from .calls import Pauses
from .problems import error_of
from .transport import ConnectionLost, Events, Refused, RemoteRequest, StreamEvent, Transport

Hear = Callable[[Sequence[StreamEvent]], Awaitable[None]]
"""Takes the events of one record, or one that only grows."""
_GROWING = ("token", "growing", "progress")
_OF_SERVER = ("bye", "lagged")
_LAST = ("closed", "end")
"""Events behind which nothing comes."""
_log = logger_of(__name__)


def is_growing(event: StreamEvent) -> bool:
    """Return True for what has no number and stands for itself."""
    return event.name in _GROWING


@attrs.define(eq=False, kw_only=True)
class Following:
    """One reader of a session's events."""

    transport: Transport
    request: RemoteRequest
    cursor: int
    """The number of the last record that was heard."""
    patience: float
    """Seconds without a connection after which it gives up."""
    growing: Callable[[StreamEvent], bool] = is_growing
    """Tells an event that has no number and stands for itself."""
    opened: trio.Event = attrs.field(factory=trio.Event)
    """Set when it hears for the first time."""
    _held: list[StreamEvent] = attrs.field(factory=list)
    """Those of a record whose last one has not come."""

    async def run(self, hear: Hear) -> None:
        """Have each record heard once, in order, until the session is closed.

        Raises:
            CursorUnknown: the server has an older copy of the session.
            ServerUnreachable: there was no connection for too long; over a broker, BrokerLost.
            ActgentError: the server refuses it, e.g. `SessionNotFound` where the session was erased.
        """
        pauses, since = Pauses(), trio.current_time()
        while True:
            reason, least = "the connection ended", 0.0
            try:
                async with self.transport.events(self._request()) as events:
                    if events is None:
                        return
                    if await self._read(events, hear, pauses):
                        return
            except ConnectionLost as lost:
                reason = str(lost)
            except Refused as refused:
                if not refused.is_passing:
                    raise error_of(refused, self.request) from None
                reason, least = str(refused), refused.retry_after
            since = since if pauses.tries else trio.current_time()
            if trio.current_time() - since > self.patience:
                raise self.transport.lost(reason, was_sent=True)
            await self._pause(pauses, reason, least)

    async def _pause(self, pauses: Pauses, reason: str, least: float) -> None:
        session = Each(self.request.session_id)
        _log.info("session %s: the events are cut off at %d (%s)", session, self.cursor, Each(reason))
        await trio.sleep(pauses.next(least))

    def _request(self) -> RemoteRequest:
        return attrs.evolve(self.request, query={**self.request.query, "after": self.cursor})

    async def _read(self, events: Events, hear: Hear, pauses: Pauses) -> bool:
        """Read up to the end of the connection; True if nothing comes behind it."""
        self._held.clear()
        async with aclosing(events) as stream:
            async for event in stream:
                pauses.reset()
                self.opened.set()
                if event is not None and await self._take(event, hear):
                    return True
        return False

    async def _take(self, event: StreamEvent, hear: Hear) -> bool:
        if event.name in _OF_SERVER:
            return False
        if event.name == "resync":
            records = event.number or 0
            raise CursorUnknown(self.request.session_id, self.cursor, records)
        if event.number is None and self.growing(event):
            await hear([event])
            return False
        self._held.append(event)
        return event.number is not None and await self._tell(event.number, hear)

    async def _tell(self, number: int, hear: Hear) -> bool:
        """A record is complete; True if it is the last one."""
        told, self._held = self._held, []
        if number > self.cursor or told[-1].name in _LAST:
            await hear(told)
            self.cursor = max(self.cursor, number)
        return any(each.name in _LAST for each in told)
