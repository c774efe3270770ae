"""A session's handlers in the client: called one after the other, in the order of the session's records."""

from collections.abc import Sequence
from typing import Any

import attrs

from actgent.errors import HandlerFailed
from actgent.messages import Delivery, Failure
from actgent.sessions.handlers import Handler, Handlers, name_of, to_awaitable
from actgent.support.foreign import failure_of
from actgent.support.logs import Each, logger_of
from actgent.tools.outputs.results import worded
from actgent.turns.dispatcher import HANDLER_KINDS, delivery_id

_log = logger_of(__name__)


@attrs.frozen(eq=False)
class Calling:
    """What calls the handlers of one session. One that fails does not keep the next from hearing."""

    session: Any
    """What handlers get that want the session, too."""
    handlers: Handlers

    async def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Call the handlers of each kind."""
        for delivery in deliveries:
            for attached in self.handlers.of(HANDLER_KINDS[type(delivery)]):
                handler, takes_session = attached.handler, attached.takes_session
                try:
                    result = handler(delivery, self.session) if takes_session else handler(delivery)
                    if result is not None and (awaitable := to_awaitable(result)) is not None:
                        await awaitable
                except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to the program's code
                    error = failure_of(raised, "handler", name_of(handler))
                else:
                    continue
                await self._report(handler, delivery, error)

    async def _report(self, handler: Handler, delivery: Delivery, error: Exception) -> None:
        """Tell the handlers of exceptions; where one of those fails, only the log is left."""
        if isinstance(delivery, Failure) or not self.handlers.of("exception"):
            words = f"{type(error).__name__}: {worded(error)}"
            _log.error(
                "session %s: handler %s failed: %s",
                Each(self.session.id),
                name_of(handler),
                Each(words),
                exc_info=error,
            )
            return
        failed = error if isinstance(error, HandlerFailed) else HandlerFailed(name_of(handler), worded(error))
        if failed is not error:
            failed.__cause__ = error
        failure = Failure(id=f"{delivery_id(delivery)}/handler", kind="handler", error=failed, message_id="")
        await self.deliver([failure])
