"""Requests that are repeated where a connection is lost, as often as that is safe and as long as there is patience."""

import random
from collections.abc import Collection
from typing import Any

import attrs
import trio

from actgent.errors import ActgentError

from .problems import error_of
from .transport import ConnectionLost, Refused, RemoteRequest, Transport

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
"""Seconds between two tries; each pause doubles the one before, and is lengthened or shortened by chance."""
_random = random.Random()  # noqa: S311 - spreads clients over time, and is no secret


@attrs.define
class Pauses:
    """How long to wait before the next try."""

    tries: int = 0

    def next(self, least: float = 0.0) -> float:
        """Seconds, at least those that a server asks for."""
        pause: float = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self.tries, 16))
        self.tries += 1
        return max(least, pause) * _random.uniform(0.75, 1.25)

    def reset(self) -> None:
        """It has gone well."""
        self.tries = 0


@attrs.frozen(eq=False)
class Calls:
    """What asks a server, for all sessions of a client."""

    transport: Transport
    patience: float
    """Seconds for which a request is tried."""

    async def call(
        self,
        request: RemoteRequest,
        *,
        is_repeatable: bool = True,
        done_by: Collection[str] = (),
        may_be_done: bool = False,
    ) -> Any:
        """Ask until there is an answer; returns it as decoded JSON. See `call_told`."""
        told = await self.call_told(
            request, is_repeatable=is_repeatable, done_by=done_by, may_be_done=may_be_done
        )
        return told[0]

    async def call_told(
        self,
        request: RemoteRequest,
        *,
        is_repeatable: bool = True,
        done_by: Collection[str] = (),
        may_be_done: bool = False,
    ) -> tuple[Any, bool]:
        """Ask until there is an answer; returns it as decoded JSON, and whether an earlier try may have had its effect.

        Args:
            request: What is asked.
            is_repeatable: False: it is not sent again where it may have arrived.
            done_by: Kinds of errors that say, of a repetition, that the first one had its effect; then None is returned.
                Not where the error says that what is so now is not what was asked for (`as_asked`): it is another's doing.
            may_be_done: True: it was asked before in another way, and perhaps had its effect.

        Raises:
            ServerUnreachable: there was no answer in time; over a broker, BrokerLost.
            ActgentError: the answer is an error.
        """
        pauses, until = Pauses(), trio.current_time() + self.patience
        while True:
            try:
                return await self.transport.call(request), may_be_done
            except Refused as refused:
                may_be_done |= refused.is_repeated
                if may_be_done and refused.kind in done_by and refused.fields.get("as_asked", True):
                    return None, True
                if not refused.is_passing:
                    raise error_of(refused, request) from None
                error: ActgentError = error_of(refused, request)
                pause = pauses.next(refused.retry_after)
            except ConnectionLost as lost:
                may_be_done |= lost.was_sent
                error, pause = self.transport.lost(str(lost), was_sent=may_be_done), pauses.next()
                if lost.was_sent and not is_repeatable:
                    raise error from lost
            if trio.current_time() + pause > until:
                raise error
            await trio.sleep(pause)
