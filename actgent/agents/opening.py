"""How sessions of a running agent come to be: new, found, or made again from the journal."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import attrs
import trio

from actgent.control.limits import Limits
from actgent.errors import ConfigurationError, JournalDamaged, SessionClosed, SessionNotFound, WireError
from actgent.journal.records import NO_LIMITS, Opened, message_id_of
from actgent.journal.reducers import Reducer
from actgent.memory.base import Memory
from actgent.messages import Message, OnBusy, Part, Sender, new_secret

from .checks import check_id, check_limits
from .context import SessionContext
from .double_texting import check_rule
from .handlers import to_awaitable
from .log import owner_of, restore
from .running import RunningAgent
from .session import Session
from .tasks import Task, TaskDeadline
from .waiters import TurnWaiter
from .waiting import running_session

Content = str | Part | Sequence[str | Part]
OnSession = Callable[[Session], Any]
_NOBODY_ELSE: AbstractContextManager[None] = nullcontext()
"""For sessions whose ids nobody can know yet."""
_log = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class _Opening:
    """A session that is just made, or made again."""

    task: trio.lowlevel.Task
    done: trio.Event = attrs.field(factory=trio.Event)


@attrs.frozen(eq=False)
class SessionOpener:
    """Opens the sessions of one running agent."""

    running: RunningAgent
    memory: Memory
    reducers: Mapping[str, Reducer] | None
    on_busy: OnBusy
    """What messages do while their session works, where nothing else is said."""
    on_session: Sequence[OnSession]
    """Called before the first message of each."""
    _opening: dict[str, _Opening] = attrs.field(factory=dict)
    """By id those that are just made again, or made under an id that was given."""

    def __attrs_post_init__(self) -> None:
        self.running.alarms.find = self.find

    # --- new ones --------------------------------------------------------------------------

    def new(
        self,
        owner: Sender | str,
        *,
        session_id: str | None = None,
        parent: Session | None = None,
        system: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        task: Task | None = None,
        is_transient: bool = False,
    ) -> Session:
        """A session that nobody has been told of yet; see `introduce`.

        Raises:
            ConfigurationError: the owner is empty, or the session id is taken in memory.
        """
        sender = Sender(owner) if isinstance(owner, str) and owner.strip() else owner
        if not isinstance(sender, Sender):
            raise ConfigurationError(
                "a session needs an owner that is not empty: who is talking to the agent?"
            )
        check_id("session_id", session_id)
        if parent is not None and not isinstance(parent, Session):
            raise ConfigurationError(f"parent= takes a Session, not {parent!r}")
        context = SessionContext(
            session_id or new_secret(),
            sender,
            self.memory.open_view(),
            reducers=self.reducers,
            parent=parent._context if parent is not None else None,  # noqa: SLF001
            system=system,
            on_busy=self.on_busy if on_busy is None else check_rule(on_busy),
            task=task,
        )
        session = context.session = Session(context, self.running)
        self.running.open(context)
        context.log = self.running.new_log(context.id)
        bounds = NO_LIMITS if limits is None else limits.shared
        if bounds or context.parent is not None:
            self.running.edges.ledger.open_session(context, self.running.name, bounds)
        if context.log is not None:
            now = self.running.clock.now()
            context.log.note(_opened(context, bounds, on_busy, is_transient=is_transient, now=now))
        if task is not None and task.deadline:
            context.set_due(TaskDeadline(task))
        return session

    def fresh(self) -> Session:
        """A session for one question: a child of the session whose turn asks, if there is one."""
        asker = running_session()
        if asker is None:
            return self.new("user", is_transient=True)
        owner = Sender(asker.session.agent_name, "agent")
        return self.new(owner, parent=asker.session, is_transient=True)

    async def create(
        self,
        owner: Sender | str,
        description: Content = "",
        *,
        session_id: str | None = None,
        parent: Session | None = None,
        system: str | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
    ) -> Session:
        """See `Agent.create_session`."""
        if limits is not None:
            check_limits(limits)
        with _NOBODY_ELSE if session_id is None else self._opens(session_id):
            if session_id is not None:
                check_id("session_id", session_id)
                await self._check_unused(session_id)
            session = self.new(
                owner, session_id=session_id, parent=parent, system=system, limits=limits, on_busy=on_busy
            )
            context = session._context  # noqa: SLF001
            try:
                if context.log is not None:
                    await context.log.flush()
                if self.on_session:
                    await self._call_on_session(session)
                await trio.lowlevel.checkpoint()
                if description:
                    await self.running.reception.release(context, session._message(description))  # noqa: SLF001
            except BaseException:  # nobody has it yet
                self.running.let_go(context)
                raise
            return session

    async def introduce(self, session: Session) -> None:
        """Let everyone who wants to know of new sessions attach handlers."""
        await self._call_on_session(session)
        await trio.lowlevel.checkpoint()

    async def _call_on_session(self, session: Session) -> None:
        for fn in self.on_session:
            awaitable = to_awaitable(fn(session))
            if awaitable is not None:
                await awaitable

    @contextmanager
    def letting_go(self, session: Session) -> Iterator[None]:
        """Say something in a session that ends with its last message; it does not end before."""
        try:
            yield
        finally:
            self.running.let_go(session._context)  # noqa: SLF001

    # --- those that are there --------------------------------------------------------------

    async def find(self, session_id: str) -> Session:
        """See `Agent.open_session`."""
        sessions = self.running.sessions
        await self._wait_opened(session_id)
        if self.running.journal is not None and session_id not in sessions:
            with self._opens(session_id):
                return await self._reopen(session_id)
        session = sessions.find(session_id).session  # before the pause, in which it may fall asleep
        await trio.lowlevel.checkpoint()
        return session  # type: ignore[no-any-return]

    async def ensure(self, owner: Sender | str, session_id: str, *, parent: Session | None = None) -> Session:
        """The session of this id, in memory or in the journal, created where there is none."""
        await self._wait_opened(session_id)
        with self._opens(session_id):
            try:
                return await self.find(session_id)
            except SessionNotFound:
                return await self.create(owner, session_id=session_id, parent=parent)

    async def recover(self) -> None:
        """See `Agent.recover`."""
        await self.running.ready.wait()
        if self.running.journal is None:
            return
        for session_id in await self.running.journal.unfinished(self.running.name):
            await self._wait_opened(session_id)
            if session_id not in self.running.sessions:
                try:
                    with self._opens(session_id):
                        await self._reopen(session_id)
                except (JournalDamaged, WireError) as error:
                    _log.error("agent %s leaves a session out: %s", self.running.name, error)
                except (SessionClosed, SessionNotFound):
                    pass  # another agent that started earlier opened it, and it has ended since it was listed
        self.running.alarms.load(await self.running.journal.due(self.running.name))

    async def _check_unused(self, session_id: str) -> None:
        """Refuse an id under which the journal has a session already."""
        journal = self.running.journal
        if journal is not None and await journal.load(session_id):
            raise ConfigurationError(
                f"the journal has a session {session_id!r} already: open it with open_session(), or choose another id"
            )

    async def _wait_opened(self, session_id: str) -> None:
        """Let whoever opens this session finish; the handlers that it calls then find the session as it is."""
        while (opening := self._opening.get(session_id)) is not None:
            if trio.lowlevel.current_task() in [each.task for each in self._opening.values()]:
                return
            await opening.done.wait()

    @contextmanager
    def _opens(self, session_id: str) -> Iterator[None]:
        """Let others who want this session wait for the block."""
        task, known = trio.lowlevel.current_task(), self._opening.get(session_id)
        if known is not None and known.task is task:
            yield
            return
        opening = self._opening[session_id] = _Opening(task)
        try:
            yield
        finally:
            if self._opening.get(session_id) is opening:
                del self._opening[session_id]
            opening.done.set()

    async def _reopen(self, session_id: str) -> Session:
        """A session from the journal, its handlers attached by `on_session`, its accepted messages on their way."""
        running, sessions = self.running, self.running.sessions
        if (asleep := sessions.find_asleep(session_id)) is not None:
            await trio.lowlevel.checkpoint()
            return asleep  # type: ignore[no-any-return]
        records = await running.journal.load(session_id) if running.journal is not None else ()
        opened = owner_of(records)
        if opened is None:
            raise SessionNotFound(running.name, session_id)
        context = SessionContext(
            session_id,
            opened.owner,
            self.memory.open_view(),
            reducers=self.reducers,
            on_busy=opened.on_busy or self.on_busy,
            system=opened.system,
        )
        restored = await restore(records, context)
        if restored.is_closed:
            raise SessionClosed(session_id)
        context.log = running.new_log(session_id, due=restored.due)
        await running.edges.ledger.restore(context, running.name, restored)
        if session_id in sessions:  # someone else was faster
            return sessions.find(session_id).session  # type: ignore[no-any-return]
        if (asleep := sessions.find_asleep(session_id)) is not None:
            return asleep  # type: ignore[no-any-return]
        self._find_parent(context, opened, restored.waiting)
        session = context.session = Session(context, running)
        running.open(context)
        if restored.waiting:
            running.inbox.claim(session_id)  # what is said meanwhile comes behind it
        context.tell_due()
        try:
            with running.kept(context):  # also where it is closed meanwhile: what waits in it ends by that
                if opened.transient and await self._is_orphan(context):
                    context.closed = True
                running.openers[session_id] = trio.lowlevel.current_task()
                await self._call_on_session(session)
                running.go_on(context, restored.waiting)
        except BaseException:
            running.drop(context, is_claimed=bool(restored.waiting))
            raise
        finally:
            running.openers.pop(session_id, None)
        if opened.transient:
            running.let_go(context)
        return session

    def _find_parent(self, context: SessionContext, opened: Opened, waiting: Sequence[Message]) -> None:
        """Put a session that came back where it was among the others."""
        agents = self.running.tasks.agents
        if opened.parent_id:
            context.parent = agents.find_session(opened.parent_id)
            if context.parent is None:
                agents.wait_for_parent(opened.parent_id, context)
        if opened.parent_id and opened.transient:
            context.task = Task(
                message_id_of(context.id),
                TurnWaiter(self.running.edges.options, is_patient=True),
                opened.parent_agent,
                opened.parent_id,
                reports=opened.reports,
                is_unclaimed=True,
                deadline=opened.deadline,
                seconds=round(opened.deadline - opened.created_at, 3),
            )
            if opened.deadline and any(message.id == context.task.message_id for message in waiting):
                context.set_due(TaskDeadline(context.task))
        agents.attach_children(context)

    async def _is_orphan(self, context: SessionContext) -> bool:
        """Whether a session was asked something by one that has nothing to do any more, so that nobody waits for it."""
        task: Task | None = context.task
        journal = self.running.journal
        if task is None or task.reports or journal is None or not task.parent_agent:
            return False
        if context.parent is not None:
            return not context.parent.pending
        return task.parent_id not in await journal.unfinished(task.parent_agent)


def _opened(
    context: SessionContext,
    limits: Mapping[str, float],
    on_busy: OnBusy | None,
    *,
    is_transient: bool,
    now: float,
) -> Opened:
    """How a session's records begin."""
    parent = context.parent
    return Opened(
        owner=context.owner,
        parent_id=None if parent is None else parent.id,
        created_at=now,
        on_busy=on_busy,
        limits=limits,
        system=context.system,
        within=tuple(account.key for account in context.accounts if account.key.session_id != context.id),
        transient=is_transient,
        parent_agent="" if parent is None else parent.session.agent_name,
        reports=context.task is not None and context.task.reports,
        deadline=0.0 if context.task is None else context.task.deadline,
    )
