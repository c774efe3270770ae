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
LEAST_LEFT = 0.1
"""Part of the patience that is too little for another try."""
BACKSTOP, BACKSTOP_SECONDS = 1.05, 0.05
"""Seconds after the limits of the transport at which a try ends in any case."""
MAX_BREAKS = 3
"""Connections that may break while one request is under way; then the request is given up."""
_random = random.Random()  # noqa: S311 - spreads clients over time, and is no secret


@attrs.define
class Pauses:
    """How long to wait before the next try."""

    tries: int = 0
    longest: float = LONGEST_PAUSE
    """Seconds of a pause, at most, unless the server asks for more."""

    def next(self, least: float = 0.0) -> float:
        """Seconds, at least those that a server asks for."""
        pause: float = min(self.longest, FIRST_PAUSE * 2.0 ** min(self.tries, 16))
        self.tries += 1
        return max(least, pause) * _random.uniform(0.75, 1.25)

    def reset(self) -> None:
        """It has gone well."""
        self.tries = 0


@attrs.define
class Breaks:
    """Counts the connections that broke before the answer to one request began.

    A request that ends each process that serves it would otherwise end node after node of a cluster.
    """

    transport: Transport
    request: RemoteRequest
    count: int = 0

    async def note(self, reason: ConnectionLost | Refused) -> None:
        """Count the reason why there is no answer, if it is such a break and a server is up.

        Raises:
            ServerUnreachable: `MAX_BREAKS` connections broke.
        """
        if not reason.is_broken or not (isinstance(reason, Refused) or await self.transport.is_up()):
            return
        self.count += 1
        if self.count >= MAX_BREAKS:
            words = (
                f"{self.count} connections broke while {self.request.operation!r} was under way, and it is not sent again: "
                f"it may end each process that serves it; the last reason: {reason}"
            )
            raise self.transport.lost(words, was_sent=True) from reason


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
            ServerUnreachable: there was no answer in time, or none that says whether the request was accepted, or
                `MAX_BREAKS` connections broke while it was under way.
            ActgentError: the answer is an error.
        """
        pauses, until = Pauses(), trio.current_time() + self.patience
        breaks = Breaks(self.transport, request)
        error: ActgentError | None = None
        while True:
            left = until - trio.current_time()
            if error is not None and left <= self.patience * LEAST_LEFT:  # too little for another answer
                raise error
            try:
                return await self._try(attrs.evolve(request, breaks=breaks.count), left), may_be_done
            except Refused as refused:
                may_be_done |= refused.may_be_done  # by a gateway that has sent it before
                if may_be_done and refused.kind in done_by and refused.fields.get("as_asked", True):
                    return None, True
                if not refused.is_passing:
                    raise error_of(refused, request) from None
                error = (
                    self.transport.lost(str(refused), was_sent=True)
                    if may_be_done
                    else error_of(refused, request)
                )
                if refused.may_be_done and not is_repeatable:
                    raise error from None
                await breaks.note(refused)
                pause = pauses.next(refused.retry_after)
            except ConnectionLost as lost:
                may_be_done |= lost.was_sent
                error, pause = self.transport.lost(str(lost), was_sent=may_be_done), pauses.next()
                if lost.was_sent and not is_repeatable:
                    raise error from lost
                with trio.move_on_after(max(until - trio.current_time(), 0)):
                    await breaks.note(lost)
            left = until - trio.current_time()
            if left <= self.patience * LEAST_LEFT:
                raise error
            await trio.sleep(min(pause, left / 2))

    async def _try(self, request: RemoteRequest, seconds: float) -> Any:
        """Send a request once, and wait so many seconds for its answer, in addition to those that the server was asked to wait.

        Raises:
            Refused: The answer is an error.
            ConnectionLost: There is none within this time.
        """
        # the transport's own limits come first, because they tell whether the request was sent
        with trio.move_on_after(seconds * BACKSTOP + BACKSTOP_SECONDS + request.wait):
            return await self.transport.call(attrs.evolve(request, within=seconds))
        raise ConnectionLost(f"there was no answer within {seconds:.3g} s", was_sent=True)
