"""`RemoteAgent`: an agent in another process, with the API of `Agent`."""

import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import trio

from actgent.approvals import Approval, Decision, session_of
from actgent.errors import (
    ApprovalNotFound,
    ConfigurationError,
    DeadlineExceeded,
    NotSuspended,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    WrongOwner,
)
from actgent.limits_and_schedules.id_and_number_validation import check_id, check_seconds
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import (
    Content,
    Delivery,
    Event,
    Message,
    OnBusy,
    Priority,
    PriorityName,
    Reply,
    Route,
    Sender,
    ToolResult,
    message_failure,
    new_secret,
)
from actgent.runtime.waits_between_sessions import ANY_SESSION, add_remote_label
from actgent.tools.tools_run_by_caller import CallerTools

from .error_conversion import failure_error, suspended
from .event_subscription import ServerLink, complete_tool_results
from .json_conversion import DeliveryDecoder, is_rejection, to_approval, to_label, to_reply
from .remote_memory import RemoteLongTermMemory
from .remote_session import RemoteSession
from .remote_stream_reader import PutItem, RemoteReader, open_reader
from .request_bodies import session_body
from .transport_interface import ConnectionLost, Refused, RemoteRequest, StreamEvent

POLL_SECONDS = 20.0
"""Long-poll time in seconds of one request for a message's outcome. It is shorter than the usual timeouts of proxies."""
CLEANUP_SECONDS = 5.0
"""Maximum time in seconds for which a cancelled call tries to stop its turn, or to close its session."""


class RemoteAgent:
    """Proxy of an agent that runs on a server, with the API of `Agent`. `client.agent(name)` returns it without a request."""

    def __init__(self, link: ServerLink, name: str) -> None:
        self.name = name
        self._link = link

    def __repr__(self) -> str:
        return f"<RemoteAgent {self.name!r}>"

    @property
    def long_term_memory(self) -> RemoteLongTermMemory:
        """Proxy of the agent's long-term memory, made without a request. Its first request raises if the agent has none."""
        return RemoteLongTermMemory(self._link, self.name)

    # --- sessions ------------------------------------------------------------------------

    async def create_session(
        self,
        owner: Sender | str | None = None,
        description: Content = "",
        *,
        session_id: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> RemoteSession:
        """Create a session of this agent. A `description` that is not empty is sent as its first message.

        The session belongs to the token's owner; another `owner` requires the scope admin. Handlers that are attached later
        receive all events of the session from its beginning.

        Raises:
            NotRunning: No agent of this name runs on the server.
            SessionExists: The agent already has a session with this id.
            PermissionDenied: The token may not create sessions for another owner.
        """
        check_id("session_id", session_id)
        body = session_body(self.name, owner, on_busy, limits, tags=tags, metadata=metadata)
        if session_id is None:
            request = RemoteRequest(operation="post_session", agent=self.name, body=body, key=new_secret())
            head = await self._link.requests.send(request)
        else:
            head, is_repeated = await self._create_or_find(session_id, body, key=new_secret())
            if not (head["is_new"] or is_repeated):
                raise SessionExists(self.name, session_id)
        session = self._to_session(head, after=1)
        if description:
            await session.chat(description)
        return session

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, after: int | None = None
    ) -> RemoteSession:
        """Open an existing session of this agent. If `owner` is not None, the session must belong to that owner.

        Handlers are called with the events after record `after`, for example the `cursor` of another reader. None means the
        session's last record at the time of this call, even if the first handler is attached later.

        Raises:
            SessionNotFound: The session does not exist, or the token may not access it.
            WrongOwner: The session belongs to another owner.
            SessionClosed: The session was closed.
        """
        check_id("session_id", session_id)
        request = RemoteRequest(operation="get_session", agent=self.name, session_id=session_id)
        head = await self._link.requests.send(request)
        owner_name = owner.name if isinstance(owner, Sender) else owner
        if owner_name not in (None, head["owner"]):
            raise WrongOwner(self.name, session_id, str(owner_name))
        if head["status"] == "closed":
            raise SessionClosed(session_id)
        return self._to_session(head, after=int(head["records"]) if after is None else after)

    async def ensure_session(
        self,
        owner: Sender | str | None,
        session_id: str,
        *,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        after: int | None = None,
    ) -> RemoteSession:
        """Open this agent's session with this id. Create the session if it does not exist.

        `after` has the same meaning as for `open_session`.

        Raises:
            WrongOwner: The existing session belongs to another owner.
            SessionClosed: The existing session was closed.
        """
        check_id("session_id", session_id)
        body = session_body(self.name, owner, on_busy, limits, tags=tags, metadata=metadata)
        try:
            head, _ = await self._create_or_find(session_id, body)
        except SessionExists:  # it was created with other options, and keeps them
            return await self.open_session(session_id, owner=owner, after=after)
        if head["status"] == "closed":
            raise SessionClosed(session_id)
        return self._to_session(head, after=_first_cursor(head) if after is None else after)

    async def _create_or_find(
        self, session_id: str, body: Mapping[str, Any], *, key: str = ""
    ) -> tuple[Mapping[str, Any], bool]:
        """Create a session with this id, or find the session that an earlier try of this request has created.

        Return the session's JSON, and True if an earlier try may have created it. With an idempotency `key`, it is an error if
        another request has created the session.
        """
        request = RemoteRequest(
            operation="put_session", agent=self.name, session_id=session_id, body=body, key=key
        )
        head, is_repeated = await self._link.requests.send_with_repeat_flag(request)
        return head, is_repeated or head["is_repeated"]

    def _to_session(self, head: Mapping[str, Any], *, after: int | None) -> RemoteSession:
        """Return the `RemoteSession` for a session's JSON `head`.

        Handlers receive events after record `after`; None is the default of `_first_cursor`.
        """
        return RemoteSession(
            self._link, agent=self.name, session_id=head["id"], owner=head["owner"], cursor=after
        )

    async def receive(self, message: Message, *, enqueue_timeout: float = 30) -> str:
        """Send a message that `RemoteSession.create_message` built.

        Return the message's id as soon as the server has recorded it.
        """
        session = self._session_for_requests(message.session_id)
        return await session.chat(
            message.parts,
            priority=message.priority,
            message_id=message.id,
            enqueue_timeout=enqueue_timeout,
            on_busy=message.on_busy,
            metadata=message.metadata,
        )

    def _session_for_requests(self, session_id: str) -> RemoteSession:
        """Return a `RemoteSession` with this id that is used only for requests, without handlers."""
        return RemoteSession(self._link, agent=self.name, session_id=session_id, owner="nobody")

    # --- one answer ----------------------------------------------------------------------

    async def run(
        self,
        content: Content,
        *,
        session: RemoteSession | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a scope alone would not stop the turn
        metadata: Mapping[str, Any] | None = None,
        tools: CallerTools | None = None,
    ) -> Reply:
        """Send a message and wait for the reply. Requests are retried after lost connections.

        If `session` is None, a new session is created and closed after the reply. Cancelling the call, or reaching `timeout` (in
        seconds), stops the turn on the server, if the server is reachable.

        Raises:
            DeadlineExceeded: No reply arrived within `timeout` seconds.
            Suspended: The turn waits for approvals; or an earlier turn waits for them, and the message was not sent.
            ServerUnreachable: No server was reachable. A call with the same `message_id` waits for the same turn.
            ActgentError: The message failed with this error.
        """
        _check_arguments(session, message_id, timeout)
        sent_id = message_id or new_secret()
        with trio.move_on_after(math.inf if timeout is None else timeout):
            async with self._session_for(session) as target, _interrupt_if_cancelled(target, sent_id):
                status = await target.send_message(
                    content,
                    priority=priority,
                    message_id=sent_id,
                    metadata=metadata,
                    tools=tools,
                    wait=POLL_SECONDS,
                    unless_suspended=True,
                )
                return await self._outcome(target, status)
        raise DeadlineExceeded(f"agent {self.name!r}", timeout or 0.0)

    async def outcome(self, session: RemoteSession, message_id: str) -> Reply:
        """Wait for the reply to a message that was already sent. Cancelling the call stops the turn of the message.

        Raises:
            SessionNotFound: The session does not exist, or it has no message with this id.
            Suspended: The turn waits for approvals.
            ServerUnreachable: No server was reachable.
            ActgentError: The message failed with this error.
        """
        async with _interrupt_if_cancelled(session, message_id):
            request = session.request("get_run", part=message_id)
            return await self._outcome(session, await self._link.requests.send(request))

    async def _outcome(self, session: RemoteSession, status: Mapping[str, Any]) -> Reply:
        """Poll the server until a message has ended.

        Return the reply to the message, or raise the error with which it failed. `status` is the last known JSON of the
        message's run.
        """
        request = attrs.evolve(session.request("get_run", part=status["message_id"]), wait=POLL_SECONDS)
        while status["status"] in ("waiting", "working"):
            status = await self._link.requests.send(request)
        if status["status"] == "suspended":
            raise suspended(status.get("waits_for"))
        outcome = status["outcome"]
        if outcome["failed"] is None:
            reply = to_reply(outcome)
            add_remote_label(reply.label)
            return reply
        await session.take_label()
        error = outcome["error"] or {}
        raise failure_error(error.get("class", ""), error.get("text", ""), outcome["failed"])

    def stream(
        self,
        content: Content,
        *,
        session: RemoteSession | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        tools: CallerTools | None = None,
    ) -> AbstractAsyncContextManager[RemoteReader[Delivery]]:
        """Send a message and stream the deliveries of its turn: `async with agent.stream("...") as deliveries`.

        The stream ends when the turn is suspended for an approval; `follow` streams the rest. Leaving the block early stops the
        turn. After `timeout` seconds the turn is stopped, and the last delivery is a `Failure` of kind `deadline`.
        """
        _check_arguments(session, message_id, timeout)
        options = {"priority": priority, "metadata": metadata, "tools": tools}
        return self._stream(content, session, message_id or new_secret(), timeout, options)

    @asynccontextmanager
    async def _stream(
        self,
        content: Content,
        session: RemoteSession | None,
        message_id: str,
        timeout: float | None,  # noqa: ASYNC109 - as above
        options: Mapping[str, Any],
    ) -> AsyncGenerator[RemoteReader[Delivery], None]:
        """Open the `async with` block of `stream`; the arguments are already validated."""
        async with self._session_for(session) as target:
            turn = _TurnStream(target, message_id, after=await self._position_before(target, message_id))
            await target.take_label()
            async with open_reader(partial(self._fill, turn, timeout)) as reader:
                await turn.opened.wait()
                async with _interrupt_if_cancelled(target, message_id):
                    await target.send_message(
                        content, message_id=message_id, unless_suspended=True, **options
                    )
                try:
                    yield reader
                finally:
                    if not turn.is_over:
                        await _interrupt(target, message_id)  # noqa: ASYNC102 - shielded, for a few seconds

    async def _position_before(self, session: RemoteSession, message_id: str) -> int:
        """Return the number of a journal record before the first event of a message's turn.

        If the message was not sent yet, it is the session's last record.
        """
        try:
            request = session.request("get_run", part=message_id)
            return int((await self._link.requests.send(request))["cursor"])
        except SessionNotFound:  # or the message was not sent yet
            return int((await session.fetch())["records"])

    async def _fill(self, turn: "_TurnStream", seconds: float | None, put: PutItem[Delivery]) -> None:
        """Put the deliveries of a turn into a reader's channel with `put`.

        After `seconds`, stop the turn and put a `deadline` failure. None sets no time limit.
        """
        with trio.move_on_after(math.inf if seconds is None else seconds) as limit:
            await turn.read(put)
        if limit.cancelled_caught:
            await _interrupt(turn.session, turn.message_id)
            error = DeadlineExceeded(f"agent {self.name!r}", seconds or 0.0)
            await put(message_failure(turn.message_id, "deadline", error, is_outcome=False))

    @asynccontextmanager
    async def _session_for(self, session: RemoteSession | None) -> AsyncGenerator[RemoteSession, None]:
        """Open an `async with` block with `session`, or if it is None with a new session that is closed when the block exits."""
        if session is not None:
            yield session
            return
        fresh = await self.create_session()
        try:
            yield fresh
        finally:
            await _try_once(fresh, fresh.request("close"))  # noqa: ASYNC102 - as above

    # --- approvals ---------------------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide an open approval of any session of this agent. The decision is durable when this returns.

        The approval's id contains the id of its session. The errors are those of `RemoteSession.answer`.
        """
        await self._session_of_approval(approval if isinstance(approval, str) else approval.id).answer(
            approval, decision, by=by
        )

    async def resume(self, decisions: Mapping[str, Decision], *, by: Sender | str | None = None) -> Reply:
        """Decide approvals of one suspended turn, and wait for the turn's reply. `decisions` maps approval ids to decisions.

        Raises:
            Suspended: The turn still waits for approvals, or waits for new ones.
            UsageError: One of the decisions was rejected; the decisions before it are recorded.
            ActgentError: The message failed with this error.
        """
        if not decisions:
            raise ConfigurationError(
                "decisions= must not be empty: pass a mapping of approval ids to decisions"
            )
        session = self._session_of_approval(next(iter(decisions)))
        turn = (await session.fetch()).get("turn")
        for approval_id, decision in decisions.items():
            await session.answer(approval_id, decision, by=by)
        if turn is None:
            raise NotSuspended(session.id)
        request = session.request("get_run", part=turn["message_id"])
        return await self._outcome(session, await self._link.requests.send(request))

    @asynccontextmanager
    async def follow(self, session: RemoteSession) -> AsyncGenerator[RemoteReader[Delivery], None]:
        """Open an `async with` block that streams the deliveries of a suspended turn. Decide its approvals inside the block.

        The stream starts when the turn resumes. Leaving the block does not stop the turn.

        Raises:
            NotSuspended: The session has no turn that waits for an approval.
        """
        known = await session.fetch()
        if known.get("status") != "suspended" or known["turn"] is None:
            raise NotSuspended(session.id)
        add_remote_label(to_label(known))
        turn = _TurnStream(session, known["turn"]["message_id"], after=known["records"], has_begun=True)
        async with open_reader(turn.read) as reader:
            yield reader

    async def approvals(
        self, *, owner: Sender | str | None = None, after: str = "", limit: int = 100
    ) -> tuple[Approval, ...]:
        """Return the open approvals of this agent's sessions that the token may access.

        Args:
            owner: Return only approvals of this owner's sessions; None for all sessions that the token may access.
            after: The `session_id` of the last approval of the previous page; empty for the first page.
            limit: Maximum number of approvals per page. An empty page is the end.
        """
        name = owner.name if isinstance(owner, Sender) else owner
        found: list[Approval] = []
        next_page: str | None = ""
        while next_page is not None and len(found) < limit:
            query = {"agent": self.name, "limit": 500, **({"after": next_page} if next_page else {})}
            page = await self._link.requests.send(
                RemoteRequest(operation="get_approvals", agent=self.name, query=query)
            )
            known = (to_approval(each) for each in page["items"])
            found += [
                each for each in known if each.session_id > after and (name is None or each.owner == name)
            ]
            next_page = page["next"]
        add_remote_label(ANY_SESSION)
        return tuple(found[:limit])

    def _session_of_approval(self, approval_id: str) -> RemoteSession:
        """Return the session to which an approval belongs, from the approval's id.

        Raise `ApprovalNotFound` if the approval id contains no session id.
        """
        session_id = session_of(approval_id)
        if not session_id:
            raise ApprovalNotFound(approval_id, "")
        return self._session_for_requests(session_id)


# --- one turn ----------------------------------------------------------------------------


@attrs.define(eq=False)
class _TurnStream:
    """Reads the deliveries of one message's turn from the event stream of its session."""

    session: RemoteSession
    message_id: str
    after: int = attrs.field(kw_only=True)
    """Number of the record after which the events of the session are read."""
    has_begun: bool = attrs.field(kw_only=True, default=False)
    """True after the turn has started."""
    is_over: bool = attrs.field(init=False, default=False)
    """True after the turn has ended, or was suspended for an approval."""
    opened: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Event that is set when the event stream is open, or has failed."""

    async def read(self, put: PutItem[Delivery]) -> None:
        """Put the turn's deliveries into a reader's channel until the turn ends or is suspended."""
        decoder, scope = DeliveryDecoder(), trio.CancelScope()
        request = self.session.request("get_events")

        async def on_record(events: Sequence[StreamEvent]) -> None:
            for event in await complete_tool_results(requests, request, events):
                if is_rejection(event.name, event.data):  # `send_message` raises it, or retries
                    continue
                self._begin(event)
                for delivery in decoder.decode(event) if self._belongs_to_turn(event) else ():
                    if isinstance(delivery, Reply | Event | Route | ToolResult):
                        add_remote_label(delivery.label)
                    await put(delivery)
                if self._is_last(event):
                    self.is_over = True
                    scope.cancel()

        requests = self.session.requests
        try:
            with scope:
                await self.session.event_stream(request, self.after, opened=self.opened).run(on_record)
                self.is_over = True  # the session was closed
        finally:
            self.opened.set()

    def _begin(self, event: StreamEvent) -> None:
        """Set `has_begun` if the event is the start of this message's turn."""
        if event.name == "turn" and event.data.get("message_id") == self.message_id:
            self.has_begun = True

    def _belongs_to_turn(self, event: StreamEvent) -> bool:
        """Return True if the event belongs to this message's turn."""
        if event.name == "ended":
            return bool(event.data["message_id"] == self.message_id)
        return self.has_begun or event.data.get("turn") == self.message_id

    def _is_last(self, event: StreamEvent) -> bool:
        """Return True if the event ends the stream of this turn: the message has ended, or the turn is suspended."""
        data = event.data
        is_suspended = event.name == "turn" and data.get("phase") == "suspended"
        return (self.has_begun and is_suspended) or (
            event.name == "ended" and data["message_id"] == self.message_id
        )


@asynccontextmanager
async def _interrupt_if_cancelled(session: RemoteSession, message_id: str) -> AsyncGenerator[None, None]:
    """Stop the turn of a message on the server if the `async with` block is cancelled. This takes at most `CLEANUP_SECONDS`."""
    try:
        yield
    except trio.Cancelled:
        await _interrupt(session, message_id)  # noqa: ASYNC102 - shielded, for a few seconds
        raise


async def _interrupt(session: RemoteSession, message_id: str) -> None:
    """Ask the server to stop the turn of a message, which may still be queued.

    Errors are ignored, and the call takes at most `CLEANUP_SECONDS`.
    """
    body = {"reason": "the caller stopped waiting", "message_id": message_id}
    await _try_once(session, session.request("interrupt", body=body))


async def _try_once(session: RemoteSession, request: RemoteRequest) -> None:
    """Send a request once, without retries and shielded from cancellation.

    Errors are ignored, and the call takes at most `CLEANUP_SECONDS`.
    """
    deadline = trio.current_time() + CLEANUP_SECONDS
    with trio.CancelScope(shield=True, deadline=deadline), suppress(ConnectionLost, Refused):
        await session.requests.transport.call(request)


def _first_cursor(head: Mapping[str, Any]) -> int:
    """Return the number of the record after which handlers start by default: 1 for a new session, else its last record."""
    return 1 if head["is_new"] else int(head["records"])


def _check_arguments(session: object, message_id: str | None, timeout: float | None) -> None:
    """Check the arguments of `run` or `stream`. Raise `ConfigurationError` if one is invalid."""
    check_id("message_id", message_id)
    if timeout is not None:
        check_seconds("timeout", timeout)
    if not isinstance(session, RemoteSession | None):
        raise ConfigurationError(f"session= must be a RemoteSession of this client, not {session!r:.200}")
    if message_id is not None and session is None:
        raise ConfigurationError(
            "message_id= requires session=: a new session has no earlier message with this id"
        )
