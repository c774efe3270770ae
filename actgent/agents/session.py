"""`Session`, the public handle to a conversation with an agent."""

import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic, Never, TypeAlias, TypeVar, overload

import attrs
import trio

from actgent.actors.actor import running_actor
from actgent.approvals import Approval, Decision
from actgent.database.database import Database
from actgent.errors import ConfigurationError, NotRunning, SessionMoved, UsageError
from actgent.information_flow_labels import TRUSTED, Label, check_label, text_of
from actgent.journal.record_types import TurnOptions
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_tags_and_metadata import make_annotation_change
from actgent.limits_and_schedules.budget import Budget, Funding
from actgent.limits_and_schedules.clock import Clock
from actgent.limits_and_schedules.id_and_number_validation import check_id, check_seconds
from actgent.limits_and_schedules.schedule import Schedule, parse_schedule
from actgent.messages import (
    CallProgress,
    Content,
    DataT_co,
    Delivery,
    Event,
    Failure,
    Message,
    OnBusy,
    Priority,
    PriorityName,
    Reply,
    Route,
    Sender,
    SenderKind,
    Token,
    ToolResult,
    Usage,
    checked_metadata,
    message_parts,
    new_id,
)
from actgent.modes.mode import Actor
from actgent.modes.mode_changes import ModeChange, changes_in
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.runtime.agent_actor import AgentActor
from actgent.runtime.approval_decisions import (
    caller_calls,
    decide,
    find_session_of_approval,
    open_approvals,
    sources_of_approvals,
)
from actgent.runtime.delegation.task_delegation import Delegation, find_tasks, has_received_result, stop_tasks
from actgent.runtime.introspection import need_journal
from actgent.runtime.message_admission import MessageAdmission
from actgent.runtime.resumption_during_startup import wait_started
from actgent.runtime.sessions.remote_session_interface import RemoteSessions, check_sendable
from actgent.runtime.sessions.session_lifecycle import write_pending
from actgent.runtime.sessions.session_tree_close import close_tree
from actgent.runtime.sessions.tag_and_metadata_changes import Annotator
from actgent.runtime.subscriptions.observation_reader import (
    ObservationFilter,
    ObservationReader,
    list_observations,
    list_recent,
    observe,
    observe_recent,
)
from actgent.runtime.subscriptions.session_follower import SessionFollower, follow_session
from actgent.runtime.untrusted_source_removal import remove_untrusted_source
from actgent.runtime.waits_between_sessions import (
    add_sources_of_session,
    add_withheld_sources,
    collects_sources,
    releasing_slot,
    running_session,
    sources_of_caller,
)
from actgent.sessions.conversation import MessagePage
from actgent.sessions.pending.delegated_tasks import TASK_DEADLINE_SECONDS, task_key
from actgent.sessions.pending.schedules import (
    TREE_WINDOW_SECONDS,
    has_fired_last,
    schedules,
    set_schedule,
    unset_schedule,
)
from actgent.sessions.session_context import SessionContext, Status, host_of, running_turn
from actgent.sessions.session_handlers import Handler, HandlerKind
from actgent.sessions.subscriptions import (
    MessageFilter,
    MessageTrace,
    Observed,
    ObservedType,
    find_links,
    read_matching,
)
from actgent.state.handoff_state import given_back, handoff_in
from actgent.state.session_state import Store
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import (
    OF_CHATS,
    OF_SCHEDULES,
    hints_for_message_ids,
    hints_for_sessions,
)
from actgent.support.unknown_name_hints import unknown_argument
from actgent.tools.tools_run_by_caller import CallerTools, check_caller_tools

ENQUEUE_SECONDS = 30
"""Default seconds that `chat` waits for room in the inbox."""
X = TypeVar("X")
R = TypeVar("R")
ReaderT = TypeVar("ReaderT")
DeliveryHandler: TypeAlias = Callable[[X], R]
"""A handler that takes a delivery, e.g. a `Reply`."""
SessionHandler: TypeAlias = Callable[[X, "Session[Any]"], R]
"""A handler that takes a delivery and the session."""
HandlerOf: TypeAlias = Callable[[X], object] | Callable[[X, "Session[Any]"], object]
"""A handler with one or two parameters: the delivery, and optionally the session."""


@attrs.frozen(eq=False, repr=False)
class SessionServices(FieldRepr):
    """Services that all sessions of one running agent share."""

    running: AgentActor
    """Actor of the running agent."""
    admission: MessageAdmission
    """Service that accepts messages into the agent's inbox."""
    delegation: Delegation
    """Service that delegates tasks to other agents."""
    deps: Any
    """Deps that the agent shares with all sessions; None if it has no deps or creates them for each session."""
    database: Database | None = None
    """Database of the agent; None if it has none."""
    remote_sessions: RemoteSessions | None = None
    """Access to sessions that moved to other processes of the cluster; None without a cluster."""


@hints_for_message_ids
class MessageId(str):
    """Id of a message. Reading attributes of a reply, e.g. `.text`, raises an error that explains how to get the reply."""

    __slots__ = ()


@hints_for_sessions
class Session(Generic[DataT_co]):
    """A conversation with an agent. The turns of a session run one after the other, by priority and then in order.

    `Session[Offer]` is a session of an agent with `output=Offer`. If the session moves to another process of a cluster,
    messages are forwarded to that process. Methods that read the session or attach handlers then raise `SessionMoved`; see
    docs/guides/cluster.md.
    """

    __slots__ = ("__weakref__", "_held", "_made_deps", "_services", "own_deps")

    def __init__(self, context: SessionContext, deps: Any, *, services: SessionServices) -> None:
        self._held = context
        self._services = services
        self.own_deps = deps
        """Deps that were passed for this session; None if there are none."""
        self._made_deps: Any = None
        """Deps that the agent's function returned for this session; None if it was not called."""

    def __actgent_weak_handle__(self) -> object:
        """Return a weak reference to this `Session`, which the internal session stores after the session has ended."""
        return _WeakHandle(weakref.ref(self), self._services)

    def __repr__(self) -> str:
        context = self._context
        return (
            f"<Session {self.id} of {self.owner.name!r}, {'moved' if context.has_moved else context.status}>"
        )

    @property
    def _context(self) -> SessionContext:
        """Internal context of the session. If the session was unloaded, it is first put back into memory."""
        held = self._held
        return held if held.public_session is not None else context_of(self)

    @property
    def _read_here(self) -> SessionContext:
        """Internal context of the session, for methods that return texts of the session.

        The untrusted sources of these texts are added to the calling turn, if it is a turn of another session.

        Raises:
            SessionMoved: Another process owns the session; the context is out of date.
        """
        context = self._here
        add_sources_of_session(context)
        return context

    @asynccontextmanager
    async def _open_record_reader(
        self, block: AbstractAsyncContextManager[ReaderT]
    ) -> AsyncGenerator[ReaderT, None]:
        """Return a block that reads records of the session, and yields the reader of `block`.

        The untrusted sources of these records are added to the calling turn, if it is a turn of another session.
        """
        async with block as reader:
            try:
                yield reader
            finally:
                self._add_sources_of_records()

    def _add_sources_of_records(self) -> None:
        """Add the untrusted sources of the session's records to the calling turn, also those of withheld tool results."""
        add_sources_of_session(self._context)
        if collects_sources():
            add_withheld_sources(self._context.withheld_sources)

    @property
    def _here(self) -> SessionContext:
        """Internal context of the session, for methods that need the session in this process.

        Raises:
            SessionMoved: Another process owns the session; the context is out of date.
        """
        context = self._context
        if context.has_moved:
            raise context.refusal
        return context

    @property
    def _agent(self) -> AgentActor:
        """Actor of the session's agent."""
        return self._services.running

    # --- handlers --------------------------------------------------------------------

    @overload
    def on_conversation(
        self, handler: DeliveryHandler[Reply[DataT_co], R]
    ) -> DeliveryHandler[Reply[DataT_co], R]: ...
    @overload
    def on_conversation(
        self, handler: SessionHandler[Reply[DataT_co], R]
    ) -> SessionHandler[Reply[DataT_co], R]: ...
    def on_conversation(self, handler: Any = None) -> Any:
        """Register `handler(reply)` for each `Reply`."""
        return self._on("conversation", handler)

    @overload
    def on_event(self, handler: DeliveryHandler[Event, R]) -> DeliveryHandler[Event, R]: ...
    @overload
    def on_event(self, handler: SessionHandler[Event, R]) -> SessionHandler[Event, R]: ...
    def on_event(self, handler: Any = None) -> Any:
        """Register `handler(event)` for each `Event`, the structured result of an instruction."""
        return self._on("event", handler)

    @overload
    def on_tool_result(self, handler: DeliveryHandler[ToolResult, R]) -> DeliveryHandler[ToolResult, R]: ...
    @overload
    def on_tool_result(self, handler: SessionHandler[ToolResult, R]) -> SessionHandler[ToolResult, R]: ...
    def on_tool_result(self, handler: Any = None) -> Any:
        """Register `handler(result)` for each `ToolResult`, also of failed tools."""
        return self._on("tool_result", handler)

    @overload
    def on_tool_progress(
        self, handler: DeliveryHandler[CallProgress, R]
    ) -> DeliveryHandler[CallProgress, R]: ...
    @overload
    def on_tool_progress(
        self, handler: SessionHandler[CallProgress, R]
    ) -> SessionHandler[CallProgress, R]: ...
    def on_tool_progress(self, handler: Any = None) -> Any:
        """Register `handler(progress)` for the latest `CallProgress` of each tool call that is running."""
        return self._on("tool_progress", handler)

    @overload
    def on_exception(self, handler: DeliveryHandler[Failure, R]) -> DeliveryHandler[Failure, R]: ...
    @overload
    def on_exception(self, handler: SessionHandler[Failure, R]) -> SessionHandler[Failure, R]: ...
    def on_exception(self, handler: Any = None) -> Any:
        """Register `handler(failure)` for each `Failure`."""
        return self._on("exception", handler)

    @overload
    def on_routing(self, handler: DeliveryHandler[Route, R]) -> DeliveryHandler[Route, R]: ...
    @overload
    def on_routing(self, handler: SessionHandler[Route, R]) -> SessionHandler[Route, R]: ...
    def on_routing(self, handler: Any = None) -> Any:
        """Register `handler(route)` for each `Route`."""
        return self._on("routing", handler)

    @overload
    def on_token(self, handler: DeliveryHandler[Token, R]) -> DeliveryHandler[Token, R]: ...
    @overload
    def on_token(self, handler: SessionHandler[Token, R]) -> SessionHandler[Token, R]: ...
    def on_token(self, handler: Any = None) -> Any:
        """Register `handler(token)` for each `Token` of an answer. Later answers are streamed."""
        return self._on("token", handler)

    @overload
    def on_approval(self, handler: DeliveryHandler[Approval, R]) -> DeliveryHandler[Approval, R]: ...
    @overload
    def on_approval(self, handler: SessionHandler[Approval, R]) -> SessionHandler[Approval, R]: ...
    def on_approval(self, handler: Any = None) -> Any:
        """Register `handler(approval)`, called when a tool call of the session needs approval. `answer` decides the approval."""
        return self._on("approval", handler)

    def _on(self, kind: HandlerKind, handler: Handler | None) -> Handler:
        if handler is None:
            raise TypeError(
                f"on_{kind}() needs a handler: write `@session.on_{kind}` without parentheses, or pass the function "
                f"itself, without calling it: session.on_{kind}(fn)"
            )
        context = self._held
        if context.public_session is None or context.has_moved:
            context = self._here
        if context.handlers.pop_missed(kind):
            self._agent.core.dispatcher.failure_logger.warn_late_handler(context, kind)
        context.handlers.add(kind, handler).is_from_program = True
        return handler

    def remove_handler(self, handler: Handler) -> None:
        """Remove all registrations of a handler. An unknown handler is ignored.

        During a dispatch, a handler that has not been called yet is not called any more. A call that has started continues.
        """
        self._context.handlers.remove(handler)

    @contextmanager
    def listening(
        self,
        *,
        on_conversation: HandlerOf[Reply[DataT_co]] | None = None,
        on_event: HandlerOf[Event] | None = None,
        on_tool_result: HandlerOf[ToolResult] | None = None,
        on_tool_progress: HandlerOf[CallProgress] | None = None,
        on_exception: HandlerOf[Failure] | None = None,
        on_routing: HandlerOf[Route] | None = None,
        on_token: HandlerOf[Token] | None = None,
        on_approval: HandlerOf[Approval] | None = None,
    ) -> "Iterator[Session[DataT_co]]":
        """Register handlers for the duration of a `with` block, e.g. for one connection of a user.

        Either all handlers or none are registered.

        Raises:
            ConfigurationError: A handler is a generator function, which would never run.
            TypeError: A handler is not callable.
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
        handlers, attached = self._here.handlers, []
        try:
            for kind, handler in given.items():
                if handler is not None:
                    registration = handlers.add(kind, handler)
                    registration.is_from_program = True
                    attached.append(registration)
            yield self
        finally:
            handlers.drop(attached)

    def follow(self, *, after: int | None = 0) -> AbstractAsyncContextManager[SessionFollower]:
        """Return an `async with` block that receives the records of the session: first the existing records, then new records.

        Each record after the number `after` is received once and in order, as `FollowedRecord` with its number. To continue later,
        also in another process, pass the last number: `follow(after=number)`. None starts with the next record. Between records,
        the channel delivers new text of the partial answer (`PartialText`) and the progress of tool calls. Answers are streamed
        while a session is followed. A slow reader receives all records, but only the latest partial answer, and slows down
        neither the model nor other readers. The channel ends when the session is closed.

        Raises:
            ConfigurationError: The runtime has no journal.
            InvalidCursor: The session has fewer records than `after`: it was recreated, or the journal is an older copy.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read.
        """
        self._agent.runner.check_loop("session.follow()")
        key = self._here.key
        return self._open_record_reader(
            follow_session(self._agent.journal, self._agent.sessions, key, after=after)
        )

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AbstractAsyncContextManager[ObservationReader]:
        """Subscribe to the observations of the session: intent, plan, thoughts, tool calls, answers, errors.

        The `async with` block yields a receive channel, and its exit ends the subscription. `types` and `turn` (the id of a
        message) select observations. `after=0` starts with the history, None with the next observation. To continue after a
        restart without gaps, pass the `cursor` of the old reader as `after`. Growing thoughts are received several times.
        Without a journal, the newest 1,000 records of the session are kept in memory, and older records are lost.

        Raises:
            InvalidCursor: The session has fewer records than `after`: it was recreated, or the journal is an older copy.
            SessionNotFound: The journal has no such session.
            JournalError: The journal cannot be read.
        """
        self._agent.runner.check_loop("session.observe()")
        observation_filter = ObservationFilter(types=types, turn=turn)
        context = self._here
        if (recent := context.conversation.recent) is not None:
            block = observe_recent(
                context, recent, self._agent.sessions, after=after, observation_filter=observation_filter
            )
        else:
            block = observe(
                self._agent.journal,
                self._agent.sessions,
                context.key,
                after=after,
                observation_filter=observation_filter,
            )
        return self._open_record_reader(block)

    async def observations(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[Observed, ...]:
        """Return at most `limit` observations after the record `after`, oldest first. `types` and `turn` select observations.

        For the next page, pass the `number` of the last observation. Observations of one record can be on two pages.
        Without a journal, the newest 1,000 records of the session are kept in memory, and older records are lost.

        Raises:
            ConfigurationError: The limit is below 1.
            JournalError: The journal cannot be read.
        """
        self._agent.runner.check_loop("session.observations()")
        self._add_sources_of_records()
        key, observation_filter = (
            SessionKey(self.agent_name, self.id),
            ObservationFilter(types=types, turn=turn),
        )
        if (recent := self._context.conversation.recent) is not None:
            await trio.lowlevel.checkpoint()
            return list_recent(recent, after=after, limit=limit, observation_filter=observation_filter)
        journal = need_journal(self._agent.journal)
        return await list_observations(
            journal, key, after=after, limit=limit, observation_filter=observation_filter
        )

    # --- messages -----------------------------------------------------------------

    async def chat(
        self,
        /,
        content: Content,
        sender: Sender | str | None = None,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        enqueue_timeout: float = ENQUEUE_SECONDS,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
        tools: CallerTools | None = None,
        label: Label = TRUSTED,
        **unknown: Never,
    ) -> str:
        """Enqueue a message and return its id once the inbox has accepted it. The session's handlers receive the results.

        Without a sender, the message comes from the owner, as a user. The call waits at most `enqueue_timeout` seconds for room
        in the inbox; in a handler or tool of this session it never waits. An URGENT message stops the running turn. The same
        `message_id` is accepted once; a repetition does nothing. `on_busy` sets the rule for a busy session; None is the
        session's rule. `metadata` is kept with the message for programs (`message.metadata`), and never shown to a model. An
        unknown word as `priority` is NORMAL, with a warning in the log; a misspelt priority is an error.

        `tools` are tools of the caller for this turn, each a `ToolSpec` or `{"name", "description", "parameters"}`. A call of such
        a tool suspends the turn and is listed in `caller_calls`. `answer` the call with `Respond(result)` or `Reject(reason)`.

        `label` has the untrusted sources of a message that the owner has not written, such as `Label({"mail:bob"})`.

        Raises:
            ConfigurationError: The message is empty, the priority is misspelt or not a priority, or a tool is invalid. Or a tool
                has the name of a tool of the agent.
            MessageTooLarge: The message has more bytes than the agent takes (`Agent(message_bytes=...)`).
            InboxFull: The inbox had no room within `enqueue_timeout` seconds.
            SessionBusy: The session is busy, and the rule is `reject`.
            SessionClosed: The session was closed.
            NotRunning: The agent is not running.
        """
        if unknown:
            raise unknown_argument(Session.chat, unknown, OF_CHATS)
        self._services.running.runner.check_loop("session.chat()")
        if message_id is not None:
            check_id("message_id", message_id)
        if enqueue_timeout != ENQUEUE_SECONDS:
            check_seconds("enqueue_timeout", enqueue_timeout)
        context = self._held
        if context.public_session is None:
            context = context_of(self)
        message = context.new_message(
            content,
            sender,
            priority if type(priority) is Priority else Priority.of_chat(priority),
            message_id=message_id,
            deadline=enqueue_timeout,
            on_busy=on_busy,
            metadata=metadata,
            via="" if label is TRUSTED else text_of(check_label(label)),
        )
        try:
            specs = check_caller_tools(tools, self._agent.core.calling.registry) if tools is not None else ()
            options = TurnOptions(tools=specs) if specs else None
            await self._services.admission.accept(
                context, message, once=message_id is not None, options=options
            )
        except SessionMoved as moved:
            await self._remote_session(moved, sender=sender).chat(
                message.parts,
                priority=message.priority,
                message_id=message.id,
                enqueue_timeout=enqueue_timeout,
                on_busy=on_busy,
                metadata=metadata,
                label=label,
                **({} if tools is None else {"tools": tools}),
            )
        return MessageId(message.id)

    def create_message(
        self,
        content: Content,
        sender: Sender | str | None = None,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """Create the message that `chat` would send, and return it without sending it. `Agent.receive` sends the message.

        Raises:
            ConfigurationError: The message is empty, or an argument is invalid.
        """
        if message_id is not None:
            check_id("message_id", message_id)
        return self._context.new_message(
            content, sender, priority, message_id=message_id, on_busy=on_busy, metadata=metadata
        )

    async def inject(self, delivery: Delivery[DataT_co]) -> None:
        """Call the handlers of the session with `delivery`, such as a `Reply`, `Event` or `ToolResult`, e.g. in a test or a bridge.

        The delivery is not added to the history or the journal, and does not start or end a turn. A reader of the session's
        running stream receives it as well.

        Raises:
            ConfigurationError: The value is not a delivery.
        """
        self._agent.runner.check_loop("session.inject()")
        if not isinstance(
            delivery, Reply | Event | Route | Failure | ToolResult | Token | CallProgress | Approval
        ):
            raise ConfigurationError(
                f"session.inject() takes a delivery, e.g. Reply(text='...'), not {delivery!r:.200}"
            )
        await self._agent.core.dispatcher.dispatch(self._here, delivery)
        await trio.lowlevel.checkpoint()

    async def interrupt(
        self, reason: str = "interrupted", *, drop_queued: bool = False, message_id: str | None = None
    ) -> None:
        """Stop the running turn: no further model call is made, and its message ends as `Failure(kind="interrupted")`.

        Returns when the turn has ended and the end is durable.

        Args:
            reason: Reason of the failure, as text.
            drop_queued: True also ends all waiting messages.
            message_id: Id of the only message to stop, running, waiting or not yet received; None stops the running turn. A
                message that has ended is ignored.

        Raises:
            JournalError: The turn has ended, but the journal could not record the end of a message. The message ended as
                `Failure(kind="journal")`, and is answered if it is sent again or if the process crashes before the journal
                recovers. A second call with its `message_id` prevents this answer.
            NotRunning: The agent is stopping; the next start resumes the turn.
        """
        self._agent.runner.check_loop("session.interrupt()")
        context, lifecycle = self._context, self._agent.lifecycle
        running = next(iter(context.answered_ids), None)
        try:
            if message_id is not None:
                await lifecycle.interrupt_message(context, message_id, reason)
            else:
                await lifecycle.interrupt(context, reason, drop_queued=drop_queued)
            await write_pending(context)
        except SessionMoved as moved:
            if (
                message_id is None and not drop_queued
            ):  # only this turn: another one may be running at the new owner
                message_id = running
            remote = self._remote_session(moved)
            await remote.interrupt(reason, drop_queued=drop_queued, message_id=message_id)

    async def schedule(
        self,
        /,
        description: str,
        *,
        after: float | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        zone: str | None = None,
        key: str | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        metadata: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> Schedule:
        """Set a schedule. When it fires, the session gets the message "Running scheduled task: " with the description.

        With a journal, the schedule is durable on return and survives restarts. A schedule that was due while the process was
        down fires at the next start. Without a journal, the schedule is lost when the agent stops. A schedule that fires loads its
        session. The sender of the message is the schedule, of the kind `system`.

        Args:
            description: Text of the message.
            after: Delay in seconds. Exactly one of `after`, `at` and `cron` is required.
            at: Date of the message.
            cron: Cron line of a repeating schedule.
            zone: Time zone of a cron line, or of a date without time zone, e.g. `Europe/Berlin`. The default of cron lines is
                UTC.
            key: Key of the schedule; a key that was used before sets no second schedule.
            priority: Priority of the message.
            metadata: Metadata of the message, as in `chat`.
            **unknown: Misspelt arguments, raised as an error that suggests the right name.

        Raises:
            ConfigurationError: The time is invalid, more than a minute in the past, or not exactly one time was passed; or the
                priority is unknown.
            TooManySchedules: The session has 100 schedules.
            LimitReached: A turn sets a schedule that fires within a minute, and the limits of that turn are used up.
            SessionClosed, NotRunning: The session cannot receive messages any more.
        """
        if unknown:
            raise unknown_argument(Session.schedule, unknown, OF_SCHEDULES)
        self._agent.runner.check_loop("session.schedule()")
        check_id("key", key)
        times: dict[str, Any] = {"after": after, "at": at, "cron": cron, "zone": zone}
        options: dict[str, Any] = {"priority": priority, "metadata": metadata}
        try:
            return await schedule_in(self, description, key=key, **times, **options)
        except SessionMoved as moved:
            made: Schedule = await self._remote_session(moved).schedule(
                description, key=key, **times, **options
            )
            return made

    async def unschedule(self, schedule_id: str) -> bool:
        """Remove a schedule durably.

        Return False if the session has no schedule with this id, e.g. because it has already fired.

        Raises:
            JournalError: The removal could not be written, and the schedule is still set.
            NotRunning: The agent is stopping, or has stopped.
        """
        self._agent.runner.check_loop("session.unschedule()")
        context, was_tried = self._context, False
        if self._agent.lifecycle.has_stopped:  # its next start may have loaded the schedule
            raise NotRunning(self.agent_name)
        with suppress(SessionMoved):
            if not context.has_moved:
                was_tried = schedule_id in {each.id for each in schedules(context)}
                with self._agent.lifecycle.kept(context):
                    was_here = await unset_schedule(context, schedule_id)
                    # A removal is durable. A failure of later records must not hide that.
                    if not was_here or context.log is None:
                        await write_pending(context)
                return was_here
        there = self._remote_session(SessionMoved(self.agent_name, self.id))
        was_set: bool = await there.remove("unschedule", schedule_id, may_be_done=was_tried)
        return was_set

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Schedules of the session, sorted by their next time."""
        return schedules(self._read_here)

    @property
    def clock(self) -> Clock:
        """Clock for schedules and deadlines: `session.clock.now()`."""
        return self._agent.clock

    async def wait_idle(self) -> None:
        """Wait until no turn is running and no message is queued. The outcomes are durable on return, unless the journal fails.

        A session whose turn waits for an approval counts as idle, also with queued messages.

        Raises:
            WouldDeadlock: The call is made by a handler or tool of this session, so it would wait for itself.
        """
        self._services.running.runner.check_loop("session.wait_idle()")
        context = self._held
        if context.public_session is None:
            context = context_of(self)
        context.check_not_inside("wait_idle()")
        try:
            if (
                running_turn.get() is None and running_actor.get() is None
            ):  # the caller holds no concurrency slot
                await context.wait_idle()
            else:
                with releasing_slot(context):
                    await context.wait_idle()
        except SessionMoved as moved:
            await self._remote_session(moved).wait_idle()

    async def delegate(
        self,
        agent: str,
        task: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        task_id: str | None = None,
        deadline: float = TASK_DEADLINE_SECONDS,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Delegate a task to another agent of the runtime, and return the id of the task without waiting for its outcome.

        The outcome, an answer or a failure, is sent to this session as a message of the sender kind `agent`, and starts a turn.
        One turn answers all outcomes that arrive while another turn is running. The task runs in a child session with the id of
        the task, or a derived id if the agent already has such a session. If this session is closed, the child is closed. With a
        journal, both survive the process. The usage of the task counts for the limits of this session.

        Args:
            agent: Name of the agent.
            task: Task, as text or parts.
            priority: Priority of the task's message.
            task_id: Id of the task; None creates one. A repeated call with the same agent and id, e.g. after a crash, gives the
                same task. Other sessions can use the same ids.
            deadline: Seconds until the task is stopped and fails with `DeadlineExceeded`, a `Failure` of the kind `deadline`.
                The default is a week, `math.inf` is no deadline. Time in the queue, in approvals and without a process counts.
            metadata: Metadata of the task's message, as in `chat`. It is not sent to agents of other pools.

        Raises:
            ConfigurationError: The deadline, the id or the priority is invalid.
            NotRunning: No agent with this name is running in the runtime, or the agent of this session has stopped.
            LimitReached: The session has reached its limit of open tasks.
        """
        self._agent.runner.check_loop("session.delegate()")
        _check_task(agent, task_id, deadline)
        try:
            return await self._delegate(
                agent, task, task_id, priority=Priority.named(priority), deadline=deadline, metadata=metadata
            )
        except SessionMoved as moved:
            there = self._remote_session(moved, priority=_parse_priority(priority))
            known: str = await there.delegate(
                agent, task, task_id=task_id, deadline=deadline, metadata=metadata
            )
            return known

    async def _delegate(
        self,
        agent: str,
        task: Content,
        task_id: str | None,
        *,
        priority: Priority,
        deadline: float,
        metadata: Mapping[str, Any] | None,
    ) -> str:
        context, delegation = self._here, self._services.delegation
        agents, noted = delegation.agents, None if metadata is None else checked_metadata(metadata)
        if agent not in agents:
            await wait_started(agent)
        return await delegation.delegate(
            agents.opener(agent),
            context,
            message_parts(task),
            key=task_key(context.scope, task_id) if task_id else f"{self.id}/task/{new_id()}",
            name=task_id or "",
            priority=priority,
            deadline=deadline,
            metadata=noted,
        )

    async def cancel_task(self, task_id: str) -> bool:
        """Stop a delegated task and close the session of the task, durably. The delegating session gets no message about this.

        Return False if the task is not running, or if its outcome was sent before the task was stopped. If several agents have a
        task with this id, all these tasks are stopped, with their child sessions.

        Raises:
            NotRunning: The agent of this session or of the task is not running here, e.g. after a restart.
            JournalError: The task was stopped, but the journal could not record the stop; or the journal cannot be read.
        """
        self._agent.runner.check_loop("session.cancel_task()")
        context, known = self._context, self._services.delegation
        tasks: Sequence[SessionContext] = ()
        try:
            with self._agent.lifecycle.kept(context):  # loaded tasks find their parent only in memory
                await trio.lowlevel.checkpoint()
                if context.has_moved:
                    raise context.refusal
                tasks = await find_tasks(known.agents, known.journal, context, task_id)
                return await stop_tasks(known.agents, known.journal, context, tasks)
        except SessionMoved as moved:
            there = self._remote_session(moved)
            was_at_work: bool = await there.remove("cancel_task", task_id, may_be_done=bool(tasks))
            return was_at_work

    @property
    def handoff_agent(self) -> str:
        """Name of the agent that answers the session after a handoff; empty if no handoff is in progress."""
        return handoff_in(self._here.seen_state).agent

    async def hand_back(self) -> None:
        """End a handoff, so that the session's own agent answers from the next message on. The end is durable on return.

        An answer that the other agent has started is completed. Without a handoff, do nothing.

        Raises:
            NotRunning: The agent is stopping; the handoff stays in place.
        """
        self._agent.runner.check_loop("session.hand_back()")
        context = self._here
        handed_off = handoff_in(context.seen_state)
        if handed_off.agent:
            context.state.dispatch(given_back)
            await self._agent.core.write_mode_change(context)
        await write_pending(context)
        for child in tuple((context.children or {}).values()):
            if handed_off.number and child.id.endswith(f"/{handed_off.child}") and child.turn is None:
                await host_of(child).close(child)
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close the session and its children. The running turn is interrupted, and queued messages end as `Failure(kind="stopped")`.

        With a journal, the close is durable on return, and includes child sessions that are only in the journal. Child sessions
        whose agents are not running, or that cannot be loaded, stay open; the log names these sessions.

        Raises:
            JournalError: The sessions are closed, but the journal could not record the close. If the process crashes before the
                journal recovers, they are open again.
            NotRunning: The agent is stopping; the next start resumes the session.
        """
        self._agent.runner.check_loop("session.aclose()")
        try:
            await close_tree(
                self._context, self._services.running.journal, self._services.delegation.agents.opener
            )
        except SessionMoved as moved:
            await self._remote_session(moved).aclose()

    # --- approvals ----------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide the approval of a tool call. The decision is durable on return.

        `Approve` and `Edit` run the tool, `Reject` does not run it, and `Respond` supplies the result in place of the tool. The
        turn resumes after its last approval is decided. Approvals of child sessions, e.g. of an agent that is a tool of this
        session's agent, can also be decided with this method.

        Args:
            approval: The approval, or its id.
            decision: The decision; an approval is decided once.
            by: Person or program that decides, for the journal.

        Raises:
            NotSuspended: No tool call of this session waits for an approval.
            ApprovalNotFound: No open approval has this id.
            ApprovalMismatch: The approval object was altered, so it does not describe the waiting call.
            ApprovalAlreadyDecided: Another caller decided the approval, it has expired, or it was withdrawn.
            InvalidArguments: The arguments in `Edit` or `Respond` do not fit the tool. The approval stays open.
            NotSerializable: The result in `Respond` is not plain data. The approval stays open.
            SessionClosed, NotRunning: The turn cannot resume any more.
        """
        self._agent.runner.check_loop("session.answer()")
        try:
            context = find_session_of_approval(self._context, approval)
            await decide(services_of(session_of_context(context)).running, context, approval, decision, by=by)
        except SessionMoved as moved:
            await self._remote_session(moved).answer(approval, decision, by=by)

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """Open approvals of the session and of its loaded child sessions, oldest first."""
        context = self._read_here
        if collects_sources():
            add_withheld_sources(sources_of_approvals(context))
        return open_approvals(context)

    @property
    def label(self) -> Label:
        """Label of the next request to the model: the untrusted sources on which the conversation depends.

        Only `lift` removes a source.
        """
        return self._here.conversation.label

    async def lift(self, source: str, *, by: Sender | str, reason: str = "") -> None:
        """Remove an untrusted source from `label`, because a person trusts all text received from this source so far.

        The removal is durable on return. The next request and the next tool calls, also of a running turn, no longer depend on the
        source. Earlier messages, stored results and open approvals still name the source. If new text of the source arrives, also
        from a call that is already running, the label contains the source again.

        Args:
            source: Name of the source, as in `label.sources`. `*` removes all sources of a label that has more than 8.
            by: Person that trusts the source, for the journal.
            reason: Reason of the person, for the journal; at most 2,000 characters.

        Raises:
            ConfigurationError: The label does not have the source, or `by` is empty.
            UsageError: A tool or handler of a turn makes the call, or code that has read untrusted text.
            SessionClosed, NotRunning: The session was closed, or its agent is stopping.
            JournalError: The write failed. The label still contains the source, at least until the session is loaded again.
        """
        self._agent.runner.check_loop("session.lift()")
        try:
            await remove_untrusted_source(self._agent, self._here, source, by=by, reason=reason)
        except SessionMoved as moved:
            await self._remote_session(moved).lift(source, by=by, reason=reason)

    @property
    def caller_calls(self) -> tuple[Approval, ...]:
        """Open calls of tools that the caller executes, oldest first; see `chat(tools=...)`.

        Pass `Respond(result)` or `Reject(reason)` for each call to `answer`. After the last one, the turn resumes.
        """
        return caller_calls(self._read_here)

    def _remote_session(self, moved: SessionMoved, **arguments: object) -> Any:
        """Return a proxy of this session with the same methods, which calls the process that owns the session.

        `arguments` are the arguments of the call, which are sent to that process.

        Raises:
            SessionMoved: The owning process cannot be reached.
            ConfigurationError: An argument cannot be sent to another process.
        """
        remote_sessions = self._services.remote_sessions
        if remote_sessions is None:
            raise moved
        check_sendable(arguments, moved)
        return remote_sessions.session(self.agent_name, self.id, owner=self.owner.name)

    # --- modes ------------------------------------------------------------------------

    async def set_mode(
        self, mode: str, *, by: Actor = "user", reason: str = "", force: bool = False
    ) -> ModeChange:
        """Switch the session to another mode. The change is durable on return, and the model is notified before its next call.

        `by` is the kind of the caller: a user, the agent, or an admin. With `by="admin"`, `force=True` overrides all rules.
        Tool calls that have started continue; later calls of the running turn are checked against the new mode.

        Raises:
            ConfigurationError: The agent has no mode of this name.
            ModeChangeRejected: The rules do not allow the switch.
            UsageError: The agent has no modes.
            NotRunning: The agent is stopping; the session keeps the old mode.
        """
        self._agent.runner.check_loop("session.set_mode()")
        context = self._here
        change = self._modes.switch(context.state, mode, by=by, reason=reason, force=force)
        await self._agent.core.write_mode_change(context)
        await write_pending(context)
        return change

    @property
    def mode(self) -> str:
        """Current mode of the session.

        Raises:
            UsageError: The agent has no modes.
        """
        return self._modes.mode_of(self._here.seen_state)

    @property
    def mode_changes(self) -> tuple[ModeChange, ...]:
        """The last 100 mode changes of the session, oldest first."""
        return changes_in(self._read_here.seen_state)

    @property
    def _modes(self) -> Modes:
        modes = self._agent.core.modes
        if modes is None:
            raise UsageError(f"agent {self._agent.name!r} has no modes: pass modes=Modes(...)")
        return modes

    # --- properties ----------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Id of the session."""
        return self._context.id

    @property
    def agent_name(self) -> str:
        """Name of the session's agent."""
        return self._agent.name

    @property
    def is_durable(self) -> bool:
        """True if the session is stored in a journal and so survives the end of the process."""
        return self._agent.journal is not None

    @property
    def owner(self) -> Sender:
        """Owner of the session: a user, or an agent that created the session."""
        return self._context.owner

    @property
    def description(self) -> str:
        """First 2,000 characters of the session's first message; empty if the session was created without a message."""
        add_sources_of_session(self._context)
        return self._context.conversation.description

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the session, sorted. `annotate` changes the tags."""
        return self._context.annotations.tags

    @property
    def metadata(self) -> Mapping[str, str]:
        """Metadata of the session for programs, by key. `annotate` changes the metadata."""
        return self._context.annotations.metadata

    async def annotate(
        self,
        *,
        add_tags: Iterable[str] = (),
        remove_tags: Iterable[str] = (),
        metadata: Mapping[str, str | None] | None = None,
    ) -> None:
        """Change the tags and metadata of the session. The change is durable on return.

        Concurrent calls do not overwrite each other's changes. The session may be working or closed.

        Args:
            add_tags: Tags to add. A tag is a text of 1 to 64 characters without a comma.
            remove_tags: Tags to remove. Missing tags are ignored.
            metadata: New values by key; None removes a key. Other keys keep their values.

        Raises:
            ConfigurationError: A tag, key or value is invalid, or the session would have more than 32 tags or 16 keys.
            SessionNotFound: The session was erased.
            JournalError: The write failed. The journal may retry it later, so the change may be recorded or not.
        """
        self._agent.runner.check_loop("session.annotate()")
        change = make_annotation_change(add_tags=add_tags, remove_tags=remove_tags, metadata=metadata)
        known, running = self._services, self._agent
        annotator = Annotator(running.journal, known.delegation.agents, known.remote_sessions)
        context = self._context
        changed = await annotator.annotate(context.key, change)
        if changed is not None:  # of a closed session, only this handle has the context
            context.annotations = changed

    @property
    def parent(self) -> "Session | None":
        """Parent session, for which this session works; None if it has no parent."""
        parent = self._context.parent
        return None if parent is None else session_of_context(parent)

    @property
    def children(self) -> "tuple[Session, ...]":
        """Open sessions that were created with this session as parent."""
        return tuple(session_of_context(child) for child in (self._here.children or {}).values())

    async def messages(
        self,
        *,
        limit: int = 100,
        before: int | datetime | None = None,
        after: int | datetime | None = None,
        roles: Collection[SenderKind] | None = None,
    ) -> MessagePage:
        """Return a page of the history: the newest messages, or those before or after a position or date, oldest first.

        `roles` selects messages by the kind of their sender; None selects all. `("user", "assistant")` is the conversation as
        users see it: the user's messages and the final answers. It omits intermediate answers (plans, tool calls, invalid
        answers), which `message_trace` of the final answer returns as `steps`. Between two dates, the newest messages are returned.
        `page.first` is the position of the first message, from 0; `messages(before=page.first)` returns the previous page.
        Messages that are not in memory are read from the journal, and do not stay in memory.

        Raises:
            ConfigurationError: `limit` is less than 1, both `before` and `after` are positions, a date has no time zone, or a
                role is unknown.
            SessionNotFound: The session was erased.
            JournalError: The journal cannot be read.
        """
        self._agent.runner.check_loop("session.messages()")
        conversation = self._read_here.conversation
        if roles is None and not isinstance(before, datetime) and not isinstance(after, datetime):
            return await conversation.read(limit=limit, before=before, after=after)
        return await read_matching(conversation, MessageFilter.of(before, after, roles), limit=limit)

    async def message_trace(self, message: Message | str) -> MessageTrace:
        """Return a message with its turn, trace, cause, tool calls, results and observations.

        The user's message and the final answer are linked to the whole turn, with its intermediate messages as `steps`. Without
        a journal, only observations that are still in memory are returned; see `observations`.

        Raises:
            ConfigurationError: The history has no such message.
            JournalError: The journal cannot be read.
        """
        self._agent.runner.check_loop("session.message_trace()")
        known = message if isinstance(message, str) else message.id
        links = await find_links(self._here.conversation, known)
        after, found = 0, dict[str, Observed]()
        while page := await self.observations(turn=links.turn, after=after, limit=1000):
            found |= {each.id: each for each in page if links.concerns(each)}
            after = page[-1].number
        return attrs.evolve(links, observations=tuple(found.values()))

    @property
    def history(self) -> tuple[Message, ...]:
        """All messages of the session, oldest first.

        If a long session was loaded from the journal, the first access reads the older messages and keeps them in memory. This
        read blocks the event loop. Use `messages` to read a page.
        """
        return self._read_here.conversation.history

    @property
    def on_busy(self) -> OnBusy:
        """Treatment of messages while the session is busy: queue, collect, interrupt or reject."""
        return self._context.on_busy

    @property
    def state(self) -> Store:
        """State of the session: a read-only mapping with `dispatch`."""
        return self._read_here.state

    @property
    def usage(self) -> Usage:
        """Tokens and cost of the session's model calls. `usage.total` also includes the child sessions."""
        return self._here.conversation.usage

    @property
    def budget(self) -> Budget | None:
        """Budget of the running turn or, between turns, of the session; None if the session has no limits.

        `budget.left` has the remaining amount of each limit.
        """
        context = self._here
        turn, accounts = context.turn, context.accounts
        if turn is not None and turn.budget is not None:
            return turn.budget
        return Budget(accounts) if accounts else None

    @property
    def database(self) -> Database | None:
        """Database of the agent; None if the agent has no database. Tools read `ToolContext.database` instead."""
        return self._services.database

    @property
    def deps(self) -> Any:
        """Deps that tools get as `ToolContext.deps`: those of the run, else of the session, the agent or the parent session.

        None if no deps are set.
        """
        held, turn = self._held, self._held.turn
        of_run = None if turn is None else turn.options.deps
        for found in (of_run, self.own_deps, self._made_deps, self._services.deps):
            if found is not None:
                return found
        return None if held.parent is None else session_of_context(held.parent).deps

    def store_created_deps(self, deps: Any) -> None:
        """Store the deps that the agent's function in `deps=` has created for this session.

        Deps that the program passed to the run or the session take precedence.
        """
        self._made_deps = deps

    @property
    def status(self) -> Status:
        """Status of the session: idle, working, suspended or closed."""
        return self._here.status


# --- from handle to context and back ------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class _WeakHandle(FieldRepr):
    """Weak reference to the `Session` handle of an ended session, with the services to create a new handle."""

    reference: "weakref.ref[Session]"
    services: SessionServices

    def restore(self, context: SessionContext) -> Session:
        """Return the public `Session` of `context`: the existing object if the program still holds it, otherwise a new object."""
        handle = self.reference()
        if handle is None:
            handle = Session(context, None, services=self.services)
            context.public_session = handle.__actgent_weak_handle__()
        return handle


def session_of_context(context: SessionContext) -> Session:
    """Return the public `Session` of a session context. Create a new object if the program holds none."""
    if isinstance(context.public_session, _WeakHandle):
        return context.public_session.restore(context)
    assert isinstance(context.public_session, Session)  # noqa: S101 - the assembly creates only this class
    return context.public_session


def internal_context(session: object) -> SessionContext:
    """Return the internal context of a `Session`. If the session was unloaded from memory, the context is outdated."""
    assert isinstance(session, Session)  # noqa: S101 - the assembly creates only this class
    return session._held  # noqa: SLF001 - this module defines both classes


def context_of(session: Session) -> SessionContext:
    """Return the internal context of a `Session`. An unloaded session is first put back into memory."""
    context = internal_context(session)
    if context.public_session is None:
        services_of(session).running.sessions.reload(context, session)
    return context


def _check_task(agent: object, task_id: str | None, deadline: float) -> None:
    if not isinstance(agent, str):
        raise ConfigurationError(
            f"agent= must be the name of an agent, as in worker.name, not {agent!r:.200}"
        )
    if task_id is not None:
        check_id("task_id", task_id)
    check_seconds("deadline", deadline)


def _parse_priority(priority: Priority | PriorityName) -> Priority | None:
    """Parse a priority. Return None for NORMAL, because NORMAL is the default of all calls."""
    named = Priority.named(priority)
    return None if named is Priority.NORMAL else named


def services_of(session: Session) -> SessionServices:
    """Return the shared services of a session's agent."""
    return session._services  # noqa: SLF001 - this module defines both classes


async def has_task_result(session: Session, task_id: str) -> bool:
    """Return True if the session received the result of a delegated task. The cancellation of the task does not count.

    Raises:
        JournalError: The journal cannot be read.
    """
    delegation = services_of(session).delegation
    return await has_received_result(delegation.agents, delegation.journal, context_of(session), task_id)


async def has_fired(session: Session, schedule_id: str) -> bool:
    """Return True if the last record about a schedule of the session is a firing, so that the schedule was not removed.

    Without a journal, return False.

    Raises:
        JournalError: The journal cannot be read.
    """
    journal, context = services_of(session).running.journal, context_of(session)
    if journal is None or context.log is None:
        return False
    await context.log.flush()
    return has_fired_last(await journal.load(context.id, agent=context.agent), schedule_id)


async def schedule_in(session: Session, description: str, *, key: str | None, **times: Any) -> Schedule:
    """Set a schedule in a session and return it. Raise the same errors as `Session.schedule`."""
    context, running = context_of(session), services_of(session).running
    running.lifecycle.check_open(context)
    with running.lifecycle.kept(context):
        now, steady = running.clock.now(), running.clock.steady()
        schedule = parse_schedule(description, now=now, steady=steady, key=key, **times)
        is_soon = schedule.at - (steady if schedule.is_delay else now) < TREE_WINDOW_SECONDS
        find_funding = partial(_funding_of_schedule, running) if is_soon else lambda: None
        via = sources_of_caller()
        return await set_schedule(context, schedule, running.propagation.capture, find_funding, via=via)


def _funding_of_schedule(running: AgentActor) -> Funding | None:
    """Return the budget to which the turns of a schedule that the calling turn sets are charged; None outside of a turn.

    Raises:
        LimitReached: The limits of the calling turn are used up.
    """
    caller = running_session()
    if caller is None or caller.turn is None:
        return None
    return running.runner.turn_lifecycle.accounts.fund_caused_turn(caller.turn, caller.agent)
