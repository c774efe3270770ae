"""What a client needs of the way to a server: one request and its answer, and the events of one session.

Sessions and agents of a client are written against this alone; HTTP is the first way. A transport tries once: what to do
where a connection is lost is the same for all of them, and stands above.
"""

import abc
from collections.abc import AsyncGenerator, Mapping, Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import attrs

from actgent.errors import ActgentError, ConfigurationError, ServerUnreachable

Operation = Literal[
    "cancel_task",
    "close",
    "delegate",
    "erase",
    "get_agent",
    "get_approvals",
    "get_events",
    "get_export",
    "get_feedback",
    "get_message",
    "get_messages",
    "get_observations",
    "get_past",
    "get_session",
    "get_state",
    "give_feedback",
    "interrupt",
    "list_agents",
    "list_all_schedules",
    "list_of_session",
    "list_schedules",
    "list_sessions",
    "post_compare",
    "post_decision",
    "post_fork",
    "post_session",
    "put_mode",
    "put_session",
    "say",
    "schedule",
    "unschedule",
]
"""What can be asked, by the names that the gateway's description has for it (`operationId`).

The answer of `put_session` has `is_new` besides: whether the session was made by that, and `is_repeated`: an earlier delivery of
the same request may have done it.
"""


@attrs.frozen(kw_only=True)
class RemoteRequest:
    """Something that a server is asked."""

    operation: Operation
    agent: str = ""
    """Whose session is meant; empty where none is."""
    session_id: str = ""
    part: str = ""
    """Of a session or beside it: the id of a message, approval, schedule or task, the name of an agent, the number of a record."""
    query: Mapping[str, Any] = attrs.field(factory=dict)
    body: Mapping[str, Any] | None = None
    """None: there is none."""
    key: str = ""
    """By which a server knows a repetition, where the body has no id; empty: there is none."""
    wait: float = 0
    """Seconds for which the server may hold the answer back until there is more to say."""
    owner: str = ""
    """For whom it is asked, where the server believes the client that; empty: for the client's own owner."""
    wanted: AbstractSet[str] = frozenset()
    """The names of the events that are waited for; others come along with them. None: all of them are."""
    along: AbstractSet[str] = frozenset()
    """The names of those others that are wanted where some are waited for; a server may tell more, as older ones do."""


@attrs.frozen(kw_only=True)
class StreamEvent:
    """One event of a session, as a server tells it."""

    name: str
    data: Mapping[str, Any]
    number: int | None = None
    """Of the record that is told by this one and by those before it that have none; None also for what only grows."""


class ConnectionLost(Exception):
    """There was no answer, or not all of it."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        """True: the server may have done what it was asked."""


class Refused(Exception):
    """The answer is an error."""

    def __init__(self, kind: str, detail: str, *, status: int, fields: Mapping[str, Any]) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        """By which the server names it: the last part of its `type`."""
        self.detail = detail
        self.status = status
        self.fields = fields
        """What it says besides."""
        self.pool = ""
        """Of nodes, one of which was asked; empty for a server."""
        self.is_repeated = False
        """True: the request may have had its effect before, though it was sent once."""

    @property
    def is_passing(self) -> bool:
        """True if the same request may be taken a little later."""
        return self.kind in ("too-many-requests", "busy", "unavailable", "timeout")

    @property
    def retry_after(self) -> float:
        """Seconds that the server asks to wait."""
        wanted = self.fields.get("retry_after")
        return float(wanted) if isinstance(wanted, int | float) and 0 <= wanted <= 60 else 0.0  # noqa: PLR2004 - a minute


Events = AsyncGenerator[StreamEvent | None, None]
"""Events as they come; None is a sign of life."""


class Transport(abc.ABC):
    """A way to a server of agents."""

    @abc.abstractmethod
    async def call(self, request: RemoteRequest) -> Any:
        """Ask once; returns the answer as decoded JSON, None where there is none.

        Raises:
            Refused: the answer is an error.
            ConnectionLost: there is none.
        """

    @abc.abstractmethod
    def events(self, request: RemoteRequest) -> AbstractAsyncContextManager[Events | None]:
        """An `async with` block with the events that are asked for, behind `query["after"]`; None: no more will come.

        Raises:
            Refused, ConnectionLost: see `call`; the latter also while events are read.
        """

    def download(self, request: RemoteRequest) -> AbstractAsyncContextManager[AsyncGenerator[bytes, None]]:
        """An `async with` block with the bytes of a file that is asked for; transports need not be able to.

        Raises:
            ConfigurationError: it carries no files.
            Refused, ConnectionLost: see `call`; the latter also while they are read.
        """
        raise ConfigurationError(f"{type(self).__name__} carries no files: define its download()")

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Ask nothing more."""

    def lost(self, reason: str, *, was_sent: bool) -> ActgentError:
        """The error of a request that got no answer, however often it was sent."""
        return ServerUnreachable(reason, was_sent=was_sent)
