"""`RemoteSession`: a conversation with an agent in another process, by the words of `Session`."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from typing import Any, TypeVar

import attrs
import trio

from actgent.approvals import Approval, Decision, session_of
from actgent.control.arguments import check_id, check_seconds
from actgent.control.schedule import Schedule
from actgent.errors import ApprovalMismatch, ApprovalNotFound, SessionClosed
from actgent.messages import (
    NO_METADATA,
    Message,
    OnBusy,
    Priority,
    PriorityName,
    Sender,
    SenderKind,
    Usage,
    checked_metadata,
    new_secret,
)
from actgent.sessions.context import Status
from actgent.sessions.conversation import MessagePage
from actgent.sessions.following import Observed, ObservedType
from actgent.sessions.handlers import Handler, HandlerKind
from actgent.sessions.incoming import Content, sayable_parts
from actgent.sessions.waiting.tasks import TASK_DEADLINE

from .channels import PutItem, RemoteReader, reading
from .following import Following, is_growing
from .hearing import Hearing, ServerLink
from .reading import to_approval, to_message, to_observed, to_schedule, to_usage
from .saying import content_body, decided, said
from .transport import Operation, RemoteRequest, StreamEvent

H = TypeVar("H", bound=Callable[..., Any])
_STOPS = frozenset(["ended", "turn"])
"""The events after which a session may be idle."""
AGAIN = 1.0
"""Seconds after which it is asked again whether a session works."""


class RemoteSession:
    """A conversation with an agent behind a server.

    What an attribute of a `Session` says at once is asked for here: `await session.status()`.
    """

    def __init__(
        self, link: ServerLink, *, agent: str, session_id: str, owner: str, cursor: int | None = None
    ) -> None:
        self.id = session_id
        self.agent_name = agent
        self.owner = Sender(owner)
        self.calls = link.calls
        self._asked = RemoteRequest(operation="get_session", agent=agent, session_id=session_id)
        self._hearing = Hearing(link, attrs.evolve(self._asked, operation="get_events"), self, cursor)

    def __repr__(self) -> str:
        return f"<RemoteSession {self.id} of {self.owner.name!r}>"

    # --- what it says --------------------------------------------------------------------

    @property
    def cursor(self) -> int | None:
        """The number of the last record that its handlers have heard: `open_session(id, after=cursor)` goes on behind it.

        None: they hear what comes from now on.
        """
        return self._hearing.cursor

    def on_conversation(self, handler: H) -> H:
        """Have `handler(reply)` called with each `Reply`."""
        return self._on("conversation", handler)

    def on_event(self, handler: H) -> H:
        """Have `handler(event)` called with each `Event`, the structured result of an instruction."""
        return self._on("event", handler)

    def on_tool_result(self, handler: H) -> H:
        """Have `handler(result)` called with each `ToolResult`, of failed tools too."""
        return self._on("tool_result", handler)

    def on_tool_progress(self, handler: H) -> H:
        """Have `handler(progress)` called with the latest `CallProgress` of each call while tools run."""
        return self._on("tool_progress", handler)

    def on_exception(self, handler: H) -> H:
        """Have `handler(failure)` called with each `Failure`."""
        return self._on("exception", handler)

    def on_routing(self, handler: H) -> H:
        """Have `handler(route)` called with each `Route`."""
        return self._on("routing", handler)

    def on_token(self, handler: H) -> H:
        """Have `handler(token)` called with each `Token` of a growing answer."""
        return self._on("token", handler)

    def on_approval(self, handler: H) -> H:
        """Have `handler(approval)` called with each `Approval`: a tool call that waits for a person, see `answer`."""
        return self._on("approval", handler)

    def _on(self, kind: HandlerKind, handler: H) -> H:
        self._hearing.add(kind, handler)
        return handler

    def remove_handler(self, handler: Handler) -> None:
        """Call a handler no more, of whatever kinds and however often it was attached; nothing happens if it was not."""
        self._hearing.handlers.remove(handler)
        self._hearing.rest()

    @contextmanager
    def listening(
        self,
        *,
        on_conversation: Handler | None = None,
        on_event: Handler | None = None,
        on_tool_result: Handler | None = None,
        on_tool_progress: Handler | None = None,
        on_exception: Handler | None = None,
        on_routing: Handler | None = None,
        on_token: Handler | None = None,
        on_approval: Handler | None = None,
    ) -> "Iterator[RemoteSession]":
        """Have handlers called as long as the block lasts; all or none is attached.

        Raises:
            ConfigurationError: one is a generator function, which nothing would run.
            TypeError: one cannot be called.
        """
        given: dict[HandlerKind, Handler | None] = {
            "conversation": on_conversation,
            "event": on_event,
            "tool_result": on_tool_result,
            "tool_progress": on_tool_progress,
            "exception": on_exception,
            "routing": on_routing,
            "token": on_token,
            "approval": on_approval,
        }
        attached: list[Any] = []
        try:
            for kind, handler in given.items():
                if handler is not None:
                    attached.append(self._hearing.add(kind, handler))
            yield self
        finally:
            self._hearing.handlers.drop(attached)
            self._hearing.rest()

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AbstractAsyncContextManager[RemoteReader[Observed]]:
        """An `async with` block with a receive channel of observations; see `Session.observe`."""

        async def fill(put: PutItem[Observed]) -> None:
            async def hear(events: Collection[StreamEvent]) -> None:
                for event in events:
                    if event.name == "observation":
                        await put(to_observed(event.data), event.number)

            begin = after if after is not None else (await self.look())["records"]
            request = self.request("get_observations", query=_wanted(types, turn))
            await self.following(request, begin, growing=_is_unfinished).run(hear)

        return reading(fill)

    async def observations(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[Observed, ...]:
        """The first observations behind the record `after`, oldest first; see `Session.observations`."""
        query = {**_wanted(types, turn), "after": after, "limit": limit}
        page = await self.calls.call(self.request("get_observations", query=query))
        return tuple(to_observed(each) for each in page["items"])

    # --- what it is told -----------------------------------------------------------------

    async def chat(
        self,
        content: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        enqueue_timeout: float = 30,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Send a message, and return its id when the server has written it down; what comes of it goes to the handlers.

        A lost connection is no matter: the message has an id, and is accepted once. The rest is that of `Session.chat`.

        Raises:
            ServerUnreachable: there was no answer; with the same `message_id` it can be said again.
            ConfigurationError, InboxFull, SessionBusy, SessionClosed: see `Session.chat`.
        """
        told = await self.say(
            content,
            priority=priority,
            message_id=message_id,
            enqueue_timeout=enqueue_timeout,
            on_busy=on_busy,
            metadata=metadata,
        )
        return str(told["message_id"])

    def create_message(
        self,
        content: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """The message that `chat` would send, for `RemoteAgent.receive`; nothing is said by it.

        Raises:
            ConfigurationError: it is empty, or one of these is none that there is.
        """
        return Message(
            id=message_id or new_secret(),
            session_id=self.id,
            sender=self.owner,
            parts=sayable_parts(content),
            priority=Priority.named(priority),
            on_busy=on_busy or "queue",
            metadata=NO_METADATA if metadata is None else checked_metadata(metadata),
        )

    async def interrupt(
        self, reason: str = "interrupted", *, drop_queued: bool = False, message_id: str | None = None
    ) -> None:
        """Stop what runs; see `Session.interrupt`. With a `message_id` it is repeated where a connection is lost.

        Raises:
            ServerUnreachable: there was no answer, or, without a `message_id`, it may have arrived.
        """
        body: dict[str, Any] = {"reason": reason, "drop_queued": drop_queued}
        if message_id is not None:
            body["message_id"] = message_id
        await self.calls.call(
            self.request("interrupt", body=body), is_repeatable=message_id is not None or drop_queued
        )

    async def schedule(
        self,
        description: str,
        *,
        after: float | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        zone: str | None = None,
        key: str | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        metadata: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Have the session told something at a time; see `Session.schedule`."""
        check_id("key", key)
        given = {
            "after": after,
            "at": None if at is None else at.isoformat(),
            "cron": cron,
            "zone": zone,
            "key": key or new_secret(),
            "priority": Priority.named(priority).name.lower(),
            "metadata": dict(checked_metadata(metadata)) if metadata else None,
        }
        body = {name: value for name, value in given.items() if value is not None}
        return to_schedule(
            await self.calls.call(self.request("schedule", body={"description": description, **body}))
        )

    async def unschedule(self, schedule_id: str) -> bool:
        """Remove a schedule; False where none of this id is set, since it has fired or never was there."""
        return await self.removed("unschedule", schedule_id)

    async def delegate(
        self,
        agent: str,
        task: Content,
        *,
        task_id: str | None = None,
        deadline: float = TASK_DEADLINE,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Give a task to another agent, without waiting for it; returns the task's id. See `Session.delegate`."""
        check_seconds("deadline", deadline)
        body: dict[str, Any] = {
            "agent": agent,
            "task": content_body(task),
            "task_id": task_id or new_secret(),
        }
        if math.isfinite(deadline):
            body["deadline"] = deadline
        if metadata:
            body["metadata"] = dict(checked_metadata(metadata))
        made = await self.calls.call(self.request("delegate", body=body))
        return str(made["id"])

    async def cancel_task(self, task_id: str) -> bool:
        """Stop a delegated task and close its session; False where it is not at work."""
        return await self.removed("cancel_task", task_id)

    async def removed(self, operation: Operation, part: str, *, may_be_done: bool = False) -> bool:
        """Remove something, and tell whether it was there; `may_be_done`: it was perhaps removed by an earlier try."""
        request = self.request(operation, part=part)
        try:
            await self.calls.call(request, done_by=("not-found",), may_be_done=may_be_done)
        except LookupError:
            await self.look()  # which raises where it is the session that is not there
            return False
        return True

    async def wait_idle(self) -> None:
        """Wait until nothing is queued or running, and the handlers have heard of it; see `Session.wait_idle`."""
        await self._hearing.settle()
        while (known := await self.look()).get("status") in (
            "working",
            "waiting",
        ):  # also where no turn has resumed yet
            await self._wait_end(known["records"])
        await self._hearing.catch_up()

    async def _wait_end(self, after: int) -> None:
        """Wait until a message has ended behind a record, or a while."""
        with trio.move_on_after(AGAIN) as scope:

            async def hear(events: Collection[StreamEvent]) -> None:
                if any(each.name in ("ended", "closed") or _is_suspended(each) for each in events):
                    scope.cancel()

            request = attrs.evolve(self.request("get_events"), wanted=_STOPS)
            await self.following(request, after).run(hear)

    async def aclose(self) -> None:
        """Close the session and its children: what runs is interrupted, what waits ends as `Failure(kind="stopped")`."""
        await self.calls.call(self.request("close"))
        await self._hearing.catch_up()

    # --- what people decide ----------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide over a tool call that waits; durable on return.

        Who decides is the token's owner, whatever `by` says; over a broker it is `by`.

        Raises:
            NotSuspended, ApprovalNotFound, ApprovalMismatch, AlreadyDecided, InvalidArguments: see `Session.answer`.
        """
        if isinstance(approval, Approval) and not approval.is_genuine:
            raise ApprovalMismatch(approval.id)
        approval_id = approval if isinstance(approval, str) else approval.id
        if not session_of(approval_id):
            raise ApprovalNotFound(approval_id, self.id)
        request = self.request("post_decision", part=approval_id, body=decided(decision))
        if by is not None:
            request = attrs.evolve(request, owner=by.name if isinstance(by, Sender) else by)
        await self.calls.call(request, done_by=("already-decided",))

    async def approvals(self) -> tuple[Approval, ...]:
        """The tool calls that wait for a person, oldest first, and those of the open sessions that work for this one."""
        page = await self.calls.call(self.request("list_of_session"))
        return tuple(to_approval(each) for each in page["items"])

    # --- what it is ----------------------------------------------------------------------

    async def status(self) -> Status:
        """Tell whether it is idle, working, suspended or closed."""
        known = await self.look()
        status: Status = known.get("status") or known["state"]
        return status

    async def usage(self) -> Usage:
        """The usage of the session's model calls.

        Raises:
            SessionClosed: it was closed.
        """
        return to_usage((await self._open())["usage"])

    async def schedules(self) -> tuple[Schedule, ...]:
        """The session's schedules, the next first."""
        page = await self.calls.call(self.request("list_schedules"))
        return tuple(to_schedule(each) for each in page["items"])

    async def state(self) -> Mapping[str, Any]:
        """The session's state as it was written last, a copy."""
        found: Mapping[str, Any] = (await self.calls.call(self.request("get_state")))["state"]
        return found

    async def mode(self) -> str | None:
        """The mode that it is in; None where its agent has no modes."""
        mode: str | None = (await self._open())["mode"]
        return mode

    async def set_mode(self, mode: str, *, reason: str = "", force: bool = False) -> str:
        """Switch to another mode, and return it; `force` takes the scope admin.

        Raises:
            ConfigurationError: there is no such mode, or the agent has none.
            ModeRefused: who asks may not, or not now.
        """
        body: dict[str, Any] = {"mode": mode, "reason": reason}
        if force:
            body["force"] = True
        return str((await self.calls.call(self.request("put_mode", body=body)))["mode"])

    async def description(self) -> str:
        """What it was opened with, at most 2,000 characters of it.

        Raises:
            SessionClosed: it was closed.
        """
        return str((await self._open())["description"])

    async def messages(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        after: int | None = None,
        roles: Collection[SenderKind] | None = None,
    ) -> MessagePage:
        """Read some of the messages: the newest, those before a place in the history, or those behind one.

        Pictures and files are named in the text, and their bytes stay on the server. The rest is that of `Session.messages`.
        """
        wanted = None if roles is None else ",".join(roles)
        query = {"limit": limit, "before": before, "after": after, "roles": wanted}
        asked = self.request("get_messages", query={k: v for k, v in query.items() if v is not None})
        page = await self.calls.call(asked)
        found = tuple(to_message(self.id, each) for each in page["items"])
        return MessagePage(found, page["first"], page["total"], page["last"])

    async def history(self) -> tuple[Message, ...]:
        """Everything that happened, oldest first, read page by page."""
        found: tuple[Message, ...] = ()
        before: int | None = None
        while before is None or before > 0:
            page = await self.messages(before=before)
            found, before = (*page, *found), page.first
        return found

    # --- for its agent ---------------------------------------------------------------------

    def request(
        self,
        operation: Operation,
        *,
        part: str = "",
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> RemoteRequest:
        """Something that is asked about this session."""
        return attrs.evolve(self._asked, operation=operation, part=part, query=query or {}, body=body)

    def following(
        self,
        request: RemoteRequest,
        after: int,
        *,
        growing: Callable[[StreamEvent], bool] = is_growing,
        opened: trio.Event | None = None,
    ) -> Following:
        """A reader of its events behind a record, or of something else that comes as events."""
        return Following(
            transport=self.calls.transport,
            request=request,
            cursor=after,
            patience=self.calls.patience,
            growing=growing,
            opened=trio.Event() if opened is None else opened,
        )

    async def look(self) -> Mapping[str, Any]:
        """Everything that the server knows of it."""
        found: Mapping[str, Any] = await self.calls.call(self._asked)
        return found

    async def _open(self) -> Mapping[str, Any]:
        """The same, of a session that is open."""
        known = await self.look()
        if "status" not in known:
            raise SessionClosed(self.id)
        return known

    async def say(
        self,
        content: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        enqueue_timeout: float = 30,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait: float = 0,
        unless_suspended: bool = False,
    ) -> Mapping[str, Any]:
        """Send a message; returns what is known of it then, perhaps what it came to within `wait` seconds."""
        check_id("message_id", message_id)
        check_seconds("enqueue_timeout", enqueue_timeout)
        body = said(
            content,
            priority=priority,
            message_id=message_id or new_secret(),
            on_busy=on_busy,
            enqueue_timeout=enqueue_timeout,
            metadata=metadata,
        )
        if unless_suspended:
            body["unless_suspended"] = True
        await self._hearing.settle()
        request = attrs.evolve(self.request("say", body=body), wait=wait)
        told: Mapping[str, Any] = await self.calls.call(request)
        return told


def _wanted(types: Collection[ObservedType] | None, turn: str | None) -> dict[str, Any]:
    types_asked = {} if types is None else {"types": ",".join(types)}
    return types_asked if turn is None else {**types_asked, "turn": turn}


def _is_unfinished(event: StreamEvent) -> bool:
    return event.data.get("is_whole") is False


def _is_suspended(event: StreamEvent) -> bool:
    return event.name == "turn" and event.data.get("phase") == "suspended"
