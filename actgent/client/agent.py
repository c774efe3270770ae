"""`RemoteAgent`: an agent in another process, by the words of `Agent`."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any

import attrs
import trio

from actgent.approvals import Approval, Decision, session_of
from actgent.control.arguments import check_id, check_seconds
from actgent.control.limits import Limits
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
from actgent.messages import (
    Delivery,
    Message,
    OnBusy,
    Priority,
    PriorityName,
    Reply,
    Sender,
    message_failure,
    new_secret,
)
from actgent.sessions.incoming import Content

from .channels import PutItem, RemoteReader, reading
from .hearing import ServerLink, with_whole_results
from .problems import failure_error, suspended
from .reading import Deliveries, is_refusal, to_approval, to_reply
from .saying import made
from .session import RemoteSession
from .transport import ConnectionLost, Refused, RemoteRequest, StreamEvent

WAIT = 20.0
"""Seconds for which one request waits for an answer; then the next one does. Below what proxies allow."""
FAREWELL = 5.0
"""Seconds that a call which is cancelled takes to stop its turn on the server."""


class RemoteAgent:
    """An agent behind a server; `client.agent(name)` makes it, and asks nothing by that."""

    def __init__(self, link: ServerLink, name: str) -> None:
        self.name = name
        self._link = link

    def __repr__(self) -> str:
        return f"<RemoteAgent {self.name!r}>"

    # --- sessions ------------------------------------------------------------------------

    async def create_session(
        self,
        owner: Sender | str | None = None,
        description: Content = "",
        *,
        session_id: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
    ) -> RemoteSession:
        """Open a conversation; a `description` that is not empty is its first message.

        The owner is that of the token; to name another one takes the scope admin. Handlers that are attached to the session
        later hear all of it from its beginning.

        Raises:
            NotRunning: no agent of this name runs there.
            SessionExists: this agent has a session of this id already.
            AccessRefused: the owner is another one than the token's.
        """
        check_id("session_id", session_id)
        body = made(self.name, owner, on_busy, limits)
        if session_id is None:
            request = RemoteRequest(operation="post_session", agent=self.name, body=body, key=new_secret())
            head = await self._link.calls.call(request)
        else:
            head, is_repeated = await self._put(session_id, body, key=new_secret())
            if not (head["is_new"] or is_repeated):
                raise SessionExists(self.name, session_id)
        session = self._session(head, after=1)
        if description:
            await session.chat(description)
        return session

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, after: int | None = None
    ) -> RemoteSession:
        """The session of this agent that has this id, and belongs to this owner if one is given.

        Its handlers hear what comes behind the record `after`, the `cursor` that somebody had; None is from now on.

        Raises:
            SessionNotFound: there is none, or it is out of the token's reach.
            WrongOwner: it is another owner's.
            SessionClosed: it was closed.
        """
        check_id("session_id", session_id)
        request = RemoteRequest(operation="get_session", agent=self.name, session_id=session_id)
        head = await self._link.calls.call(request)
        wanted = owner.name if isinstance(owner, Sender) else owner
        if wanted not in (None, head["owner"]):
            raise WrongOwner(self.name, session_id, str(wanted))
        if head["state"] == "closed":
            raise SessionClosed(session_id)
        return self._session(head, after=after)

    async def ensure_session(
        self,
        owner: Sender | str | None,
        session_id: str,
        *,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        after: int | None = None,
    ) -> RemoteSession:
        """This agent's session of this id, created if there is none; see `open_session` for `after`.

        Raises:
            WrongOwner: the session of this id is another owner's.
            SessionClosed: it was closed.
        """
        check_id("session_id", session_id)
        try:
            head, is_repeated = await self._put(session_id, made(self.name, owner, on_busy, limits))
        except SessionExists:  # it was made otherwise, and keeps that
            return await self.open_session(session_id, owner=owner, after=after)
        if head["state"] == "closed":
            raise SessionClosed(session_id)
        return self._session(
            head, after=_beginning(head, is_repeated=is_repeated) if after is None else after
        )

    async def _put(
        self, session_id: str, body: Mapping[str, Any], *, key: str = ""
    ) -> tuple[Mapping[str, Any], bool]:
        """Make a session of an id, or find it as it was made so; and whether an earlier try may have made it.

        With a key what another one has made is refused.
        """
        request = RemoteRequest(
            operation="put_session", agent=self.name, session_id=session_id, body=body, key=key
        )
        head, is_repeated = await self._link.calls.call_told(request)
        return head, is_repeated or head["is_repeated"]

    def _session(self, head: Mapping[str, Any], *, after: int | None) -> RemoteSession:
        return RemoteSession(
            self._link, agent=self.name, session_id=head["id"], owner=head["owner"], cursor=after
        )

    async def receive(self, message: Message, *, enqueue_timeout: float = 30) -> str:
        """Send what `create_message` made; with that it is `chat`. Returns the message's id."""
        session = self._known(message.session_id)
        return await session.chat(
            message.parts,
            priority=message.priority,
            message_id=message.id,
            enqueue_timeout=enqueue_timeout,
            on_busy=message.on_busy,
            metadata=message.metadata,
        )

    def _known(self, session_id: str) -> RemoteSession:
        """A session that nobody attaches handlers to."""
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
    ) -> Reply:
        """Say something and wait for the answer, as `Agent.run` does, over any number of connections.

        Without a session a fresh one, closed after. Cancelled, or after `timeout` seconds, it stops the turn, if the server
        can be reached then.

        Raises:
            DeadlineExceeded: there was no answer within `timeout` seconds.
            Suspended: the turn waits for the approvals of these ids, or one before it does: then nothing was said.
            ServerUnreachable: there was no connection; the same `message_id` waits for the same turn.
            ActgentError: the error that the message ended with.
        """
        _check(session, message_id, timeout)
        said = message_id or new_secret()
        with trio.move_on_after(math.inf if timeout is None else timeout):
            async with self._session_for(session) as asked, _stopped_with_us(asked, said):
                told = await asked.say(
                    content,
                    priority=priority,
                    message_id=said,
                    metadata=metadata,
                    wait=WAIT,
                    unless_suspended=True,
                )
                return await self._outcome(asked, told)
        raise DeadlineExceeded(f"agent {self.name!r}", timeout or 0.0)

    async def outcome(self, session: RemoteSession, message_id: str) -> Reply:
        """Wait for the answer to a message that was said before, as `run` does; cancelled, it stops the turn.

        Raises:
            SessionNotFound: there is no such session, or no such message in it.
            Suspended, ServerUnreachable, ActgentError: see `run`.
        """
        async with _stopped_with_us(session, message_id):
            request = session.request("get_message", part=message_id)
            return await self._outcome(session, await self._link.calls.call(request))

    async def _outcome(self, session: RemoteSession, told: Mapping[str, Any]) -> Reply:
        """Wait for what a message comes to."""
        request = attrs.evolve(session.request("get_message", part=told["message_id"]), wait=WAIT)
        while told["status"] in ("waiting", "working"):
            told = await self._link.calls.call(request)
        if told["status"] == "suspended":
            raise suspended(told.get("waits_for"))
        outcome = told["outcome"]
        if outcome["failed"] is None:
            return to_reply(outcome)
        error = outcome["error"] or {}
        raise failure_error(error.get("class", ""), error.get("words", ""), outcome["failed"])

    def stream(
        self,
        content: Content,
        *,
        session: RemoteSession | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[RemoteReader[Delivery]]:
        """Say something and read what comes of it, as `Agent.stream` does: `async with agent.stream("...") as deliveries`.

        Where the turn waits for people, it ends here, and `follow` reads on. Leaving the block early stops the turn. After
        `timeout` seconds the turn ends with a `Failure` of the kind `deadline`, the last delivery.
        """
        _check(session, message_id, timeout)
        speaking = {"priority": priority, "metadata": metadata}
        return self._stream(content, session, message_id or new_secret(), timeout, speaking)

    @asynccontextmanager
    async def _stream(
        self,
        content: Content,
        session: RemoteSession | None,
        said: str,
        timeout: float | None,  # noqa: ASYNC109 - as above
        speaking: Mapping[str, Any],
    ) -> AsyncGenerator[RemoteReader[Delivery], None]:
        async with self._session_for(session) as asked:
            turn = _Turn(asked, said, after=await self._place(asked, said))
            async with reading(partial(self._fill, turn, timeout)) as reader:
                await turn.opened.wait()
                async with _stopped_with_us(asked, said):
                    await asked.say(content, message_id=said, unless_suspended=True, **speaking)
                try:
                    yield reader
                finally:
                    if not turn.is_over:
                        await _stop(asked, said)  # noqa: ASYNC102 - shielded, for a few seconds

    async def _place(self, session: RemoteSession, message_id: str) -> int:
        """The number of the record behind which the turn of a message stands, or will stand."""
        try:
            request = session.request("get_message", part=message_id)
            return int((await self._link.calls.call(request))["cursor"])
        except SessionNotFound:  # or nobody said it yet
            return int((await session.look())["records"])

    async def _fill(self, turn: "_Turn", seconds: float | None, put: PutItem[Delivery]) -> None:
        """PutItem what comes of a message, for so many seconds."""
        with trio.move_on_after(math.inf if seconds is None else seconds) as limit:
            await turn.read(put)
        if limit.cancelled_caught:
            await _stop(turn.session, turn.message_id)
            error = DeadlineExceeded(f"agent {self.name!r}", seconds or 0.0)
            await put(message_failure(turn.message_id, "deadline", error, is_outcome=False))

    @asynccontextmanager
    async def _session_for(self, session: RemoteSession | None) -> AsyncGenerator[RemoteSession, None]:
        """The session that is given, or a fresh one for the block."""
        if session is not None:
            yield session
            return
        fresh = await self.create_session()
        try:
            yield fresh
        finally:
            await _try_once(fresh, fresh.request("close"))  # noqa: ASYNC102 - as above

    # --- people ------------------------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide over a tool call that waits in any session; see `RemoteSession.answer`."""
        await self._of_approval(approval if isinstance(approval, str) else approval.id).answer(
            approval, decision, by=by
        )

    async def resume(self, decisions: Mapping[str, Decision], *, by: Sender | str | None = None) -> Reply:
        """Decide over tool calls of one suspended turn, by the ids of their approvals, and wait for its answer as `run` does.

        Raises:
            Suspended: the turn still waits, or again.
            UsageError: one of the decisions does not count; those before it do.
            ActgentError: the error that the message ended with.
        """
        if not decisions:
            raise ConfigurationError("decisions= is a mapping of approval ids to decisions, and not empty")
        session = self._of_approval(next(iter(decisions)))
        turn = (await session.look()).get("turn")
        for approval_id, decision in decisions.items():
            await session.answer(approval_id, decision, by=by)
        if turn is None:
            raise NotSuspended(session.id)
        request = session.request("get_message", part=turn["message_id"])
        return await self._outcome(session, await self._link.calls.call(request))

    @asynccontextmanager
    async def follow(self, session: RemoteSession) -> AsyncGenerator[RemoteReader[Delivery], None]:
        """Read what comes of a suspended turn when it goes on, as `stream` does; decide inside of the block.

        Leaving the block stops nothing.

        Raises:
            NotSuspended: no turn of the session waits for a person.
        """
        known = await session.look()
        if known.get("status") != "suspended" or known["turn"] is None:
            raise NotSuspended(session.id)
        turn = _Turn(session, known["turn"]["message_id"], after=known["records"], has_begun=True)
        async with reading(turn.read) as reader:
            yield reader

    async def approvals(
        self, *, owner: Sender | str | None = None, after: str = "", limit: int = 100
    ) -> tuple[Approval, ...]:
        """List the open approvals of this agent's sessions that the token reaches.

        Args:
            owner: Only approvals of this owner's sessions; None lists all that the token reaches.
            after: The `session_id` of the last approval of the page before.
            limit: The most approvals of a page. An empty page is the end.
        """
        name = owner.name if isinstance(owner, Sender) else owner
        found: list[Approval] = []
        following: str | None = ""
        while following is not None and len(found) < limit:
            query = {"agent": self.name, "limit": 500, **({"after": following} if following else {})}
            page = await self._link.calls.call(
                RemoteRequest(operation="get_approvals", agent=self.name, query=query)
            )
            known = (to_approval(each) for each in page["items"])
            found += [
                each for each in known if each.session_id > after and (name is None or each.owner == name)
            ]
            following = page["next"]
        return tuple(found[:limit])

    def _of_approval(self, approval_id: str) -> RemoteSession:
        session_id = session_of(approval_id)
        if not session_id:
            raise ApprovalNotFound(approval_id, "")
        return self._known(session_id)


# --- one turn ----------------------------------------------------------------------------


@attrs.define(eq=False)
class _Turn:
    """What comes of one message."""

    session: RemoteSession
    message_id: str
    after: int = attrs.field(kw_only=True)
    has_begun: bool = attrs.field(kw_only=True, default=False)
    is_over: bool = attrs.field(init=False, default=False)
    """True once it has ended, or waits for people."""
    opened: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when it is heard."""

    async def read(self, put: PutItem[Delivery]) -> None:
        """PutItem all that comes of it, up to its end or to where it waits for people."""
        deliveries, scope = Deliveries(), trio.CancelScope()
        request = self.session.request("get_events")

        async def hear(events: Sequence[StreamEvent]) -> None:
            for event in await with_whole_results(calls, request, events):
                if is_refusal(event.name, event.data):  # `say` tells it, or comes again
                    continue
                self._begin(event)
                for delivery in deliveries.read(event) if self._is_mine(event) else ():
                    await put(delivery)
                if self._is_last(event):
                    self.is_over = True
                    scope.cancel()

        calls = self.session.calls
        try:
            with scope:
                await self.session.following(request, self.after, opened=self.opened).run(hear)
                self.is_over = True  # with its session
        finally:
            self.opened.set()

    def _begin(self, event: StreamEvent) -> None:
        if event.name == "turn" and event.data.get("message_id") == self.message_id:
            self.has_begun = True

    def _is_mine(self, event: StreamEvent) -> bool:
        if event.name == "ended":
            return bool(event.data["message_id"] == self.message_id)
        return self.has_begun or event.data.get("turn") == self.message_id

    def _is_last(self, event: StreamEvent) -> bool:
        data = event.data
        is_suspended = event.name == "turn" and data.get("phase") == "suspended"
        return (self.has_begun and is_suspended) or (
            event.name == "ended" and data["message_id"] == self.message_id
        )


@asynccontextmanager
async def _stopped_with_us(session: RemoteSession, message_id: str) -> AsyncGenerator[None, None]:
    """Stop a message's turn where the block is cancelled."""
    try:
        yield
    except trio.Cancelled:
        await _stop(session, message_id)  # noqa: ASYNC102 - shielded, for a few seconds
        raise


async def _stop(session: RemoteSession, message_id: str) -> None:
    """Stop a message's turn, now or when it begins, if the server can be reached."""
    body = {"reason": "the caller is gone", "message_id": message_id}
    await _try_once(session, session.request("interrupt", body=body))


async def _try_once(session: RemoteSession, request: RemoteRequest) -> None:
    """Ask for something whose answer nobody waits for, whoever is cancelled."""
    over = trio.current_time() + FAREWELL
    with trio.CancelScope(shield=True, deadline=over), suppress(ConnectionLost, Refused):
        await session.calls.transport.call(request)


def _beginning(head: Mapping[str, Any], *, is_repeated: bool) -> int | None:
    """Behind which record handlers begin that were given no place: a new session has them hear all of it.

    Where nobody knows whether an earlier try has made it, it is the last record: of what only was made that is the first.
    """
    if head["is_new"]:
        return 1
    return int(head["records"]) if is_repeated else None


def _check(session: object, message_id: str | None, timeout: float | None) -> None:
    check_id("message_id", message_id)
    if timeout is not None:
        check_seconds("timeout", timeout)
    if not isinstance(session, RemoteSession | None):
        raise ConfigurationError(f"session= takes a RemoteSession of this client, not {session!r:.200}")
    if message_id is not None and session is None:
        raise ConfigurationError("message_id= needs session=: a fresh session knows of no message before it")
