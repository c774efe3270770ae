"""`RemoteSession`: a session of an agent in another process, with the API of `Session`."""

import math
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from typing import Any

import attrs
import trio

from actgent.approvals import Approval, Decision, approval_id_of, session_of
from actgent.errors import ApprovalMismatch, ApprovalNotFound, SessionClosed, SessionNotFound
from actgent.information_flow_labels import ANY_SOURCE, TRUSTED, Label, check_label, text_of
from actgent.journal.session_tags_and_metadata import make_annotation_change
from actgent.limits_and_schedules.id_and_number_validation import check_id, check_seconds
from actgent.limits_and_schedules.schedule import Schedule
from actgent.messages import (
    NO_METADATA,
    Content,
    Message,
    OnBusy,
    Priority,
    PriorityName,
    Sender,
    SenderKind,
    Usage,
    checked_metadata,
    message_parts,
    new_secret,
)
from actgent.runtime.untrusted_source_removal import check_called_by_person
from actgent.runtime.waits_between_sessions import add_remote_label, collects_sources
from actgent.sessions.conversation import MessagePage
from actgent.sessions.pending.delegated_tasks import TASK_DEADLINE_SECONDS
from actgent.sessions.session_context import Status
from actgent.sessions.session_handlers import H, Handler, HandlerKind, HandlerMethods
from actgent.sessions.subscriptions import Observed, ObservedType
from actgent.tools.tools_run_by_caller import CallerTools

from .event_stream import ReconnectingStream, is_partial
from .event_subscription import EventSubscription, ServerLink
from .json_conversion import (
    to_approval,
    to_caller_call,
    to_label,
    to_message,
    to_observed,
    to_schedule,
    to_usage,
)
from .remote_stream_reader import PutItem, RemoteReader, open_reader
from .request_bodies import annotation_body, content_body, decision_body, message_body
from .transport_interface import Operation, RemoteRequest, StreamEvent

_IDLE_EVENTS = frozenset(["ended", "turn"])
"""Names of the events after which a session may be idle."""
IDLE_POLL_SECONDS = 1.0
"""Poll interval in seconds of `wait_idle` while no event arrives."""


class RemoteSession(HandlerMethods):
    """Proxy of a session of an agent on a server, with the API of `Session`.

    The properties of a `Session` are async methods here, because each one sends a request: `await session.status()`.
    """

    def __init__(
        self, link: ServerLink, *, agent: str, session_id: str, owner: str, cursor: int | None = None
    ) -> None:
        self.id = session_id
        self.agent_name = agent
        self.owner = Sender(owner)
        self.requests = link.requests
        self._base_request = RemoteRequest(operation="get_session", agent=agent, session_id=session_id)
        self._subscription = EventSubscription(
            link, attrs.evolve(self._base_request, operation="get_events"), self, cursor
        )

    def __repr__(self) -> str:
        return f"<RemoteSession {self.id} of {self.owner.name!r}>"

    # --- handlers and observations -------------------------------------------------------

    @property
    def cursor(self) -> int | None:
        """Number of the last record for which handlers were called; `open_session(id, after=cursor)` resumes after it.

        None before a handler was attached, unless `after` is set. The number stays when the last handler is removed: the next
        handler starts after it.
        """
        return self._subscription.cursor

    def _on(self, kind: HandlerKind, handler: H) -> H:
        self._subscription.add(kind, handler)
        return handler

    def remove_handler(self, handler: Handler) -> None:
        """Detach a handler from all kinds of deliveries. A handler that is not attached is ignored."""
        self._subscription.handlers.remove(handler)
        self._subscription.close_if_unused()

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
        """Attach these handlers during the `with` block. If one of them is invalid, none is attached.

        Raises:
            ConfigurationError: A handler is a generator function, which would never run.
            TypeError: A handler is not callable.
        """
        handlers: dict[HandlerKind, Handler | None] = {
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
            for kind, handler in handlers.items():
                if handler is not None:
                    attached.append(self._subscription.add(kind, handler))
            yield self
        finally:
            self._subscription.handlers.drop(attached)
            self._subscription.close_if_unused()

    @asynccontextmanager
    async def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AsyncGenerator[RemoteReader[Observed], None]:
        """Open an `async with` block with a receive channel of the session's observations.

        The arguments are those of `Session.observe`.

        Raises:
            SessionNotFound: The server has no such session; raised at the start of the block if `after` is None.
            ServerUnreachable: No server answered within the client's retry timeout.
        """
        # The position is read before the block starts: it must not include records of what the block does.
        begin = after if after is not None else (await self.fetch())["records"]

        async def fill(put: PutItem[Observed]) -> None:
            async def on_record(events: Collection[StreamEvent]) -> None:
                await self.take_label(has_withheld=True)
                for event in events:
                    if event.name == "observation":
                        await put(to_observed(event.data), event.number)

            request = self.request("get_observations", query=_observation_query(types, turn))
            await self.event_stream(request, begin, is_unnumbered=_is_incomplete).run(on_record)

        async with open_reader(fill) as reader:
            yield reader

    async def observations(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[Observed, ...]:
        """Return at most `limit` observations after record `after`, oldest first.

        `types` and `turn` filter the observations, as for `Session.observations`.
        """
        query = {**_observation_query(types, turn), "after": after, "limit": limit}
        page = await self.requests.send(self.request("get_observations", query=query))
        await self.take_label(has_withheld=True)
        return tuple(to_observed(each) for each in page["items"])

    # --- messages, schedules and tasks ---------------------------------------------------

    async def chat(
        self,
        content: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        enqueue_timeout: float = 30,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
        tools: CallerTools | None = None,
        label: Label = TRUSTED,
    ) -> str:
        """Send a message, and return its id as soon as the server has recorded it. Attached handlers receive the results.

        The request is retried after lost connections. The server accepts the message only once, because it has an id. The
        arguments are those of `Session.chat`.

        Raises:
            ServerUnreachable: No server answered in time. The message can be sent again with the same `message_id`.
            ConfigurationError: The content is empty, or an argument is invalid.
            InboxFull: The agent's inbox had no room within `enqueue_timeout` seconds.
            SessionBusy: A turn runs, and the message has `on_busy="reject"`.
            SessionClosed: The session was closed.
        """
        sent = await self.send_message(
            content,
            priority=priority,
            message_id=message_id,
            enqueue_timeout=enqueue_timeout,
            on_busy=on_busy,
            metadata=metadata,
            tools=tools,
            label=label,
        )
        return str(sent["message_id"])

    def create_message(
        self,
        content: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """Return the message that `chat` would send, without sending it. `RemoteAgent.receive` sends it.

        Raises:
            ConfigurationError: The content is empty, or an argument is invalid.
        """
        return Message(
            id=message_id or new_secret(),
            session_id=self.id,
            sender=self.owner,
            parts=message_parts(content),
            priority=Priority.named(priority),
            on_busy=on_busy or "queue",
            metadata=NO_METADATA if metadata is None else checked_metadata(metadata),
        )

    async def interrupt(
        self, reason: str = "interrupted", *, drop_queued: bool = False, message_id: str | None = None
    ) -> None:
        """Stop the running turn of the session. The request is retried after a lost connection.

        Without a `message_id`, the client first asks the server which turn runs, so that a retry cannot stop a later turn.
        The arguments are those of `Session.interrupt`.

        Raises:
            ServerUnreachable: No server answered in time.
        """
        body: dict[str, Any] = {"reason": reason, "drop_queued": drop_queued}
        if message_id is None and not drop_queued:
            known = await self.fetch()
            if (
                "turn" in known
            ):  # otherwise the session is closed: send the request, and its error names the reason
                if known["turn"] is None:
                    return
                message_id = known["turn"]["message_id"]
        if message_id is not None:
            body["message_id"] = message_id
        await self.requests.send(
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
        """Create a schedule that sends a message to this session, and return it. The arguments are those of `Session.schedule`.

        Raises:
            ConfigurationError: A time, cron expression or other argument is invalid.
            TooManySchedules: The session has its maximum number of schedules.
        """
        check_id("key", key)
        fields = {
            "after": after,
            "at": None if at is None else at.isoformat(),
            "cron": cron,
            "zone": zone,
            "key": key or new_secret(),
            "priority": Priority.named(priority).name.lower(),
            "metadata": dict(checked_metadata(metadata)) if metadata else None,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        return to_schedule(
            await self.requests.send(self.request("schedule", body={"input": description, **body}))
        )

    async def unschedule(self, schedule_id: str) -> bool:
        """Remove a schedule. Return False if the session has no schedule with this id, for example because it has already fired."""
        return await self.remove("unschedule", schedule_id)

    async def delegate(
        self,
        agent: str,
        task: Content,
        *,
        task_id: str | None = None,
        deadline: float = TASK_DEADLINE_SECONDS,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Delegate a task to another agent without waiting for the result, and return the task's id.

        The arguments are those of `Session.delegate`; `deadline` is in seconds.
        """
        check_seconds("deadline", deadline)
        body: dict[str, Any] = {
            "agent": agent,
            "input": content_body(task),
            "task_id": task_id or new_secret(),
        }
        if math.isfinite(deadline):
            body["deadline"] = deadline
        if metadata:
            body["metadata"] = dict(checked_metadata(metadata))
        task_data = await self.requests.send(self.request("delegate", body=body))
        return str(task_data["id"])

    async def cancel_task(self, task_id: str) -> bool:
        """Stop a delegated task and close its session. Return False if the task is not running."""
        return await self.remove("cancel_task", task_id)

    async def remove(self, operation: Operation, part: str, *, may_be_done: bool = False) -> bool:
        """Remove a schedule or task of the session. Return False if it does not exist.

        Args:
            operation: `unschedule` or `cancel_task`.
            part: Id of the schedule or task.
            may_be_done: True if an earlier request may have removed it. Then True is returned also if it does not exist.
        """
        request = self.request(operation, part=part)
        try:
            await self.requests.send(request, done_by=("not-found",), may_be_done=may_be_done)
        except LookupError:
            await self.fetch()  # raises if the session does not exist
            return False
        return True

    async def wait_idle(self) -> None:
        """Wait until the session has no queued or running message, and the attached handlers were called with all results."""
        await self._subscription.wait_open()
        while (known := await self.fetch()).get("status") in (
            "working",
            "waiting",
        ):  # also where no turn has resumed yet
            await self._wait_end(known["records"])
        await self._subscription.wait_delivered()

    async def _wait_end(self, after: int) -> None:
        """Wait, at most `IDLE_POLL_SECONDS`, until a message ends or a turn is suspended after record `after`."""
        with trio.move_on_after(IDLE_POLL_SECONDS) as scope:

            async def on_record(events: Collection[StreamEvent]) -> None:
                if any(each.name in ("ended", "closed") or _is_suspended(each) for each in events):
                    scope.cancel()

            request = attrs.evolve(self.request("get_events"), immediate_events=_IDLE_EVENTS)
            await self.event_stream(request, after).run(on_record)

    async def aclose(self) -> None:
        """Close the session and its child sessions.

        Running turns are interrupted, and queued messages end with `Failure(kind="stopped")`. Attached handlers receive these
        events before this method returns.
        """
        await self.requests.send(self.request("close"))
        await self._subscription.wait_delivered()

    # --- approvals -------------------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide an open approval. The decision is durable when this returns.

        The decision is recorded as that of the token's owner. `by` has an effect only between nodes of a cluster.

        Raises:
            NotSuspended: The session has no suspended turn.
            ApprovalNotFound: The session has no open approval with this id.
            ApprovalMismatch: The `Approval` object was changed.
            ApprovalAlreadyDecided: The approval already has a different decision.
            InvalidArguments: The arguments of an `Edit`, or the form of an `Approve`, do not match the schema.
        """
        if isinstance(approval, Approval) and not approval.is_genuine:
            raise ApprovalMismatch(approval.id)
        approval_id = approval_id_of(approval)
        if not session_of(approval_id):
            raise ApprovalNotFound(approval_id, self.id)
        is_call = isinstance(approval, Approval) and approval.for_caller
        operation: Operation = "answer_call" if is_call else "post_decision"
        request = self.request(operation, part=approval_id, body=decision_body(decision))
        if by is not None:
            request = attrs.evolve(request, owner=by.name if isinstance(by, Sender) else by)
        await self.requests.send(request, done_by=("already-decided",))

    async def approvals(self) -> tuple[Approval, ...]:
        """Return the open approvals of this session and of its open child sessions, oldest first."""
        page = await self.requests.send(self.request("list_of_session"))
        await self.take_label(has_withheld=True)
        return tuple(to_approval(each) for each in page["items"])

    async def caller_calls(self) -> tuple[Approval, ...]:
        """Return the open calls of tools that the program passed to `chat(tools=...)`, oldest first."""
        page = await self.requests.send(self.request("get_calls"))
        await self.take_label()
        return tuple(
            to_caller_call(each, agent=self.agent_name, session_id=self.id) for each in page["items"]
        )

    # --- state ---------------------------------------------------------------------------

    async def status(self) -> Status:
        """Request the session's status: `idle`, `working`, `suspended`, `waiting` or `closed`.

        `waiting` means that the session has an unfinished turn that no node runs.
        """
        known = await self.fetch()
        status: Status = known["status"]
        return status

    async def label(self) -> Label:
        """Return the label of the session's next model request: untrusted sources of the conversation and permitted readers.

        Raises:
            SessionClosed: The session was closed.
        """
        return to_label(await self._fetch_open())

    async def lift(self, source: str, *, by: Sender | str | None = None, reason: str = "") -> None:
        """Remove a source from the label of the session, because a person trusts all text that the session has received from it.

        The lift is recorded as that of the token's owner. `by` has an effect only between nodes of a cluster. See `Session.lift`.

        Raises:
            ConfigurationError: The label does not have the source.
            UsageError: A turn makes the call, that is, one of its tools or handlers; or code that has read untrusted text.
            SessionClosed: The session was closed.
        """
        check_called_by_person()
        request = self.request("post_lift", body={"source": source, "reason": reason})
        if by is not None:
            request = attrs.evolve(request, owner=by.name if isinstance(by, Sender) else by)
        await self.requests.send(request, done_by=("source-unknown",))

    async def take_label(self, *, has_withheld: bool = False) -> None:
        """Add the label of this session to the calling turn or tool, because it has read text of the session.

        The label includes the sources of withheld values that the model of the session has read (`Policy(bits=)`). A closed
        session counts as having any untrusted source, because the server does not send its label. `has_withheld=True` also adds
        the label of text that only records and approvals contain: results that isolation withholds (does not show to the
        model), and approvals of child sessions.
        """
        if collects_sources():
            with suppress(SessionNotFound):  # it was erased
                known = await self.fetch()
                add_remote_label(to_label(known) if "status" in known else Label({ANY_SOURCE}))
                add_remote_label(to_label(known.get("shown", {})))
                if has_withheld:
                    add_remote_label(to_label(known.get("withheld", {})))

    async def usage(self) -> Usage:
        """Return the token usage and cost of the session's model calls.

        Raises:
            SessionClosed: The session was closed.
        """
        return to_usage((await self._fetch_open())["usage"])

    async def schedules(self) -> tuple[Schedule, ...]:
        """Return the session's schedules, ordered by due time."""
        page = await self.requests.send(self.request("list_schedules"))
        await self.take_label()
        return tuple(to_schedule(each) for each in page["items"])

    async def state(self) -> Mapping[str, Any]:
        """Return the last recorded state of the session."""
        found: Mapping[str, Any] = (await self.requests.send(self.request("get_state")))["state"]
        await self.take_label()
        return found

    async def mode(self) -> str | None:
        """Return the name of the session's mode; None if the agent has no modes."""
        mode: str | None = (await self._fetch_open())["mode"]
        return mode

    async def set_mode(self, mode: str, *, reason: str = "", force: bool = False) -> str:
        """Switch the session to another mode, and return its name. `force` requires the scope admin.

        Raises:
            ConfigurationError: The agent has no mode of this name.
            ModeChangeRejected: The agent does not allow the caller this switch, or does not allow it now.
        """
        body: dict[str, Any] = {"mode": mode, "reason": reason}
        if force:
            body["force"] = True
        return str((await self.requests.send(self.request("put_mode", body=body)))["mode"])

    async def description(self) -> str:
        """Return at most the first 2,000 characters of the description with which the session was created.

        Raises:
            SessionClosed: The session was closed.
        """
        known = await self._fetch_open()
        await self.take_label()
        return str(known["description"])

    async def tags(self) -> tuple[str, ...]:
        """Return the tags of the session, sorted."""
        return tuple((await self.fetch())["tags"])

    async def metadata(self) -> Mapping[str, str]:
        """Return the metadata of the session, by key."""
        found: Mapping[str, str] = (await self.fetch())["metadata"]
        return found

    async def annotate(
        self,
        *,
        add_tags: Iterable[str] = (),
        remove_tags: Iterable[str] = (),
        metadata: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change the tags and metadata of the session; see `Session.annotate`.

        Raises:
            ConfigurationError: A tag, key or value is invalid, or the session would have too many of them.
            SessionNotFound: The session was erased.
        """
        change = make_annotation_change(add_tags=add_tags, remove_tags=remove_tags, metadata=metadata)
        await self.requests.send(self.request("annotate", body=annotation_body(change)))

    async def messages(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        after: int | None = None,
        roles: Collection[SenderKind] | None = None,
    ) -> MessagePage:
        """Return a page of the history: the newest messages, or the messages before or after an index of the history.

        Pictures and files become text parts; their bytes stay on the server. The arguments are those of `Session.messages`.
        """
        role_names = None if roles is None else ",".join(roles)
        query = {"limit": limit, "before": before, "after": after, "roles": role_names}
        request = self.request("get_messages", query={k: v for k, v in query.items() if v is not None})
        page = await self.requests.send(request)
        found = tuple(to_message(self.id, each) for each in page["items"])
        for each in found:
            add_remote_label(each.label)
        await self.take_label()
        return MessagePage(found, page["first"], page["total"], page["last"])

    async def history(self) -> tuple[Message, ...]:
        """Return all messages of the history, oldest first. The client requests them page by page."""
        found: tuple[Message, ...] = ()
        before: int | None = None
        while before is None or before > 0:
            page = await self.messages(before=before)
            found, before = (*page, *found), page.first
        return found

    # --- internal --------------------------------------------------------------------------

    def request(
        self,
        operation: Operation,
        *,
        part: str = "",
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> RemoteRequest:
        """Build a `RemoteRequest` about this session. `part` is the id of an object in the session, such as a message."""
        return attrs.evolve(self._base_request, operation=operation, part=part, query=query or {}, body=body)

    def event_stream(
        self,
        request: RemoteRequest,
        after: int,
        *,
        is_unnumbered: Callable[[StreamEvent], bool] = is_partial,
        opened: trio.Event | None = None,
    ) -> ReconnectingStream:
        """Return a stream of this session's events after record `after`.

        Args:
            request: Request that opens the stream.
            after: Number of the record after which the stream starts.
            is_unnumbered: Returns True for events without a record number, which are delivered at once.
            opened: Event to set when the stream is open; None creates an event.
        """
        return ReconnectingStream(
            transport=self.requests.transport,
            request=request,
            cursor=after,
            retry_timeout=self.requests.retry_timeout,
            is_unnumbered=is_unnumbered,
            opened=trio.Event() if opened is None else opened,
        )

    async def fetch(self) -> Mapping[str, Any]:
        """Request the current JSON of this session from the server."""
        found: Mapping[str, Any] = await self.requests.send(self._base_request)
        return found

    async def _fetch_open(self) -> Mapping[str, Any]:
        """Request the current JSON of this session from the server. Raise `SessionClosed` if the session was closed."""
        known = await self.fetch()
        if "status" not in known:
            raise SessionClosed(self.id)
        return known

    async def send_message(
        self,
        content: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        enqueue_timeout: float = 30,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
        tools: CallerTools | None = None,
        label: Label = TRUSTED,
        wait: float = 0,
        unless_suspended: bool = False,
    ) -> Mapping[str, Any]:
        """Send a message, and return the JSON of its run. The JSON has the outcome if the turn ends within `wait` seconds.

        `unless_suspended=True` makes the server reject the message if the session waits for an approval. The other arguments
        are those of `chat`.
        """
        check_id("message_id", message_id)
        check_seconds("enqueue_timeout", enqueue_timeout)
        body = message_body(
            content,
            priority=priority,
            message_id=message_id or new_secret(),
            on_busy=on_busy,
            enqueue_timeout=enqueue_timeout,
            metadata=metadata,
            tools=tools,
        )
        if unless_suspended:
            body["unless_suspended"] = True
        await self._subscription.wait_open()
        request = attrs.evolve(self.request("say", body=body), wait=wait, sources=text_of(check_label(label)))
        sent: Mapping[str, Any] = await self.requests.send(request)
        return sent


def _observation_query(types: Collection[ObservedType] | None, turn: str | None) -> dict[str, Any]:
    """Return the query parameters of a request for observations of these types and this turn; None selects all."""
    query = {} if types is None else {"types": ",".join(types)}
    return query if turn is None else {**query, "turn": turn}


def _is_incomplete(event: StreamEvent) -> bool:
    """Return True if the event is an observation of a partial answer. Such an event has no record number."""
    return event.data.get("is_whole") is False


def _is_suspended(event: StreamEvent) -> bool:
    """Return True if the event suspends a turn for an approval."""
    return event.name == "turn" and event.data.get("phase") == "suspended"
