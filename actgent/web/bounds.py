"""How much a gateway takes, of one token and of all: what is full is refused at once, and never waits."""

import ipaddress
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from actgent.control.arguments import at_least_one, check_seconds
from actgent.errors.printable import counted
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey

from .problems import Problem

MAX_METERS = 10_000
"""The number of tokens whose rates are known at a time; of more, the one that was idle the longest begins anew."""


def _count(_: object, field: "attrs.Attribute[int]", value: int) -> None:
    at_least_one(field.name, value)


def _count_if_any(_: object, field: "attrs.Attribute[Any]", value: int | None) -> None:
    if value is not None:
        at_least_one(field.name, value)


def _seconds(_: object, field: "attrs.Attribute[float]", value: float) -> None:
    check_seconds(field.name, value)


@attrs.frozen(kw_only=True)
class GatewayLimits:
    """The bounds of a gateway.

    Raises:
        ConfigurationError: a bound makes no sense.
    """

    header_bytes: int = attrs.field(default=32_768, validator=_count)
    header_seconds: float = attrs.field(default=10.0, validator=_seconds)
    """Seconds in which the head of a request has to come."""
    body_bytes: int = attrs.field(default=1_000_000, validator=_count)
    parts_bytes: int = attrs.field(default=10_000_000, validator=_count)
    """The longest body of a message, which may hold pictures and files."""
    body_seconds: float = attrs.field(default=30.0, validator=_seconds)
    send_seconds: float = attrs.field(default=10.0, validator=_seconds)
    """Seconds in which a client has to take what is sent to it; then its connection ends."""
    idle_seconds: float = attrs.field(default=30.0, validator=_seconds)
    """Seconds in which a connection may be without a request."""
    connections: int = attrs.field(default=10_000, validator=_count)
    requests: int = attrs.field(default=64, validator=_count)
    """Requests of one token at a time, without streams."""
    streams: int = attrs.field(default=1000, validator=_count)
    """Streams of one token at a time: a token of a back end may follow sessions of many people."""
    wrong_tokens: int = attrs.field(default=100, validator=_count)
    """Unknown tokens and keys that one address may send in a minute; further ones are answered 429."""
    messages: int | None = attrs.field(default=100, validator=_count_if_any)
    """Messages of one token that have not ended; None: as many as there are, which nobody counts then."""
    rate: float = attrs.field(default=20.0, validator=_seconds)
    """Requests a second of one token."""
    burst: int = attrs.field(default=100, validator=_count)
    """Requests that it may send at once."""
    page: int = attrs.field(default=500, validator=_count)
    """The longest page of a list."""
    comparisons: int = attrs.field(default=2, validator=_count)
    """Sessions that are compared with today's code at a time."""
    compare_seconds: float = attrs.field(default=60.0, validator=_seconds)
    """Seconds that one of these may take."""
    grace: float = attrs.field(default=10.0, validator=_seconds)
    """Seconds to end requests when the gateway closes."""


@attrs.define(eq=False)
class TokenMeter:
    """What one token does now."""

    tokens: float
    """Requests that it may send at once."""
    filled: float
    """When that was so, by trio's clock."""
    running: int = 0
    streams: int = 0

    @property
    def is_busy(self) -> bool:
        """True if a request of it is not answered, or a stream open."""
        return bool(self.running or self.streams)


class Meters:
    """The rates and requests of all tokens."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._meters: OrderedDict[str, TokenMeter] = OrderedDict()
        self._wrong: OrderedDict[str, TokenMeter] = OrderedDict()
        """By address, those that sent unknown tokens."""

    @contextmanager
    def entered(self, digest: str, *, now: float, is_stream: bool = False) -> Iterator[None]:
        """Count a request for the block.

        Args:
            digest: Of its token.
            now: By trio's clock.
            is_stream: True if it is answered by a stream.

        Raises:
            Problem: the token asks for too much.
        """
        meter = self._of(digest, now)
        self._take(meter, now)
        if is_stream:
            _check_below(meter.streams, self._limits.streams, "streams", "stream")
            meter.streams += 1
        else:
            _check_below(meter.running, self._limits.requests, "requests", "request")
            meter.running += 1
        try:
            yield
        finally:
            if is_stream:
                meter.streams -= 1
            else:
                meter.running -= 1

    def note_wrong(self, address: str, *, now: float) -> None:
        """Count an unknown token. A known token of the same address, which may be that of a proxy, is never refused by this.

        Raises:
            Problem: The address sent too many in a minute.
        """
        most, key = self._limits.wrong_tokens, _network_of(address)
        meter = self._wrong.setdefault(key, TokenMeter(most, now))
        self._wrong.move_to_end(key)
        if len(self._wrong) > MAX_METERS:
            self._wrong.popitem(last=False)
        meter.tokens = min(most, meter.tokens + (now - meter.filled) * most / 60)
        meter.filled = now
        if meter.tokens < 1:
            raise Problem(
                "too-many-requests",
                f"this address has sent more than {counted(most, 'unknown token')} in a minute",
                limit="wrong_tokens",
                value=most,
                retry_after=max(1, round(60 / most)),
            )
        meter.tokens -= 1

    def _of(self, digest: str, now: float) -> TokenMeter:
        if (meter := self._meters.get(digest)) is None:
            meter = self._meters[digest] = TokenMeter(self._limits.burst, now)
        self._meters.move_to_end(digest)
        while len(self._meters) > MAX_METERS and not next(iter(self._meters.values())).is_busy:
            self._meters.popitem(last=False)
        return meter

    def _take(self, meter: TokenMeter, now: float) -> None:
        rate, burst = self._limits.rate, self._limits.burst
        meter.tokens = min(burst, meter.tokens + (now - meter.filled) * rate)
        meter.filled = now
        if meter.tokens < 1:
            seconds = max(1, round((1 - meter.tokens) / rate)) if rate else 60
            raise Problem(
                "too-many-requests",
                f"this token sends more than {rate:g} requests a second",
                limit="rate",
                value=rate,
                retry_after=seconds,
            )
        meter.tokens -= 1


def _check_below(number: int, most: int, limit: str, word: str) -> None:
    """Refuse one more than so many.

    Raises:
        Problem: There are as many.
    """
    if number >= most:
        words = f"this token may have {counted(most, word)} open: close one"
        raise Problem("too-many-requests", words, limit=limit, value=most)


def _network_of(address: str) -> str:
    """Return what stands for a client by its address: of IPv6 the network of 64 bits, which one client has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address  # noqa: PLR2004 - IPv6


@attrs.define(eq=False)
class _Sent:
    """The messages that a token has sent, by session; more than have not ended."""

    counts: dict[SessionKey, int] = attrs.field(factory=dict)
    total: int = 0
    """Of all sessions."""
    looking: trio.Lock = attrs.field(factory=trio.Lock)
    """Held by the request that counts for all that have come meanwhile."""

    def add(self, key: SessionKey) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1
        self.total += 1

    def drop(self, key: SessionKey, ended: int) -> None:
        """So many of a session have ended; others may have been sent to it meanwhile."""
        sent = self.counts.pop(key, 0)
        left = max(0, sent - ended)
        self.total -= sent - left
        if left:
            self.counts[key] = left


class OpenMessages:
    """How many messages of each token have not ended.

    They are counted as they come, and compared with what the journal knows only where there may be too many, which forgets
    all that have ended: so a turn costs nothing here. Messages that others sent to the same sessions count, too.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._sent: dict[str, _Sent] = {}

    def note(self, digest: str, key: SessionKey) -> None:
        """A token has sent a message."""
        if self._most is not None:
            self._sent.setdefault(digest, _Sent()).add(key)

    async def check(self, digest: str, journal: Journal) -> None:
        """Refuse a further message of a token.

        Raises:
            Problem: it has too many that have not ended.
        """
        sent = self._sent.get(digest)
        if self._most is None or sent is None or sent.total < self._most:
            return
        async with sent.looking:
            if sent.total >= self._most:
                await _look(sent, journal)
        if sent.total >= self._most:
            raise Problem(
                "too-many-requests",
                f"{counted(self._most, 'message of this token has', 'messages of this token have')} not ended: wait for one",
                limit="messages",
                value=self._most,
            )


async def _look(sent: _Sent, journal: Journal) -> None:
    """Count what has not ended of what was sent."""
    for key, count in list(sent.counts.items()):
        head = journal.head_now(*key) or await journal.head(*key)
        sent.drop(key, count if head is None else max(0, count - head.unfinished))
