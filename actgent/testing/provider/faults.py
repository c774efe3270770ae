"""What can go wrong with one exchange; each is given to a provider's script in place of an answer.

Faults wrap: `CutStream(Slow("some text", gap=0.1), events=3)` is a slow stream that breaks.
"""

import abc
import itertools
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime

import attrs

from actgent.llm.scripted import Said
from actgent.testing.dialects import Pace, ProviderRequest, ReplyPlan, answer_plan, error_plan


class Fault(abc.ABC):
    """Something that goes wrong with one exchange."""

    @abc.abstractmethod
    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        """Make the reply that stands in for a faultless answer."""


Scripted = Said | Fault
"""One entry of a provider's script."""


def plan_for(scripted: Scripted, request: ProviderRequest, pace: Pace) -> ReplyPlan:
    """Make the reply for one entry of a script."""
    if isinstance(scripted, Fault):
        return scripted.plan(request, pace)
    return answer_plan(scripted, request, pace)


@attrs.frozen
class ErrorStatus(Fault):
    """An HTTP error with the body that the provider gives to it.

    The code `insufficient_quota` makes the error of an empty account, whatever the provider's status for it.
    """

    status: int
    code: str | None = attrs.field(default=None, kw_only=True)
    message: str | None = attrs.field(default=None, kw_only=True)
    retry_after: float | datetime | None = attrs.field(default=None, kw_only=True)
    """Seconds, or a time with its zone, which goes out as an HTTP date (RFC 9110, 10.2.3)."""
    headers: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)

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
    """The connection breaks in the middle of the answer.

    After `events` events or `octets` bytes of the body, whichever is given; else just before the
    event that would tell that the answer is whole, or in the middle of a body. `is_reset` aborts the connection (RST)
    instead of closing it.
    """

    answer: Scripted
    events: int | None = attrs.field(default=None, kw_only=True)
    octets: int | None = attrs.field(default=None, kw_only=True)
    is_reset: bool = attrs.field(default=False, kw_only=True)

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        pieces = _first(plan, request, events=self.events, octets=self.octets)
        return attrs.evolve(plan, pieces=pieces, ending="reset" if self.is_reset else "cut")


@attrs.frozen
class EarlyEnd(Fault):
    """The answer ends cleanly, but too early: HTTP is content, and the answer is not whole.

    Counts like `CutStream`. Both SDKs take such a stream for a whole one.
    """

    answer: Scripted
    events: int | None = attrs.field(default=None, kw_only=True)
    octets: int | None = attrs.field(default=None, kw_only=True)

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        pieces = _first(plan, request, events=self.events, octets=self.octets)
        length = None if plan.length is None else sum(map(len, pieces))
        return attrs.evolve(plan, pieces=pieces, length=length)


@attrs.frozen
class ErrorEvent(Fault):
    """A stream that began with 200 and says, after some events, that it failed."""

    answer: Scripted
    events: int | None = attrs.field(default=None, kw_only=True)
    code: str | None = attrs.field(default=None, kw_only=True)
    message: str | None = attrs.field(default=None, kw_only=True)

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        if not request.is_stream:
            return ErrorStatus(500, code=self.code, message=self.message).plan(request, pace)
        plan = plan_for(self.answer, request, pace)
        error = request.dialect.error_event(code=self.code, message=self.message)
        return attrs.evolve(plan, pieces=(*_first(plan, request, events=self.events, octets=None), error))


@attrs.frozen
class Slow(Fault):
    """The answer comes late (`delay` seconds) or in small portions (`gap` seconds between them).

    A portion is an event, or with `octets` that many bytes, so that events and characters are torn apart.
    """

    answer: Scripted
    delay: float = attrs.field(default=0.0, kw_only=True)
    gap: float | None = attrs.field(default=None, kw_only=True)
    octets: int | None = attrs.field(default=None, kw_only=True)

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        gap = 0.0 if self.gap is None and self.octets is not None else self.gap
        return attrs.evolve(plan, delay=self.delay, gap=gap, octets=self.octets)


@attrs.frozen
class RawAnswer(Fault):
    """Any bytes at all: the page of a proxy, JSON that is no answer, events that are none."""

    body: bytes
    status: int = attrs.field(default=200, kw_only=True)
    content_type: str = attrs.field(default="text/html", kw_only=True)

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        headers = {"content-type": self.content_type}
        return ReplyPlan(
            pieces=(self.body,), status=self.status, headers=headers, length=len(self.body), delay=pace.delay
        )


@attrs.frozen
class Silence(Fault):
    """Nothing comes, ever: not even a status, or with `events` nothing after that many events of `answer`."""

    answer: Scripted = ""
    events: int = attrs.field(default=0, kw_only=True)

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        plan = plan_for(self.answer, request, pace)
        pieces = plan.pieces[: self.events]
        return attrs.evolve(plan, pieces=pieces, is_head_sent=bool(pieces), ending="silent")


@attrs.frozen
class Hangup(Fault):
    """The connection closes without a byte of answer."""

    is_reset: bool = attrs.field(default=False, kw_only=True)

    def plan(self, request: ProviderRequest, pace: Pace) -> ReplyPlan:
        return ReplyPlan(is_head_sent=False, delay=pace.delay, ending="reset" if self.is_reset else "cut")


@contextmanager
def refused_url() -> Iterator[str]:
    """The URL of a port on 127.0.0.1 that refuses every connection as long as the block is open."""
    with socket.socket() as bound:  # bound, so that nobody else gets the port; not listening, so it refuses
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/v1"


def _first(
    plan: ReplyPlan, request: ProviderRequest, *, events: int | None, octets: int | None
) -> tuple[bytes, ...]:
    """The pieces that still go out; of a body, which has no events, half where no bytes are counted."""
    if octets is not None:
        return (b"".join(plan.pieces)[:octets],)
    if plan.length is not None:
        return (b"".join(plan.pieces)[: plan.length // 2],)
    if events is not None:
        return tuple(plan.pieces[:events])
    is_terminal = request.dialect.terminal.match
    return tuple(itertools.takewhile(lambda event: not is_terminal(event), plan.pieces))
