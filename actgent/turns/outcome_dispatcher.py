"""Delivery of a turn's outcomes to the handlers of its session."""

import time
from collections.abc import Awaitable, Sequence

import attrs
import trio

from actgent.approvals import Approval
from actgent.errors import HandlerFailed, kind_of
from actgent.journal.record_types import make_delivery_record
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
from actgent.protocols.protocol_interface import Outcome, SendReply
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.session_context import SessionContext, Turn
from actgent.sessions.session_handlers import (
    MISSABLE,
    Handler,
    HandlerKind,
    HandlerRegistration,
    name_of,
    to_awaitable,
)
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.user_code_calls import convert_user_error
from actgent.tools.outputs.result_text import error_text
from actgent.tools.untrusted_sources_of_call import reading_text_of

from .event_loop_watchdog import Watch
from .failure_logging import FailureLogger

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

_RECORDED = (Reply, Event, Route)
"""Classes of deliveries that become separate observations. Other deliveries are part of messages."""


def to_deliveries(
    outcomes: Sequence[Outcome], answer_id: str, usage: Usage, origin: str = "", via: str = ""
) -> list[Delivery]:
    """Convert an answer's outcomes to deliveries for handlers: events first, then routes, then replies.

    Delivery ids derive from the answer id, so a repetition after a crash has the same ids. The first reply has the id of the
    answer. `origin` names the untrusted sources whose text the answer may repeat. `via` names those that only influenced the
    answer.
    """
    deliveries: list[Delivery] = []
    replies = 0
    for outcome in sorted(outcomes, key=_rank) if len(outcomes) > 1 else outcomes:
        if isinstance(outcome, SendReply):
            deliveries.append(
                make_reply(
                    id=f"{answer_id}/{replies}" if replies else answer_id,
                    text=outcome.text,
                    data=outcome.data,
                    message_type=outcome.message_type,
                    reasoning=outcome.reasoning,
                    usage=usage,
                    origin=origin,
                    via=via,
                )
            )
            replies += 1
        elif isinstance(outcome, Event):
            event_id = f"{answer_id}/event/{len(deliveries)}"
            deliveries.append(attrs.evolve(outcome, id=event_id, origin=origin, via=via))
        elif isinstance(outcome, Route):
            route_id = f"{answer_id}/route/{len(deliveries)}"
            deliveries.append(attrs.evolve(outcome, id=route_id, origin=origin, via=via))
    return deliveries


def _rank(outcome: Outcome) -> int:
    """Return the sort key of an outcome, so that events come first, then routes, and then replies."""
    return 0 if isinstance(outcome, Event) else 1 if isinstance(outcome, Route) else 2


@attrs.define(eq=False, kw_only=True, repr=False)
class Dispatcher(FieldRepr):
    """Calls the handlers of a session one after the other, in the task of its turn."""

    failure_logger: FailureLogger
    timeout: float
    """Maximum run time of an async handler in seconds."""
    watch: Watch

    async def dispatch(self, context: SessionContext, delivery: Delivery) -> None:
        """Pass a delivery to the waiting callers. Then call the session's handlers of its kind, one after the other.

        If a handler fails, pass the failure to the exception handlers, and call the next handler.
        """
        turn = context.turn
        if turn is not None:
            for listener in turn.listeners:
                listener.receive_delivery(delivery)
        kind = HANDLER_KINDS[type(delivery)]
        handlers = context.handlers.get(kind, ())
        if not handlers and (turn is None or not turn.listeners):
            context.handlers.missed |= MISSABLE.get(kind, 0)
        for position, attached in enumerate(handlers):
            handler = attached.handler
            try:
                result = self._call(context, attached, delivery)
                if result is not None and (awaitable := to_awaitable(result)) is not None:
                    await self._finish(handler, awaitable)
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
                error = convert_user_error(raised, "handler", name_of(handler))
            else:
                continue
            await self._report(context, handler, delivery, error, position=position)

    async def consult(
        self,
        context: SessionContext,
        hook: Handler,
        message: Message,
        *,
        takes_session: bool,
        required: str = "",
        position: int | str = 0,
    ) -> object:
        """Call a hook with a message and return its result. If the hook fails, pass its failure to the exception handlers and return None.

        If `required` is set, a result that is neither a string nor None is a failure with `required` as its text.
        `position` identifies the hook in the id of the failure.
        """
        try:
            result = self._call(context, HandlerRegistration(hook, takes_session), message)
            awaitable = to_awaitable(result)
            value = result if awaitable is None else await self._finish(hook, awaitable)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = convert_user_error(raised, "hook", name_of(hook))
        else:
            if not required or isinstance(value, str | None):
                return value
            error = self.unusable(hook, value, required)
        await self._report(context, hook, message, error, position=position)
        return None

    async def judge(
        self, context: SessionContext, guard: Handler, payload: Reply | Message, *, takes_session: bool
    ) -> object:
        """Call a guard with a message or an answer, and return its result.

        Raises:
            HandlerFailed: The guard raised an error or exceeded the handler timeout.
        """
        try:
            result = self._call(context, HandlerRegistration(guard, takes_session), payload)
            awaitable = to_awaitable(result)
            return result if awaitable is None else await self._finish(guard, awaitable)
        except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
            error = convert_user_error(raised, "guard", name_of(guard))
        if isinstance(error, HandlerFailed):
            raise error
        raise HandlerFailed(name_of(guard), error_text(error)) from error

    def unusable(self, guard: Handler, value: object, required: str) -> HandlerFailed:
        """Build the error for a guard or hook that returned the invalid `value`. `required` is the sentence with the valid values."""
        return HandlerFailed(name_of(guard), f"it returned {value!r:.100}, but {required}")

    async def deliver(self, turn: Turn, delivery: Delivery) -> None:
        """Deliver an outcome to the callers and handlers of a turn, and record that it was delivered.

        If the outcome was delivered before a restart, the handlers are not called again.
        """
        context = turn.session
        if isinstance(delivery, Reply):
            turn.reply = delivery
        elif isinstance(delivery, Event):
            turn.event = delivery
        for listener in turn.listeners:
            listener.set_reply(delivery)
        if turn.checkpoint is not None and delivery_id(delivery) in turn.checkpoint.delivered:
            return
        if isinstance(delivery, _RECORDED):
            context.conversation.note(delivery)
        if isinstance(delivery, Reply) and delivery.origin:
            with reading_text_of(delivery.origin):  # of withheld values, which the conversation does not have
                await self.dispatch(context, delivery)
        else:
            await self.dispatch(context, delivery)
        if context.log is not None:
            context.log.add(make_delivery_record(ids=(delivery_id(delivery),)))

    async def fail(
        self, context: SessionContext, failure: Failure, *, listeners: Sequence[TurnFuture] = ()
    ) -> None:
        """Deliver the failure of a message to the session's handlers and to the callers in `listeners`.

        A failure without a handler and a caller is logged.
        """
        for listener in listeners:
            listener.failure = failure
        if not listeners and "exception" not in context.handlers:
            self.failure_logger.log_unhandled_failure(context, failure)
        elif self.failure_logger.debug:
            self.failure_logger.log_received_failure(context, failure)
        await self.dispatch(context, failure)

    @trio.lowlevel.disable_ki_protection
    def _call(
        self, context: SessionContext, registration: HandlerRegistration, payload: Delivery | Message
    ) -> object:
        """Call a handler, watched by the watchdog and interruptible by Ctrl-C. Return its result: an awaitable if it is async."""
        handler = registration.handler
        self.watch.busy = (handler, context.id, time.monotonic())
        try:
            return (
                handler(payload, context.public_session) if registration.takes_session else handler(payload)
            )
        finally:
            self.watch.busy = None

    @trio.lowlevel.disable_ki_protection
    async def _finish(self, handler: Handler, awaitable: Awaitable[object]) -> object:
        with trio.move_on_after(self.timeout):
            try:
                return await awaitable
            except BaseException as raised:  # noqa: ASYNC103, BLE001 - only inside the scope our timeout differs from an error of the handler
                error = convert_user_error(raised, "handler", name_of(handler))
            raise error
        raise HandlerFailed(name_of(handler), f"it took longer than {self.timeout:g} s (handler_timeout)")

    async def _report(
        self,
        context: SessionContext,
        handler: Handler,
        delivery: Delivery | Message,
        error: Exception,
        *,
        position: int | str = 0,
    ) -> None:
        """Deliver a handler's error as a failure to the exception handlers.

        If the session has no exception handler, or if an exception handler failed, log the error instead. Errors for several tokens
        of one reply are delivered once. `position` makes the failure id different for each handler of a delivery.
        """
        turn = context.turn
        if turn is not None and isinstance(delivery, (Token, CallProgress)):
            if turn.token_failed == delivery_id(delivery):
                return
            turn.token_failed = delivery_id(delivery)
        if not isinstance(error, HandlerFailed):
            failed = HandlerFailed(name_of(handler), error_text(error))
            failed.__cause__ = error
            error = failed
        message_id = turn.message.id if turn is not None else ""
        if isinstance(delivery, Failure) or "exception" not in context.handlers:
            cause = error.__cause__
            self.failure_logger.log_handler_error(context, handler, error if cause is None else cause)
            return
        failure_id = f"{delivery_id(delivery)}/handler" + (f"/{position}" if position else "")
        failure = Failure(id=failure_id, kind="handler", error=error, message_id=message_id)
        await self.dispatch(context, failure)


def failure_for(message_id: str, error: Exception, blame: str = "internal") -> Failure:
    """Build the failure of a message from an error. `blame` is the failure kind for errors that do not imply a kind."""
    return message_failure(message_id, kind_of(error, blame), error, raw=getattr(error, "raw", ""))


def delivery_id(delivery: Delivery | Message) -> str:
    """Return the id of a delivery. A delivery that is repeated after a restart has the same id."""
    return delivery.reply_id if isinstance(delivery, Token) else delivery.id
