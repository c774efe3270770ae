"""A request at work: who asked, what it is about, and how far its answer has come."""

import attrs
import trio

from actgent.cluster.amqp import Delivery
from actgent.cluster.wire import WireRequest, session_named

AGAIN = 0.2
"""Seconds after which a request goes back into its queue that cannot be answered here now."""
_FREEING = ("interrupt", "close", "decision")
"""What ends something, or lets it go on, which all others may wait for: also a partition that is about to be another node's,
which is held until its turns have ended."""
_STOPPING = ("interrupt", "close")
"""What ends turns."""


@attrs.define(eq=False)
class RequestWork:
    """A request at work."""

    delivery: Delivery
    asked: WireRequest
    came_at: float
    """When, by trio's clock."""
    gone: trio.Event = attrs.field(factory=trio.Event)
    """Set when nobody reads the answer any more."""
    scope: trio.CancelScope | None = None
    """What ends it; None while it has not begun."""
    is_stopped: bool = False
    """True: it is another node's to answer."""
    is_answered: bool = False
    """True once there is nothing more to tell."""
    is_confirming: bool = False
    """True: the broker has not confirmed its answer; who hears that acknowledges it."""
    number: int = 0
    """Of the next piece."""
    has_moved: bool = False
    place: tuple[str, str] = attrs.field(init=False)
    """Who asked, and under which id."""
    session: str = attrs.field(init=False)
    """The session that it names, if any."""
    line: str = attrs.field(init=False)
    """The session whose requests wait together with this one; empty where as many may wait as come."""
    is_read: bool = attrs.field(init=False)
    """True if it only reads."""
    is_freeing: bool = attrs.field(init=False)
    """True if others may wait for what it does."""
    is_stop: bool = attrs.field(init=False)
    """True if it ends a turn that runs."""

    def __attrs_post_init__(self) -> None:
        asked, what = self.asked, self.asked.path.rpartition("/")[2]
        self.place = self.delivery.properties.reply_to or "", asked.id
        self.session, self.is_read = session_named(asked), asked.verb == "GET"
        self.is_freeing = what in _FREEING
        self.line = "" if self.is_read or self.is_freeing else self.session
        self.is_stop = what in _STOPPING

    def stop(self) -> None:
        """Have it end here: another node answers it."""
        self.is_stopped = True
        if self.scope is not None:
            self.scope.cancel()
