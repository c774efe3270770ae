"""Giving tasks from session to session, and stopping them, among the agents of one runtime; see `tasks`."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from typing import Any

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.control.budget import Funding
from actgent.errors import (
    JournalFailed,
    JournalFull,
    LimitReached,
    NotRunning,
    SessionClosed,
    SessionExists,
    SessionMoved,
    SessionNotFound,
    Stopped,
)
from actgent.journal.base import Entry, Journal
from actgent.journal.listing import SessionKey
from actgent.journal.records import Accepted, Answered, Closed, Record, TurnOptions, message_id_of
from actgent.messages import Message, Priority, Sender, Text, traceparent, valid_traceparent
from actgent.runtime.directory import Directory
from actgent.runtime.sessions.closing import close_tree
from actgent.runtime.sessions.naming import choose_id, id_in_tree
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.slots import slot_lent
from actgent.sessions.accounts import funding_of_result
from actgent.sessions.context import SessionContext, host_of
from actgent.sessions.incoming import Content, message_to
from actgent.sessions.propagation import Propagation
from actgent.sessions.restore import owner_of
from actgent.sessions.session_log import accepted_record, unless_written
from actgent.sessions.waiting.task_reports import (
    answer_in,
    is_accepted,
    outcome_of,
    report_text,
)
from actgent.sessions.waiting.tasks import MAX_TASKS, TASK_DEADLINE, Task, child_id_of, report_id_of, task_key
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.sessions.waiting.turn_options import restored_options
from actgent.support.logs import Each, logger_of

from .pools import Pools

RETRY = 1.0
"""Seconds after which a journal that failed is asked again."""
_log = logger_of(__name__)


@attrs.define(eq=False)
class Delegation:
    """Hands tasks from session to session, among the agents of one runtime."""

    agents: Directory
    journal: Journal | None
    propagation: Propagation
    pools: Pools | None = None
    """The way to other pools, in a cluster."""

    async def ask(
        self,
        opener: SessionOpener,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        priority: Priority = Priority.NORMAL,
        tries: int = 1,
    ) -> Answered:
        """Have another agent do something, in a child session whose id is `key`, and wait for what it comes to.

        What fails is given anew, in another session, up to so many `tries`; returns what the last one came to.

        Raises:
            WaitCycle: the child waits for the asker.
        """
        for number in range(tries):
            each = f"{key}/{number}" if number else key
            answered = await self.ask_once(opener, asker, content, key=each, priority=priority)
            if answered.failed is None:
                break
        return answered

    async def ask_once(
        self,
        opener: SessionOpener,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        name: str = "",
        priority: Priority = Priority.NORMAL,
        deadline: float = math.inf,
        form: TurnOptions | None = None,
    ) -> Answered:
        """The same without another try; returns what it came to, a failure too.

        Args:
            opener: Opens the sessions of the agent that is asked.
            asker: The session whose turn asks.
            content: What is to be done.
            key: The id of the child session, where a session that is none of the asker's has the `name`.
            name: The id that it is to have, if one is wanted.
            priority: Of the message in the other agent's inbox.
            deadline: Seconds after which the task has failed, also over a restart.
            form: What its turn alone is told beside that, such as the form of its answer.

        Raises:
            WaitCycle: the child waits for the asker.
            SessionExists: a session of this id does not work for the asker.
        """
        with host_of(asker).kept(asker):
            child = await self._open(
                opener,
                asker,
                content,
                key=key,
                reports=False,
                name=name,
                priority=priority,
                deadline=deadline,
                form=form,
            )
            return child if isinstance(child, Answered) else await self._wait(opener, child, asker)

    async def _wait(self, opener: SessionOpener, child: SessionContext, asker: SessionContext) -> Answered:
        task = child.task
        assert task is not None  # noqa: S101 - it was opened for one
        task.is_unclaimed = False
        task.future.take_limit(asker)
        task.tell_deadline(opener.running.clock.steady())
        with slot_lent(child):
            try:
                await task.future.done.wait()
            except trio.Cancelled:
                await task.future.leave(host_of(asker))  # noqa: ASYNC102 - one shielded checkpoint
                raise
            error = None if task.future.failure is None else task.future.failure.error
            if isinstance(error, Stopped) and host_of(child).is_durable:
                await (
                    trio.sleep_forever()
                )  # we stop, too, or our tool's time is over; the next start asks again
        blame = "internal" if task.future.failure is None else task.future.failure.kind
        return outcome_of(task, error, blame, origin=child.conversation.origin)

    async def delegate(
        self,
        opener: SessionOpener,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        name: str = "",
        priority: Priority = Priority.NORMAL,
        deadline: float = TASK_DEADLINE,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Have another agent do something in a child session; returns its `name`, or else the child's id.

        See `Session.delegate`.
        """
        with host_of(asker).kept(asker), unless_written():
            await self._open(
                opener,
                asker,
                content,
                key=key,
                reports=True,
                name=name,
                priority=priority,
                deadline=deadline,
                metadata=metadata,
            )
        return name or _child_id(opener, asker, key)

    async def _open(
        self,
        opener: SessionOpener,
        asker: SessionContext,
        content: Content,
        *,
        key: str,
        reports: bool,
        priority: Priority,
        name: str = "",
        deadline: float = math.inf,
        form: TurnOptions | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionContext | Answered:
        """The child session of a task: a new one, the one that is at work, or what it came to.

        Its id is the `name` that the asker gave the task, or the `key` where a session that is none of the asker's
        has that id.

        One caller at a time looks for it and opens it; if that fails or is cancelled, the next one finds nothing.

        Raises:
            SessionExists: a session of this id does not work for the asker.
        """
        first_id = _child_id(opener, asker, name or key)
        await opener.wait_opened(first_id)
        with opener.opens(first_id):
            child_id = (
                await choose_id(opener.running, asker, first_id, _child_id(opener, asker, key))
                if name
                else first_id
            )
            known = await self._find_child(opener, asker, child_id)
            if known is not None:
                return known
            if reports and asker.reports_due >= MAX_TASKS:
                raise LimitReached("delegated tasks at a time", MAX_TASKS)
            task = _new_task(opener, asker, child_id, reports=reports, name=name, deadline=deadline)
            if form is not None:
                task.future.options = restored_options(task.future.options, form)
            owner = Sender(task.parent_agent, "agent")
            if not reports:
                task.future.take_limit(asker)  # before it is sent: its turn may begin at once
            task.tell_deadline(opener.running.clock.steady())
            child = opener.new(owner, session_id=child_id, parent=asker, task=task, is_transient=True)
            async with opener.beginning(child):
                message = message_to(
                    child,
                    content,
                    message_id=task.message_id,
                    priority=priority,
                    on_busy="queue",
                    metadata=metadata,
                )
                future = None if form is None else task.future  # it has what the journal is to keep
                await opener.intake.accept(child, message, once=True, future=future)
            return child

    async def _find_child(
        self, opener: SessionOpener, asker: SessionContext, child_id: str
    ) -> SessionContext | Answered | None:
        """The child session of an id, or what it came to; None where it was never given its task."""
        try:
            context = await opener.find(child_id)
        except SessionNotFound:
            closing = opener.running.sessions.get(child_id)
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
        """Report a delegated task's result to its parent. Does nothing if the parent is closed."""
        task = child.task
        assert task is not None  # noqa: S101 - it has ended
        answered = outcome_of(task, error, blame, origin=child.conversation.origin)
        agent = child.agent
        message = _report_of(
            answered,
            child.key,
            report_id(child, task),
            task_id=task.name or child.id,
            parent_id=task.parent_id,
            traceparent=valid_traceparent(traceparent.get()),
        )
        baggage = self.propagation.take_what_fits(copy_context())
        try:
            await self._post_at_last(child, task, message, baggage)
        except SessionMoved:
            pass  # with its child: another process goes on with both
        except (SessionClosed, SessionNotFound):
            _log.info("agent %s, session %s: nobody waits for its task any more", agent, Each(child.id))
        except Exception:  # noqa: BLE001 - perhaps of a developer's `on_session`; the task ends all the same
            _log.exception(
                "agent %s, session %s: session %s was not told of its result",
                agent,
                Each(child.id),
                Each(task.parent_id),
            )
            host_of(child).bury(DeadLetter(task.parent_agent, message, "it was not taken"))

    async def report_buried(self, key: SessionKey, records: Sequence[Record], answered: Answered) -> None:
        """Report a delegated task that is given up unopened to its parent, if it is to report; see `report`.

        Raises:
            JournalError: it cannot be written.
        """
        opened = owner_of(records)
        if opened is None or not opened.reports or self.journal is None:
            return
        options = self.agents.opener(key.agent).running.runner.turn_lifecycle.options
        parent = SessionKey(opened.parent_agent, opened.parent_id or "")
        task = Task(answered.message_id, TurnFuture(options), *parent, reports=True, name=opened.task)
        scope = key.scope if opened.agent and opened.task else key.session_id
        message = _report_of(
            answered,
            key,
            report_id_of(scope),
            task_id=task.name or key.session_id,
            parent_id=task.parent_id,
        )
        with suppress(SessionClosed, SessionNotFound):  # nobody waits for it any more
            if self.agents.trees.find(parent) is None:
                await self._write_for_later(self.journal, task, accepted_record(message, None))
            else:
                await self._post(task, message, None, {})

    async def _post_at_last(
        self, child: SessionContext, task: Task, message: Message, baggage: Mapping[str, Any]
    ) -> None:
        """Post; while the journal fails, again each second: until then the task is not over, for the next start neither."""
        has_failed = False
        while True:
            try:
                if not task.reports:  # it was stopped
                    return None
                return await self._post(task, message, funding_of_result(child), baggage)
            except (JournalFull, JournalFailed) as error:
                if not has_failed:
                    _log.warning(
                        "agent %s, session %s: its result for session %s waits until the journal works: %s",
                        child.agent,
                        Each(child.id),
                        Each(task.parent_id),
                        type(error).__name__,
                    )
            has_failed = True
            with slot_lent():
                await trio.sleep(RETRY)

    async def _post(
        self, task: Task, message: Message, funding: Funding | None, baggage: Mapping[str, Any]
    ) -> None:
        """Have the parent accept a message, wherever it is; where its agent does not run, for its next start."""
        try:
            opener = self.agents.opener(task.parent_agent)
            parent = await opener.find(task.parent_id)
            await opener.intake.accept(parent, message, once=True, is_granted=True, funding=funding)
        except NotRunning:
            if self.journal is None:
                raise
            accepted = accepted_record(message, funding, baggage=baggage)
            await self._write_for_later(self.journal, task, accepted)

    async def _write_for_later(self, journal: Journal, task: Task, accepted: Accepted) -> None:
        epoch = journal.epoch_of(task.parent_id)
        records = await journal.load(task.parent_id, agent=task.parent_agent)
        if any(isinstance(record, Closed) for record in records):
            raise SessionClosed(task.parent_id)
        if not is_accepted(records, accepted.message.id):
            entry = Entry(
                session_id=task.parent_id, agent=task.parent_agent, records=(accepted,), follows=True
            )
            await journal.commit(entry, epoch=epoch)


def _report_of(
    answered: Answered,
    key: SessionKey,
    message_id: str,
    *,
    task_id: str,
    parent_id: str,
    traceparent: str | None = None,
) -> Message:
    """What tells a session what became of a task that it gave to the session of this key."""
    return Message(
        id=message_id,
        session_id=parent_id,
        sender=Sender(key.agent, "agent"),
        parts=(Text(report_text(key.agent, task_id, answered)),),
        correlation_id=answered.message_id,
        on_busy="collect",
        traceparent=traceparent,
        origin=answered.origin,
    )


def report_id(child: SessionContext, task: Task) -> str:
    """The id of the message that tells what a task came to; several agents may have one of the same name."""
    return report_id_of(child.scope if task.name else child.id)


def child_ids(opener: SessionOpener, asker: SessionContext, task_id: str) -> Collection[str]:
    """The ids that the session of a task may have which its asker calls so; `opener` is that of any agent."""
    made = (_child_id(opener, asker, each) for each in (task_id, task_key(asker.scope, task_id)))
    return {task_id, *made}


def _child_id(opener: SessionOpener, asker: SessionContext, key: str) -> str:
    """The id of a session for a key, of the asker's tree where it has to be."""
    return child_id_of(id_in_tree(opener.running, asker, child_id_of(key)))


def _new_task(
    opener: SessionOpener, asker: SessionContext, child_id: str, *, reports: bool, name: str, deadline: float
) -> Task:
    return Task(
        message_id_of(child_id),
        TurnFuture(opener.running.runner.turn_lifecycle.options, is_patient=True),
        asker.agent,
        asker.id,
        reports=reports,
        name=name,
        deadline=0.0 if deadline == math.inf else opener.running.clock.steady() + deadline,
        seconds=deadline,
    )


async def _child_of(
    asker: SessionContext, opener: SessionOpener, child: SessionContext
) -> SessionContext | Answered:
    """A child in memory, or what it came to.

    Raises:
        SessionExists: it is no child of the asker.
    """
    if child.parent_key != asker.key:
        raise SessionExists(child.agent, child.id)
    if child.task is not None and not child.task.is_answered:
        return child
    if child.task is not None:
        child.task.is_unclaimed = False
    return await _read_answer(opener, asker, child.id)


async def _read_answer(opener: SessionOpener, asker: SessionContext, child_id: str) -> Answered:
    """Read the outcome of a child's task from the journal.

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


async def find_tasks(
    agents: Directory, journal: Journal | None, asker: SessionContext, task_id: str
) -> Sequence[SessionContext]:
    """The delegated tasks of an id that are at work, and those that only the journal has since a restart or a move.

    Raises:
        NotRunning: the agent of one that only the journal has does not run here.
        SessionMoved: another process goes on with them.
        JournalError: they cannot be read.
    """
    if journal is not None and asker.log is not None and asker.log.creation is None:
        ids = child_ids(agents.opener(asker.agent), asker, task_id)
        for head in await journal.children(*asker.key):
            if head.session_id in ids and not head.closed and head.key not in (asker.children or ()):
                with suppress(SessionClosed, SessionNotFound):
                    await agents.opener(head.agent).find(head.session_id)
    return () if asker.children is None else asker.children.tasks(task_id)


async def stop_tasks(
    agents: Directory, journal: Journal | None, asker: SessionContext, tasks: Sequence[SessionContext]
) -> bool:
    """Close sessions of tasks with all below them, durable on return; False if all of them have told what they came to.

    Raises:
        SessionMoved: another process goes on with them.
        JournalError: they are closed, and the journal does not know.
    """
    stopped = [(task, task.task) for task in tasks if task.task is not None]
    for child, task in stopped:
        if task.reports and asker.children is not None:
            asker.children.stop_report(child)
    async with AsyncExitStack() as closing:
        for child in reversed(tasks):
            closing.push_async_callback(
                close_tree, child, journal, agents.opener
            )  # whatever the others come to
    return any(not asker.mail.has_accepted(report_id(child, task)) for child, task in stopped)


def was_told(agents: Directory, asker: SessionContext, task_id: str) -> bool:
    """Return True if a session was told what a task of this id came to."""
    ids = child_ids(agents.opener(asker.agent), asker, task_id)
    names = {
        each for child_id in ids for agent in agents for each in (child_id, SessionKey(agent, child_id).scope)
    }
    return any(asker.mail.has_accepted(report_id_of(each)) for each in names)
