"""Creates, finds and restores the sessions of an agent."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from types import TracebackType
from typing import Any, Unpack

import attrs
import trio

from actgent.control.arguments import check_id, check_session_limits
from actgent.control.limits import Limits
from actgent.errors import (
    ActgentError,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    WrongOwner,
)
from actgent.journal.listing import SessionKey
from actgent.journal.records import NO_LIMITS, Opened, Record
from actgent.messages import Message, OnBusy, Sender
from actgent.runtime.actor import AgentActor
from actgent.runtime.intake import Intake
from actgent.runtime.slots import running_session
from actgent.runtime.starting import Starting
from actgent.sessions.context import SessionContext
from actgent.sessions.conversation import SessionConversation
from actgent.sessions.handlers import name_of, to_awaitable
from actgent.sessions.history import Former, add_history, check_history
from actgent.sessions.incoming import Content, check_rule, message_to
from actgent.sessions.mail import SessionMail
from actgent.sessions.restore import is_unused, restore_loaded
from actgent.sessions.tree import SessionTree
from actgent.sessions.waiting.tasks import Task, TaskDeadline
from actgent.state.reducers import Reducer
from actgent.state.store import StateCheck
from actgent.support.foreign import failure_of
from actgent.support.logs import Each, logger_of
from actgent.support.quick_init import maker

from .elsewhere import Elsewhere
from .naming import choose_id, id_for, id_in_tree
from .new_session import Given, NewSession, OnSession, check_new, check_parent, opened_record, to_owner
from .reopening import (
    DepsMissingCheck,
    Opening,
    Openings,
    check_deps,
    find_root_owner,
    is_orphan,
    load_tail,
    mark_restored,
    refuse_stranger,
    restored_task,
    with_parent_agent,
)
from .table import Trees

ERASE_PATIENCE = 1.0
"""Seconds in which what is left of a session that nobody got is erased, before its caller hears of the failure."""
_NOBODY_ELSE: AbstractContextManager[None] = nullcontext()
"""For sessions whose ids nobody can know yet."""
_log = logger_of(__name__)
_make_context, _make_conversation = maker(SessionContext), maker(SessionConversation)
_make_mail = maker(SessionMail)


@attrs.frozen(eq=False)
class SessionOpener:
    """Opens the sessions of one running agent."""

    running: AgentActor
    intake: Intake
    make_face: Callable[[SessionContext, object], object]
    """Makes the user's end of a session, with deps of its own or None."""
    trees: Trees
    starting: Starting
    reducers: Mapping[str, Reducer] | None
    on_busy: OnBusy
    """The rule of messages whose session works, where nothing else is said."""
    on_session: Sequence[OnSession]
    """Called before the first message of each."""
    deps_missing: DepsMissingCheck
    """Tells why a session from the journal cannot go on."""
    elsewhere: Elsewhere | None = None
    """The way to sessions of other processes; None where there are none."""
    is_told: Callable[[SessionContext], bool] = lambda _: True
    """Tells whether `on_session` is called with a session; it is not with those that are nobody's conversation."""
    state_check: StateCheck | None = None
    """The check of each change of a session's state; None: any change is taken."""
    _opening: Openings = attrs.field(factory=Openings)
    """By id those that are just made again, or made under an id that was given; see `Directory.openings_of`."""

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
        history: Iterable[Former] = (),
        notify: Sequence[str] = (),
        is_described: bool = False,
        asker: str = "",
    ) -> SessionContext:
        """A session that nobody has been told of yet.

        Raises:
            SessionExists: the session id is taken in memory.
            ConfigurationError: others may own sessions of this id, and its parent is here.
            SessionMoved: another process owns sessions of this id, or is about to.
        """
        context = _make_context(
            id_for(self.running, session_id, parent),
            owner,
            _make_conversation(self.running.core.memory.open_view(), system=system),
            self.running.name,
            host=self.running.lifecycle,
            mail=_make_mail(self.on_busy if on_busy is None else check_rule(on_busy)),
            reducers=self.reducers,
            state_check=self.state_check,
            tree=None if parent is None and task is None else _tree_of(parent, task),
        )
        context.face, lifecycle = self.make_face(context, deps), self.running.lifecycle
        if self.running.journal is not None or lifecycle.leaving.drains:
            context.log = lifecycle.new_log(context.id, lifecycle.leaving.epoch_of(context.id))
        context.conversation.keeps_recent = self.running.journal is None
        self._enter(context)
        bounds = NO_LIMITS if limits is None else limits.shared
        if bounds or parent is not None:
            self.running.runner.turn_lifecycle.accounts.open_session(context, self.running.name, bounds)
        if context.log is not None:
            given = Given(deps is not None, tuple(notify), is_transient, is_described, asker)
            context.log.begin(opened_record(context, bounds, on_busy, given, self.running.clock.now()))
            context.log.is_temporary = is_transient and task is None
        if history:
            add_history(context, check_history(history), now=self.running.clock.now())
        if task is not None and task.deadline:
            context.set_timer(TaskDeadline(task.deadline, task.seconds))
        return context

    def fresh(self) -> SessionContext:
        """A session for one question: a child of the session whose turn asks, if there is one."""
        asker = running_session()
        owner = Sender("user") if asker is None else Sender(asker.agent, "agent")
        return self.new(owner, parent=asker, is_transient=True)

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
        history: Iterable[Former] = (),
        notify: Sequence[str] = (),
        asker: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionContext:
        """See `Agent.create_session`; `notify` and `asker` are those of `Opened`, and `metadata` the first message's."""
        if limits is not None:
            check_session_limits(limits)
        history = history if history == () else check_history(history)
        owner = to_owner(owner)
        if parent is not None:
            check_parent(self.running.name, owner, parent)
        if session_id is not None:
            await self.wait_opened(session_id)
        with _NOBODY_ELSE if session_id is None else self.opens(session_id):
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
            )
            if description or self.on_session or self.running.journal is not None:
                await self._begin(context, description, metadata)
            else:  # nothing happens in it, so only its caller's cancellation can take it back
                try:
                    await trio.lowlevel.checkpoint()
                except BaseException:
                    await self.withdraw(context)  # noqa: ASYNC102 - it shields what it must, with a time limit
                    raise
            return context

    async def _begin(self, context: SessionContext, description: Content, metadata: Any) -> None:
        """Have a new session's handlers attached, and its first message said."""
        async with Making(self, context):
            if description:
                await self.intake.accept_first(context, message_to(context, description, metadata=metadata))
            elif context.log is not None:
                await context.log.flush()

    def beginning(self, context: SessionContext) -> "Making":
        """The block in which the only message of a new session is said, with which it ends; if that fails, no trace is left."""
        return Making(self, context, ends=True)

    async def withdraw(self, context: SessionContext) -> None:
        """Leave no trace of a session that nobody got; what its handlers said in it ends first."""
        if context.mail.pending:
            if context.log is not None:
                context.log.is_unused = True
            self.running.lifecycle.let_go(context)
            return
        may_be_there = context.log is not None and context.log.withdraw()
        self.running.lifecycle.discard(context)
        if may_be_there:
            opening = Opening(erases=True, under=self._opening.get(context.id))
            if self.running.runner.start_soon(self._erase, context.id, opening):
                self._opening[context.id] = opening  # whoever wants the id waits for that
                with trio.move_on_after(ERASE_PATIENCE, shield=True):
                    await opening.done.wait()

    async def _erase(self, session_id: str, opening: Opening) -> None:
        """Erase a session that nobody got; if that fails, whoever wants its id next does it."""
        try:
            await self._load(session_id)
        except ActgentError as error:
            _log.warning(
                "agent %s: session %s, which nobody got, is not erased: %s",
                self.running.name,
                Each(session_id),
                error,
            )
        finally:
            self._opening.end(session_id, opening)

    async def call_on_session(self, context: SessionContext) -> None:
        """Call the functions of `Agent.on_session` that are there, in their order."""
        if not (self.on_session and self.is_told(context)):
            return
        with self.running.lifecycle.leaving.cut(context.id):
            for fn in tuple(self.on_session):
                if fn in self.on_session:  # none of those before removed it
                    await _call_with(fn, context.face)
        context.handlers.settle()

    # --- those that are there --------------------------------------------------------------

    async def open(
        self, session_id: str, *, owner: Sender | str | None = None, deps: object = None
    ) -> SessionContext:
        """See `Agent.open_session`."""
        wanted = None if owner is None else to_owner(owner)
        if wanted is not None:
            await self.wait_opened(session_id)
            await refuse_stranger(self.running, session_id, wanted)
        context = await self.find(session_id, deps=deps)
        self._check_owner(context, wanted)
        return context

    def _check_owner(self, context: SessionContext, owner: Sender | None) -> None:
        if owner is not None and context.owner != owner:
            raise WrongOwner(self.running.name, context.id, owner.name)

    async def find(self, session_id: str, *, deps: object = None) -> SessionContext:
        """The session of this id, whoever owns it: for those who know that it is theirs.

        Raises:
            SessionNotFound: there is none.
            SessionClosed: it was closed.
        """
        await self.wait_opened(session_id)
        if self.running.journal is not None and session_id not in self.running.sessions:
            with self.opens(session_id):
                return await self.reopen(session_id, deps)
        return await self._after_pause(self.running.sessions.find(session_id).face)

    def find_loaded(self, session_id: str) -> SessionContext | None:
        """The same if it is in memory, and nothing is to be waited for; None says nothing."""
        context, left = self.running.sessions.get(session_id), self.running.lifecycle.leaving.find(session_id)
        is_free = left is None and session_id not in self._opening
        return context if is_free and context is not None and not context.closed else None

    async def _after_pause(self, face: object) -> SessionContext:
        """The session of a user's end, loaded, after a pause in which it may be unloaded."""
        await trio.lowlevel.checkpoint()
        return self.running.sessions.loaded(face)

    @asynccontextmanager
    async def loaded(self, session_id: str) -> AsyncGenerator[SessionContext, None]:
        """Find a session, and keep it in memory for the block.

        Raises:
            SessionNotFound: there is none.
            SessionClosed: it was closed.
        """
        with self.running.lifecycle.kept(await self.find(session_id)) as context:
            yield context

    async def ensure(
        self,
        owner: Sender | str,
        session_id: str,
        *,
        deps: object = None,
        **new: Unpack[NewSession],
    ) -> SessionContext:
        """See `Agent.ensure_session`."""
        check_new(new)
        wanted = to_owner(owner)
        await self.wait_opened(session_id)
        with self.opens(session_id):
            try:
                await refuse_stranger(self.running, session_id, wanted)
                context = await self.find(session_id, deps=deps)
            except WrongOwner:
                raise
            except SessionNotFound:
                check_id("session_id", session_id)
                context = await _create_or_find(self, wanted, session_id, deps=deps, **new)
        self._check_owner(context, wanted)
        return context

    async def ensure_child(
        self, parent: SessionContext, name: str, *, history: Iterable[Former] = ()
    ) -> SessionContext:
        """The session of a name below another one, whose owner it has; created with this history where there is none."""
        plain = f"{parent.id}/{name}"
        await self.wait_opened(plain)
        with self.opens(plain):
            session_id = await choose_id(
                self.running, parent, plain, id_in_tree(self.running, parent, f"{parent.scope}/{name}")
            )
            try:
                return await self.find(session_id)
            except SessionNotFound:
                return await _create_or_find(self, parent.owner, session_id, parent=parent, history=history)

    async def _check_unused(self, session_id: str) -> None:
        """Refuse an id under which the journal has a session already."""
        journal = self.running.journal
        head = None if journal is None else await journal.head(self.running.name, session_id)
        if head is not None and (not head.closed or await self._load(session_id)):
            raise SessionExists(self.running.name, session_id)

    async def _load(self, session_id: str) -> Sequence[Record]:
        """Load a session's records; one that was never handed out is erased, and its id is free."""
        journal = self.running.journal
        records = () if journal is None else await journal.load(session_id, agent=self.running.name)
        if journal is not None and is_unused(records):
            await journal.delete(session_id, agent=self.running.name)
            return ()
        return records

    async def wait_opened(self, session_id: str) -> None:
        """Wait until a concurrent open of the same session has finished, unless this is part of one, or it has left."""
        while (left := self.running.lifecycle.leaving.find(session_id)) is not None:
            await left.wait()
        await self._opening.wait(session_id)

    async def wait_loaded(self, session_id: str) -> None:
        """Wait until a session is in memory, if it is just made or opened, whatever its handlers then wait for."""
        await self._opening.wait_loaded(session_id)

    def opens(self, session_id: str, *, erases: bool = False) -> AbstractContextManager[None]:
        """A block that others who want this session wait for."""
        return self._opening.block(session_id, erases=erases)

    def _enter(self, context: SessionContext) -> None:
        """A session is in memory from here on."""
        self.running.lifecycle.open(context)
        self._opening.note_loaded(context.id)

    def openings(self, is_wanted: Callable[[str], bool]) -> list[trio.Event]:
        """What is set when the sessions are open, or are not, that are just opened."""
        wanted = [session_id for session_id in self._opening if is_wanted(session_id)]
        return [each.done for session_id in wanted for each in self._opening.of(session_id)]

    def may_erase(self, session_id: str) -> bool:
        """Return True if no task opens or uses a session at this moment."""
        context = self.running.sessions.find_any(session_id)
        return session_id not in self._opening and (context is None or context.is_at_rest)

    async def reopen(self, session_id: str, deps: object = None) -> SessionContext:
        """A session from the journal, its handlers attached by `on_session`, its accepted messages on their way."""
        running, sessions = self.running, self.running.sessions
        if (unloaded := sessions.find_unloaded(session_id)) is not None:
            return await self._after_pause(unloaded)
        assert running.journal is not None  # noqa: S101 - or there is nothing to be opened
        epoch = running.lifecycle.leaving.epoch_of(session_id)
        loaded = await load_tail(running, running.journal, session_id)
        opened = loaded.opened
        if opened is None:
            raise SessionNotFound(running.name, session_id)
        context = self._empty_context(session_id, opened)
        restored = await restore_loaded(loaded, context, running.journal)
        if restored.is_closed:
            raise SessionClosed(session_id)
        running.propagation.restore_all((context.mail.acceptances or {}).values())
        due, grown = restored.due, len(loaded.records)
        context.log = running.lifecycle.new_log(session_id, epoch, due=due, grown=grown)
        mark_restored(context, opened, loaded.records)
        await running.runner.turn_lifecycle.accounts.restore(context, running.name, restored)
        opened = await with_parent_agent(running.journal, session_id, opened, agent=running.name)
        root_owner = await find_root_owner(running.journal, context.key, opened)
        if session_id in sessions:  # someone else was faster
            return sessions.find(session_id)
        if (unloaded := sessions.find_unloaded(session_id)) is not None:
            return sessions.loaded(unloaded)
        running.lifecycle.leaving.check_epoch(session_id, epoch)
        self._find_parent(context, opened, restored.waiting, root_owner)
        context.face, context.host = self.make_face(context, deps), running.lifecycle
        self._enter(context)
        self.starting.note_return(context)
        if restored.waiting:
            running.inbox.claim(session_id)  # what is said meanwhile comes behind it
        context.report_next_timer()
        try:
            # Kept also where it is closed meanwhile: what waits in it ends by that.
            with running.lifecycle.kept(context):
                if opened.transient and await is_orphan(context, running.journal):
                    context.closed = True
                running.lifecycle.openers[session_id] = trio.lowlevel.current_task()
                await self.call_on_session(context)
                check_deps(context, opened, self.deps_missing)
                running.lifecycle.resume_restored(context, restored.waiting)
        except BaseException:
            running.lifecycle.drop(context, is_claimed=bool(restored.waiting))
            raise
        finally:
            running.lifecycle.openers.pop(session_id, None)
        if opened.transient:
            running.lifecycle.let_go(context)
        return context

    async def read_only(self, session_id: str) -> SessionContext:
        """Build a session from its records for reading. It is not loaded into memory, and no turn of it starts.

        Raises:
            SessionNotFound: The journal has no session of this id.
            SessionClosed: The session was closed.
        """
        assert self.running.journal is not None  # noqa: S101 - a session outside of memory is in the journal
        loaded = await load_tail(self.running, self.running.journal, session_id)
        if loaded.opened is None:
            raise SessionNotFound(self.running.name, session_id)
        context = self._empty_context(session_id, loaded.opened)
        if (await restore_loaded(loaded, context, self.running.journal)).is_closed:
            raise SessionClosed(session_id)
        context.face = self.make_face(context, None)
        return context

    def _empty_context(self, session_id: str, opened: Opened) -> SessionContext:
        """Build the context that the records of a session fill."""
        return SessionContext(
            session_id,
            opened.owner,
            SessionConversation(self.running.core.memory.open_view(), system=opened.system),
            self.running.name,
            is_former=not opened.agent,
            mail=SessionMail(opened.on_busy or self.on_busy),
            reducers=self.reducers,
            state_check=self.state_check,
        )

    def _find_parent(
        self, context: SessionContext, opened: Opened, waiting: Sequence[Message], root_owner: str
    ) -> None:
        """Put a session that came back where it was among the others."""
        if opened.parent_id:
            context.tree.root_owner = root_owner
            parent = context.tree.parent_key = SessionKey(opened.parent_agent, opened.parent_id)
            context.tree.parent = self.trees.find(parent)
            if context.parent is None:
                self.trees.wait_for_parent(parent, context)
        if (opened.parent_id or opened.asker) and opened.transient:
            task = context.tree.task = restored_task(context, opened, self.running)
            if opened.deadline and any(message.id == task.message_id for message in waiting):
                context.set_timer(TaskDeadline(task.deadline, task.seconds))
        self.trees.attach_children(context)


@attrs.define(eq=False)
class Making:
    """The block in which a new session gets what its caller wants to find in it, after its handlers.

    Until then it is only in memory. If the block fails, nobody gets the session, and no trace of it is left. No generator:
    as such it would cost as much as the rest of a new session.
    """

    _opener: SessionOpener
    _context: SessionContext
    ends: bool = False
    """True if the session ends with what is said in the block."""

    async def __aenter__(self) -> SessionContext:
        context = self._context
        self._opener.running.lifecycle.pin(context)
        try:
            if self._opener.on_session:
                await self._opener.call_on_session(context)
            await trio.lowlevel.checkpoint()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)  # noqa: ASYNC102 - it shields what it must, with a time limit
            raise
        if self.ends:
            context.mail.is_transient = True
        return context

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opener, context = self._opener, self._context
        opener.running.lifecycle.unpin(context)
        if error is not None:
            await opener.withdraw(context)  # noqa: ASYNC102 - it shields what it must, with a time limit
        elif self.ends:
            opener.running.lifecycle.let_go(context)


async def _create_or_find(
    opener: SessionOpener, owner: Sender, session_id: str, *, deps: object = None, **new: Unpack[NewSession]
) -> SessionContext:
    """A session that was not there; where a fork of this id was written meanwhile, that one."""
    try:
        return await opener.create(owner, session_id=session_id, deps=deps, **new)
    except SessionExists:
        await refuse_stranger(opener.running, session_id, owner)
        return await opener.find(session_id, deps=deps)


def _tree_of(parent: SessionContext | None, task: Task | None) -> SessionTree[SessionContext]:
    return SessionTree(parent, None if parent is None else parent.key, task=task)


async def _call_with(fn: OnSession, face: object) -> None:
    """Call one function of `Agent.on_session`; what it raises is worded as foreign code's."""
    try:
        awaitable = to_awaitable(fn(face))
        if awaitable is not None:
            await awaitable
    except BaseException as raised:  # noqa: ASYNC103, BLE001 - the edge to foreign code
        error = failure_of(raised, "on_session", name_of(fn))
    else:
        return
    raise error
