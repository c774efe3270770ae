"""Faults of a provider: entries of a script that replace an answer.

Faults can be nested: `CutStream(Slow("some text", gap=0.1), events=3)` is a slow stream that breaks off.
"""

import abc
import itertools
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime

import attrs

from actgent.llm.scripted_model import ScriptedAnswer
from actgent.testing.provider_apis import Pace, ProviderRequest, ReplyPlan, answer_plan, error_plan


class Fault(abc.ABC):
    """Base class of faults in one reply of the scripted provider."""

    @abc.abstractmethod
    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        """Return the plan of a reply that contains the fault. `pace` sets delays and the size of pieces."""


Scripted = ScriptedAnswer | Fault
"""One entry of a provider's script: an answer or a fault."""


def plan_for(scripted: Scripted, request: ProviderRequest, pace: Pace) -> ReplyPlan:
    """Plan the reply for one entry of a script, which is an answer or a fault."""
    if isinstance(scripted, Fault):
        return scripted.plan(request, pace)
    return answer_plan(scripted, request, pace)


@attrs.frozen
class ErrorStatus(Fault):
    """Fault: an HTTP error in the format of the provider's API.

    The code `insufficient_quota` makes the error of an account without credit, with the provider's own status.
    """

    status: int
    """HTTP status of the response."""
    code: str | None = attrs.field(default=None, kw_only=True)
    """Error code in the body; None uses the provider's code for the status."""
    message: str | None = attrs.field(default=None, kw_only=True)
    """Error message in the body; None uses the provider's message for the status."""
    retry_after: float | datetime | None = attrs.field(default=None, kw_only=True)
    """Value of Retry-After in seconds, or a time with zone, sent as HTTP date (RFC 9110, 10.2.3); None omits the header."""
    headers: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """Additional HTTP headers."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = error_plan(request.dialect.error(self.status, code=self.code, message=self.message))
        headers = {**plan.headers, **_retry_after(self.retry_after), **self.headers}
        return attrs.evolve(plan, headers=headers, delay=pace.delay)


def _retry_after(when: float | datetime | None) -> dict[str, str]:
    if when is None:
        return {}
    if isinstance(when, datetime):
        return {"retry-after": format_datetime(when.astimezone(UTC), usegmt=True)}
    return {"retry-after": str(when)}


@attrs.frozen
class CutStream(Fault):
    """Fault: the connection breaks in the middle of the answer.

    Without `events` and `octets` the connection breaks just before the final event of a stream, or in the middle of a
    body.
    """

    answer: Scripted
    """Answer whose stream is interrupted."""
    events: int | None = attrs.field(default=None, kw_only=True)
    """Number of events before the break; None for no limit."""
    octets: int | None = attrs.field(default=None, kw_only=True)
    """Number of body bytes before the break; None for no limit."""
    is_reset: bool = attrs.field(default=False, kw_only=True)
    """True if the connection is aborted (RST) instead of closed."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        pieces = _pieces_before_fault(plan, request, events=self.events, octets=self.octets)
        return attrs.evolve(plan, pieces=pieces, ending="reset" if self.is_reset else "cut")


@attrs.frozen
class EarlyEnd(Fault):
    """Fault: the answer ends early with valid HTTP, so that the client receives a complete response with an incomplete answer.

    Both SDKs accept such a stream as complete.
    """

    answer: Scripted
    """Answer that ends early."""
    events: int | None = attrs.field(default=None, kw_only=True)
    """Number of events before the end; None for no limit."""
    octets: int | None = attrs.field(default=None, kw_only=True)
    """Number of body bytes before the end; None for no limit."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        pieces = _pieces_before_fault(plan, request, events=self.events, octets=self.octets)
        length = None if plan.length is None else sum(map(len, pieces))
        return attrs.evolve(plan, pieces=pieces, length=length)


@attrs.frozen
class ErrorEvent(Fault):
    """Fault: the stream begins with status 200 and reports an error after some events."""

    answer: Scripted
    """Answer whose stream ends with an error event."""
    events: int | None = attrs.field(default=None, kw_only=True)
    """Number of events before the error; None breaks before the final event."""
    code: str | None = attrs.field(default=None, kw_only=True)
    """Error code in the event; None uses the provider's default."""
    message: str | None = attrs.field(default=None, kw_only=True)
    """Error message in the event; None uses the provider's default."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        if not request.is_stream:
            return ErrorStatus(500, code=self.code, message=self.message).plan(request, pace)
        plan = plan_for(self.answer, request, pace)
        error = request.dialect.error_event(code=self.code, message=self.message)
        return attrs.evolve(
            plan, pieces=(*_pieces_before_fault(plan, request, events=self.events, octets=None), error)
        )


@attrs.frozen
class Slow(Fault):
    """Fault: the answer arrives late or in small pieces."""

    answer: Scripted
    """Answer that is delayed."""
    delay: float = attrs.field(default=0.0, kw_only=True)
    """Delay in seconds before the first byte."""
    gap: float | None = attrs.field(default=None, kw_only=True)
    """Delay in seconds between two pieces; None sends everything at once."""
    octets: int | None = attrs.field(default=None, kw_only=True)
    """Number of bytes per piece, so that events and characters are split; None sends one event per piece."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        gap = 0.0 if self.gap is None and self.octets is not None else self.gap
        return attrs.evolve(plan, delay=self.delay, gap=gap, octets=self.octets)


@attrs.frozen
class RawAnswer(Fault):
    """Fault: the reply has arbitrary bytes, such as the HTML page of a proxy or invalid JSON."""

    body: bytes
    """Body of the reply."""
    status: int = attrs.field(default=200, kw_only=True)
    """HTTP status of the reply."""
    content_type: str = attrs.field(default="text/html", kw_only=True)
    """Value of the header Content-Type."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        headers = {"content-type": self.content_type}
        return ReplyPlan(
            pieces=(self.body,), status=self.status, headers=headers, length=len(self.body), delay=pace.delay
        )


@attrs.frozen
class Silence(Fault):
    """Fault: the connection stays open without a complete reply."""

    answer: Scripted = ""
    """Answer of which only the first events are sent."""
    events: int = attrs.field(default=0, kw_only=True)
    """Number of events that are sent first; 0 sends no status either."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        pieces = plan.pieces[: self.events]
        return attrs.evolve(plan, pieces=pieces, is_head_sent=bool(pieces), ending="silent")


@attrs.frozen
class Hangup(Fault):
    """Fault: the connection closes without a byte of reply."""

    is_reset: bool = attrs.field(default=False, kw_only=True)
    """True if the connection is aborted (RST) instead of closed."""

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        return ReplyPlan(is_head_sent=False, delay=pace.delay, ending="reset" if self.is_reset else "cut")


@contextmanager
def refused_url() -> Iterator[str]:
    """Context manager: give the block a URL on 127.0.0.1 that refuses all connections."""
    with (
        socket.socket() as bound
    ):  # bound, so that no other process takes the port; not listening, so that connections are refused
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def _pieces_before_fault(
    plan: ReplyPlan, request: ProviderRequest, *, events: int | None, octets: int | None
) -> tuple[bytes, ...]:
    """Return the pieces of a planned reply that are sent before the fault, within the limits.

    Without limits, return the events before the final event of a stream, or half of a body.
    """
    if octets is not None:
        return (b"".join(plan.pieces)[:octets],)
    if plan.length is not None:
        return (b"".join(plan.pieces)[: plan.length // 2],)
    if events is not None:
        return tuple(plan.pieces[:events])
    is_terminal = request.dialect.terminal.match
    return tuple(itertools.takewhile(lambda event: not is_terminal(event), plan.pieces))
