"""Objects that all endpoints of a gateway share: access filter, limits, event streams, metrics and webhooks."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from .access_control import AccessFilter, ApprovalList
from .access_tokens import Logins
from .gateway_interface import Datasets
from .gateway_limits import GatewayLimits, Meters, OpenMessages
from .prometheus_metrics import Metrics
from .streaming.event_broadcast import Broadcasts
from .streaming.sse import StreamCounts
from .webhooks.outbox import Outbox
from .webhooks.webhook import Webhook


@attrs.define(eq=False)
class KeyLocks:
    """Locks that let requests of one owner with the same `Idempotency-Key` run one at a time."""

    _locks: dict[tuple[str, str], tuple[trio.Lock, int]] = attrs.field(factory=dict)
    """Lock, and number of requests that hold it or wait for it, by owner and key."""

    @asynccontextmanager
    async def held(self, owner: str, key: str) -> AsyncGenerator[None, None]:
        """Hold the lock of an owner's `Idempotency-Key` inside the `async with` block. An empty key locks nothing."""
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
class GatewayContext:
    """Objects of one gateway that its endpoints share."""

    access: AccessFilter
    limits: GatewayLimits
    meters: Meters
    messages: OpenMessages
    broadcasts: Broadcasts
    streams: StreamCounts = attrs.field(factory=StreamCounts)
    logins: Logins
    nursery: trio.Nursery
    """Nursery for background tasks that run until the gateway closes."""
    document: Callable[[], Mapping[str, Any]]
    """Returns the OpenAPI document of the gateway."""
    replay_limiter: trio.CapacityLimiter
    """Limiter of concurrent session replays (`POST /v1/sessions/{id}/compare`)."""
    metrics: Metrics
    datasets: Datasets | None = None
    """Evaluation datasets; None if the gateway was opened without datasets."""
    outboxes: Sequence[Outbox] = ()
    """Outboxes that send the notifications of the configured webhooks, one for each webhook."""
    keys: KeyLocks = attrs.field(factory=KeyLocks)
    """Locks of `Idempotency-Key` values."""
    approvals: ApprovalList = attrs.field(init=False)
    closing: trio.Event = attrs.field(factory=trio.Event)
    """Set when the gateway closes, which ends all streams."""

    @approvals.default
    def _approvals(self) -> ApprovalList:
        return ApprovalList(self.access)

    @property
    def session_webhook(self) -> Webhook | None:
        """Webhook with `url=None`, which sends to URLs that clients have set for their sessions; None if no such webhook exists."""
        return next((each.webhook for each in self.outboxes if each.webhook.url is None), None)

    @property
    def is_closing(self) -> bool:
        """True if the gateway is closing and rejects new requests."""
        return self.closing.is_set()
