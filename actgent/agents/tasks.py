"""Tasks that a session gives to other agents: each is a child session with one message, and its answer goes back.

    ask       the turn waits for the answer; stopped with it
    delegate  it does not; the answer comes as a message into the asking session, and starts a turn there

With a journal both survive the process. The child's id follows from the call that asks, so a turn that goes on after
a crash finds the child instead of opening another: its answer, where it has ended, or itself, still at work.
What a task comes to stands in the child's journal behind the answer, and what it reports is accepted by the asking
session before the child's own message ends, under an id that is accepted once: it is neither lost nor told twice.
"""

import hashlib
import logging
import math
from collections.abc import Sequence
from typing import Any

import attrs
import trio

from actgent.control.dues import Dated
from actgent.control.limits import WEEK
from actgent.errors import (
    ActgentError,
    DeadlineExceeded,
    LimitReached,
    NotRunning,
    SessionClosed,
    SessionNotFound,
    Stopped,
    ToolError,
)
from actgent.journal.base import Entry, Journal
from actgent.journal.records import Accepted, Answered, Closed, Ended, Record, message_id_of
from actgent.messages import Message, Part, Priority, Sender, Text
from actgent.tools.results import to_text

from .context import SessionContext
from .directory import Directory
from .failures import kind_of
from .waiters import TurnWaiter
from .waiting import slot_lent

MAX_TASKS = 100
"""How many delegated tasks of one session may be out."""
TASK_DEADLINE = WEEK
"""Seconds that a delegated task may take where nobody says."""
_MAX_ID = 200
_MAX_WORDS = 2000
_log = logging.getLogger(__name__)

Content = str | Part | Sequence[str | Part]


@attrs.define(eq=False)
class Task:
    """What a session was opened for by another one."""

    message_id: str
    """The message that is to be answered."""
    waiter: TurnWaiter
    parent_agent: str
    parent_id: str
    reports: bool = False
    """True: nobody waits, and the answer goes to the parent as a message."""
    is_unclaimed: bool = False
    """True: it goes on after a restart, and the turn that waits for it has not asked for it yet."""
    deadline: float = 0.0
    """Unix time in seconds at which it ends, done or not; 0 is never."""
    seconds: float = 0.0
    """How long that was when it was given."""


class TaskDeadline(Dated):
    """When a delegated task ends that is not done by then."""

    id = "task"

    def __init__(self, task: Task) -> None:
        self.at = task.deadline
        self._seconds = task.seconds

    async def ring(self, agent: Any, context: SessionContext) -> None:
        await agent.end(context, DeadlineExceeded(f"agent {agent.name!r}", self._seconds))


# --- what it came to -------------------------------------------------------------------------


def outcome_of(task: Task, error: Exception | None, blame: str = "internal") -> Answered:
    """What a task came to, in words that a model may read."""
    if error is not None:
        return Answered(message_id=task.message_id, text=safe_words(error), failed=kind_of(error, blame))
    reply = task.waiter.answer()
    try:
        text = to_text(reply.text if reply.data is None else reply.data)
    except (TypeError, ValueError) as wrong:
        return Answered(message_id=task.message_id, text=safe_words(wrong), failed="internal")
    return Answered(message_id=task.message_id, text=text)


def safe_words(error: Exception) -> str:
    """An error for a model: what actgent words itself; of anything else, which may tell secrets, the class."""
    text = str(error) if isinstance(error, ActgentError) else type(error).__name__
    return text[:_MAX_WORDS]


def answer_in(records: Sequence[Record]) -> Answered | None:
    """What a session's task came to, by its journal; None where it has not ended."""
    return next((record for record in reversed(records) if isinstance(record, Answered)), None)


def report_text(agent: str, task_id: str, answered: Answered) -> str:
    """What the asking session is told."""
    if answered.failed is None:
        return f"Task {task_id} was done by agent {agent!r}:\n{answered.text}"
    return f"Task {task_id}, given to agent {agent!r}, failed ({answered.failed}): {answered.text}"


# --- giving and answering them ---------------------------------------------------------------


@attrs.frozen(eq=False)
class Tasks:
    """Hands tasks from session to session, among the agents of one runtime."""

    agents: Directory
    journal: Journal | None
    epoch: int

    async def ask(
        self,
        opener: Any,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        priority: Priority = Priority.NORMAL,
        tries: int = 1,
    ) -> str:
        """Have another agent do something, in a child session whose id is `key`, and wait for what it comes to.

        What fails is given anew, in another session, up to so many `tries`.

        Raises:
            ToolError: it failed; the text says which agent, what kind of failure, and why.
            WaitCycle: the child waits for the asker.
        """
        for number in range(tries):
            each = f"{key}/{number}" if number else key
            answered = await self._ask_once(opener, asker, content, each, priority)
            if answered.failed is None:
                return answered.text
        raise ToolError(f"agent {opener.running.name!r} failed ({answered.failed}): {answered.text}")

    async def _ask_once(
        self, opener: Any, asker: SessionContext, content: Content, key: str, priority: Priority
    ) -> Answered:
        child = await self._open(opener, asker, content, key=key, reports=False, priority=priority)
        return child if isinstance(child, Answered) else await self._wait(child, asker)

    async def _wait(self, child: SessionContext, asker: SessionContext) -> Answered:
        task: Task = child.task
        task.is_unclaimed = False
        task.waiter.take_limit(asker)
        with slot_lent(child):
            try:
                await task.waiter.done.wait()
            except trio.Cancelled:
                await task.waiter.leave(asker.session)  # noqa: ASYNC102 - one shielded checkpoint
                raise
            error = None if task.waiter.failure is None else task.waiter.failure.error
            if isinstance(error, Stopped) and child.session.is_durable:
                await (
                    trio.sleep_forever()
                )  # we stop, too, or our tool's time is over; the next start asks again
        blame = "internal" if task.waiter.failure is None else task.waiter.failure.kind
        return outcome_of(task, error, blame)

    async def delegate(
        self,
        opener: Any,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        priority: Priority = Priority.NORMAL,
        deadline: float = TASK_DEADLINE,
    ) -> str:
        """Have another agent do something in a child session, whose id is returned; see `Session.delegate`."""
        await self._open(opener, asker, content, key=key, reports=True, priority=priority, deadline=deadline)
        return child_id_of(key)

    async def _open(
        self,
        opener: Any,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        reports: bool,
        priority: Priority,
        deadline: float = math.inf,
    ) -> SessionContext | Answered:
        """The child session of a key: a new one, the one that is at work, or what it came to."""
        child_id = child_id_of(key)
        running = opener.running
        try:
            session = await opener.find(child_id)
        except SessionNotFound:
            session = None
        except SessionClosed:
            if not await self._forget_refused(child_id):
                return await _read_answer(opener, child_id)
            session = None
        context: SessionContext | None = running.sessions.get(child_id)
        if session is not None or context is not None:  # perhaps of someone who was faster
            context = context or session._context  # noqa: SLF001
            return context if context.task is not None else await _read_answer(opener, child_id)
        if reports and reports_due(asker) >= MAX_TASKS:
            raise LimitReached("delegated tasks at a time", MAX_TASKS)
        task = Task(
            message_id_of(child_id),
            TurnWaiter(running.edges.options, is_patient=True),
            asker.session.agent_name,
            asker.id,
            reports=reports,
            deadline=0.0 if deadline == math.inf else running.clock.now() + deadline,
            seconds=deadline,
        )
        owner = Sender(task.parent_agent, "agent")
        session = opener.new(owner, session_id=child_id, parent=asker.session, task=task, is_transient=True)
        with opener.letting_go(session):
            await opener.introduce(session)
            context = session._context  # noqa: SLF001
            context.transient = True
            message = session._message(  # noqa: SLF001
                content, message_id=task.message_id, priority=priority, on_busy="queue"
            )
            await running.reception.accept(context, message, once=True)
        return context

    async def _forget_refused(self, child_id: str) -> bool:
        """Erase a child session whose task never got in, so that it can be given again; False where it did."""
        if self.journal is None:
            return False
        refused = Ended(message_id=message_id_of(child_id), failed="refused")
        if refused not in await self.journal.load(child_id):
            return False
        await self.journal.delete(child_id)
        return True

    # --- reports -----------------------------------------------------------------------------

    async def report(self, child: SessionContext, error: Exception | None, blame: str = "internal") -> None:
        """Tell the parent what a delegated task came to; nobody is told where the parent was closed."""
        task: Task = child.task
        answered = outcome_of(task, error, blame)
        agent = child.session.agent_name
        message = Message(
            id=f"{child.id}/result",
            session_id=task.parent_id,
            sender=Sender(agent, "agent"),
            parts=(Text(report_text(agent, child.id, answered)),),
            correlation_id=task.message_id,
            on_busy="collect",
        )
        try:
            await self._post(task, message)
        except (SessionClosed, SessionNotFound):
            _log.info("agent %s, session %s: nobody waits for its task any more", agent, child.id)
        except Exception:  # noqa: BLE001 - perhaps of a developer's `on_session`; the task ends all the same
            _log.exception(
                "agent %s, session %s: session %s was not told of its result", agent, child.id, task.parent_id
            )

    async def _post(self, task: Task, message: Message) -> None:
        """Have the parent accept a message, wherever it is; where its agent does not run, for its next start."""
        try:
            opener = self.agents.opener(task.parent_agent)
            parent = await opener.find(task.parent_id)
            await opener.running.reception.accept(parent._context, message, once=True, is_granted=True)  # noqa: SLF001
        except NotRunning:
            if self.journal is None:
                raise
            await self._write_for_later(self.journal, task, message)

    async def _write_for_later(self, journal: Journal, task: Task, message: Message) -> None:
        records = await journal.load(task.parent_id)
        if any(isinstance(record, Closed) for record in records):
            raise SessionClosed(task.parent_id)
        if not any(isinstance(each, Accepted) and each.message.id == message.id for each in records):
            accepted = Entry(
                session_id=task.parent_id, agent=task.parent_agent, records=(Accepted(message=message),)
            )
            await journal.commit(accepted, epoch=self.epoch)


async def _read_answer(opener: Any, child_id: str) -> Answered:
    journal = opener.running.journal
    known = answer_in(() if journal is None else await journal.load(child_id))
    return known or Answered(
        message_id=message_id_of(child_id), text="it was closed before it answered", failed="stopped"
    )


def reports_due(parent: SessionContext) -> int:
    """How many tasks a session has given away whose results are still to come."""
    if not parent.children:
        return 0
    return sum(child.task is not None and child.task.reports for child in parent.children.values())


def child_id_of(key: str) -> str:
    """The id of the session for a key: the key itself, unless it is longer than databases like."""
    if len(key) <= _MAX_ID:
        return key
    return (
        f"{key[:_MAX_ID]}/{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    )
