"""`Session`, the public handle to a conversation."""

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic, Never, TypeAlias, TypeVar, overload

import attrs
import trio

from actgent.approvals import Approval, Decision
from actgent.control.arguments import check_id, check_seconds
from actgent.control.budget import Budget, Funding
from actgent.control.clock import Clock
from actgent.control.schedule import Schedule, parse_schedule
from actgent.database.database import Database
from actgent.errors import ConfigurationError, SessionMoved, UsageError
from actgent.journal.listing import SessionKey
from actgent.messages import (
    CallProgress,
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
    new_id,
)
from actgent.modes.changes import ModeChange, changes_in
from actgent.modes.mode import Actor
from actgent.modes.modes import Modes
from actgent.runtime.actor import AgentActor
from actgent.runtime.approval_decisions import decide, open_approvals, session_holding
from actgent.runtime.delegation.giving import Delegation, find_tasks, stop_tasks, was_told
from actgent.runtime.following import (
    ObservationReader,
    SessionFollower,
    Wanted,
    follow_session,
    list_observations,
    list_recent,
    observe,
    observe_recent,
)
from actgent.runtime.insight import need_journal
from actgent.runtime.intake import Intake
from actgent.runtime.sessions.closing import close_tree
from actgent.runtime.sessions.elsewhere import Elsewhere
from actgent.runtime.sessions.leaving import check_sendable
from actgent.runtime.sessions.lifecycle import write_end
from actgent.runtime.slots import running_session
from actgent.runtime.starting import wait_started
from actgent.sessions.context import SessionContext, Status, host_of
from actgent.sessions.conversation import MessagePage
from actgent.sessions.following import (
    MessageFilter,
    MessageLinks,
    Observed,
    ObservedType,
    find_links,
    read_matching,
)
from actgent.sessions.handlers import Handler, HandlerKind
from actgent.sessions.incoming import Content, message_to, sayable_parts
from actgent.sessions.waiting.schedules import (
    SOON,
    is_over_by_time,
    schedules,
    set_schedule,
    unset_schedule,
)
from actgent.sessions.waiting.tasks import TASK_DEADLINE, task_key
from actgent.state.handover import given_back, handover_in
from actgent.state.store import Store
from actgent.support.hints import unknown_argument
from actgent.support.leads import OF_CHATS, for_message_ids, for_sessions

X = TypeVar("X")
R = TypeVar("R")
Hears: TypeAlias = Callable[[X], R]
"""A handler of what a session tells."""
HearsIn: TypeAlias = Callable[[X, "Session[Any]"], R]
"""The same, which wants the session, too."""
HandlerOf: TypeAlias = Callable[[X], object] | Callable[[X, "Session[Any]"], object]


@attrs.frozen(eq=False)
class SessionServices:
    """What all sessions of one agent at work are served by."""

    running: AgentActor
    intake: Intake
    delegation: Delegation
    deps: Any
    """The agent's deps for all of its sessions."""
    database: Database | None = None
    """The agent's tables."""
    elsewhere: Elsewhere | None = None
    """The way to sessions that have moved to other processes."""


@for_message_ids
class MessageId(str):
    """Id of a message, as text. Reading attributes of a reply, e.g. `.text`, raises an error that says where to get the reply."""

    __slots__ = ()


@for_sessions
class Session(Generic[DataT_co]):
    """A conversation with an agent. Its turns are processed one after the other, in order within a priority.

    `Session[Offer]` is one with an agent whose `output=` is `Offer`. Where another process of a cluster goes on with it, what is
    said to it goes there, and what would tell or hear of it here raises `SessionMoved`; see docs/guides/cluster.md.
    """

    __slots__ = ("__weakref__", "_held", "_made_deps", "_services", "own_deps")

    def __init__(self, context: SessionContext, services: SessionServices, deps: Any = None) -> None:
        self._held = context
        self._services = services
        self.own_deps = deps
        """The deps that were given to this session; None if there are none."""
        self._made_deps: Any = None
        """The deps that its agent's function returned for it."""

    def __actgent_let_go__(self) -> object:
        """See `SessionContext.let_face_go`."""
        return _LetGo(weakref.ref(self), self._services)

    def __repr__(self) -> str:
        context = self._context
        return (
            f"<Session {self.id} of {self.owner.name!r}, {'moved' if context.has_moved else context.status}>"
        )

    @property
    def _context(self) -> SessionContext:
        """The agent's end, loaded."""
        held = self._held
        return held if held.face is not None else context_of(self)

    @property
    def _here(self) -> SessionContext:
        """The same, of a session that lives in this process.

        Raises:
            SessionMoved: another process goes on with it: what is known here is of before.
        """
        context = self._context
        if context.has_moved:
            raise context.refusal
        return context

    @property
    def _agent(self) -> AgentActor:
        return self._services.running

    # --- what it says --------------------------------------------------------------------

    @overload
    def on_conversation(self, handler: Hears[Reply[DataT_co], R]) -> Hears[Reply[DataT_co], R]: ...
    @overload
    def on_conversation(self, handler: HearsIn[Reply[DataT_co], R]) -> HearsIn[Reply[DataT_co], R]: ...
    def on_conversation(self, handler: Any = None) -> Any:
        """Have `handler(reply)` called with each `Reply`."""
        return self._on("conversation", handler)

    @overload
    def on_event(self, handler: Hears[Event, R]) -> Hears[Event, R]: ...
    @overload
    def on_event(self, handler: HearsIn[Event, R]) -> HearsIn[Event, R]: ...
    def on_event(self, handler: Any = None) -> Any:
        """Have `handler(event)` called with each `Event`, the structured result of an instruction."""
        return self._on("event", handler)

    @overload
    def on_tool_result(self, handler: Hears[ToolResult, R]) -> Hears[ToolResult, R]: ...
    @overload
    def on_tool_result(self, handler: HearsIn[ToolResult, R]) -> HearsIn[ToolResult, R]: ...
    def on_tool_result(self, handler: Any = None) -> Any:
        """Have `handler(result)` called with each `ToolResult`, of failed tools too."""
        return self._on("tool_result", handler)

    @overload
    def on_tool_progress(self, handler: Hears[CallProgress, R]) -> Hears[CallProgress, R]: ...
    @overload
    def on_tool_progress(self, handler: HearsIn[CallProgress, R]) -> HearsIn[CallProgress, R]: ...
    def on_tool_progress(self, handler: Any = None) -> Any:
        """Have `handler(progress)` called with the latest `CallProgress` of each call while tools run."""
        return self._on("tool_progress", handler)

    @overload
    def on_exception(self, handler: Hears[Failure, R]) -> Hears[Failure, R]: ...
    @overload
    def on_exception(self, handler: HearsIn[Failure, R]) -> HearsIn[Failure, R]: ...
    def on_exception(self, handler: Any = None) -> Any:
        """Have `handler(failure)` called with each `Failure`."""
        return self._on("exception", handler)

    @overload
    def on_routing(self, handler: Hears[Route, R]) -> Hears[Route, R]: ...
    @overload
    def on_routing(self, handler: HearsIn[Route, R]) -> HearsIn[Route, R]: ...
    def on_routing(self, handler: Any = None) -> Any:
        """Have `handler(route)` called with each `Route`."""
        return self._on("routing", handler)

    @overload
    def on_token(self, handler: Hears[Token, R]) -> Hears[Token, R]: ...
    @overload
    def on_token(self, handler: HearsIn[Token, R]) -> HearsIn[Token, R]: ...
    def on_token(self, handler: Any = None) -> Any:
        """Have `handler(token)` called with each `Token` of a growing answer; from then on answers are streamed."""
        return self._on("token", handler)

    @overload
    def on_approval(self, handler: Hears[Approval, R]) -> Hears[Approval, R]: ...
    @overload
    def on_approval(self, handler: HearsIn[Approval, R]) -> HearsIn[Approval, R]: ...
    def on_approval(self, handler: Any = None) -> Any:
        """Have `handler(approval)` called with each `Approval`: a tool call that waits for a person, see `answer`."""
        return self._on("approval", handler)

    def _on(self, kind: HandlerKind, handler: Handler | None) -> Handler:
        if handler is None:
            raise TypeError(
                f"on_{kind}() needs the handler: write `@session.on_{kind}` without parentheses, or pass the function "
                f"itself, without calling it: session.on_{kind}(fn)"
            )
        context = self._here
        if context.handlers.take_missed(kind):
            self._agent.core.dispatcher.reports.attached_late(context, kind)
        context.handlers.add(kind, handler, is_outside=True)
        return handler

    def remove_handler(self, handler: Handler) -> None:
        """Call a handler no more, of whatever kinds and however often it was attached; nothing happens if it was not.

        In the middle of a dispatch, too: one that was not called yet is not. A call that has begun goes on.
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
        """Have handlers called as long as the block lasts, e.g. for one connection of a user; all or none is attached.

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
        handlers, attached = self._here.handlers, []
        try:
            for kind, handler in given.items():
                if handler is not None:
                    attached.append(handlers.add(kind, handler, is_outside=True))
            yield self
        finally:
            handlers.drop(attached)

    def follow(self, *, after: int | None = 0) -> AbstractAsyncContextManager[SessionFollower]:
        """An `async with` block with a receive channel of the session's records, first those that are there, then those that come.

        Each record behind the number `after` comes once and in order (`Followed`), with its number, which is the cursor to go
        on from, also in another process: `follow(after=cursor)`. None begins with what comes from now on. In between come the
        answer that grows (`Growing`; as long as it is followed, answers are streamed) and the progress of calls. A reader that
        is slow loses no record, and gets what has grown meanwhile at once; nobody waits for it. It ends with the session.

        Raises:
            ConfigurationError: the runtime has no journal.
            CursorUnknown: the session has not so many records: it was made again, or the journal is an older copy.
            SessionNotFound: the journal has no such session.
            JournalError: it cannot be read.
        """
        self._agent.check_loop("session.follow()")
        key = self._here.key
        return follow_session(self._agent.journal, self._agent.sessions, key, after=after)

    def observe(
        self,
        *,
        types: Collection[ObservedType] | None = None,
        turn: str | None = None,
        after: int | None = None,
    ) -> AbstractAsyncContextManager[ObservationReader]:
        """Subscribe to the observations of the session: intent, plan, thoughts, tool calls, answers, errors.

        The `async with` block gives a receive channel, and its end ends the subscription. `types` and `turn` (the id of a
        message) select observations. `after=0` starts with the history, None with the next observation. To continue after a
        restart without gaps, pass the `cursor` of the old reader as `after`. Growing thoughts are received several times.
        Without a journal, the newest 1,000 records of the session are kept in memory, and older ones are lost.

        Raises:
            CursorUnknown, SessionNotFound, JournalError: see `follow`.
        """
        self._agent.check_loop("session.observe()")
        wanted = Wanted(types=types, turn=turn)
        context = self._here
        if (recent := context.conversation.open_recent()) is not None:
            return observe_recent(context, recent, self._agent.sessions, after=after, wanted=wanted)
        return observe(self._agent.journal, self._agent.sessions, self._here.key, after=after, wanted=wanted)

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
        Without a journal, the newest 1,000 records of the session are kept in memory, and older ones are lost.

        Raises:
            ConfigurationError: The limit is below 1.
            JournalError: The journal cannot be read.
        """
        self._agent.check_loop("session.observations()")
        key, wanted = SessionKey(self.agent_name, self.id), Wanted(types=types, turn=turn)
        if (recent := self._context.conversation.open_recent()) is not None:
            await trio.lowlevel.checkpoint()
            return list_recent(recent, after=after, limit=limit, wanted=wanted)
        journal = need_journal(self._agent.journal)
        return await list_observations(journal, key, after=after, limit=limit, wanted=wanted)

    # --- what it is told -----------------------------------------------------------------

    async def chat(
        self,
        /,
        content: Content,
        sender: Sender | str | None = None,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        enqueue_timeout: float = 30,
        on_busy: OnBusy | None = None,
        metadata: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> str:
        """Enqueue a message and return its id once the inbox has accepted it. The session's handlers receive the results.

        Without a sender, the message comes from the owner, as a user. The call waits at most `enqueue_timeout` seconds for
        room in the inbox; in a handler or tool of this session it never waits. An URGENT message stops the running turn. The
        same `message_id` is accepted once; a repetition does nothing. `on_busy` sets the rule for a busy session; None is the
        session's rule. `metadata` is kept with the message for programs (`message.metadata`), and never shown to a model.
        A `priority` in an unknown word is NORMAL, with a warning in the log; a misspelt one is an error.

        Raises:
            ConfigurationError: The message is empty, or the priority is misspelt or not a priority.
            MessageTooLarge: The message has more bytes than the agent takes (`Agent(message_bytes=...)`).
            InboxFull: there was no room.
            SessionBusy: the session works, and the rule is `reject`.
            SessionClosed: the session was closed.
            NotRunning: the agent's block is not open.
        """
        if unknown:
            raise unknown_argument(Session.chat, unknown, OF_CHATS)
        self._services.running.check_loop("session.chat()")
        if message_id is not None:
            check_id("message_id", message_id)
        check_seconds("enqueue_timeout", enqueue_timeout)
        context = self._context
        message = message_to(
            context,
            content,
            sender,
            priority if type(priority) is Priority else Priority.of_chat(priority),
            message_id=message_id,
            deadline=enqueue_timeout,
            on_busy=on_busy,
            metadata=metadata,
        )
        try:
            await self._services.intake.accept(context, message, once=message_id is not None)
        except SessionMoved as moved:
            await self._elsewhere(moved, sender=sender).chat(
                message.parts,
                priority=message.priority,
                message_id=message.id,
                enqueue_timeout=enqueue_timeout,
                on_busy=on_busy,
                metadata=metadata,
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
        """The message that `chat` would send, for `Agent.receive`; nothing is said by it.

        Raises:
            ConfigurationError: it is empty, or one of these is none that there is.
        """
        if message_id is not None:
            check_id("message_id", message_id)
        return message_to(
            self._context,
            content,
            sender,
            priority,
            message_id=message_id,
            on_busy=on_busy,
            metadata=metadata,
        )

    async def deliver(self, delivery: Delivery[DataT_co]) -> None:
        """Have the handlers of a kind called with a `Reply`, `Event`, `ToolResult`, `Failure`, ..., e.g. in a test or a bridge.

        Nothing of it stands in the record or the journal, and no turn begins or ends by it. A reader of the session's running
        stream gets it, too.

        Raises:
            ConfigurationError: it is nothing that handlers get.
        """
        self._agent.check_loop("session.deliver()")
        if not isinstance(
            delivery, Reply | Event | Route | Failure | ToolResult | Token | CallProgress | Approval
        ):
            raise ConfigurationError(
                f"session.deliver() takes what handlers get, e.g. Reply(text='...'), not {delivery!r:.200}"
            )
        await self._agent.core.dispatcher.dispatch(self._here, delivery)
        await trio.lowlevel.checkpoint()

    async def interrupt(
        self, reason: str = "interrupted", *, drop_queued: bool = False, message_id: str | None = None
    ) -> None:
        """Stop what runs: no model call follows, and the message ends as `Failure(kind="interrupted")`.

        With `drop_queued` the waiting messages end so, too. With a `message_id` only that message ends so, running or waiting,
        or when it comes; nothing happens if it has ended. Returns when the turn has ended, which is durable then.

        Raises:
            JournalError: it has ended, and the journal does not know: a crash before it works again brings it back.
            NotRunning: its agent stops, and the next start goes on with it.
        """
        self._agent.check_loop("session.interrupt()")
        context, lifecycle = self._context, self._agent.lifecycle
        running = next(iter(context.answered_ids), None)
        try:
            if message_id is not None:
                await lifecycle.interrupt_message(context, message_id, reason)
            else:
                await lifecycle.interrupt(context, reason, drop_queued=drop_queued)
            await write_end(context)
        except SessionMoved as moved:
            if (
                message_id is None and not drop_queued
            ):  # it may have ended by this, and another one runs there
                message_id = running
            remote = self._elsewhere(moved)
            await remote.interrupt(reason, drop_queued=drop_queued, message_id=message_id)

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
        """Have the session told "Running scheduled task: " and the description: in `after` seconds, at a date, or by a cron line.

        A date without a time zone and a cron line are read in `zone` (`Europe/Berlin`; for cron lines UTC by default).
        With a journal it is durable on return and fires also after a restart, and at the start where its time has
        passed meanwhile; without one it ends with the agent's block. An unloaded session is reloaded. What was set
        under a `key` is not set again. The message has this `priority`, and this `metadata`, as that of `chat`. Nobody says it
        at that moment, so its sender is always the schedule, of the kind system.

        Raises:
            ConfigurationError: the time is wrong, in the past by more than a minute, or not exactly one is given; or there is
                no such priority.
            TooManySchedules: the session has 100.
            LimitReached: a turn schedules another one that begins within a minute, and what that one draws on, too, is used up.
            SessionClosed, NotRunning: nothing can be said to it any more.
        """
        self._agent.check_loop("session.schedule()")
        check_id("key", key)
        times: dict[str, Any] = {"after": after, "at": at, "cron": cron, "zone": zone}
        said: dict[str, Any] = {"priority": priority, "metadata": metadata}
        try:
            return await schedule_in(self, description, key=key, **times, **said)
        except SessionMoved as moved:
            made: Schedule = await self._elsewhere(moved).schedule(description, key=key, **times, **said)
            return made

    async def unschedule(self, schedule_id: str) -> bool:
        """Remove a schedule; False where none of this id is set, since it has fired or never was there."""
        self._agent.check_loop("session.unschedule()")
        context, was_tried = self._context, False
        with suppress(SessionMoved):
            if not context.has_moved:
                was_tried = schedule_id in {each.id for each in schedules(context)}
                with self._agent.lifecycle.kept(context):
                    was_here = await unset_schedule(context, schedule_id)
                    await write_end(context)
                return was_here
        there = self._elsewhere(SessionMoved(self.agent_name, self.id))
        was_set: bool = await there.removed("unschedule", schedule_id, may_be_done=was_tried)
        return was_set

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The session's schedules, the next first."""
        return schedules(self._here)

    @property
    def clock(self) -> Clock:
        """The clock for schedules and deadlines: `session.clock.now()`."""
        return self._agent.clock

    async def wait_idle(self) -> None:
        """Wait until nothing is queued or running; a turn that waits for people, and what is queued behind it, count as idle.

        What was answered is in the journal then, unless that fails.

        Raises:
            WouldDeadlock: called from a handler or tool of this session, which would wait for itself.
        """
        self._agent.check_loop("session.wait_idle()")
        try:
            await self._agent.lifecycle.wait_idle(self._context)
        except SessionMoved as moved:
            await self._elsewhere(moved).wait_idle()

    async def delegate(
        self,
        agent: str,
        task: Content,
        *,
        priority: Priority | PriorityName = Priority.NORMAL,
        task_id: str | None = None,
        deadline: float = TASK_DEADLINE,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Give a task to another agent of the runtime, without waiting for it; returns the task's id.

        What it comes to, an answer or a failure, is a message into this session later (its sender is of the kind
        agent), which starts a turn here; several that come while a turn runs are answered together. Until then the
        task is a child session of that id, or of one that is made from it where the agent has another session of that
        id, and is closed with this one. With a journal both survive the process; a caller that gives the same `task_id`
        to the same agent again after a crash gets the same task, and other sessions get others. The task's message has this
        `metadata`, as that of `chat` (an agent of another pool is not told); its sender is this session's agent, and it draws on what
        this session may use.

        Where nothing has come `deadline` seconds after it was given (a week; `math.inf` is never), the task is stopped and
        fails with `DeadlineExceeded`, of the kind `deadline`. Time in which it is queued, waits for people or the process
        is down counts, too.

        Raises:
            ConfigurationError: the deadline or the task's id is none, or there is no such priority.
            NotRunning: no agent of this name runs in the runtime.
            LimitReached: as many tasks of this session are out as may be.
        """
        self._agent.check_loop("session.delegate()")
        _check_task(agent, task_id, deadline)
        try:
            return await self._delegate(
                agent, task, task_id, priority=Priority.named(priority), deadline=deadline, metadata=metadata
            )
        except SessionMoved as moved:
            there = self._elsewhere(moved, priority=_not_normal(priority))
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
            sayable_parts(task),
            key=task_key(context.scope, task_id) if task_id else f"{self.id}/task/{new_id()}",
            name=task_id or "",
            priority=priority,
            deadline=deadline,
            metadata=noted,
        )

    async def cancel_task(self, task_id: str) -> bool:
        """Stop a delegated task and close its session, durable on return; nothing of it is told. False where it is not at work.

        False, too, where what it came to was told while it was stopped. Where several agents were given a task of this id,
        all of them are stopped. With children of its own, they are closed, too.

        Raises:
            NotRunning: after a restart, where the task's agent does not run here.
            JournalError: it is closed, and the journal does not know, or it cannot be looked for.
        """
        self._agent.check_loop("session.cancel_task()")
        context, known = self._context, self._services.delegation
        tasks: Sequence[SessionContext] = ()
        try:
            await trio.lowlevel.checkpoint()
            if context.has_moved:
                raise context.refusal
            tasks = await find_tasks(known.agents, known.journal, context, task_id)
            return await stop_tasks(known.agents, known.journal, context, tasks)
        except SessionMoved as moved:
            there = self._elsewhere(moved)
            was_at_work: bool = await there.removed("cancel_task", task_id, may_be_done=bool(tasks))
            return was_at_work

    @property
    def handed_to(self) -> str:
        """The name of the agent that the session was handed over to, and that answers now; empty where its own one does."""
        return handover_in(self._here.seen_state).agent

    async def hand_back(self) -> None:
        """Let the session's own agent answer again, from the next message on; durable on return.

        What the other agent is just answering goes on. Nothing happens where the session was not handed over.

        Raises:
            NotRunning: its agent stops, and the next start goes on as before.
        """
        self._agent.check_loop("session.hand_back()")
        context = self._here
        handover = handover_in(context.seen_state)
        if handover.agent:
            context.state.dispatch(given_back)
            await self._agent.core.tell_idle(context)
        await write_end(context)
        for child in tuple((context.children or {}).values()):
            if handover.number and child.id.endswith(f"/{handover.child}") and child.turn is None:
                await host_of(child).close(child)
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close the session and its children: what runs is interrupted, what waits ends as `Failure(kind="stopped")`.

        With a journal it is durable on return, and children are closed, too, that only the journal has since a restart; those
        whose agents do not run here, or that cannot be opened, stay open, which the log says.

        Raises:
            JournalError: they are closed, and the journal hears of it when it works: a crash before that opens them, to be closed again.
            NotRunning: its agent stops, and the next start goes on with it.
        """
        self._agent.check_loop("session.aclose()")
        try:
            await close_tree(
                self._context, self._services.running.journal, self._services.delegation.agents.opener
            )
        except SessionMoved as moved:
            await self._elsewhere(moved).aclose()

    # --- what people decide ----------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide over a tool call that waits, by its approval or the id of that; durable on return.

        Those of the sessions that work for this one, e.g. of an agent that is a tool here, are decided here, too.

        `Approve` and `Edit` let the tool run, `Reject` does not, `Respond` answers in its place. Each is decided once;
        when none of the turn waits any more it goes on. `by` is whoever decided, for the journal.

        Raises:
            NotSuspended: nothing waits in this session.
            ApprovalNotFound: nothing of this id waits.
            ApprovalMismatch: the approval was altered, so it stands for something else.
            AlreadyDecided: somebody was faster, it has expired, or it was withdrawn.
            InvalidArguments: what `Edit` or `Respond` carries does not fit; it waits on.
            NotSerializable: what `Respond` carries is no plain data; it waits on.
            SessionClosed, NotRunning: nothing is left to resume the turn.
        """
        self._agent.check_loop("session.answer()")
        try:
            context = session_holding(self._context, approval)
            await decide(services_of(face_of(context)).running, context, approval, decision, by=by)
        except SessionMoved as moved:
            await self._elsewhere(moved).answer(approval, decision, by=by)

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The tool calls that wait for a person, oldest first, and those of the open sessions that work for this one."""
        return open_approvals(self._here)

    def _elsewhere(self, moved: SessionMoved, **given: object) -> Any:
        """The same session where it lives now, with the names of this class.

        Raises:
            SessionMoved: there is no way to it.
            ConfigurationError: what was given stays in its process.
        """
        known = self._services.elsewhere
        if known is None:
            raise moved
        check_sendable(given, moved)
        return known.session(self.agent_name, self.id, owner=self.owner.name)

    # --- its mode ------------------------------------------------------------------------

    async def set_mode(
        self, mode: str, *, by: Actor = "user", reason: str = "", force: bool = False
    ) -> ModeChange:
        """Switch the session to another mode. The change is durable on return, and the model is notified before its next call.

        `by` names who asks for the switch: a user, the agent, or an admin. With `by="admin"`, `force=True` overrides all rules.
        Tool calls that have started continue; later calls of the running turn are checked against the new mode.

        Raises:
            ConfigurationError: The agent has no mode of this name.
            ModeRefused: The rules do not allow the switch.
            UsageError: The agent has no modes.
            NotRunning: The agent is stopping; the session keeps the old mode.
        """
        self._agent.check_loop("session.set_mode()")
        context = self._here
        change = self._modes.switch(context.state, mode, by=by, reason=reason, force=force)
        await self._agent.core.tell_idle(context)
        await write_end(context)
        return change

    @property
    def mode(self) -> str:
        """The mode that it is in.

        Raises:
            UsageError: the agent has no modes.
        """
        return self._modes.mode_of(self._here.seen_state)

    @property
    def mode_changes(self) -> tuple[ModeChange, ...]:
        """The last 100 mode changes of the session, oldest first."""
        return changes_in(self._here.seen_state)

    @property
    def _modes(self) -> Modes:
        modes = self._agent.core.modes
        if modes is None:
            raise UsageError(f"agent {self._agent.name!r} has no modes: pass modes=Modes(...)")
        return modes

    # --- what it is ----------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._context.id

    @property
    def agent_name(self) -> str:
        return self._agent.name

    @property
    def is_durable(self) -> bool:
        """True if a journal holds the session, so that it survives its process."""
        return self._agent.journal is not None

    @property
    def owner(self) -> Sender:
        return self._context.owner

    @property
    def description(self) -> str:
        """What it was opened with, at most 2,000 characters of it; its first message has all of it."""
        return self._context.conversation.description

    @property
    def parent(self) -> "Session | None":
        parent = self._context.parent
        return None if parent is None else face_of(parent)

    @property
    def children(self) -> "tuple[Session, ...]":
        """The open sessions that were created with this one as parent."""
        return tuple(face_of(child) for child in (self._here.children or {}).values())

    async def messages(
        self,
        *,
        limit: int = 100,
        before: int | datetime | None = None,
        after: int | datetime | None = None,
        roles: Collection[SenderKind] | None = None,
    ) -> MessagePage:
        """Read some of the messages, without the others: the newest, those before a place or date, or those behind one.

        `roles` are the kinds of senders whose messages are wanted. `("user", "assistant")` is the conversation as users see it:
        the user's messages and the final answers. Intermediate answers (plans, tool calls, answers that were asked for again) are
        left out then; `links` of the final answer has them as `steps`. Without roles all messages are read. Between two dates
        come the newest.
        `page.first` is the place of the first one, from 0: `messages(before=page.first)` is the page before. What is not
        in memory is read from the journal, and not kept.

        Raises:
            ConfigurationError: `limit` is less than 1, two places are given, a date has no time zone, or a role is none.
            SessionNotFound: the session was erased meanwhile.
            JournalError: they cannot be read.
        """
        self._agent.check_loop("session.messages()")
        conversation = self._here.conversation
        if roles is None and not isinstance(before, datetime) and not isinstance(after, datetime):
            return await conversation.read(limit=limit, before=before, after=after)
        return await read_matching(conversation, MessageFilter.of(before, after, roles), limit=limit)

    async def links(self, message: Message | str) -> MessageLinks:
        """Find the turn and trace of a message of the history, its cause, its tool calls, their results and its observations.

        The user's message and the final answer are linked to the whole turn, with its intermediate messages as `steps`.
        Without a journal, observations are those that are still in memory; see `observations`.

        Raises:
            ConfigurationError: the history has no such message.
            JournalError: it cannot be read.
        """
        self._agent.check_loop("session.links()")
        known = message if isinstance(message, str) else message.id
        links = await find_links(self._here.conversation, known)
        after, found = 0, dict[str, Observed]()
        while page := await self.observations(turn=links.turn, after=after, limit=1000):
            found |= {each.id: each for each in page if links.concerns(each)}
            after = page[-1].number
        return attrs.evolve(links, observations=tuple(found.values()))

    @property
    def history(self) -> tuple[Message, ...]:
        """Everything that happened, oldest first.

        Of a long session that came back from its journal older messages are read when this is first asked for, while all
        else waits; they stay in memory. `messages` reads some of them.
        """
        return self._here.conversation.history

    @property
    def on_busy(self) -> OnBusy:
        """The rule for messages while the session works: queue, collect, interrupt or reject."""
        return self._context.mail.on_busy

    @property
    def state(self) -> Store:
        """The session's store: a read-only mapping with `dispatch`."""
        return self._here.state

    @property
    def usage(self) -> Usage:
        """The usage of the session's model calls; `usage.total` is that with the sessions that worked for it."""
        return self._here.conversation.usage

    @property
    def budget(self) -> Budget | None:
        """The budget of the running turn, or of the session between turns; None if nothing bounds it.

        `budget.left` tells what is left of each bound.
        """
        context = self._here
        turn, accounts = context.turn, context.accounts
        if turn is not None and turn.budget is not None:
            return turn.budget
        return Budget(accounts) if accounts else None

    @property
    def database(self) -> Database | None:
        """The tables of its agent; None if it has none. Tools use `ToolContext.database`."""
        return self._services.database

    @property
    def deps(self) -> Any:
        """What tools are given as `ToolContext.deps`: of the run, else of the session, its agent, or the session above; or None."""
        held, turn = self._held, self._held.turn
        of_run = None if turn is None else turn.options.deps
        for found in (of_run, self.own_deps, self._made_deps, self._services.deps):
            if found is not None:
                return found
        return None if held.parent is None else face_of(held.parent).deps

    def take_made_deps(self, deps: Any) -> None:
        """Use what the agent's function returned, where nothing else was given."""
        self._made_deps = deps

    @property
    def status(self) -> Status:
        return self._here.status


# --- the user's end and the agent's ------------------------------------------------------


@attrs.frozen(eq=False)
class _LetGo:
    """The user's end of a session that has ended: as long as somebody holds it, and then another one."""

    held: "weakref.ref[Session]"
    services: SessionServices

    def again(self, context: SessionContext) -> Session:
        face = self.held()
        if face is None:
            face = Session(context, self.services)
            context.face = face.__actgent_let_go__()
        return face


def face_of(context: SessionContext) -> Session:
    """The user's end of a session that is loaded, or has ended."""
    if isinstance(context.face, _LetGo):
        return context.face.again(context)
    assert isinstance(context.face, Session)  # noqa: S101 - assembly makes no other
    return context.face


def held_by(session: object) -> SessionContext:
    """The agent's end of a session, also of one that was unloaded."""
    assert isinstance(session, Session)  # noqa: S101 - assembly makes no other
    return session._held  # noqa: SLF001 - it is this module that knows both ends


def context_of(session: Session) -> SessionContext:
    """The agent's end of a session, loaded."""
    context = held_by(session)
    if context.face is None:
        services_of(session).running.sessions.reload(context, session)
    return context


def _check_task(agent: object, task_id: str | None, deadline: float) -> None:
    if not isinstance(agent, str):
        raise ConfigurationError(f"agent= is the name of an agent, as in worker.name, not {agent!r:.200}")
    if task_id is not None:
        check_id("task_id", task_id)
    check_seconds("deadline", deadline)


def _not_normal(priority: Priority | PriorityName) -> Priority | None:
    """A priority that others have to be told of; None for the one that all have."""
    named = Priority.named(priority)
    return None if named is Priority.NORMAL else named


def services_of(session: Session) -> SessionServices:
    """Return the services that a session uses."""
    return session._services  # noqa: SLF001 - it is this module that knows both ends


def was_task_told(session: Session, task_id: str) -> bool:
    """Return True if a session was told what a task of this id came to."""
    return was_told(services_of(session).delegation.agents, context_of(session), task_id)


async def has_fired(session: Session, schedule_id: str) -> bool:
    """Return True if a schedule is over because its time came, and nobody removed it; False where no journal knows.

    Raises:
        JournalError: it cannot be read.
    """
    journal, context = services_of(session).running.journal, context_of(session)
    if journal is None or context.log is None:
        return False
    await context.log.flush()
    return is_over_by_time(await journal.load(context.id, agent=context.agent), schedule_id)


async def schedule_in(session: Session, description: str, *, key: str | None, **times: Any) -> Schedule:
    """Set a schedule in a session; see `Session.schedule`."""
    context, running = context_of(session), services_of(session).running
    running.lifecycle.check_open(context)
    with running.lifecycle.kept(context):
        now, steady = running.clock.now(), running.clock.steady()
        schedule = parse_schedule(description, now=now, steady=steady, key=key, **times)
        is_soon = schedule.at - (steady if schedule.is_delay else now) < SOON
        fund = partial(_fund_later, running) if is_soon else lambda: None
        return await set_schedule(context, schedule, running.propagation.take, fund)


def _fund_later(running: AgentActor) -> Funding | None:
    """What a turn draws on that the one brings about in which this is called; None where none calls it.

    Raises:
        LimitReached: see `Accounts.lead_later`.
    """
    asker = running_session()
    if asker is None or asker.turn is None:
        return None
    return running.runner.turn_lifecycle.accounts.lead_later(asker, asker.turn, asker.agent)
