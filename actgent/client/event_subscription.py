"""Event subscription of a remote session: one event stream for all handlers, open while a handler is attached.

The subscription names the events that the attached handlers need. Partial answers and tool progress are requested only if a
handler for them is attached; attaching the first such handler reopens the stream.
"""

import math
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from actgent.errors import ActgentError, HandlerFailed, InvalidCursor, SessionNotFound
from actgent.messages import Delivery, Failure
from actgent.sessions.session_handlers import Handler, HandlerKind, Handlers, name_of, to_awaitable
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import error_text
from actgent.turns.outcome_dispatcher import HANDLER_KINDS, delivery_id

from .event_stream import ReconnectingStream
from .json_conversion import CONTEXT_EVENTS, HANDLER_EVENTS, PARTIAL_EVENTS, DeliveryDecoder, is_for_handlers
from .request_sender import RequestSender
from .transport_interface import RemoteRequest, StreamEvent


@attrs.frozen(eq=False)
class HandlerDispatcher:
    """Calls the handlers of one remote session. If a handler raises an exception, the other handlers are still called."""

    session: Any
    """`RemoteSession` that handlers with two parameters receive as second argument."""
    handlers: Handlers
    """Handlers that are attached to the session, by kind of delivery."""

    async def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Call the attached handlers for each delivery, in order. Exceptions of handlers are reported, not raised."""
        for delivery in deliveries:
            for attached in self.handlers.get(HANDLER_KINDS[type(delivery)], ()):
                handler, takes_session = attached.handler, attached.takes_session
                try:
                    result = handler(delivery, self.session) if takes_session else handler(delivery)
                    if result is not None and (awaitable := to_awaitable(result)) is not None:
                        await awaitable
                except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to the program's code
                    error = convert_user_error(raised, "handler", name_of(handler))
                else:
                    continue
                await self._report(handler, delivery, error)

    async def _report(self, handler: Handler, delivery: Delivery, error: Exception) -> None:
        """Pass a handler's exception to the `exception` handlers as a `Failure`.

        The exception is only logged if no `exception` handler is attached, or if `delivery` is itself a `Failure`.
        """
        if isinstance(delivery, Failure) or "exception" not in self.handlers:
            text = f"{type(error).__name__}: {error_text(error)}"
            _log.error(
                "session %s: handler %s failed: %s",
                LogVariable(self.session.id),
                name_of(handler),
                LogVariable(text),
                exc_info=error,
            )
            return
        failed = (
            error if isinstance(error, HandlerFailed) else HandlerFailed(name_of(handler), error_text(error))
        )
        if failed is not error:
            failed.__cause__ = error
        failure = Failure(id=f"{delivery_id(delivery)}/handler", kind="handler", error=failed, message_id="")
        await self.deliver([failure])


_log = logger_of(__name__)
PAGE_SIZE = 500
"""Maximum number of events in one request of `wait_delivered`."""


@attrs.frozen(eq=False)
class ServerLink:
    """Request sender and nursery of a client, which its sessions share."""

    requests: RequestSender
    """Request sender of all sessions of the client."""
    nursery: trio.Nursery
    """Nursery in which the event subscriptions of the sessions run."""


async def complete_tool_results(
    requests: RequestSender, request: RemoteRequest, events: Sequence[StreamEvent]
) -> list[StreamEvent]:
    """Replace truncated tool results in the events of a record by complete ones, which are fetched from the server."""
    cut = [each for each in events if each.name == "result" and each.data.get("truncated")]
    if not cut:
        return list(events)
    query = {"after": (events[-1].number or 1) - 1, "limit": 1, "whole": "true"}
    page = await requests.send(attrs.evolve(request, query=query))
    whole = {item["data"]["call_id"]: item["data"] for item in page["items"] if item["event"] == "result"}
    return [
        attrs.evolve(each, data=whole.get(each.data["call_id"], each.data)) if each in cut else each
        for each in events
    ]


class EventSubscription:
    """Attached handlers of one remote session, and the event stream that calls them."""

    def __init__(self, link: ServerLink, request: RemoteRequest, session: Any, cursor: int | None) -> None:
        self.handlers = Handlers()
        self.cursor = cursor
        """Number of the last record with which handlers were called. It is kept when the last handler is removed.

        None means: the first handler receives the records that are written after it is attached.
        """
        self._link = link
        self._request = request
        self._dispatcher = HandlerDispatcher(session, self.handlers)
        self._scope: trio.CancelScope | None = None
        self._stream_scope = trio.CancelScope()
        """Cancels the open stream, to reopen it."""
        self._is_dispatching = False
        """True while handlers run; the stream is then reopened only after they have returned."""
        self._event_names = HANDLER_EVENTS
        """Names of the events that the server sends at once on the open stream."""
        self._ready = trio.Event()
        self._error: ActgentError | None = None
        self._decoder = DeliveryDecoder()
        self._delivered = trio.lowlevel.ParkingLot()

    def add(self, kind: HandlerKind, handler: Handler) -> Any:
        """Attach a handler for a kind of deliveries, and open the stream if needed. Return the attachment for `Handlers.drop`."""
        attached = self.handlers.add(kind, handler)
        if self._scope is None:
            self._scope, self._ready, self._error = trio.CancelScope(), trio.Event(), None
            self._link.nursery.start_soon(self._run, self._scope)
        elif not PARTIAL_EVENTS.get(kind, self._event_names) <= self._event_names:
            self._reopen()
        return attached

    def _reopen(self) -> None:
        """Reopen the stream for the events that the attached handlers need now. If a handler is running, wait until it returns."""
        if self._ready.is_set():
            self._ready = trio.Event()
        if not self._is_dispatching:
            self._stream_scope.cancel()

    def close_if_unused(self) -> None:
        """Close the stream if no handler is attached."""
        if self._scope is not None and not self.handlers:
            self.close()

    def close(self) -> None:
        """Close the stream, and wake the tasks in `wait_open` and `wait_delivered`."""
        if self._scope is not None:
            self._scope.cancel()
        self._scope = None
        self._ready.set()
        self._delivered.unpark_all()

    async def wait_open(self) -> None:
        """Wait until the stream is open, so that the attached handlers receive the events of the next message.

        Return at once if no handler is attached. If the stream is not open after `retry_timeout` seconds, return without an error.

        Raises:
            ActgentError: The stream failed and cannot reconnect.
        """
        if self._scope is not None:
            with trio.move_on_after(self._link.requests.retry_timeout):
                await self._ready.wait()
        if self._error is not None and not isinstance(self._error, SessionNotFound):
            raise self._error

    async def wait_delivered(self) -> None:
        """Wait until the handlers were called for all records that the session has at the time of this call.

        Return at once if no stream is open.
        """
        after = self._position()
        while after is not None:
            query = {"after": after, "limit": PAGE_SIZE}
            page = await self._link.requests.send(attrs.evolve(self._request, query=query))
            numbers = [each["id"] for each in page["items"] if is_for_handlers(each["event"], each["data"])]
            while (position := self._position()) is not None and position < max(numbers, default=0):
                await self._delivered.park()
            after = page["next"]

    def _position(self) -> int | None:
        """Return the number of the last record for which handlers were called; None if no stream is open."""
        return None if self._scope is None else self.cursor

    async def _run(self, scope: trio.CancelScope) -> None:
        """Read the stream until the session is closed or `scope` is cancelled, and reopen it when needed."""
        with scope:
            try:
                if self.cursor is None:
                    asked = attrs.evolve(self._request, operation="get_session")
                    self.cursor = (await self._link.requests.send(asked))["records"]
                has_ended = False
                while not has_ended:
                    with trio.CancelScope() as self._stream_scope:
                        await self._new_stream(self.cursor).run(self._dispatch)
                        has_ended = True
            except ActgentError as error:
                await self._report_error(error)
            finally:
                if self._scope is scope:
                    self._scope = None
                    self._ready.set()
                    self._delivered.unpark_all()

    def _new_stream(self, cursor: int) -> ReconnectingStream:
        """Create a stream of the events after record `cursor` that the attached handlers need."""
        partial = [names for kind, names in PARTIAL_EVENTS.items() if kind in self.handlers]
        self._event_names = HANDLER_EVENTS.union(*partial)
        return ReconnectingStream(
            transport=self._link.requests.transport,
            request=attrs.evolve(
                self._request, immediate_events=self._event_names, delayed_events=CONTEXT_EVENTS
            ),
            cursor=cursor,
            retry_timeout=math.inf,
            opened=self._ready,
        )

    async def _dispatch(self, events: Sequence[StreamEvent]) -> None:
        """Convert the events of one record to deliveries, call the handlers with them, and advance the cursor."""
        self._is_dispatching = True
        try:
            whole = await complete_tool_results(self._link.requests, self._request, events)
            deliveries = [delivery for event in whole for delivery in self._decoder.decode(event)]
            await self._dispatcher.deliver(deliveries)
        finally:
            self._is_dispatching = False
        if (number := events[-1].number) is not None:
            self.cursor = number
            self._delivered.unpark_all()
        if not self._ready.is_set():  # a handler was attached that needs more events than this stream has
            self._stream_scope.cancel()

    async def _report_error(self, error: ActgentError) -> None:
        """Pass the error that ended the stream to the `exception` handlers. The error for an erased session is ignored."""
        self._error = error
        if isinstance(error, SessionNotFound):
            return  # it was erased
        kind = "journal" if isinstance(error, InvalidCursor) else "internal"
        _log.warning(
            "session %s: its handlers receive no more events: %s",
            LogVariable(self._request.session_id),
            error,
        )
        failure: Delivery = Failure(kind=kind, error=error, message_id="")
        await self._dispatcher.deliver([failure])
