"""How outcomes reach a session's handlers."""

import time
from collections.abc import Awaitable, Sequence

import attrs
import trio

from actgent.approvals import Approval
from actgent.errors import HandlerFailed, kind_of
from actgent.journal.records import make_delivered
from actgent.messages import (
    CallProgress,
    Delivery,
    Event,
    Failure,
    Message,
    Reply,
    Route,
    Token,
    ToolResult,
    Usage,
    make_reply,
    message_failure,
)
from actgent.protocols.base import Outcome, Say
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handler, HandlerKind, name_of, to_awaitable
from actgent.sessions.turn import Turn
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.support.foreign import failure_of
from actgent.tools.outputs.results import worded

from .reports import Reports
from .watchdog import Watch

HANDLER_KINDS: dict[type[Delivery], HandlerKind] = {
    Reply: "conversation",
    Event: "event",
    Route: "routing",
    Failure: "exception",
    ToolResult: "tool_result",
    Approval: "approval",
    Token: "token",
    CallProgress: "tool_progress",
}


def to_deliveries(
    outcomes: Sequence[Outcome], answer_id: str, usage: Usage, origin: str = ""
) -> list[Delivery]:
    """Convert an answer's outcomes to deliveries for handlers: events, then routing, then conversation.

    The ids follow from the answer's, so that a repetition after a crash has the same; the first reply has the
    answer's own.
    """
    deliveries: list[Delivery] = []
    replies = 0
    for outcome in sorted(outcomes, key=_rank) if len(outcomes) > 1 else outcomes:
        if isinstance(outcome, Say):
            deliveries.append(
                make_reply(
                    id=f"{answer_id}/{replies}" if replies else answer_id,
                    text=outcome.text,
                    data=outcome.data,
                    message_type=outcome.message_type,
                    reasoning=outcome.reasoning,
                    usage=usage,
                    origin=origin,
                )
            )
            replies += 1
        elif isinstance(outcome, (Event, Route)):
            kind = type(outcome).__name__.lower()
            deliveries.append(attrs.evolve(outcome, id=f"{answer_id}/{kind}/{len(deliveries)}"))
    return deliveries


def _rank(outcome: Outcome) -> int:
    """Events, then routing, then conversation."""
    return 0 if isinstance(outcome, Event) else 1 if isinstance(outcome, Route) else 2


@attrs.define(eq=False, kw_only=True)
class Dispatcher:
    """Calls handlers, one after the other, in the session's own task."""

    reports: Reports
    timeout: float
    """Seconds an async handler may take."""
    watch: Watch

    async def dispatch(self, context: SessionContext, delivery: Delivery) -> None:
        """Hand something to the handlers of its kind. A handler that fails does not keep the next from hearing."""
        turn = context.turn
        if turn is not None:
            for listener in turn.listeners:
                listener.hear(delivery)
        kind = HANDLER_KINDS[type(delivery)]
        heard = context.handlers.of(kind)
        if not heard and (turn is None or not turn.listeners):
            context.handlers.miss(kind)
        for place, attached in enumerate(heard):
            handler, takes_session = attached.handler, attached.takes_session
            try:
                result = self._call(context, handler, delivery, takes_session=takes_session)
                if result is not None and (awaitable := to_awaitable(result)) is not None:
                    await self._finish(handler, awaitable)
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
                error = failure_of(raised, "handler", name_of(handler))
            else:
                continue
            await self._report(context, handler, delivery, error, place=place)

    async def consult(
        self,
        context: SessionContext,
        hook: Handler,
        message: Message,
        *,
        takes_session: bool,
        wanted: str = "",
        place: int | str = 0,
    ) -> object:
        """Return a hook's result for a message; None if it fails, which is reported as a handler's failure.

        Where a text is `wanted`, this says so, and anything else than that or None is a failure.
        """
        try:
            result = self._call(context, hook, message, takes_session=takes_session)
            awaitable = to_awaitable(result)
            said = result if awaitable is None else await self._finish(hook, awaitable)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = failure_of(raised, "hook", name_of(hook))
        else:
            if not wanted or isinstance(said, str | None):
                return said
            error = self.unusable(hook, said, wanted)
        await self._report(context, hook, message, error, place=place)
        return None

    async def judge(
        self, context: SessionContext, guard: Handler, payload: Reply | Message, *, takes_session: bool
    ) -> object:
        """Return what a guard says of a message or an answer.

        Raises:
            HandlerFailed: it raised, or took too long.
        """
        try:
            result = self._call(context, guard, payload, takes_session=takes_session)
            awaitable = to_awaitable(result)
            return result if awaitable is None else await self._finish(guard, awaitable)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = failure_of(raised, "guard", name_of(guard))
        if isinstance(error, HandlerFailed):
            raise error
        raise HandlerFailed(name_of(guard), worded(error)) from error

    def unusable(self, guard: Handler, said: object, wanted: str) -> HandlerFailed:
        """The error of a guard that returned something else than it may."""
        return HandlerFailed(name_of(guard), f"it returned {said!r:.100}, but {wanted}")

    async def deliver(self, context: SessionContext, turn: Turn, delivery: Delivery) -> None:
        """Hand an outcome to whoever waits for the turn, and to the handlers unless they got it before a restart."""
        for listener in turn.listeners:
            listener.set_reply(delivery)
        if turn.checkpoint is not None and delivery_id(delivery) in turn.checkpoint.delivered:
            return
        if context.log is None and isinstance(delivery, Reply | Event | Route):
            recent = context.conversation.recent
            if recent is not None:
                recent.add(delivery)
        await self.dispatch(context, delivery)
        if context.log is not None:
            context.log.add(make_delivered(ids=(delivery_id(delivery),)))

    async def fail(
        self, context: SessionContext, failure: Failure, *, listeners: Sequence[TurnFuture] = ()
    ) -> None:
        """Hand the failure of a message to the handlers and to these callers."""
        for listener in listeners:
            listener.failure = failure
        if not listeners and not context.handlers.of("exception"):
            self.reports.unheard_failure(context, failure)
        elif self.reports.debug:
            self.reports.heard_failure(context, failure)
        await self.dispatch(context, failure)

    @trio.lowlevel.disable_ki_protection
    def _call(
        self, context: SessionContext, handler: Handler, payload: Delivery | Message, *, takes_session: bool
    ) -> object:
        """Call a handler, under the eyes of the watchdog, and within reach of Ctrl-C; what it returns may be left to await."""
        self.watch.busy = (handler, context.id, time.monotonic())
        try:
            return handler(payload, context.face) if takes_session else handler(payload)
        finally:
            self.watch.busy = None

    @trio.lowlevel.disable_ki_protection
    async def _finish(self, handler: Handler, awaitable: Awaitable[object]) -> object:
        with trio.move_on_after(self.timeout):
            try:
                return await awaitable
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - here, our timeout can be told from what it raised
                error = failure_of(raised, "handler", name_of(handler))
            raise error
        raise HandlerFailed(name_of(handler), f"it took longer than {self.timeout:g} s (handler_timeout)")

    async def _report(
        self,
        context: SessionContext,
        handler: Handler,
        delivery: Delivery | Message,
        error: Exception,
        *,
        place: int | str = 0,
    ) -> None:
        """Notify the handlers of failures that a handler failed, or log it if the failing handler is one of them.

        `place` tells the handlers of one delivery apart, so that each failure has its own id.
        """
        turn = context.turn
        if turn is not None and isinstance(delivery, (Token, CallProgress)):
            if turn.answer.token_failed == delivery_id(delivery):
                return
            turn.answer.token_failed = delivery_id(delivery)
        if not isinstance(error, HandlerFailed):
            failed = HandlerFailed(name_of(handler), worded(error))
            failed.__cause__ = error
            error = failed
        message_id = turn.message.id if turn is not None else ""
        if isinstance(delivery, Failure) or not context.handlers.of("exception"):
            cause = error.__cause__
            self.reports.handler_failed(context, handler, error if cause is None else cause)
            return
        failure_id = f"{delivery_id(delivery)}/handler" + (f"/{place}" if place else "")
        failure = Failure(id=failure_id, kind="handler", error=error, message_id=message_id)
        await self.dispatch(context, failure)


def failure_for(message_id: str, error: Exception, blame: str = "internal") -> Failure:
    """Make the failure of a message from its error; `blame` is the kind if the error does not tell the kind."""
    return message_failure(message_id, kind_of(error, blame), error, raw=getattr(error, "raw", ""))


def delivery_id(delivery: Delivery | Message) -> str:
    """The id by which repetitions of a delivery can be told."""
    return delivery.reply_id if isinstance(delivery, Token) else delivery.id
