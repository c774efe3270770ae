"""How a session of a client hears what happens: one stream for all of its handlers, as long as it has any.

The server is told what handlers hear at all, so that other events come along with those, and what grows only to handlers of
that. The first of these opens the stream anew.
"""

import math
from collections.abc import Sequence
from typing import Any, get_args

import attrs
import trio

from actgent.errors import ActgentError, CursorUnknown, SessionNotFound
from actgent.messages import Delivery, Failure
from actgent.sessions.handlers import Handler, HandlerKind, Handlers
from actgent.support.logs import Each, logger_of

from .calls import Calls
from .following import Following
from .handling import Calling
from .reading import ALONG, GROWING, HEARD, Deliveries, is_heard
from .transport import RemoteRequest, StreamEvent

_log = logger_of(__name__)
PAGE = 500


@attrs.frozen(eq=False)
class ServerLink:
    """What sessions of a client work with."""

    calls: Calls
    nursery: trio.Nursery
    """In which they hear."""


async def with_whole_results(
    calls: Calls, request: RemoteRequest, events: Sequence[StreamEvent]
) -> list[StreamEvent]:
    """The events of a record, with results of tools as they are, where the stream had only their beginning."""
    cut = [each for each in events if each.name == "result" and each.data.get("truncated")]
    if not cut:
        return list(events)
    query = {"after": (events[-1].number or 1) - 1, "limit": 1, "whole": "true"}
    page = await calls.call(attrs.evolve(request, query=query))
    whole = {item["data"]["call_id"]: item["data"] for item in page["items"] if item["event"] == "result"}
    return [
        attrs.evolve(each, data=whole.get(each.data["call_id"], each.data)) if each in cut else each
        for each in events
    ]


class Hearing:
    """The handlers of one session, and what they hear."""

    def __init__(self, link: ServerLink, request: RemoteRequest, session: Any, cursor: int | None) -> None:
        self.handlers = Handlers()
        self.cursor = cursor
        """The number of the last record that handlers have heard; None: they begin with what comes from now on."""
        self._link = link
        self._request = request
        self._calling = Calling(session, self.handlers)
        self._scope: trio.CancelScope | None = None
        self._reading = trio.CancelScope()
        """Of the stream that is open."""
        self._is_telling = False
        """True while handlers are called, which are not cut off when the stream is opened anew."""
        self._wanted = HEARD
        """The events that the stream tells at once."""
        self._ready = trio.Event()
        self._error: ActgentError | None = None
        self._deliveries = Deliveries()
        self._heard = trio.lowlevel.ParkingLot()

    def add(self, kind: HandlerKind, handler: Handler) -> Any:
        """Attach a handler, and hear from now on; returns what `drop` takes."""
        attached = self.handlers.add(kind, handler)
        if self._scope is None:
            self._scope, self._ready, self._error = trio.CancelScope(), trio.Event(), None
            self._link.nursery.start_soon(self._run, self._scope)
        elif not GROWING.get(kind, self._wanted) <= self._wanted:
            self._read_anew()
        return attached

    def _read_anew(self) -> None:
        """Have the stream opened again, as soon as no handler is at work."""
        if self._ready.is_set():
            self._ready = trio.Event()
        if not self._is_telling:
            self._reading.cancel()

    def rest(self) -> None:
        """Hear no more if there is nobody left who would."""
        if self._scope is not None and not any(map(self.handlers.of, get_args(HandlerKind))):
            self.stop()

    def stop(self) -> None:
        """Hear no more."""
        if self._scope is not None:
            self._scope.cancel()
        self._scope, self.cursor = None, None
        self._ready.set()
        self._heard.unpark_all()

    async def settle(self) -> None:
        """Wait until it hears what is about to be said, if it has handlers.

        Raises:
            ActgentError: it cannot hear any more.
        """
        if self._scope is not None:
            with trio.move_on_after(self._link.calls.patience):
                await self._ready.wait()
        if self._error is not None and not isinstance(self._error, SessionNotFound):
            raise self._error

    async def catch_up(self) -> None:
        """Wait until handlers have heard all that the session has for them by now."""
        after = self._place()
        while after is not None:
            query = {"after": after, "limit": PAGE}
            page = await self._link.calls.call(attrs.evolve(self._request, query=query))
            heard = [each["id"] for each in page["items"] if is_heard(each["event"], each["data"])]
            while (place := self._place()) is not None and place < max(heard, default=0):
                await self._heard.park()
            after = page["next"]

    def _place(self) -> int | None:
        """The number of the last record that was heard; None where nothing is heard."""
        return None if self._scope is None else self.cursor

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            try:
                if self.cursor is None:
                    asked = attrs.evolve(self._request, operation="get_session")
                    self.cursor = (await self._link.calls.call(asked))["records"]
                has_ended = False
                while not has_ended:
                    with trio.CancelScope() as self._reading:
                        await self._following(self.cursor).run(self._hear)
                        has_ended = True
            except ActgentError as error:
                await self._end(error)
            finally:
                if self._scope is scope:
                    self._scope = None
                    self._ready.set()
                    self._heard.unpark_all()

    def _following(self, cursor: int) -> Following:
        """Return what reads a stream of all that handlers hear which there are now."""
        grown = [names for kind, names in GROWING.items() if self.handlers.of(kind)]
        self._wanted = HEARD.union(*grown)
        return Following(
            transport=self._link.calls.transport,
            request=attrs.evolve(self._request, wanted=self._wanted, along=ALONG),
            cursor=cursor,
            patience=math.inf,
            opened=self._ready,
        )

    async def _hear(self, events: Sequence[StreamEvent]) -> None:
        self._is_telling = True
        try:
            whole = await with_whole_results(self._link.calls, self._request, events)
            deliveries = [delivery for event in whole for delivery in self._deliveries.read(event)]
            await self._calling.deliver(deliveries)
        finally:
            self._is_telling = False
        if (number := events[-1].number) is not None:
            self.cursor = number
            self._heard.unpark_all()
        if not self._ready.is_set():  # a handler was attached to which the stream tells too little
            self._reading.cancel()

    async def _end(self, error: ActgentError) -> None:
        """Nothing more is heard, which handlers of exceptions are told."""
        self._error = error
        if isinstance(error, SessionNotFound):
            return  # it was erased
        kind = "journal" if isinstance(error, CursorUnknown) else "internal"
        _log.warning("session %s: its handlers hear no more: %s", Each(self._request.session_id), error)
        failure: Delivery = Failure(kind=kind, error=error, message_id="")
        await self._calling.deliver([failure])
