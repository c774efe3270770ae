"""Restoring of a session from the journal: concurrent opens, owner check, parent, deps and task."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import attrs
import trio

from actgent.errors import JournalDamaged, JournalKeyError, SessionNotFound, WireError, WrongOwner
from actgent.journal.journal_interface import Journal
from actgent.journal.record_types import MessageAcceptedRecord, Record, SessionCreatedRecord, task_message_id
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Sender
from actgent.runtime.agent_actor import AgentActor
from actgent.sessions.pending.delegated_tasks import Task
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.pending.turn_options import restored_options
from actgent.sessions.restore.record_replayer import creation_record_of, is_unused
from actgent.sessions.restore.session_loader import LoadedSession, load_session
from actgent.sessions.session_context import SessionContext
from actgent.support.attrs_class_repr import FieldRepr
from actgent.turns.turn_lifecycle import DepsMissingCheck


@attrs.frozen(eq=False, repr=False)
class PendingOpen(FieldRepr):
    """Creation, loading or erasure of a session that is in progress."""

    erases: bool = False
    """True for an erasure, False for a creation or loading.

    Waiting for an erasure cannot deadlock, because an erasure waits only for the journal.
    """
    loaded: trio.Event = attrs.field(factory=trio.Event)
    """Set when the session is in memory or has failed to load. Its `on_session` functions may still run."""
    done: trio.Event = attrs.field(factory=trio.Event)
    """Set at the end of the creation, loading or erasure, after the `on_session` functions."""
    earlier: "PendingOpen | None" = None
    """Earlier, unfinished operation on the same session; None if there is none."""

    @property
    def is_of_calling_task(self) -> bool:
        """True if the calling task executes this opening, is an `on_session` function of it, or was started by such a function."""
        return self in _within.get()


_within: ContextVar[tuple[PendingOpen, ...]] = ContextVar("within", default=())
"""Openings that the calling task executes, or whose `on_session` function is or has started this task. Some may have ended."""


class PendingOpens(dict[str, PendingOpen]):
    """Sessions of an agent that are being opened or erased: session id -> newest opening.

    The table survives restarts of the agent, so that a starting agent waits for sessions being erased. Several openings of
    one session form a linked list through `earlier`.
    """

    async def wait(self, session_id: str) -> None:
        """Wait until no task is opening or erasing a session.

        A task that is itself opening a session of the agent waits only for erasures. Two openings that wait for each other would
        never end.
        """
        while (opening := self.get(session_id)) is not None:
            if not opening.erases and any(each.is_of_calling_task for each in self.values()):
                return
            await opening.done.wait()

    async def wait_loaded(self, session_id: str) -> None:
        """Wait until every task that opens a session has loaded it, or has failed to load it."""
        while (opening := self._find_loading(session_id)) is not None:
            await opening.loaded.wait()

    def _find_loading(self, session_id: str) -> PendingOpen | None:
        """Return the opening (a task that opens a session) of a session that is not loaded yet; None if no task opens it."""
        return next((each for each in self.of(session_id) if not each.loaded.is_set()), None)

    @contextmanager
    def block(self, session_id: str, *, erases: bool) -> Iterator[None]:
        """Return a block in which a session is marked as being opened, or as being erased if `erases` is True.

        Other tasks that open the session wait for the end of the block. If the calling task is already opening this session, the
        block has no effect.
        """
        known = self.get(session_id)
        if known is not None and any(each.is_of_calling_task for each in self.of(session_id)):
            yield
            return
        opening = self[session_id] = PendingOpen(erases, earlier=known)
        around = [each for each in _within.get() if not each.done.is_set()]
        token = None if erases else _within.set((*around, opening))
        try:
            yield
        finally:
            if token is not None:
                _within.reset(token)
            self.end(session_id, opening)

    def note_loaded(self, session_id: str) -> None:
        """Set the event `loaded` of the calling task's opening of a session, because the session is in memory."""
        for opening in self.of(session_id):
            if opening.is_of_calling_task:
                opening.loaded.set()

    def of(self, session_id: str) -> Iterator[PendingOpen]:
        """Yield the pending openings and erasures of a session, newest first."""
        opening = self.get(session_id)
        while opening is not None:
            yield opening
            opening = opening.earlier

    def end(self, session_id: str, opening: PendingOpen) -> None:
        """Remove an opening from the table, and wake the tasks that wait for the end of the opening."""
        opening.loaded.set()
        opening.done.set()
        left = self.get(session_id)
        while left is not None and left.done.is_set():
            left = left.earlier
        if left is not None:
            self[session_id] = left
        else:
            self.pop(session_id, None)


async def load_tail(running: AgentActor, journal: Journal, session_id: str) -> LoadedSession:
    """Load a session from its newest usable snapshot and the later records.

    If no caller ever received the session's id, erase the session.

    Raises:
        JournalDamaged: The first record is missing.
    """
    key = SessionKey(running.name, session_id)
    lookback = running.runner.turn_lifecycle.options.protocol.lookback
    loaded = await load_session(journal, key, running.core.memory, lookback=lookback)
    if is_unused(loaded.records):
        await journal.delete(session_id, agent=running.name)
        return LoadedSession()
    if loaded.records and loaded.opened is None:
        raise JournalDamaged(
            "its first record, which creates the session, is missing", session_id=session_id, record=1
        )
    return loaded


async def is_outdated(journal: Journal, key: SessionKey, loaded: LoadedSession) -> bool:
    """Return True if the journal has newer records of a session than those in `loaded`.

    For example, the agent is stopped while it accepts a message, and started again. The rejection of the message is then written
    while the session is being loaded.
    """
    head = journal.cached_head(*key) or await journal.head(*key)
    return head is not None and head.records > loaded.record_count


async def check_owner_by_summary(running: AgentActor, session_id: str, owner: Sender) -> None:
    """Check by a session's summary in the journal that `owner` owns the session, without loading the session.

    Raises:
        SessionNotFound: No session has the id.
        WrongOwner: The session belongs to an owner with another name. The kind of the owner is checked after loading.
    """
    if running.journal is None or session_id in running.sessions:
        return
    head = await running.journal.head(running.name, session_id)
    if head is None and session_id not in running.sessions:
        raise SessionNotFound(running.name, session_id)
    if head is not None and head.owner not in ("", owner.name):
        raise WrongOwner(running.name, session_id, owner.name)


async def with_parent_agent(
    journal: Journal | None, session_id: str, opened: SessionCreatedRecord, *, agent: str
) -> SessionCreatedRecord:
    """Return the first record of a session. If the record lacks the agent of the parent, take it from the session summary."""
    if journal is None or opened.parent_agent or not opened.parent_id:
        return opened
    head = await journal.head(agent, session_id)
    return attrs.evolve(opened, parent_agent=(head and head.parent_agent) or "")


async def find_root_owner(journal: Journal, key: SessionKey, opened: SessionCreatedRecord) -> Sender | None:
    """Return the owner of the root session in a session's tree.

    Return None if the session has no parent, or if the root session is no longer in the journal. If the first record of the root
    session is unreadable, take the name of its owner from its summary.
    """
    head = await journal.head(*key) if opened.parent_id else None
    root = None if head is None else await journal.head(head.root_agent, head.root_id)
    if root is None or not root.owner:
        return None
    try:  # a summary has no kind of the owner
        first = creation_record_of(await journal.read(root.session_id, agent=root.agent, limit=1))
    except (JournalDamaged, JournalKeyError, WireError):  # of the root session; this session is readable
        first = None
    return Sender(root.owner) if first is None else first.owner


def check_deps(context: SessionContext, opened: SessionCreatedRecord, deps_missing: DepsMissingCheck) -> None:
    """Raise if a restored session lacks the deps that its tools need.

    Raises:
        DepsMissing: Deps are missing; the text names the session.
    """
    waiting = (context.acceptances or {}).values()
    was_given = opened.deps or any(each.options is not None and each.options.deps for each in waiting)
    if (missing := deps_missing(context, was_given=was_given)) is not None:
        raise missing


def restored_task(context: SessionContext, opened: SessionCreatedRecord, running: AgentActor) -> Task:
    """Restore the delegated task of a session from its first record, with the options of the task's turn."""
    message_id = task_message_id(context.id)
    accepted, options = context.find_message(message_id), running.runner.turn_lifecycle.options
    if accepted is not None and accepted.options is not None:
        options = restored_options(options, accepted.options)
    task = Task(
        message_id,
        TurnFuture(options, waits_for_approvals=True),
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
    """Return True if the result of a restored session's task is not needed: its parent session has no unfinished work."""
    task = context.task
    if task is None or task.reports or journal is None or not task.parent_agent:
        return False
    if (parent := context.parent) is not None:
        # A parent that is still being opened has not counted its queued messages.
        return not (parent.pending or parent.acceptances)
    return task.parent_id not in await journal.unfinished(task.parent_agent)


def mark_restored(context: SessionContext, opened: SessionCreatedRecord, records: Sequence[Record]) -> None:
    """Mark a restored session for erasure at its end, if it was created for one request.

    The session of a delegated task is not marked, because the parent session may read the task's outcome again.
    """
    if context.log is None or not opened.transient:
        return
    task_id = task_message_id(context.id)
    is_task = any(
        isinstance(record, MessageAcceptedRecord) and record.message.id == task_id for record in records
    )
    context.log.is_temporary = not is_task
