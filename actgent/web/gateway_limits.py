"""Limits of a gateway per token and in total. A request above a limit is rejected at once and never waits."""

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import counted
from actgent.journal.journal_interface import Journal
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.id_and_number_validation import at_least_one, check_seconds
from actgent.support.unknown_name_hints import lists_arguments

from .problem_documents import Problem

MAX_METERS = 10_000
"""Maximum number of tokens whose request rate is tracked; the longest idle token is dropped first."""


def _count(_: object, field: "attrs.Attribute[int]", value: int) -> None:
    at_least_one(field.name, value)


def _count_if_any(_: object, field: "attrs.Attribute[Any]", value: int | None) -> None:
    if value is not None:
        at_least_one(field.name, value)


def _seconds(_: object, field: "attrs.Attribute[float]", value: float) -> None:
    check_seconds(field.name, value)


def _rate(_: object, field: "attrs.Attribute[float]", value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigurationError(
            f"{field.name} must be a number of requests per second of at least 0, not {value!r:.200}"
        )


@lists_arguments
@attrs.frozen(kw_only=True)
class GatewayLimits:
    """Limits of a gateway.

    Raises:
        ConfigurationError: A count is below 1, a number of seconds is negative, or a rate is not a number of at least 0.
    """

    header_bytes: int = attrs.field(default=32_768, validator=_count)
    """Maximum size of the request line and headers in bytes."""
    header_seconds: float = attrs.field(default=10.0, validator=_seconds)
    """Timeout in seconds for receiving the headers of a request."""
    body_bytes: int = attrs.field(default=1_000_000, validator=_count)
    """Maximum size of a request body in bytes."""
    parts_bytes: int = attrs.field(default=10_000_000, validator=_count)
    """Maximum size in bytes of the body of a message, which may contain images and files."""
    body_seconds: float = attrs.field(default=30.0, validator=_seconds)
    """Timeout in seconds for receiving a request body."""
    send_seconds: float = attrs.field(default=10.0, validator=_seconds)
    """Timeout in seconds for sending the next 64 KiB to a client; after it the connection is closed."""
    idle_seconds: float = attrs.field(default=30.0, validator=_seconds)
    """Seconds without a request after which a connection is closed."""
    connections: int = attrs.field(default=10_000, validator=_count)
    """Maximum number of open connections."""
    requests: int = attrs.field(default=64, validator=_count)
    """Maximum number of concurrent requests of one token, without streams."""
    streams: int = attrs.field(default=1000, validator=_count)
    """Maximum number of open streams of one token. The default is high, because a back end may use one token for many users."""
    wrong_tokens: int = attrs.field(default=100, validator=_count)
    """Maximum number of unknown tokens and login keys from one address per minute; further requests get status 429."""
    messages: int | None = attrs.field(default=100, validator=_count_if_any)
    """Maximum number of messages of one token that may be unfinished at the same time; None disables the limit."""
    rate: float = attrs.field(default=20.0, validator=_rate)
    """Maximum average number of requests per second of one token; 0 allows only the first `burst` requests."""
    burst: int = attrs.field(default=100, validator=_count)
    """Maximum number of requests that one token may send at once after a pause."""
    page: int = attrs.field(default=500, validator=_count)
    """Maximum number of items on one page of a list."""
    comparisons: int = attrs.field(default=2, validator=_count)
    """Maximum number of sessions that are concurrently replayed with the current code."""
    compare_seconds: float = attrs.field(default=60.0, validator=_seconds)
    """Timeout in seconds of the replay of one session."""
    grace: float = attrs.field(default=10.0, validator=_seconds)
    """Seconds that running requests have to finish when the gateway closes."""


@attrs.define(eq=False)
class TokenMeter:
    """Rate limit bucket, running requests and open streams of one access token."""

    tokens: float
    """Number of requests that the rate limit bucket allowed at time `filled`."""
    filled: float
    """Time at which the bucket was last filled, in seconds of trio's clock."""
    running: int = 0
    """Number of running requests of the token, without streams."""
    streams: int = 0
    """Number of open streams of the token."""

    def header(self, rate: float) -> str:
        """Return the value of the response header `RateLimit`: the requests left, or the seconds until the next request.

        `rate` is the number of requests per second that the bucket gains.
        """
        seconds = "" if self.tokens >= 1 else f";t={_seconds_until_request(self.tokens, rate)}"
        return f'"requests";r={max(0, int(self.tokens))}{seconds}'

    @property
    def is_busy(self) -> bool:
        """True if a request of the token is running or a stream is open. Idle meters may be evicted."""
        return bool(self.running or self.streams)


class Meters:
    """Request rates, concurrent requests and open streams of all access tokens."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._meters: OrderedDict[str, TokenMeter] = OrderedDict()
        self._wrong: OrderedDict[str, TokenMeter] = OrderedDict()
        """Token buckets of unknown tokens, by client address or IPv6 network."""
        window = f";w={math.ceil(limits.burst / limits.rate)}" if limits.rate else ""
        self.policy = f'"requests";q={limits.burst}{window}'
        """Value of the header `RateLimit-Policy`: requests at once, and seconds after which the full number is available again."""

    @contextmanager
    def entered(self, digest: str, *, now: float, is_stream: bool = False) -> Iterator[str]:
        """Open a `with` block during which a request of a token counts as running. It yields the value of the header `RateLimit`.

        Args:
            digest: Digest of the access token.
            now: Current time by trio's clock.
            is_stream: True if the response is a stream.

        Raises:
            Problem: The token exceeds its request rate, concurrent requests or open streams.
        """
        meter = self._meter_of(digest, now)
        self._check_rate(meter, now)
        if is_stream:
            _check_below(meter.streams, self._limits.streams, "streams", "stream")
            meter.streams += 1
        else:
            _check_below(meter.running, self._limits.requests, "requests", "request")
            meter.running += 1
        try:
            yield meter.header(self._limits.rate)
        finally:
            if is_stream:
                meter.streams -= 1
            else:
                meter.running -= 1

    @contextmanager
    def streaming(self, digest: str) -> Iterator[None]:
        """Open a `with` block during which a running request of a token counts as an open stream instead.

        Raises:
            Problem: The token has its maximum number of open streams.
        """
        meter = self._meters[digest]
        _check_below(meter.streams, self._limits.streams, "streams", "stream")
        meter.running, meter.streams = meter.running - 1, meter.streams + 1
        try:
            yield
        finally:
            meter.running, meter.streams = meter.running + 1, meter.streams - 1

    def count_unknown_token(self, address: str, *, now: float) -> None:
        """Count a request with an unknown token from a client address.

        Requests with valid tokens from this address are not limited, because it may be a proxy.

        Raises:
            Problem: The address sent more than `GatewayLimits.wrong_tokens` unknown tokens in a minute.
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
                f"this address has sent more than {counted(most, 'unknown token')} in one minute: wait, and send a valid token",
                limit="wrong_tokens",
                value=most,
                retry_after=max(1, round(60 / most)),
            )
        meter.tokens -= 1

    def _meter_of(self, digest: str, now: float) -> TokenMeter:
        if (meter := self._meters.get(digest)) is None:
            meter = self._meters[digest] = TokenMeter(self._limits.burst, now)
        self._meters.move_to_end(digest)
        while len(self._meters) > MAX_METERS and not next(iter(self._meters.values())).is_busy:
            self._meters.popitem(last=False)
        return meter

    def _check_rate(self, meter: TokenMeter, now: float) -> None:
        rate, burst = self._limits.rate, self._limits.burst
        meter.tokens = min(burst, meter.tokens + (now - meter.filled) * rate)
        meter.filled = now
        if meter.tokens < 1:
            raise Problem(
                "too-many-requests",
                f"this token exceeds {rate:g} requests per second: send fewer requests",
                headers={"ratelimit": meter.header(rate), "ratelimit-policy": self.policy},
                limit="rate",
                value=rate,
                retry_after=_seconds_until_request(meter.tokens, rate),
            )
        meter.tokens -= 1


def _seconds_until_request(tokens: float, rate: float) -> int:
    """Return the whole seconds (at least 1) until a token bucket allows one more request.

    `tokens` are the requests that it allows now, `rate` the requests that it gains per second. Returns 60 if `rate` is 0.
    """
    return max(1, round((1 - tokens) / rate)) if rate else 60


def _check_below(number: int, maximum: int, limit: str, word: str) -> None:
    """Raise `Problem` if a number of requests or streams has reached its maximum.

    Raises:
        Problem: `number` is at least `maximum`. `limit` is the option name and `word` the noun for the error.
    """
    if number >= maximum:
        explanation = f"this token may have {counted(maximum, word)} open: close one"
        raise Problem("too-many-requests", explanation, limit=limit, value=maximum)


def _network_of(address: str) -> str:
    """Return the key under which a client address is counted: the /64 network of an IPv6 address, else the address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address  # noqa: PLR2004 - IPv6


@attrs.define(eq=False)
class _UnfinishedCounts:
    """Upper bounds of the numbers of unfinished messages of one token, by session."""

    counts: dict[SessionKey, int] = attrs.field(factory=dict)
    total: int = 0
    """Sum of the counts of unfinished messages over all sessions."""
    recounting: trio.Lock = attrs.field(factory=trio.Lock)
    """Lock of the request that recounts the messages from the journal. Concurrent requests wait for its result."""

    def add(self, key: SessionKey) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1
        self.total += 1

    def drop(self, key: SessionKey, ended: int) -> None:
        """Subtract the messages of a session that have ended (`ended`) from the count."""
        sent = self.counts.pop(key, 0)
        left = max(0, sent - ended)
        self.total -= sent - left
        if left:
            self.counts[key] = left


async def _unfinished(journal: Journal, key: SessionKey) -> int:
    """Return the number of unfinished messages of a session. Without an agent in `key`, add up all sessions with its id."""
    agents = [key.agent] if key.agent else await journal.agents_with_session(key.session_id)
    found = 0
    for agent in agents:
        head = journal.cached_head(agent, key.session_id) or await journal.head(agent, key.session_id)
        found += 0 if head is None else head.unfinished
    return found


class OpenMessages:
    """Limits the number of unfinished messages of each token.

    Each sent message is counted, but the end of its turn is not tracked. When the count reaches the limit, it is corrected
    from the journal. Messages from other senders to the same sessions are then also counted.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._sent: dict[str, _UnfinishedCounts] = {}

    def count(self, digest: str, key: SessionKey) -> None:
        """Count a message that a token sent to a session as unfinished, for the limit of this token.

        The agent in `key` may be empty if another node knows it.
        """
        if self._most is not None:
            self._sent.setdefault(digest, _UnfinishedCounts()).add(key)

    async def check(self, digest: str, journal: Journal) -> None:
        """Check that a token is below its limit of unfinished messages.

        The journal is read only if the count reaches the limit.

        Raises:
            Problem: The token has too many unfinished messages.
        """
        sent = self._sent.get(digest)
        if self._most is None or sent is None or sent.total < self._most:
            return
        async with sent.recounting:
            if sent.total >= self._most:
                for key, count in list(sent.counts.items()):
                    sent.drop(key, max(0, count - await _unfinished(journal, key)))
        if sent.total >= self._most:
            raise Problem(
                "too-many-requests",
                f"{counted(self._most, 'message of this token has', 'messages of this token have')} not finished: wait until one has finished",
                limit="messages",
                value=self._most,
            )
