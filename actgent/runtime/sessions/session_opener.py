"""`SessionOpener`: creates, finds and restores the sessions of an agent."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from types import TracebackType
from typing import Any, Unpack

import attrs
import trio

from actgent.errors import ActgentError, SessionClosed, SessionExists, SessionNotFound, WrongOwner
from actgent.journal.record_types import NO_LIMITS, Record, SessionCreatedRecord
from actgent.journal.session_list_queries import SessionKey
from actgent.journal.session_tags_and_metadata import NO_ANNOTATIONS, SessionAnnotations
from actgent.limits_and_schedules.id_and_number_validation import check_id, check_session_limits
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import Content, Message, OnBusy, Sender, check_busy_rule
from actgent.runtime.agent_actor import AgentActor
from actgent.runtime.message_admission import MessageAdmission
from actgent.runtime.resumption_during_startup import StartPhase
from actgent.runtime.waits_between_sessions import running_session, sources_of_caller
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.imported_history import ImportedMessage, add_history, check_history
from actgent.sessions.parent_and_child_sessions import SessionTree
from actgent.sessions.pending.delegated_tasks import Task, TaskDeadline
from actgent.sessions.recent_records_without_journal import RecentRecords
from actgent.sessions.restore.record_replayer import is_unused
from actgent.sessions.restore.session_loader import restore_loaded
from actgent.sessions.session_context import SessionContext
from actgent.sessions.session_handlers import name_of, to_awaitable
from actgent.state.reducers import Reducer
from actgent.state.session_state import StateCheck
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.fast_attrs_constructors import fast_constructor
from actgent.support.safe_logging import LogVariable, logger_of
from actgent.support.user_code_calls import convert_user_error
from actgent.turns.turn_lifecycle import DepsMissingCheck

from .new_session import (
    FirstRecordFields,
    NewSession,
    OnSession,
    build_created_record,
    check_parent,
    to_owner,
    validate_new_session,
)
from .remote_session_interface import RemoteSessions
from .session_ids import choose_id, choose_session_id, id_in_tree
from .session_loading import (
    PendingOpen,
    PendingOpens,
    check_deps,
    check_owner_by_summary,
    find_root_owner,
    is_orphan,
    is_outdated,
    load_tail,
    mark_restored,
    restored_task,
    with_parent_agent,
)
from .session_table import SessionTrees

ERASE_TIMEOUT_SECONDS = 1.0
"""Maximum seconds for erasing a session whose creation failed, before the caller receives the error."""
_NO_OTHER_OPENER: AbstractContextManager[None] = nullcontext()
"""Block without effect, for new sessions with random ids, which no other task can open."""
_log = logger_of(__name__)
_make_context, _make_conversation = fast_constructor(SessionContext), fast_constructor(SessionConversation)


@attrs.frozen(eq=False, repr=False)
class SessionOpener(FieldRepr):
    """Opens the sessions of one running agent."""

    running: AgentActor
    admission: MessageAdmission
    make_handle: Callable[[SessionContext, object], object]
    """Function `(context, deps)` that creates a session's public handle, the `Session` object of the program."""
    trees: SessionTrees
    start_phase: StartPhase
    """Start phase of the runtime, in which resumed turns wait for agents that are not started yet."""
    reducers: Mapping[str, Reducer] | None
    on_busy: OnBusy
    """Default rule for messages to a session with a running turn."""
    on_session: Sequence[OnSession]
    """Functions registered with `Agent.on_session`. They are called when a session is created or loaded, before its messages."""
    deps_missing: DepsMissingCheck
    """Function that returns the error of a restored session whose tools lack deps; None if none are missing."""
    remote_sessions: RemoteSessions | None = None
    """Access to sessions in other processes; None without a cluster."""
    runs_session_hooks: Callable[[SessionContext], bool] = lambda _: True
    """Predicate that returns True if the `on_session` functions are called for a session, False for internal sessions."""
    state_check: StateCheck | None = None
    """Function that checks each state change of a session; None accepts all changes."""
    _pending_opens: PendingOpens = attrs.field(factory=PendingOpens)
    """Sessions by id that are being created, loaded or erased; see `Directory.pending_opens_of`."""

    # --- new ones --------------------------------------------------------------------------

    def new(
        self,
        owner: Sender,
        *,
        session_id: str | None = None,
        parent: SessionContext | None = None,
        system: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        task: Task | None = None,
        is_transient: bool = False,
        deps: object = None,
        history: Iterable[ImportedMessage] = (),
        notify: Sequence[str] = (),
        is_described: bool = False,
        asker: str = "",
        annotations: SessionAnnotations = NO_ANNOTATIONS,
    ) -> SessionContext:
        """Create a session in memory, without calling the `on_session` functions.

        The arguments are the options of `Agent.create_session` and the fields of `SessionCreatedRecord`. `owner` is the
        session's owner. `task` is the delegated task that the session executes; None for other sessions.

        Raises:
            SessionExists: A session in memory has the id.
            ConfigurationError: Another process may own sessions with this id, while this one owns the parent.
            SessionMoved: Another process owns sessions with this id, or is about to.
        """
        running = self.running
        lifecycle, conversation = running.lifecycle, _make_conversation(running.core.memory.open_view())
        context = _make_context(
            choose_session_id(running, session_id, parent),
            owner,
            conversation,
            running.name,
            lifecycle,
            self.on_busy if on_busy is None else check_busy_rule(on_busy),
            self.reducers,
            self.state_check,
            None if parent is None and task is None else _tree_of(parent, task),
        )
        conversation.system, context.annotations = system, annotations
        if system is not None:
            conversation.add_via(sources_of_caller())
        context.public_session = self.make_handle(context, deps)
        if running.journal is not None or lifecycle.eviction.drains:
            context.log = lifecycle.new_log(context.id, lifecycle.eviction.epoch_of(context.id))
        if running.journal is None:
            conversation.recent = RecentRecords()
        running.lifecycle.open(context)
        if self._pending_opens:
            self._pending_opens.note_loaded(context.id)
        bounds = NO_LIMITS if limits is None else limits.shared
        if bounds or parent is not None:
            self.running.runner.turn_lifecycle.accounts.open_session(context, self.running.name, bounds)
        if context.log is not None:
            given = FirstRecordFields(deps is not None, tuple(notify), is_transient, is_described, asker)
            context.log.record_creation(
                build_created_record(context, bounds, on_busy, given, self.running.clock.now())
            )
            context.log.is_temporary = is_transient and task is None
        if history:
            add_history(
                context, check_history(history, via=sources_of_caller()), now=self.running.clock.now()
            )
        if task is not None and task.deadline:
            context.set_timer(TaskDeadline(task.deadline, task.seconds))
        return context

    def new_for_request(self) -> SessionContext:
        """Create a session in memory for a single request.

        If a turn makes the request, the session of the turn becomes the parent, and the agent of the turn becomes the owner.
        """
        caller = running_session()
        owner = Sender("user") if caller is None else Sender(caller.agent, "agent")
        return self.new(owner, parent=caller, is_transient=True)

    async def create(
        self,
        owner: Sender | str,
        description: Content = "",
        *,
        session_id: str | None = None,
        deps: object = None,
        parent: SessionContext | None = None,
        system: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        history: Iterable[ImportedMessage] = (),
        notify: Sequence[str] = (),
        asker: str = "",
        annotations: SessionAnnotations = NO_ANNOTATIONS,
        message_metadata: Mapping[str, Any] | None = None,
    ) -> SessionContext:
        """Create a session, and accept its first message if `description` is not empty.

        Other arguments are those of `Agent.create_session`. `asker` identifies the request that creates the session; it is
        stored in the first record, as are `notify` and `annotations`. `message_metadata` is set on the first message.
        """
        if limits is not None:
            check_session_limits(limits)
        history = history if history == () else check_history(history)
        owner = to_owner(owner)
        if parent is not None:
            check_parent(self.running.name, owner, parent)
        if session_id is not None:
            await self.wait_opened(session_id)
        with _NO_OTHER_OPENER if session_id is None else self.marked_as_opening(session_id):
            if session_id is not None:
                await self._check_unused(session_id)
            context = self.new(
                owner,
                session_id=session_id,
                parent=parent,
                system=system,
                on_busy=on_busy,
                limits=limits,
                deps=deps,
                history=history,
                notify=notify,
                is_described=bool(description),
                asker=asker,
                annotations=annotations,
            )
            if description or self.on_session or self.running.journal is not None:
                await self._begin(context, description, message_metadata)
            else:  # nothing to restore: only a cancellation of the caller removes the session again
                try:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    await self.running.inbox.yield_to_turns()
                except BaseException:
                    await self.withdraw(context)  # noqa: ASYNC102 - it shields its own cleanup, with a time limit
                    raise
            return context

    async def _begin(self, context: SessionContext, description: Content, metadata: Any) -> None:
        """Call the `on_session` functions for a new session. Then accept its first message `description`.

        If `description` is empty, record the session without a message. If a step fails, remove the session.
        """
        async with SessionInitializer(self, context):
            if description:
                await self.admission.accept_first(
                    context, context.new_message(description, metadata=metadata)
                )
            elif context.log is not None:
                await context.log.flush()

    def single_message_block(self, context: SessionContext) -> "SessionInitializer":
        """Return a block in which the caller sends a new session its only message. The session ends after that message.

        If the block fails, the session is removed.
        """
        return SessionInitializer(self, context, ends=True)

    async def withdraw(self, context: SessionContext) -> None:
        """Remove a new session whose creation has failed, and erase its records within a time limit.

        If the session's handlers have sent messages to it, the session ends after these messages instead.
        """
        if context.pending:
            if context.log is not None:
                context.log.is_unused = True
            self.running.lifecycle.unload_when_idle(context)
            return
        may_be_there = context.log is not None and context.log.withdraw()
        if may_be_there and context.parent is not None and context.parent.log is not None:
            context.parent.log.has_withdrawn_child = True
        self.running.lifecycle.discard(context)
        if may_be_there:
            opening = PendingOpen(erases=True, earlier=self._pending_opens.get(context.id))
            if self.running.runner.start_soon(self._erase, context.id, opening):
                self._pending_opens[context.id] = opening  # callers that open this id wait for it
                with trio.move_on_after(ERASE_TIMEOUT_SECONDS, shield=True):
                    await opening.done.wait()

    async def _erase(self, session_id: str, opening: PendingOpen) -> None:
        """Erase the records of a session whose creation has failed. `opening` is the entry of the erasure in the pending opens.

        If the erasure fails, the next task that opens the session id repeats it.
        """
        try:
            await self._load(session_id)
        except ActgentError as error:
            _log.warning(
                "agent %s: session %s, which no caller received, cannot be erased: %s",
                self.running.name,
                LogVariable(session_id),
                error,
            )
        finally:
            self._pending_opens.end(session_id, opening)

    async def call_on_session(self, context: SessionContext) -> None:
        """Call the functions registered with `Agent.on_session` for a session, in the order of their registration."""
        if not (self.on_session and self.runs_session_hooks(context)):
            return
        with self.running.lifecycle.eviction.cancelled_on_eviction(context.id):
            for fn in tuple(self.on_session):
                if fn in self.on_session:  # an earlier function may have removed it
                    await _call_with(fn, context.public_session)
        context.handlers.mark_agent_handlers()

    # --- those that are there --------------------------------------------------------------

    async def open(
        self, session_id: str, *, owner: Sender | str | None = None, deps: object = None
    ) -> SessionContext:
        """Return the open session with an id, loaded from the journal if necessary.

        Raises:
            SessionNotFound: No session has the id.
            SessionClosed: The session was closed.
            WrongOwner: `owner` is set, and the session has another owner.
        """
        wanted = None if owner is None else to_owner(owner)
        if wanted is not None:
            await self.wait_opened(session_id)
            await check_owner_by_summary(self.running, session_id, wanted)
        context = await self.find(session_id, deps=deps)
        self._check_owner(context, wanted)
        return context

    def _check_owner(self, context: SessionContext, owner: Sender | None) -> None:
        if owner is not None and context.owner != owner:
            raise WrongOwner(self.running.name, context.id, owner.name)

    async def find(self, session_id: str, *, deps: object = None) -> SessionContext:
        """Return the session with this id, loaded from the journal if necessary. The owner of the session is not checked.

        `deps` is the dependency object for the tools of a loaded session.

        Raises:
            SessionNotFound: No session has the id.
            SessionClosed: The session was closed.
        """
        await self.wait_opened(session_id)
        if self.running.journal is not None and session_id not in self.running.sessions:
            with self.marked_as_opening(session_id):
                return await self.reopen(session_id, deps)
        return await self._context_after_checkpoint(self.running.sessions.find(session_id).public_session)

    def find_loaded(self, session_id: str) -> SessionContext | None:
        """Return the session with this id if it is open and in memory; None otherwise. Never waits."""
        context = self.running.sessions.get(session_id)
        if context is None or context.closed or session_id in self._pending_opens:
            return None
        return context  # not about to leave: an eviction begins with closing the context

    async def _context_after_checkpoint(self, handle: object) -> SessionContext:
        """Execute a checkpoint, then return the session context of a public handle. If it was unloaded, put it back into memory."""
        await trio.lowlevel.checkpoint()
        return self.running.sessions.loaded(handle)

    @asynccontextmanager
    async def loaded(self, session_id: str) -> AsyncGenerator[SessionContext, None]:
        """Return a block that yields the open session with this id, and keeps it in memory. Load it from the journal if necessary.

        Raises:
            SessionNotFound: No session has the id.
            SessionClosed: The session was closed.
        """
        with self.running.lifecycle.kept(await self.find(session_id)) as context:
            yield context

    async def ensure(
        self, owner: Sender | str, session_id: str, *, deps: object = None, **new: Unpack[NewSession]
    ) -> SessionContext:
        """Return the open session with this id. If no such session exists, create it with the options `new`."""
        validate_new_session(new)
        wanted = to_owner(owner)
        await self.wait_opened(session_id)
        with self.marked_as_opening(session_id):
            try:
                await check_owner_by_summary(self.running, session_id, wanted)
                context = await self.find(session_id, deps=deps)
            except WrongOwner:
                raise
            except SessionNotFound:
                check_id("session_id", session_id)
                context = await _create_or_find(self, wanted, session_id, deps=deps, **new)
        self._check_owner(context, wanted)
        return context

    async def ensure_child(
        self, parent: SessionContext, name: str, *, history: Iterable[ImportedMessage] = ()
    ) -> SessionContext:
        """Return the child session `name` of `parent`. If it does not exist, create it with the messages in `history`."""
        plain = f"{parent.id}/{name}"
        await self.wait_opened(plain)
        with self.marked_as_opening(plain):
            session_id = await choose_id(
                self.running, parent, plain, id_in_tree(self.running, parent, f"{parent.scope}/{name}")
            )
            try:
                return await self.find(session_id)
            except SessionNotFound:
                return await _create_or_find(self, parent.owner, session_id, parent=parent, history=history)

    async def _check_unused(self, session_id: str) -> None:
        """Raise `SessionExists` if the journal has a session with this id."""
        journal = self.running.journal
        head = None if journal is None else await journal.head(self.running.name, session_id)
        if head is not None and (not head.closed or await self._load(session_id)):
            raise SessionExists(self.running.name, session_id)

    async def _load(self, session_id: str) -> Sequence[Record]:
        """Read the records of a session from the journal.

        If no caller ever received the session's id, erase its records and return an empty sequence.
        """
        journal = self.running.journal
        records = () if journal is None else await journal.load(session_id, agent=self.running.name)
        if journal is not None and is_unused(records):
            await journal.delete(session_id, agent=self.running.name)
            return ()
        return records

    async def wait_opened(self, session_id: str) -> None:
        """Wait until a session is not being evicted from this process, and no other task is opening it."""
        while (left := self.running.lifecycle.eviction.find(session_id)) is not None:
            await left.wait()
        await self._pending_opens.wait(session_id)

    async def wait_loaded(self, session_id: str) -> None:
        """Wait until a session that another task creates or opens is in memory. Its `on_session` handlers may still be running."""
        await self._pending_opens.wait_loaded(session_id)

    def marked_as_opening(self, session_id: str) -> AbstractContextManager[None]:
        """Return a block in which a session is marked as being opened. Other tasks that open the session wait for its end."""
        return self._pending_opens.block(session_id, erases=False)

    def pending_open_events(self, is_wanted: Callable[[str], bool]) -> list[trio.Event]:
        """Return the events that are set when the pending openings of the sessions end whose ids `is_wanted` accepts."""
        wanted = [session_id for session_id in self._pending_opens if is_wanted(session_id)]
        return [each.done for session_id in wanted for each in self._pending_opens.of(session_id)]

    def may_erase(self, session_id: str) -> bool:
        """Return True if no task is opening a session, and the session has no work, timers or unwritten records in memory."""
        context = self.running.sessions.find_any(session_id)
        return session_id not in self._pending_opens and (context is None or context.is_quiescent)

    def _find_known(self, session_id: str) -> SessionContext | None:
        """Return the session with this id if it is in memory, or if the program holds its handle; None otherwise.

        Raises:
            SessionClosed, SessionMoved: The session is being closed or is moving.
        """
        sessions = self.running.sessions
        if session_id in sessions:
            return sessions.find(session_id)
        unloaded = sessions.find_unloaded(session_id)
        return None if unloaded is None else sessions.loaded(unloaded)

    async def reopen(self, session_id: str, deps: object = None) -> SessionContext:
        """Load a session from the journal, call the `on_session` functions, and resume its accepted messages.

        `deps` is the dependency object for the session's tools.
        """
        running, sessions = self.running, self.running.sessions
        if (unloaded := sessions.find_unloaded(session_id)) is not None:
            return await self._context_after_checkpoint(unloaded)
        assert running.journal is not None  # noqa: S101 - sessions are only opened from a journal
        epoch = running.lifecycle.eviction.epoch_of(session_id)
        loaded = await load_tail(running, running.journal, session_id)
        opened = loaded.opened
        if opened is None:
            raise SessionNotFound(running.name, session_id)
        context = self._empty_context(session_id, opened)
        restored = await restore_loaded(loaded, context, running.journal)
        if restored.is_closed:
            raise SessionClosed(session_id)
        running.propagation.restore_all((context.acceptances or {}).values())
        due, records_since_snapshot = restored.due, len(loaded.records)
        context.log = running.lifecycle.new_log(
            session_id, epoch, due=due, records_since_snapshot=records_since_snapshot
        )
        mark_restored(context, opened, loaded.records)
        await running.runner.turn_lifecycle.accounts.restore(context, running.name, restored)
        opened = await with_parent_agent(running.journal, session_id, opened, agent=running.name)
        root_owner = await find_root_owner(running.journal, context.key, opened)
        running.runner.check_accepts()
        if await is_outdated(running.journal, context.key, loaded):
            return await self.reopen(session_id, deps)
        if (known := self._find_known(session_id)) is not None:  # another task has opened the session
            return known
        running.lifecycle.eviction.check_epoch(session_id, epoch)
        self._attach_relatives(context, opened, restored.waiting, root_owner)
        context.public_session, context.host = self.make_handle(context, deps), running.lifecycle
        running.lifecycle.open(context)
        self._pending_opens.note_loaded(context.id)
        self.start_phase.add_resumed(context)
        if restored.waiting:
            running.inbox.claim(session_id)  # new messages are queued after the restored ones
        context.report_next_timer()
        try:
            # The session stays loaded even if it is closed now: its queued messages still have to end.
            with running.lifecycle.kept(context):
                if opened.transient and await is_orphan(context, running.journal):
                    context.closed = True
                context.opening_task = trio.lowlevel.current_task()
                await self.call_on_session(context)
                check_deps(context, opened, self.deps_missing)
                running.lifecycle.resume_restored(context, restored.waiting)
        except BaseException:
            running.lifecycle.drop(context, is_claimed=bool(restored.waiting))
            raise
        finally:
            context.opening_task = None
        if opened.transient:
            running.lifecycle.unload_when_idle(context)
        return context

    async def read_only(self, session_id: str) -> SessionContext:
        """Build a session from its records for reading. The session is not added to the sessions in memory, and runs no turns.

        Raises:
            SessionNotFound: The journal has no session with this id.
            SessionClosed: The session was closed.
        """
        assert self.running.journal is not None  # noqa: S101 - a session outside of memory is in the journal
        loaded = await load_tail(self.running, self.running.journal, session_id)
        if loaded.opened is None:
            raise SessionNotFound(self.running.name, session_id)
        context = self._empty_context(session_id, loaded.opened)
        if (await restore_loaded(loaded, context, self.running.journal)).is_closed:
            raise SessionClosed(session_id)
        context.public_session = self.make_handle(context, None)
        return context

    def _empty_context(self, session_id: str, opened: SessionCreatedRecord) -> SessionContext:
        """Create the context of a session from its first record. The caller applies the later records to it."""
        return SessionContext(
            session_id,
            opened.owner,
            SessionConversation(self.running.core.memory.open_view(), system=opened.system),
            self.running.name,
            is_former=not opened.agent,
            on_busy=opened.on_busy or self.on_busy,
            reducers=self.reducers,
            state_check=self.state_check,
        )

    def _attach_relatives(
        self,
        context: SessionContext,
        opened: SessionCreatedRecord,
        waiting: Sequence[Message],
        root_owner: Sender | None,
    ) -> None:
        """Connect a restored session with its parent and its children in memory, and restore its delegated task and deadline."""
        if opened.parent_id:
            tree = context.open_tree()
            tree.root_owner = root_owner
            parent = tree.parent_key = SessionKey(opened.parent_agent, opened.parent_id)
            tree.parent = self.trees.find(parent)
            if context.parent is None:
                self.trees.wait_for_parent(parent, context)
        if (opened.parent_id or opened.asker) and opened.transient:
            task = context.open_tree().task = restored_task(context, opened, self.running)
            if opened.deadline and any(message.id == task.message_id for message in waiting):
                context.set_timer(TaskDeadline(task.deadline, task.seconds))
        self.trees.attach_children(context)


@attrs.define(eq=False, repr=False)
class SessionInitializer(FieldRepr):
    """Block that calls the `on_session` functions of a new session on entry, and removes the session if the block fails.

    It is a class, because a generator would cost as much as the rest of the creation of a session.
    """

    _opener: SessionOpener
    _context: SessionContext
    ends: bool = False
    """True if the session is closed after the messages that were sent inside the block."""

    async def __aenter__(self) -> SessionContext:
        context = self._context
        self._opener.running.lifecycle.pin(context)
        try:
            if self._opener.on_session:
                await self._opener.call_on_session(context)
            if not self.ends:  # the message that ends the session passes a checkpoint
                await trio.lowlevel.checkpoint()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)  # noqa: ASYNC102 - it shields its own cleanup, with a time limit
            raise
        if self.ends:
            context.is_transient = True
        return context

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opener, context = self._opener, self._context
        try:
            if error is not None:  # before `unpin`, which would record that the session ended as planned
                await opener.withdraw(context)  # noqa: ASYNC102 - it shields its own cleanup, with a time limit
        finally:
            opener.running.lifecycle.unpin(context)


async def _create_or_find(
    opener: SessionOpener, owner: Sender, session_id: str, *, deps: object = None, **new: Unpack[NewSession]
) -> SessionContext:
    """Create a session, or return the session that a concurrent fork has created with this id.

    Raises:
        WrongOwner: The session of the fork belongs to another owner.
    """
    try:
        return await opener.create(owner, session_id=session_id, deps=deps, **new)
    except SessionExists:
        await check_owner_by_summary(opener.running, session_id, owner)
        return await opener.find(session_id, deps=deps)


def _tree_of(parent: SessionContext | None, task: Task | None) -> SessionTree[SessionContext]:
    return SessionTree(parent, None if parent is None else parent.key, task=task)


async def _call_with(fn: OnSession, handle: object) -> None:
    """Call a function that was registered with `Agent.on_session`. Convert its exception to an error that names the function."""
    try:
        awaitable = to_awaitable(fn(handle))
        if awaitable is not None:
            await awaitable
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
        error = convert_user_error(raised, "on_session", name_of(fn))
    else:
        return
    raise error
