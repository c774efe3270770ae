"""What a gateway's endpoints work with."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from .bounds import GatewayLimits, OpenMessages
from .metrics import Metrics
from .reach import ApprovalList, Reach
from .streaming.streams import StreamCounts
from .streaming.tails import Tails
from .tokens import Logins
from .webhooks.outbox import Outbox
from .webhooks.webhook import Webhook


@attrs.frozen(kw_only=True, eq=False)
class Inside:
    """One gateway, behind its doors."""

    reach: Reach
    limits: GatewayLimits
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
