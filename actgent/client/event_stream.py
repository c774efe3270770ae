"""Event stream of a session that reconnects: the events of each record are delivered exactly once, in order.

The events of one record are delivered together when the last event of the record arrives. This event carries the record number,
which is the cursor. If the connection ends before the last event, the server sends all events of the record again. Events of
partial answers and tool progress have no number and are delivered at once.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import attrs
import trio

from actgent.errors import InvalidCursor
from actgent.support.safe_logging import LogVariable, logger_of

from .error_conversion import error_of
from .request_sender import BrokenConnections, RetryBackoff
from .transport_interface import ConnectionLost, Events, Refused, RemoteRequest, StreamEvent, Transport

RecordCallback = Callable[[Sequence[StreamEvent]], Awaitable[None]]
"""Callback that receives all events of one record, or one event without a record number."""
_PARTIAL_EVENTS = ("token", "growing", "progress")
"""Names of the events of partial answers and tool progress."""
_DISCONNECT_EVENTS = ("bye", "lagged")
"""Names of the events with which the server announces that it ends this connection; the client then reconnects."""
_FINAL_EVENTS = ("closed", "end")
"""Names of the events after which the stream does not reconnect."""
_log = logger_of(__name__)


def is_partial(event: StreamEvent) -> bool:
    """Return True if the event is a partial answer or tool progress, which has no record number."""
    return event.name in _PARTIAL_EVENTS


@attrs.define(eq=False, kw_only=True)
class ReconnectingStream:
    """Event stream of one session that delivers events record by record, and reconnects after a lost connection."""

    transport: Transport
    request: RemoteRequest
    """Request that opens the stream."""
    cursor: int
    """Number of the last record whose events were delivered; the stream resumes after this record."""
    retry_timeout: float
    """Seconds without a working connection after which `run` raises."""
    is_unnumbered: Callable[[StreamEvent], bool] = is_partial
    """Function that returns True for an event without a record number.
    Such an event is delivered immediately; other events are delivered when all events of their record have arrived.
    """
    opened: trio.Event = attrs.field(factory=trio.Event)
    """Event that is set when the first bytes of the stream have arrived."""
    _buffered: list[StreamEvent] = attrs.field(factory=list)
    """Events of the current record, whose last event has not arrived yet."""

    async def run(self, on_record: RecordCallback) -> None:
        """Read the stream and call `on_record` with the events of each record, in order, until the session is closed.

        Raises:
            InvalidCursor: The server's journal has fewer records than the cursor.
            ServerUnreachable: No connection worked for `retry_timeout` seconds, or `MAX_BROKEN_CONNECTIONS` consecutive ones broke.
            ActgentError: The server answered with an error, for example `SessionNotFound` if the session was erased.
        """
        backoff, since = RetryBackoff(), trio.current_time()
        broken = BrokenConnections(self.transport, self.request)
        while True:
            failure: ConnectionLost | Refused | None = None
            minimum, begun = 0.0, trio.current_time()
            try:
                async with self.transport.events(broken.add_count(self._request())) as events:
                    if events is None:
                        return
                    if await self._read(events, on_record, backoff):
                        return
            except ConnectionLost as lost:
                failure = lost
            except Refused as refused:
                if not refused.is_temporary:
                    raise error_of(refused, self.request) from None
                failure, minimum = refused, refused.retry_after
            if not backoff.tries:  # the connection delivered bytes
                since, broken.count = trio.current_time(), 0
            reason = "the connection ended" if failure is None else str(failure)
            with trio.move_on_at(since + self.retry_timeout):
                if failure is not None:
                    await broken.record(failure, started_at=begun)
                await broken.wait_calm()
            if trio.current_time() >= since + self.retry_timeout:
                raise self.transport.lost(reason, was_sent=True)
            await self._pause(backoff, reason, minimum)

    async def _pause(self, backoff: RetryBackoff, reason: str, minimum: float) -> None:
        """Log the lost connection with its `reason`, and sleep before reconnecting, for at least `minimum` seconds."""
        session = LogVariable(self.request.session_id)
        _log.info(
            "session %s: the event stream was disconnected after record %d (%s)",
            session,
            self.cursor,
            LogVariable(reason),
        )
        await trio.sleep(backoff.next_pause(minimum))

    def _request(self) -> RemoteRequest:
        """Return the request of the stream with the current cursor, so that a new connection resumes after it."""
        return attrs.evolve(self.request, query={**self.request.query, "after": self.cursor})

    async def _read(self, events: Events, on_record: RecordCallback, backoff: RetryBackoff) -> bool:
        """Process the events of one connection until the connection ends. Return True if the stream has ended."""
        self._buffered.clear()
        async with aclosing(events) as stream:
            async for event in stream:
                backoff.reset()
                self.opened.set()
                if event is not None and await self._process(event, on_record):
                    return True
        return False

    async def _process(self, event: StreamEvent, on_record: RecordCallback) -> bool:
        """Process one event: buffer it, or deliver the events of a complete record. Return True if the stream has ended."""
        if event.name in _DISCONNECT_EVENTS:
            return False
        if event.name == "resync":
            records = event.number or 0
            raise InvalidCursor(self.request.session_id, self.cursor, records)
        if event.number is None and self.is_unnumbered(event):
            await on_record([event])
            return False
        self._buffered.append(event)
        return event.number is not None and await self._deliver(event.number, on_record)

    async def _deliver(self, number: int, on_record: RecordCallback) -> bool:
        """Pass the buffered events of record `number` to the callback, and advance the cursor.

        Return True if this record closes the session, which ends the stream.
        """
        events, self._buffered = self._buffered, []
        if number > self.cursor or events[-1].name in _FINAL_EVENTS:
            await on_record(events)
            self.cursor = max(self.cursor, number)
        return any(each.name in _FINAL_EVENTS for each in events)
