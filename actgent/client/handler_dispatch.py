"""Calls the handlers of a remote session one after another, in the order of the session's records."""

from collections.abc import Sequence
from typing import Any

import attrs

from actgent.errors import HandlerFailed
from actgent.messages import Delivery, Failure
from actgent.sessions.handlers import Handler, Handlers, name_of, to_awaitable
from actgent.support.logs import LogVariable, logger_of
from actgent.support.user_code import convert_user_error
from actgent.tools.outputs.result_text import error_text
from actgent.turns.dispatcher import HANDLER_KINDS, delivery_id

_log = logger_of(__name__)


@attrs.frozen(eq=False)
class HandlerDispatcher:
    """Calls the handlers of one remote session. If a handler raises, the remaining handlers are still called."""

    session: Any
    """The `RemoteSession`, passed as second argument to handlers that accept one."""
    handlers: Handlers
    """The attached handlers, by kind."""

    async def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Call all handlers of each delivery's kind, in order. Exceptions of handlers are reported, not raised."""
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

        The exception is only logged if no `exception` handler is attached, or if the delivery was itself a `Failure`.
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
