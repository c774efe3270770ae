"""Tasks that a session gives to other agents: each is a child session with one message, and its answer goes back.

    ask       the turn waits for the answer; stopped with it
    delegate  it does not; the answer comes as a message into the asking session, and starts a turn there

With a journal both survive the process. The child's id follows from the call that asks, so a turn that goes on after
a crash finds the child instead of opening another: its answer, where it has ended, or itself, still at work.
What a task comes to stands in the child's journal behind the answer, and what it reports is accepted by the asking
session before the child's own message ends, under an id that is accepted once: it is neither lost nor told twice.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from typing import Any

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.control.budget import Asked
from actgent.control.durable_timer import DurableTimer
from actgent.control.limits import WEEK
from actgent.errors import (
    ActgentError,
    LimitReached,
    NotRunning,
    SessionClosed,
    SessionExists,
    SessionNotFound,
    Stopped,
    ToolError,
)
from actgent.journal.base import Entry, Journal
from actgent.journal.records import REFUSED, Accepted, Answered, Closed, Ended, Record, message_id_of
from actgent.logs import Each, logger_of
from actgent.messages import Message, Part, Priority, Sender, Text, traceparent, valid_traceparent
from actgent.sessions.accounts import asked_by_result
from actgent.sessions.context import SessionContext
from actgent.sessions.failures import kind_of
from actgent.sessions.restore import owner_of
from actgent.sessions.session_log import accepted_record
from actgent.sessions.turn_future import TurnWaiter
from actgent.tools.results import to_text

from .directory import Directory
from .slots import slot_lent

MAX_TASKS = 100
"""How many delegated tasks of one session may be out."""
TASK_DEADLINE = WEEK
"""Seconds that a delegated task may take where nobody says."""
_MAX_ID = 200
_MAX_WORDS = 2000
_log = logger_of(__name__)

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
    name: str = ""
    """What the parent calls it, where it said so; else it is called by the id of its session."""
    is_unclaimed: bool = False
    """True: it goes on after a restart, and the turn that waits for it has not asked for it yet."""
    deadline: float = 0.0
    """Unix time in seconds at which it ends, done or not; 0 is never."""
    seconds: float = 0.0
    """How long that was when it was given."""


TASK_TIMER = "task"
"""The id of a session's `TaskDeadline`."""


@attrs.frozen(eq=False)
class TaskDeadline(DurableTimer):
    """When a delegated task ends that is not done by then."""

    seconds: float
    """How long that was when the task was given."""
    id: str = attrs.field(default=TASK_TIMER, init=False)
    is_delay: bool = attrs.field(default=True, init=False)


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
    shortfall = task.waiter.options.protocol.shortfall(reply.message_type)
    return Answered(message_id=task.message_id, text=text, shortfall=shortfall or "")


def with_shortfall(text: str, shortfall: str) -> str:
    """An answer as the asking model reads it, which is told where it is less than what was asked."""
    return f"Status: {shortfall} (not all that was asked for was done)\n\n{text}" if shortfall else text


def safe_words(error: Exception) -> str:
    """An error for a model: what actgent words itself; of anything else, which may tell secrets, the class."""
    text = str(error) if isinstance(error, ActgentError) else type(error).__name__
    return text[:_MAX_WORDS]


def answer_in(records: Sequence[Record]) -> Answered | None:
    """What a session's task came to, by its journal; None where it has not ended."""
    return next((record for record in reversed(records) if isinstance(record, Answered)), None)


def is_accepted(records: Sequence[Record], message_id: str) -> bool:
    """Whether a message got into a session, by its journal."""
    found = False
    for record in records:
        if isinstance(record, Accepted) and record.message.id == message_id:
            found = True
        elif isinstance(record, Ended) and record.message_id == message_id and record.failed == REFUSED:
            found = False
    return found


def report_text(agent: str, task_id: str, answered: Answered) -> str:
    """What the asking session is told."""
    if answered.failed is None and answered.shortfall:
        return f"Task {task_id}, given to agent {agent!r}, has ended. {with_shortfall(answered.text, answered.shortfall)}"
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
        with asker.session._agent.kept(asker):  # noqa: SLF001 - a session and its agent are one thing
            for number in range(tries):
                each = f"{key}/{number}" if number else key
                answered = await self._ask_once(opener, asker, content, each, priority)
                if answered.failed is None:
                    return with_shortfall(answered.text, answered.shortfall)
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
        name: str = "",
        priority: Priority = Priority.NORMAL,
        deadline: float = TASK_DEADLINE,
    ) -> str:
        """Have another agent do something in a child session; returns its `name`, or else the child's id.

        See `Session.delegate`.
        """
        with asker.session._agent.kept(asker):  # noqa: SLF001 - a session and its agent are one thing
            await self._open(
                opener, asker, content, key=key, reports=True, name=name, priority=priority, deadline=deadline
            )
        return name or child_id_of(key)

    async def _open(
        self,
        opener: Any,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        reports: bool,
        priority: Priority,
        name: str = "",
        deadline: float = math.inf,
    ) -> SessionContext | Answered:
        """The child session of a task: a new one, the one that is at work, or what it came to.

        Its id is the `name` that the asker gave the task, or the `key` where a session that is none of the asker's
        has that id.

        One caller at a time looks for it and opens it; if that fails or is cancelled, the next one finds nothing.

        Raises:
            SessionExists: a session of this id does not work for the asker.
        """
        first_id = child_id_of(name or key)
        await opener.wait_opened(first_id)
        with opener.opens(first_id):
            child_id = await opener.choose_id(asker, first_id, child_id_of(key)) if name else first_id
            known = await self._find_child(opener, asker, child_id)
            if known is not None:
                return known
            if reports and reports_due(asker) >= MAX_TASKS:
                raise LimitReached("delegated tasks at a time", MAX_TASKS)
            task = _new_task(opener, asker, child_id, reports=reports, name=name, deadline=deadline)
            owner = Sender(task.parent_agent, "agent")
            session = opener.new(
                owner, session_id=child_id, parent=asker.session, task=task, is_transient=True
            )
            child: SessionContext
            async with opener.beginning(session) as child:
                message = session._message(  # noqa: SLF001
                    content, message_id=task.message_id, priority=priority, on_busy="queue"
                )
                await opener.running.reception.accept(child, message, once=True)
            return child

    async def _find_child(
        self, opener: Any, asker: SessionContext, child_id: str
    ) -> SessionContext | Answered | None:
        """The child session of an id, or what it came to; None where it was never given its task."""
        try:
            context: SessionContext = (await opener.find(child_id))._context  # noqa: SLF001
        except SessionNotFound:
            closing: SessionContext | None = opener.running.sessions.get(child_id)
            return None if closing is None else await _child_of(asker, opener, closing)
        except SessionClosed:
            if await self._forget_refused(opener.running.name, asker, child_id):
                return None
            return await _read_answer(opener, asker, child_id)
        return await _child_of(asker, opener, context)

    async def _forget_refused(self, agent: str, asker: SessionContext, child_id: str) -> bool:
        """Erase a child session in which an older actgent left that its task never got in; False where it did."""
        if self.journal is None:
            return False
        records = await self.journal.load(child_id, agent=agent)
        opened = owner_of(records)
        is_child = opened is not None and opened.transient and opened.parent_id == asker.id
        if not is_child or is_accepted(records, message_id_of(child_id)):
            return False
        await self.journal.delete(child_id, agent=agent)
        return True

    # --- reports -----------------------------------------------------------------------------

    async def report(self, child: SessionContext, error: Exception | None, blame: str = "internal") -> None:
        """Tell the parent what a delegated task came to; nobody is told where the parent was closed."""
        task: Task = child.task
        answered = outcome_of(task, error, blame)
        agent = child.session.agent_name
        message = Message(
            id=f"{child.scope if task.name else child.id}/result",  # several agents may have a task of one name
            session_id=task.parent_id,
            sender=Sender(agent, "agent"),
            parts=(Text(report_text(agent, task.name or child.id, answered)),),
            correlation_id=task.message_id,
            on_busy="collect",
            traceparent=valid_traceparent(traceparent.get()),
        )
        baggage = child.session._agent.propagation.take(copy_context())  # noqa: SLF001
        try:
            await self._post(task, message, asked_by_result(child), baggage)
        except (SessionClosed, SessionNotFound):
            _log.info("agent %s, session %s: nobody waits for its task any more", agent, Each(child.id))
        except Exception:  # noqa: BLE001 - perhaps of a developer's `on_session`; the task ends all the same
            _log.exception(
                "agent %s, session %s: session %s was not told of its result",
                agent,
                Each(child.id),
                Each(task.parent_id),
            )
            child.session._agent.bury(DeadLetter(task.parent_agent, message, "it was not taken"))  # noqa: SLF001

    async def _post(
        self, task: Task, message: Message, asked: Asked | None, baggage: Mapping[str, Any]
    ) -> None:
        """Have the parent accept a message, wherever it is; where its agent does not run, for its next start."""
        try:
            opener = self.agents.opener(task.parent_agent)
            parent = await opener.find(task.parent_id)
            await opener.running.reception.accept(
                parent._context,  # noqa: SLF001
                message,
                once=True,
                is_granted=True,
                asked=asked,
            )
        except NotRunning:
            if self.journal is None:
                raise
            accepted = accepted_record(message, asked, baggage=baggage)
            await self._write_for_later(self.journal, task, accepted)

    async def _write_for_later(self, journal: Journal, task: Task, accepted: Accepted) -> None:
        records = await journal.load(task.parent_id, agent=task.parent_agent)
        if any(isinstance(record, Closed) for record in records):
            raise SessionClosed(task.parent_id)
        if not is_accepted(records, accepted.message.id):
            entry = Entry(session_id=task.parent_id, agent=task.parent_agent, records=(accepted,))
            await journal.commit(entry, epoch=self.epoch)


def _new_task(
    opener: Any, asker: SessionContext, child_id: str, *, reports: bool, name: str, deadline: float
) -> Task:
    return Task(
        message_id_of(child_id),
        TurnWaiter(opener.running.edges.options, is_patient=True),
        asker.agent,
        asker.id,
        reports=reports,
        name=name,
        deadline=0.0 if deadline == math.inf else opener.running.clock.steady() + deadline,
        seconds=deadline,
    )


async def _child_of(asker: SessionContext, opener: Any, child: SessionContext) -> SessionContext | Answered:
    """A child in memory, or what it came to.

    Raises:
        SessionExists: it is no child of the asker.
    """
    if child.parent_key != asker.key:
        raise SessionExists(child.agent, child.id)
    return child if child.task is not None else await _read_answer(opener, asker, child.id)


async def _read_answer(opener: Any, asker: SessionContext, child_id: str) -> Answered:
    """What the task of a child in the journal came to.

    Raises:
        SessionExists: it is no child of the asker.
    """
    journal, agent = opener.running.journal, opener.running.name
    records = () if journal is None else await journal.load(child_id, agent=agent)
    opened = owner_of(records)
    if opened is None or opened.parent_id != asker.id or opened.parent_agent not in ("", asker.agent):
        raise SessionExists(agent, child_id)
    return answer_in(records) or Answered(
        message_id=message_id_of(child_id), text="it was closed before it answered", failed="stopped"
    )


def reports_due(parent: SessionContext) -> int:
    """How many tasks a session has given away whose results are still to come."""
    return len(parent.children.reporting) if parent.children else 0


def child_id_of(key: str) -> str:
    """The id of the session for a key: the key itself, unless it is longer than databases like."""
    if len(key) <= _MAX_ID:
        return key
    return (
        f"{key[:_MAX_ID]}/{hashlib.blake2b(key.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    )
