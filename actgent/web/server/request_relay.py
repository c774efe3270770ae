"""Relaying of a gateway's requests to the cluster nodes that own the sessions.

The gateway authenticates the caller, and sends the caller's identity with the request. A request is retried until the caller's
retry timeout ends. Reads are always safe to retry; a request with an effect is retried with the same id, which the gateway adds if
the request has none. If a stream breaks, the client's stream also ends; the client reconnects with its last record number, and
resumes at the node that owns the session then. A message for a session that no node owns is stored until a node owns it.

Requests of interoperability protocols, such as OpenAI's, are relayed in the same way: their endpoints derive the session from
path, headers or body.
"""

import math
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import attrs
import orjson
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope as ASGIScope, Send

from actgent.client.http.http_request import (
    BREAKS_HEADER,
    REPEATED_HEADER,
    RETRY_TIMEOUT_HEADER,
    SOURCES_HEADER,
    HTTPRequest,
)
from actgent.client.request_sender import (
    LONG_POLL_SECONDS,
    MAX_BROKEN_CONNECTIONS,
    RetryBackoff,
    minimum_pause,
)
from actgent.client.transport_interface import ConnectionLost
from actgent.errors import Fenced, SessionClosed, SessionMoved
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import new_secret, traceparent, valid_traceparent
from actgent.support.strict_json import encode_json
from actgent.web.access_tokens import SCOPES
from actgent.web.problem_documents import Problem, read_problem
from actgent.web.routes import records_forks_and_replays
from actgent.web.routes.endpoints import Endpoint, HTTPCall
from actgent.web.routes.idempotency import fork_id, id_of_key
from actgent.web.routes.messages import accepted, say, wait_of
from actgent.web.routes.sessions import interrupt, post_session
from actgent.web.streaming.sse import Streamed, run_until_disconnect

MAX_RETRY_TIMEOUT_SECONDS = 30.0
"""Maximum time in seconds for which a request is retried until a node serves its session. Clients can request less."""
WANTS_HEADERS = "actgent-headers"
"""Header of a relayed request. It asks the node to send the headers of its answer."""
RELAYED_ANSWER_HEADERS = frozenset(
    {
        "content-type",
        "location",
        "etag",
        "retry-after",
        "content-disposition",
        "content-security-policy",
        "x-accel-buffering",
    }
)
"""Headers of a node's answer that are relayed to the client. They describe the content, not the connection."""
_RELAYED_REQUEST_HEADERS = ("accept", "content-type", SOURCES_HEADER)
"""Headers that are relayed to the owner with each request, in addition to those that the endpoint supports."""
_OTHER_CAUSE = b'"as_asked":false'
"""Part of an error answer that means: another request caused the current state, so the retry did not succeed."""
_RETRY_MARKS = (b'"/errors/busy"', b'"moved":true')
"""Fragments of error answers after which a request is retried, because it had no effect."""
_QUARANTINE_MARK = b'"is_quarantined":true'
"""Part of an error answer of a node that holds the session back. It is sent on to clients that count broken connections."""
HOLD_SECONDS = 1.0
"""Seconds for which a request of a client that counts broken connections waits for a session that is quarantined.

Such a client retries the request later. A request that waits longer would be open during further crashes of nodes.
"""
MAX_PAUSE_SECONDS = 1.0
"""Maximum pause in seconds between two tries."""
_OK, _ACCEPTED, _NO_CONTENT, _FIRST_ERROR = 200, 202, 204, 400


class NoOwner(ConnectionLost):
    """No live node owns the session's partition at the moment, so the request was not sent."""

    def __init__(self) -> None:
        super().__init__("no node serves this session at the moment", was_sent=False)


class NodeConnectionBroken(ConnectionLost):
    """The connection to a node broke before it answered. The request may have crashed the node."""

    def __init__(self, reason: str, *, node: str) -> None:
        super().__init__(reason, was_sent=True, is_broken=True)
        self.node = node
        """Name of the node to which the connection broke."""


@attrs.frozen(kw_only=True)
class RelayedRequest:
    """A request to the node that owns a session, with its authenticated caller."""

    http_request: HTTPRequest
    session_id: str
    """Id of the session whose owner node must answer; empty if any node may answer.

    The path may contain the id of another session, for example in a fork request.
    """
    owner: str
    """Name of the user or agent on whose behalf the caller sends the request."""
    scopes: tuple[str, ...]
    """Scopes of the caller's access token."""


@attrs.frozen(kw_only=True)
class RelayedAnswer:
    """Response of another node: HTTP status, headers, and the body as a stream of chunks."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes, None]

    @property
    def is_stream(self) -> bool:
        """True if the body is an event stream.

        The relaying node sends each chunk of a stream to the client when it is received.
        """
        return not self.headers.get("content-type", "").startswith(
            ("application/json", "application/problem")
        )


@runtime_checkable
class OwnerClient(Protocol):
    """Sends requests to the nodes that own the sessions. It makes one attempt for each request."""

    def relay(self, request: RelayedRequest, *, seconds: float) -> AbstractAsyncContextManager[RelayedAnswer]:
        """Send a request to the node that owns its session. The node has `seconds` for its response.

        Raises:
            NoOwner: No live node owns the session.
            NodeConnectionBroken: The connection broke before the response began.
            ConnectionLost: The connection failed in another way, or while the response body is read.
        """

    async def has_died(self, node: str) -> bool:
        """Return True if a node is dead. Wait for as long as the detection of its death takes. A planned shutdown is no death."""

    async def calm_seconds(self) -> float:
        """Return the seconds since the start, or since the death of a node was last noticed."""

    async def store(self, request: RelayedRequest, *, message_id: str) -> bool:
        """Store the message of a request until a node owns its session. Return False if a node owns the session already.

        Raises:
            JournalFailed: The database does not answer. It is unknown whether the message was stored.
        """


class WaitReleased(Protocol):
    """Function that waits until a session of this process is no longer blocked, and requests for it can be answered."""

    async def __call__(self, session_id: str, seconds: float = ..., /) -> None:
        """Wait until a held-back session is released, for at most `seconds`.

        A session is blocked by the quarantine after crashes, or by pending messages that are delivered first.

        Raises:
            Problem: The session is still blocked.
        """


@attrs.frozen(kw_only=True)
class Relay:
    """Relay of one gateway: answers a request in this process, or sends it to the node that owns the session."""

    owner_client: OwnerClient
    is_ours: Callable[[str], bool]
    """Returns True if this process owns and serves the session with this id now."""
    is_draining: Callable[[str], bool]
    """Returns True if this process is draining the partition of the session with this id, before a planned transfer."""
    wait_released: WaitReleased
    serving: Callable[[Iterable[Endpoint]], AbstractContextManager[None]]
    """Returns a context manager during which this node also answers relayed requests to these endpoints."""
    derive_key: Callable[[bytes], bytes]
    """Returns a secret of 32 bytes for a purpose. All nodes of the cluster derive the same secret."""

    async def answer(self, endpoint: Endpoint, call: HTTPCall) -> Response:
        """Answer a request in this process, or return a response that relays the request to the node that owns its session."""
        forwarding = endpoint.forwarding
        if forwarding.add_ids is not None:  # before the first try, whose effect a relayed retry must find
            call = forwarding.add_ids(call)
        session_id = forwarding.session_of(call)
        if session_id and not forwarding.reads_journal:
            if not (
                self.is_ours(session_id)
                or (forwarding.served_while_draining and self.is_draining(session_id))
            ):
                return RelayedResponse(self, endpoint, call, None)
            seconds = _retry_timeout_of(call)
            is_counting = counts_breaks(call)
            await self.wait_released(session_id, min(seconds, HOLD_SECONDS) if is_counting else seconds)
        try:
            response = await endpoint.answer(call)
        except Fenced as moved:
            return RelayedResponse(self, endpoint, call, moved)
        if forwarding.awaits_run and isinstance(response, Streamed):
            return _MovableStream(self, endpoint, call, response)
        return response


class _MovableStream(Response):
    """Stream of this process. If the session moves to another node before the stream begins, the request is relayed there."""

    def __init__(self, relay: Relay, endpoint: Endpoint, call: HTTPCall, response: Streamed) -> None:
        super().__init__()
        self._relay, self._endpoint, self._call, self._response = relay, endpoint, call, response

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        except Fenced as moved:
            if scope["actgent.answer"].has_begun:
                raise
            relayed = RelayedResponse(self._relay, self._endpoint, self._call, moved)
            await relayed(scope, receive, send)


class RelayedResponse(Response):
    """Response that relays the request to the node that owns the session, and sends that node's response to the client."""

    def __init__(self, relay: Relay, endpoint: Endpoint, call: HTTPCall, moved: Fenced | None) -> None:
        super().__init__()
        self._relay, self._owner_client = relay, relay.owner_client
        self._endpoint, self._call, self._moved = endpoint, call, moved
        self._body = dict(call.body)
        names = (*_RELAYED_REQUEST_HEADERS, *map(str.lower, endpoint.request_headers))
        self._sent: dict[str, str] = {
            name: value for name in names if name != "prefer" and (value := call.header(name))
        }
        self._sent[WANTS_HEADERS] = "true"
        if (parent := valid_traceparent(traceparent.get())) is not None:
            self._sent["traceparent"] = parent
        self._wait = wait_of(call)
        self._may_be_done = False
        """True if an attempt to send the request may have taken effect."""
        self._retry_timeout = _retry_timeout_of(call)
        """Maximum number of seconds for which the request is retried."""
        counted = call.header(BREAKS_HEADER) or ""
        self._breaks = int(counted) if counted.isascii() and counted.isdigit() else 0
        """Number of connections that broke before a response began, including those that the client has reported."""
        self._is_counted = counts_breaks(call) and self._is_repeatable
        """True if the client counts broken connections itself and retries with the same ids."""

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        async def work() -> None:
            is_unnamed = self._endpoint.answer is interrupt and not self._is_repeatable
            if is_unnamed and not await self._add_turn_id():
                await Response(status_code=_NO_CONTENT)(scope, receive, send)
                return
            await self._count_message()
            request = self._build_request()
            if self._endpoint.answer is say and self._wait:
                await self._send_and_poll(request, send)
            else:
                await self._relay_with_retries(request, self._wait, send)

        await run_until_disconnect(receive, work)

    async def _count_message(self) -> None:
        """Count the message of the request toward the limit of the access token, because the answering node does not count it.

        Raises:
            Problem: The token has too many unfinished messages.
        """
        call, forwarding = self._call, self._endpoint.forwarding
        if forwarding.sends_message is None or not forwarding.sends_message(call):
            return
        digest, messages = call.caller.token.digest, call.gateway.messages
        await messages.check(digest, call.gateway.access.journal)
        if session_id := forwarding.session_of(call):
            messages.count(digest, SessionKey("", session_id))

    # --- the relayed request -------------------------------------------------------------

    def _build_request(self) -> RelayedRequest:
        """Build the request to send to the node that owns the session.

        If the request needs an id and has none, an id is added, so that retries are idempotent.
        """
        call, verb = self._call, self._endpoint.verb
        name, key = self._endpoint.id_field, self._sent.get("idempotency-key")
        if not key and ((name and not self._body.get(name)) or self._endpoint.answer is post_session):
            self._is_counted = False  # a retry of the client would get another id here
        if name and not key:
            self._body.setdefault(name, new_secret())
        if self._endpoint.answer is post_session:
            self._sent.setdefault("idempotency-key", new_secret())
        if self._wait and self._endpoint.answer is not say:
            self._sent["prefer"] = f"wait={self._wait:.0f}"
        body = None if verb in ("GET", "DELETE") else encode_json(self._body)
        return self._address(verb, call.address, self._sent, body)

    def _address(
        self, verb: str, address: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> RelayedRequest:
        """Return a request to the node that owns the session, on behalf of the caller."""
        path, caller = address.removeprefix("/v1"), self._call.caller
        return RelayedRequest(
            http_request=HTTPRequest(
                verb=verb, path=path, query=self._call.search, headers=headers, body=body
            ),
            session_id=self._target_session(),
            owner=caller.owner,
            scopes=tuple(each for each in SCOPES if caller.allows(each)),
        )

    async def _add_turn_id(self) -> bool:
        """Add the id of the running turn's message to an interrupt request. Return False if no turn is running.

        Without that id, a retried interrupt could stop a later turn.

        Raises:
            Problem: No node answered the question which turn is running. No turn was interrupted.
        """
        path, buffered = self._call.address.removesuffix("/interrupt"), _BufferedAnswer()
        await self._relay_with_retries(self._poll_request(path, 0), 0, buffered.send)
        known = orjson.loads(buffered.data) if buffered.status == _OK else {}
        if "turn" not in known:  # session closed or agent not running: the owner answers with the error
            return True
        if known["turn"] is not None:
            self._body["message_id"] = known["turn"]["message_id"]
        return known["turn"] is not None

    def _target_session(self) -> str:
        """Return the id of the session whose owner node must answer. A request that creates a session names the new session."""
        if self._endpoint.answer is post_session:
            return id_of_key(self._call, self._sent["idempotency-key"])
        if self._endpoint.answer is records_forks_and_replays.post_fork:  # a fork writes only the new session
            return str(self._body.get("session_id") or fork_id(self._call, self._sent["idempotency-key"]))
        if isinstance(self._moved, SessionMoved):
            return self._moved.session_id
        forwarding = self._endpoint.forwarding
        session_id = forwarding.session_of(self._call)
        if not session_id and forwarding.awaits_run:  # this node owns no sessions, so another one creates it
            return new_secret()
        return session_id

    @property
    def _is_repeatable(self) -> bool:
        forwarding = self._endpoint.forwarding
        if forwarding.awaits_run:  # without a session, each try would create one
            return bool(forwarding.session_of(self._call))
        return self._endpoint.answer is not interrupt or bool(
            self._body.get("message_id") or self._body.get("drop_queued")
        )

    # --- the answer ----------------------------------------------------------------------

    async def _relay_with_retries(self, request: RelayedRequest, wait: float, send: Send) -> None:
        """Relay the request, with retries, and send the response to the client. `wait` is the long-poll time in seconds.

        Raises:
            Problem: No node answered within the client's retry timeout.
        """
        retry_timeout = (
            min(self._retry_timeout, 2 * HOLD_SECONDS) if self._is_counted else self._retry_timeout
        )
        backoff, until = RetryBackoff(max_pause=MAX_PAUSE_SECONDS), trio.current_time() + retry_timeout
        awaits_run = self._endpoint.forwarding.awaits_run
        seconds = math.inf if awaits_run else wait + float(self._body.get("deadline", 0))
        begun = trio.current_time()
        while not await self._try(request, seconds, until, send):
            if awaits_run and trio.current_time() - begun > LONG_POLL_SECONDS:  # the owner had accepted it
                until = trio.current_time() + retry_timeout
            begun = trio.current_time()
            left = until - trio.current_time()
            if left <= 0:
                fields: dict[str, Any] = {"may_be_done": True} if self._may_be_done else {}
                raise Problem(
                    "unavailable",
                    "no node answered the request for this session: retry the request",
                    **fields,
                )
            pause = backoff.next_pause(minimum_pause(self._breaks, await self._owner_client.calm_seconds()))
            await trio.sleep(min(pause, left))

    async def _try(self, request: RelayedRequest, seconds: float, until: float, send: Send) -> bool:
        """Relay the request once, and send the response to the client. Return False if the request must be retried.

        Raises:
            Problem: The connection was lost, and the request is not safe to retry.
        """
        form = request.http_request
        has_begun, is_read, begun = False, form.verb == "GET", trio.current_time()
        try:
            async with self._owner_client.relay(request, seconds=seconds) as answer:
                if answer.is_stream and answer.status < _FIRST_ERROR:
                    has_begun = True
                    await _stream(answer, send)
                data = b"".join([each async for each in answer.pieces])  # empty after a stream
        except ConnectionLost as lost:
            if has_begun and self._endpoint.forwarding.awaits_run:
                raise Problem(
                    "unavailable",
                    "the connection to the node that sent the stream was lost: repeat the request with Last-Event-ID",
                ) from lost
            self._may_be_done |= lost.was_sent and not is_read
            if not has_begun:
                if lost.was_sent and not (is_read or self._is_repeatable):
                    explanation = "the connection to the node was lost: the request may have taken effect"
                    raise Problem("unavailable", explanation, may_be_done=True) from lost
                is_polling = "prefer" in form.headers and trio.current_time() - begun > LONG_POLL_SECONDS
                if isinstance(lost, NodeConnectionBroken) and not is_polling:
                    await self._count_break(lost)
                is_stored = isinstance(lost, NoOwner) and self._endpoint.answer is say and not self._breaks
                return is_stored and await self._store(request, send)
        if has_begun:  # a broken stream ends normally for the client, which reconnects
            await _send(send, b"", is_last=True)
            return True
        marks = _RETRY_MARKS if self._is_counted else (*_RETRY_MARKS, _QUARANTINE_MARK)
        is_retryable = answer.status >= _FIRST_ERROR and any(each in data for each in marks)
        if is_retryable and trio.current_time() < until - 1:
            return False
        await self._send_complete(answer, data, send)
        return True

    async def _count_break(self, lost: NodeConnectionBroken) -> None:
        """Count a broken connection, so that a request that crashes nodes is not sent to further nodes.

        From the second break on, a break counts only if the node dies. Otherwise the network broke the connection, or the node
        shut down as planned.

        Raises:
            Problem: The client counts breaks itself, or `MAX_BROKEN_CONNECTIONS` connections broke.
        """
        if self._breaks and not await self._owner_client.has_died(lost.node):
            return
        fields: dict[str, Any] = {"may_be_done": True} if self._may_be_done else {}
        if self._is_counted:
            explanation = "the connection to the node broke before the node answered: retry the request"
            raise Problem("unavailable", explanation, broken=True, retry_after=0, **fields) from lost
        self._breaks += 1
        if self._breaks >= MAX_BROKEN_CONNECTIONS:
            explanation = (
                f"{self._breaks} connections to nodes broke while nodes processed this request: "
                "it may crash each node that processes it"
            )
            raise Problem("poison", explanation, **fields) from lost

    async def _store(self, request: RelayedRequest, send: Send) -> bool:
        """Store a message until a node owns its session, and acknowledge it. Return False if a node already owns the session.

        Raises:
            Problem: The caller may not access the session.
            SessionClosed: The session was closed.
        """
        call = self._call
        head = await call.head()
        if head.state == "closed":
            raise SessionClosed(request.session_id)
        message_id = call.chosen_id("message_id") or str(self._body["message_id"])
        self._may_be_done = True
        if not await self._owner_client.store(request, message_id=message_id):
            return False
        response = accepted(call, head, message_id)
        headers = {name.decode(): value.decode("latin-1") for name, value in response.raw_headers}
        await _begin(send, response.status_code, headers)
        await _send(send, bytes(response.body), is_last=True)
        return True

    async def _send_complete(self, answer: RelayedAnswer, data: bytes, send: Send) -> None:
        """Send a complete response of the owner node to the client.

        If this node had to repeat the request, the owner may reject the repetition because the first try has already
        succeeded. The client then receives a success.
        """
        status = answer.status
        if (
            self._may_be_done
            and status == self._endpoint.forwarding.repeated_status
            and _OTHER_CAUSE not in data
        ):
            status, data = _NO_CONTENT, b""
        if status >= _FIRST_ERROR and self._endpoint.to_error is not None:
            problem = read_problem(data)
            if problem is not None:
                raise problem  # the gateway answers in the form of the protocol
        headers = {**answer.headers, "content-length": str(len(data))}
        if status == _NO_CONTENT:
            headers = {}
        if self._may_be_done:
            headers[REPEATED_HEADER] = "true"
        await _begin(send, status, headers)
        await _send(send, data, is_last=True)

    async def _send_and_poll(self, request: RelayedRequest, send: Send) -> None:
        """Relay a message without waiting for its outcome. Then request the outcome repeatedly.

        The first request ends soon, so if a node is lost, only a poll must be repeated.
        """
        over = trio.current_time() + self._wait
        accepted_response = _BufferedAnswer()
        await self._relay_with_retries(request, 0, accepted_response.send)
        left = math.ceil(over - trio.current_time())
        if accepted_response.status != _ACCEPTED or left < 1:
            await accepted_response.forward(send)
            return
        found = _BufferedAnswer()
        await self._relay_with_retries(
            self._poll_request(accepted_response.headers["location"], left), left, found.send
        )
        if found.status == _OK:
            is_over = orjson.loads(found.data)["status"] in ("answered", "failed")
            found.status = _OK if is_over else _ACCEPTED
            found.headers["location"] = accepted_response.headers["location"]
        await found.forward(send)

    def _poll_request(self, path: str, seconds: int) -> RelayedRequest:
        """Return a GET request for the status of a run or session, with a long-poll time in seconds."""
        return self._address("GET", path, {**self._sent, "prefer": f"wait={seconds}"})


def counts_breaks(call: HTTPCall) -> bool:
    """Return True if the client counts broken connections to nodes itself, and retries its requests."""
    return call.header(BREAKS_HEADER) != ""


def _retry_timeout_of(call: HTTPCall) -> float:
    """Return how many seconds a request may be retried, as its header states; at most `MAX_RETRY_TIMEOUT_SECONDS`."""
    try:
        seconds = float(call.header(RETRY_TIMEOUT_HEADER) or MAX_RETRY_TIMEOUT_SECONDS)
    except ValueError:
        return MAX_RETRY_TIMEOUT_SECONDS
    return (
        min(max(seconds, 0.0), MAX_RETRY_TIMEOUT_SECONDS)
        if math.isfinite(seconds)
        else MAX_RETRY_TIMEOUT_SECONDS
    )


@attrs.define
class _BufferedAnswer:
    """Buffered response, which the relay inspects before it is sent to the client."""

    status: int = 0
    headers: dict[str, str] = attrs.field(factory=dict)
    data: bytes = b""

    async def send(self, message: Any) -> None:
        """Add an ASGI message to the buffered response. The method is used as ASGI `send` function."""
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.data += message.get("body", b"")

    async def forward(self, send: Send) -> None:
        """Send the buffered response to the client."""
        await _begin(send, self.status, self.headers)
        await _send(send, self.data, is_last=True)


async def _stream(answer: RelayedAnswer, send: Send) -> None:
    """Send the status and headers of a node's response to the client. Then send each chunk of the body when it is received."""
    await _begin(send, answer.status, answer.headers)
    async for piece in answer.pieces:
        await _send(send, piece)


async def _begin(send: Send, status: int, headers: Mapping[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _send(send: Send, data: bytes, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": not is_last})
