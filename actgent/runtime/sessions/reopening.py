"""A session of the journal on its way back: whose it is, what it lacks, and whether anybody waits for it."""

import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import attrs
import trio

from actgent.errors import (
    DepsMissing,
    JournalDamaged,
    SessionNotFound,
    WrongOwner,
)
from actgent.journal.base import Journal
from actgent.journal.listing import SessionKey
from actgent.journal.records import Accepted, Opened, Record, message_id_of
from actgent.messages import Sender
from actgent.runtime.actor import AgentActor
from actgent.sessions.context import SessionContext
from actgent.sessions.restore import LoadedSession, is_unused, load_session
from actgent.sessions.waiting.tasks import Task
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.sessions.waiting.turn_options import restored_options


@attrs.frozen(eq=False)
class Opening:
    """A session that is just made, made again, or erased."""

    erases: bool = False
    """True: it is only erased, which waits for nothing but the journal."""
    loaded: trio.Event = attrs.field(factory=trio.Event)
    """Set when the session is in memory, and its handlers may wait for somebody, or is not to be there."""
    done: trio.Event = attrs.field(factory=trio.Event)
    under: "Opening | None" = None
    """The one of the same session that had begun before, and that this one did not wait for."""

    @property
    def is_own(self) -> bool:
        """True if this code is part of it."""
        return self in _within.get()


_within: ContextVar[tuple[Opening, ...]] = ContextVar("within", default=())
"""The openings that this code is part of, as a handler, or a task or turn that one has begun; some may be over."""


class Openings(dict[str, Opening]):
    """The sessions of an agent that are just opened or erased, by their ids, for those who wait for that.

    It outlives the runs of the agent in a runtime: an agent that starts waits for sessions that are being erased. Of several
    openings of one session the newest is listed, with those `under` it.
    """

    async def wait(self, session_id: str) -> None:
        """Wait until a session is not opened or erased any more; who is part of an opening waits for no other one."""
        while (opening := self.get(session_id)) is not None:
            if not opening.erases and any(each.is_own for each in self.values()):
                return
            await opening.done.wait()

    async def wait_loaded(self, session_id: str) -> None:
        """Wait until a session is in memory, or will not be, for each task that just opens it."""
        while (opening := self._find_loading(session_id)) is not None:
            await opening.loaded.wait()

    def _find_loading(self, session_id: str) -> Opening | None:
        """Return an opening of a session that is not in memory yet; None if there is none."""
        return next((each for each in self.of(session_id) if not each.loaded.is_set()), None)

    @contextmanager
    def block(self, session_id: str, *, erases: bool) -> Iterator[None]:
        """A block in which a session is opened or erased, unless this is part of that."""
        known = self.get(session_id)
        if known is not None and any(each.is_own for each in self.of(session_id)):
            yield
            return
        opening = self[session_id] = Opening(erases, under=known)
        around = [each for each in _within.get() if not each.done.is_set()]
        token = None if erases else _within.set((*around, opening))
        try:
            yield
        finally:
            if token is not None:
                _within.reset(token)
            self.end(session_id, opening)

    def note_loaded(self, session_id: str) -> None:
        """The calling task has a session in memory that it opens."""
        if session_id not in self:  # as for nearly each new session
            return
        for opening in self.of(session_id):
            if opening.is_own:
                opening.loaded.set()

    def of(self, session_id: str) -> Iterator[Opening]:
        """The openings of a session, the newest first."""
        opening = self.get(session_id)
        while opening is not None:
            yield opening
            opening = opening.under

    def end(self, session_id: str, opening: Opening) -> None:
        """Let those go on who wait."""
        opening.loaded.set()
        opening.done.set()
        left = self.get(session_id)
        while left is not None and left.done.is_set():
            left = left.under
        if left is not None:
            self[session_id] = left
        else:
            self.pop(session_id, None)


class DepsMissingCheck(typing.Protocol):
    """Returns the error of a session whose tools would find no deps; `was_given`: it had some that no journal holds."""

    def __call__(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None: ...


async def load_tail(running: AgentActor, journal: Journal, session_id: str) -> LoadedSession:
    """Load a session from its snapshot on, if it has one that serves; one that was never handed out is erased.

    Raises:
        JournalDamaged: it has no beginning.
    """
    key = SessionKey(running.name, session_id)
    lookback = running.runner.turn_lifecycle.options.protocol.lookback
    loaded = await load_session(journal, key, running.core.memory, lookback=lookback)
    if is_unused(loaded.records):
        await journal.delete(session_id, agent=running.name)
        return LoadedSession()
    if loaded.records and loaded.opened is None:
        raise JournalDamaged("it has no beginning", session_id=session_id, record=1)
    return loaded


async def refuse_stranger(running: AgentActor, session_id: str, owner: Sender) -> None:
    """Refuse another owner's session by its head, before anything of it is loaded or begins to run.

    Raises:
        SessionNotFound: there is none.
        WrongOwner: it belongs to somebody of another name; the kind is known when it is open.
    """
    if running.journal is None or session_id in running.sessions:
        return
    head = await running.journal.head(running.name, session_id)
    if head is None and session_id not in running.sessions:
        raise SessionNotFound(running.name, session_id)
    if head is not None and head.owner not in ("", owner.name):
        raise WrongOwner(running.name, session_id, owner.name)


async def with_parent_agent(
    journal: Journal | None, session_id: str, opened: Opened, *, agent: str
) -> Opened:
    """Complete a session's first record with its parent's agent, if only the journal's head has it."""
    if journal is None or opened.parent_agent or not opened.parent_id:
        return opened
    head = await journal.head(agent, session_id)
    return attrs.evolve(opened, parent_agent=(head and head.parent_agent) or "")


async def find_root_owner(journal: Journal, key: SessionKey, opened: Opened) -> str:
    """Return the owner's name of the session at the top of the tree of a session with a parent.

    Empty if the session has no parent, or the journal does not have the one at the top any more.
    """
    head = await journal.head(*key) if opened.parent_id else None
    root = None if head is None else await journal.head(head.root_agent, head.root_id)
    return "" if root is None else root.owner


def check_deps(context: SessionContext, opened: Opened, deps_missing: DepsMissingCheck) -> None:
    """Leave a session as it is that would go on without the deps that it needs.

    Raises:
        DepsMissing: it names the session.
    """
    waiting = (context.mail.acceptances or {}).values()
    was_given = opened.deps or any(each.options is not None and each.options.deps for each in waiting)
    if (missing := deps_missing(context, was_given=was_given)) is not None:
        raise missing


def restored_task(context: SessionContext, opened: Opened, running: AgentActor) -> Task:
    """Make the task again that a session was opened for, with what its turn alone was told."""
    message_id = message_id_of(context.id)
    accepted, options = context.mail.find(message_id), running.runner.turn_lifecycle.options
    if accepted is not None and accepted.options is not None:
        options = restored_options(options, accepted.options)
    task = Task(
        message_id,
        TurnFuture(options, is_patient=True),
        opened.parent_agent,
        opened.parent_id or "",
        reports=opened.reports,
        is_unclaimed=True,
        is_answered=accepted is None,
        name=opened.task,
        deadline=opened.deadline,
        seconds=round(opened.deadline - opened.created_at, 3),
        asker=opened.asker,
    )
    task.tell_deadline(running.clock.steady())
    return task


async def is_orphan(context: SessionContext, journal: Journal | None) -> bool:
    """Return True if the session that asked this one has nothing left to do, so that no turn waits for it."""
    task = context.task
    if task is None or task.reports or journal is None or not task.parent_agent:
        return False
    if context.parent is not None:
        asker = context.parent.mail  # one that is still being opened has not counted what waits in it
        return not (asker.pending or asker.acceptances)
    return task.parent_id not in await journal.unfinished(task.parent_agent)


def mark_restored(context: SessionContext, opened: Opened, records: Sequence[Record]) -> None:
    """Have a session for one question leave the journal at its end again, but for a task, whose answer may be asked for again."""
    if context.log is None or not opened.transient:
        return
    task_id = message_id_of(context.id)
    is_task = any(isinstance(record, Accepted) and record.message.id == task_id for record in records)
    context.log.is_temporary = not is_task
