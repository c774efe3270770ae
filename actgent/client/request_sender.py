"""Retries of requests after lost connections and temporary errors, within the client's retry timeout and only if safe."""

import math
import random
from collections.abc import Collection
from typing import Any

import attrs
import trio

from actgent.errors import ActgentError

from .error_conversion import error_of
from .transport_interface import ConnectionLost, Refused, RemoteRequest, Transport

MIN_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 10.0
"""Longest pause in seconds between two tries. Each pause doubles the previous one, with 25 % random jitter."""
MIN_REMAINING_SHARE = 0.1
"""Fraction of the retry timeout. If less than this fraction remains, no further try starts."""
HARD_LIMIT_FACTOR, HARD_LIMIT_EXTRA_SECONDS = 1.05, 0.05
"""Factor and seconds by which a try may exceed its time limit before it is cancelled."""
MAX_BROKEN_CONNECTIONS = 3
"""Number of broken connections during one request after which the request is not retried."""
LAST_RETRY_PAUSE_SECONDS = 2.0
"""Pause in seconds before the last retry after broken connections.

A killed process accepts and breaks new connections until its sockets are closed.
"""
CALM_SECONDS = 5.0
"""Seconds without a crash of a node that must pass before the last retry, so that the retry tests only its own
request.
"""
LONG_POLL_SECONDS = 1.0
"""Seconds after which a long poll only waits. A connection that breaks later does not count as broken by the
request.
"""
_random = random.Random()  # noqa: S311 - spreads clients over time, and is no secret


@attrs.define
class RetryBackoff:
    """Exponential backoff with jitter between tries to send a request."""

    tries: int = 0
    """Number of failed tries since the last success."""
    max_pause: float = MAX_PAUSE_SECONDS
    """Longest pause in seconds, unless the server asks for a longer one."""

    def next_pause(self, minimum: float = 0.0) -> float:
        """Count a failed try, and return the pause in seconds before the next try, with jitter.

        `minimum` is the lower limit of the pause before the jitter is applied.
        """
        pause: float = min(self.max_pause, MIN_PAUSE_SECONDS * 2.0 ** min(self.tries, 16))
        self.tries += 1
        return max(minimum, pause) * _random.uniform(0.75, 1.25)

    def reset(self) -> None:
        """Reset the backoff after a success, so that the next pause is the shortest one."""
        self.tries = 0


def minimum_pause(broken_connections: int, calm_seconds: float) -> float:
    """Return the minimum pause in seconds before the next retry of a request.

    The first retry is fast, because a live server usually has the address of the broken connection. If the connection of this
    retry also breaks, the server process may be ending. So the last try waits until this process refuses connections. The last try
    also waits while nodes crash, because a node that crashes breaks the connections of all its requests.

    Args:
        broken_connections: Number of connections that broke during the request.
        calm_seconds: Seconds since a node of the cluster last crashed.
    """
    if broken_connections < MAX_BROKEN_CONNECTIONS - 1:
        return 0.0
    return max(LAST_RETRY_PAUSE_SECONDS, CALM_SECONDS - calm_seconds)


@attrs.define
class BrokenConnections:
    """Counts the connections that broke during one request, before a response began.

    Without this limit, a request that crashes its server process would crash the nodes of a cluster one after another.
    """

    transport: Transport
    request: RemoteRequest
    count: int = 0

    def add_count(self, request: RemoteRequest) -> RemoteRequest:
        """Return a copy of the request that contains the number of connections that broke during earlier tries.

        Without this number, a gateway reports a broken connection without waiting for the death of a node.
        """
        return attrs.evolve(request, broken_connections=self.count)

    async def wait_calm(self) -> None:
        """Before the final try, wait until no node has crashed for `CALM_SECONDS`. Before earlier tries, return at once."""
        if self.count == MAX_BROKEN_CONNECTIONS - 1:
            while (left := CALM_SECONDS - await self.transport.calm_seconds()) > 0:  # noqa: ASYNC110 - polls a server
                await trio.sleep(left)

    async def record(self, reason: ConnectionLost | Refused, *, started_at: float) -> None:
        """Count a failed try if its connection broke before a response began and a server is up. Ignore other failures.

        From the second broken connection on, wait `LAST_RETRY_PAUSE_SECONDS`. By then the death of a node is detected, and a
        killed process breaks no new connections. The try counts only if a node has died since it was sent.

        Args:
            reason: Failure of the try.
            started_at: Time at which the try was sent, in seconds of trio's clock.

        Raises:
            ServerUnreachable: The request has reached `MAX_BROKEN_CONNECTIONS` broken connections.
        """
        is_polling = self.request.is_long_poll and trio.current_time() - started_at > LONG_POLL_SECONDS
        if not reason.is_broken or is_polling:
            return
        if not (isinstance(reason, Refused) or await self.transport.is_up()):
            return
        if self.count:
            await trio.sleep(LAST_RETRY_PAUSE_SECONDS)
            # a gateway reports a second break only after the death of the node to which it relayed the request
            if isinstance(reason, ConnectionLost) and await self._is_harmless(started_at):
                return
        self.count += 1
        if self.count >= MAX_BROKEN_CONNECTIONS:
            text = (
                f"{self.count} connections broke during the request {self.request.operation!r}. It is not retried, because "
                f"it may crash the server process. The last error was: {reason}"
            )
            raise self.transport.lost(text, was_sent=True) from reason

    async def _is_harmless(self, started_at: float) -> bool:
        """Return True if no node of the cluster has died since a try was sent, so that the request has crashed no node.

        Then the network broke the connection, or the node shut down as planned. Only servers in a cluster report deaths.
        """
        calm_seconds = await self.transport.calm_seconds()
        return math.isfinite(calm_seconds) and calm_seconds > trio.current_time() - started_at


@attrs.frozen(eq=False)
class RequestSender:
    """Sends the requests of a client, and retries each one while that is safe."""

    transport: Transport
    retry_timeout: float
    """Maximum number of seconds for which a request is retried."""

    async def send(
        self,
        request: RemoteRequest,
        *,
        is_repeatable: bool = True,
        done_by: Collection[str] = (),
        may_be_done: bool = False,
    ) -> Any:
        """Send a request, retry it if that is safe, and return the response as decoded JSON.

        The arguments and errors are those of `send_with_repeat_flag`.
        """
        answer, _ = await self.send_with_repeat_flag(
            request, is_repeatable=is_repeatable, done_by=done_by, may_be_done=may_be_done
        )
        return answer

    async def send_with_repeat_flag(
        self,
        request: RemoteRequest,
        *,
        is_repeatable: bool = True,
        done_by: Collection[str] = (),
        may_be_done: bool = False,
    ) -> tuple[Any, bool]:
        """Send a request, and retry it if that is safe.

        Return the response as decoded JSON, and True if an earlier try may already have taken effect.

        Args:
            request: Request to send.
            is_repeatable: False if the request must not be retried after it may have reached the server.
            done_by: Problem kinds that prove, on a retry, that an earlier try succeeded. The returned response is then None.
                An error with `as_asked: false` is still raised, because another request caused the current state.
            may_be_done: True if an earlier request, sent in another way, may already have had this effect.

        Raises:
            ServerUnreachable: No server answered within the retry timeout, or it is unknown whether a server accepted the request,
                or `MAX_BROKEN_CONNECTIONS` connections broke during the request.
            ActgentError: The server answered with an error.
        """
        backoff, deadline = RetryBackoff(), trio.current_time() + self.retry_timeout
        broken = BrokenConnections(self.transport, request)
        error: ActgentError | None = None
        while True:
            remaining = deadline - trio.current_time()
            if (
                error is not None and remaining <= self.retry_timeout * MIN_REMAINING_SHARE
            ):  # too little for another answer
                raise error
            started_at = trio.current_time()
            try:
                return await self._try(broken.add_count(request), remaining), may_be_done
            except Refused as refused:
                may_be_done |= refused.may_be_done  # by a gateway that has sent it before
                if may_be_done and refused.kind in done_by and refused.fields.get("as_asked", True):
                    return None, True
                if not refused.is_temporary:
                    raise error_of(refused, request) from None
                error = (
                    self.transport.lost(str(refused), was_sent=True)
                    if may_be_done
                    else error_of(refused, request)
                )
                if refused.may_be_done and not is_repeatable:
                    raise error from None
                failure: ConnectionLost | Refused = refused
                pause = backoff.next_pause(refused.retry_after)
            except ConnectionLost as lost:
                may_be_done |= lost.was_sent
                error = self.transport.lost(str(lost), was_sent=may_be_done)
                if lost.was_sent and not is_repeatable:
                    raise error from lost
                failure, pause = lost, backoff.next_pause()
            with trio.move_on_at(deadline):
                await broken.record(failure, started_at=started_at)
            if deadline - trio.current_time() <= self.retry_timeout * MIN_REMAINING_SHARE:
                raise error
            with trio.move_on_at(deadline):
                await broken.wait_calm()
            await trio.sleep(min(pause, max(deadline - trio.current_time(), 0) / 2))

    async def _try(self, request: RemoteRequest, seconds: float) -> Any:
        """Send a request once, and wait for the response: `seconds`, plus the seconds that the server was asked to wait.

        Raises:
            Refused: The server answered with an error.
            ConnectionLost: The connection failed, or no response arrived within this time.
        """
        # the transport's own limits come first, because its errors say whether the request was sent
        with trio.move_on_after(seconds * HARD_LIMIT_FACTOR + HARD_LIMIT_EXTRA_SECONDS + request.wait):
            return await self.transport.call(attrs.evolve(request, accept_timeout=seconds))
        raise ConnectionLost(f"the server did not respond within {seconds:.3g} s", was_sent=True)
