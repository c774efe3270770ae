"""The transport interface of the client: send one request, stream the events of one session, download one file.

`RemoteSession` and `RemoteAgent` use only this interface; `HTTPTransport` implements it. A transport sends each request
once; `request_sender.py` retries requests for all transports.
"""

import abc
import math
from collections.abc import AsyncGenerator, Mapping, Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import attrs

from actgent.errors import ActgentError, ConfigurationError, ServerUnreachable

Operation = Literal[
    "add_dataset_case",
    "annotate",
    "answer_call",
    "cancel_task",
    "close",
    "delegate",
    "erase",
    "erase_memories",
    "find_messages",
    "forget_memory",
    "get_agent",
    "get_approvals",
    "get_calls",
    "get_cluster",
    "get_dataset_cases",
    "get_dead_letters",
    "get_evaluation",
    "get_events",
    "get_export",
    "get_feedback",
    "get_run",
    "get_memory",
    "get_messages",
    "get_observations",
    "get_past",
    "get_session",
    "get_state",
    "get_trends",
    "give_feedback",
    "interrupt",
    "list_agents",
    "list_all_schedules",
    "list_datasets",
    "list_evaluations",
    "get_memories",
    "get_memory_owners",
    "list_of_session",
    "list_schedules",
    "list_sessions",
    "list_toolsets",
    "post_compare",
    "post_decision",
    "post_fork",
    "post_lift",
    "post_session",
    "put_mode",
    "put_session",
    "remove_dataset_case",
    "replace_dataset_case",
    "say",
    "schedule",
    "send_dead_letter",
    "unschedule",
    "update_memory",
]
"""Operations of the gateway, by the `operationId` of its OpenAPI document.

The answer of `put_session` has two additional fields. `is_new` is True if this request created the session. `is_repeated` is
True if an earlier delivery of the same request may have created it.
"""


@attrs.frozen(kw_only=True)
class RemoteRequest:
    """Request to a server, in a form that does not depend on the transport."""

    operation: Operation
    agent: str = ""
    """Name of the session's agent; empty if the request does not name an agent."""
    session_id: str = ""
    """Id of the session; empty if the request does not concern one session."""
    dataset: str = ""
    """Name of the evaluation dataset; empty if the request does not concern a dataset."""
    part: str = ""
    """Last variable segment of the path: an id of a message, approval, schedule, task or evaluation, the name of an agent or
    a case, or a record number.
    """
    query: Mapping[str, Any] = attrs.field(factory=dict)
    """Query parameters of the request, by name."""
    body: Mapping[str, Any] | None = None
    """JSON body of the request; None sends an empty object."""
    key: str = ""
    """Idempotency key, for requests whose body has no id; empty sends no key."""
    accept_timeout: float = math.inf
    """Seconds in which a server must accept the request."""
    wait: float = 0
    """Seconds for which the server may delay the answer until there is a result; 0 asks for an answer at once."""
    owner: str = ""
    """Owner on whose behalf the request is sent; empty for the client's owner. Only the transport between cluster nodes uses
    it.
    """
    sources: str = ""
    """Untrusted sources of the request, separated by commas, in addition to those of the running turn."""
    immediate_events: AbstractSet[str] = frozenset()
    """Names of the events that the server sends without delay. Empty if it sends all events without delay."""
    broken_connections: int = 0
    """Number of connections that broke during earlier tries of this request.
    If the number is high, the message may crash its cluster node, and a gateway rejects the request.
    """
    delayed_events: AbstractSet[str] = frozenset()
    """Names of the events that the server collects, and sends together with the next event of `immediate_events`.
    The server omits events that are in neither set. Older servers ignore this field and send all events.
    """

    @property
    def is_long_poll(self) -> bool:
        """True if `wait` only delays the response until there is an outcome. In a comparison the server works during this time."""
        return self.wait > 0 and self.operation != "post_compare"


@attrs.frozen(kw_only=True)
class StreamEvent:
    """One event of a session, as the server sends it in an event stream."""

    name: str
    data: Mapping[str, Any]
    number: int | None = None
    """Record number, only in the last event of each record; None in the record's other events, and for partial answers."""


class ConnectionLost(Exception):
    """The connection failed before a complete response arrived."""

    def __init__(self, reason: str, *, was_sent: bool, is_broken: bool = False) -> None:
        super().__init__(reason)
        self.was_sent = was_sent
        """True if the request may have reached the server, and so may have had its effect."""
        self.is_broken = is_broken
        """True if the request was sent, and the connection ended before the first byte of an answer."""


class Refused(Exception):
    """The server responded with an error."""

    def __init__(self, kind: str, detail: str, *, status: int, fields: Mapping[str, Any]) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        """Kind of the problem: the last path segment of its `type` (RFC 9457), for example `not-found`."""
        self.detail = detail
        """Explanation of the error from the server, in plain text."""
        self.status = status
        """HTTP status."""
        self.fields = fields
        """All members of the problem document."""
        self.is_repeated = False
        """True if a gateway sent the request more than once, and an earlier try may have had its effect."""

    @property
    def may_be_done(self) -> bool:
        """True if the request may have taken effect on the server although the response is an error."""
        return self.is_repeated or self.fields.get("may_be_done") is True

    @property
    def is_broken(self) -> bool:
        """True if the gateway relayed the request to a node, and the connection to the node broke before a response."""
        return self.fields.get("broken") is True

    @property
    def is_temporary(self) -> bool:
        """True if the error is temporary: the server may accept the same request later."""
        return self.kind in ("too-many-requests", "busy", "unavailable", "timeout")

    @property
    def retry_after(self) -> float:
        """Seconds that the server asks to wait before a retry; 0 if it asks for no wait, or for more than a minute."""
        seconds = self.fields.get("retry_after")
        return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds <= 60 else 0.0  # noqa: PLR2004 - a minute


Events = AsyncGenerator[StreamEvent | None, None]
"""Events of a stream in order of arrival. A None item means that bytes arrived, e.g. a keep-alive: the connection works."""


class Transport(abc.ABC):
    """Interface of a transport, which sends requests to a server of agents, each one once."""

    @abc.abstractmethod
    async def call(self, request: RemoteRequest) -> Any:
        """Send a request once. Return the answer as decoded JSON; None if it has no body.

        Raises:
            Refused: The server answered with an error.
            ConnectionLost: The connection failed before a complete answer arrived.
        """

    @abc.abstractmethod
    def events(self, request: RemoteRequest) -> AbstractAsyncContextManager[Events | None]:
        """Open the event stream of a session as an `async with` block; `None` replaces the stream if the session is closed.

        The stream begins after the record number in `request.query["after"]`.

        Raises:
            Refused: The server answered with an error.
            ConnectionLost: The connection failed, also while events are read.
        """

    def download(self, request: RemoteRequest) -> AbstractAsyncContextManager[AsyncGenerator[bytes, None]]:
        """Open an `async with` block with the bytes of a requested file, in pieces. A transport need not implement downloads.

        Raises:
            ConfigurationError: This transport does not implement downloads.
            Refused: The server answered with an error.
            ConnectionLost: The connection failed, also while the bytes are read.
        """
        raise ConfigurationError(
            f"{type(self).__name__} does not support downloads: implement its download() method"
        )

    async def is_up(self) -> bool:
        """Return True if a server answers now.

        The client calls this method after a connection broke. The break counts against the request only if a server is up.
        """
        return True

    async def calm_seconds(self) -> float:
        """Return the seconds since a node of the server's cluster last died; infinite if unknown."""
        return math.inf

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close all connections of this transport."""

    def lost(self, reason: str, *, was_sent: bool) -> ActgentError:
        """Return the exception to raise for a request that got no response after all retries.

        `reason` is the text of the last error; `was_sent` is True if the request may have reached a server.
        """
        return ServerUnreachable(reason, was_sent=was_sent)
