"""What a gateway's endpoints work with."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from .bounds import GatewayLimits, Meters, OpenMessages
from .metrics import Metrics
from .reach import ApprovalList, Reach
from .streaming.streams import StreamCounts
from .streaming.tails import Tails
from .tokens import Logins
from .webhooks.outbox import Outbox
from .webhooks.webhook import Webhook


@attrs.define(eq=False)
class KeyLocks:
    """Lets requests with the same key of one owner run one after the other."""

    _locks: dict[tuple[str, str], tuple[trio.Lock, int]] = attrs.field(factory=dict)
    """With the number of requests that hold or wait for each lock."""

    @asynccontextmanager
    async def held(self, owner: str, key: str) -> AsyncGenerator[None, None]:
        """Hold the lock of a key for the block; without a key nothing is locked."""
        if not key:
            yield
            return
        lock, users = self._locks.get((owner, key), (trio.Lock(), 0))
        self._locks[owner, key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[owner, key]
            if users == 1:
                del self._locks[owner, key]
            else:
                self._locks[owner, key] = lock, users - 1


@attrs.frozen(kw_only=True, eq=False)
class Inside:
    """One gateway, behind its doors."""

    reach: Reach
    limits: GatewayLimits
    meters: Meters
    messages: OpenMessages
    tails: Tails
    streams: StreamCounts = attrs.field(factory=StreamCounts)
    logins: Logins
    document: Callable[[], Mapping[str, Any]]
    """Makes the description of its addresses."""
    comparing: trio.CapacityLimiter
    """Sessions that may be compared with today's code at a time."""
    metrics: Metrics
    outboxes: Sequence[Outbox] = ()
    """The webhooks at work."""
    keys: KeyLocks = attrs.field(factory=KeyLocks)
    """Requests with the same `Idempotency-Key` run one after the other."""
    approvals: ApprovalList = attrs.field(init=False)
    closing: trio.Event = attrs.field(factory=trio.Event)
    """Set when streams are to end."""

    @approvals.default
    def _approvals(self) -> ApprovalList:
        return ApprovalList(self.reach)

    @property
    def session_webhook(self) -> Webhook | None:
        """The webhook that tells the addresses of sessions; None where there is none."""
        return next((each.webhook for each in self.outboxes if each.webhook.url is None), None)

    @property
    def is_closing(self) -> bool:
        """True when nothing new is to begin."""
        return self.closing.is_set()
