"""Webhooks as options of `actgent serve`."""

from typing import Annotated

import attrs
from cyclopts import Parameter

Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class NotifyOptions:
    """Who is told of what happens."""

    notify: Repeated = ()
    """An address that is told of replies, approvals, failures and ends of sessions; may be given several times."""
    notify_sessions: Annotated[bool, Parameter(negative=(), show_default=False)] = False
    """Tell the addresses, too, that clients give for their sessions."""
    notify_events: Repeated = ()
    """Of these alone: reply, approval, failed, closed; may be given several times."""
    notify_allow: Repeated = ()
    """HOST[:PORT][/PATH] or a network that is not public, for the addresses of --notify; may be given several times."""
    notify_sessions_allow: Repeated = ()
    """HOST[:PORT][/PATH] or a network that is not public, for the addresses that clients give; may be given several times."""
    notify_secrets: str | None = None
    """The file of the secrets that requests are signed with, one a line, the newest first; made where there is none."""
