"""What a gateway's endpoints work with."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from .bounds import GatewayLimits, OpenMessages
from .reach import Reach
from .streaming.tails import Tails


@attrs.frozen(kw_only=True, eq=False)
class Inside:
    """One gateway, behind its doors."""

    reach: Reach
    limits: GatewayLimits
    messages: OpenMessages
    tails: Tails
    document: Callable[[], Mapping[str, Any]]
    """Makes the description of its addresses."""
    comparing: trio.CapacityLimiter
    """Sessions that may be compared with today's code at a time."""
    closing: trio.Event = attrs.field(factory=trio.Event)
    """Set when streams are to end."""

    @property
    def is_closing(self) -> bool:
        """True when nothing new is to begin."""
        return self.closing.is_set()
