"""Delegation of tasks between sessions of one runtime: start child sessions, report their outcomes, cancel them."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from typing import Any

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
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
from actgent.journal.journal_interface import Entry, Journal
from actgent.journal.record_types import (
    FailureRecord,
    MessageAcceptedRecord,
    Record,
    SessionClosedRecord,
    TaskOutcomeRecord,
    TurnOptions,
    task_message_id,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.limits_and_schedules.budget import Funding
from actgent.messages import Content, Message, Priority, Sender, Text, traceparent, valid_traceparent
from actgent.runtime.agent_directory import Directory
from actgent.runtime.sessions.session_ids import choose_id, id_in_tree
from actgent.runtime.sessions.session_lifecycle import CLOSED_REASON
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.sessions.session_tree_close import close_tree
from actgent.runtime.waits_between_sessions import add_untrusted_sources, releasing_slot
from actgent.sessions.budget_accounts import funding_of_result
from actgent.sessions.context_variable_propagation import Propagation
from actgent.sessions.pending.delegated_tasks import (
    MAX_TASKS,
    TASK_DEADLINE_SECONDS,
    Task,
    child_id_of,
    report_id_of,
    task_key,
)
from actgent.sessions.pending.task_reports import answer_in, is_accepted, outcome_of, report_text
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.pending.turn_options import restored_options
from actgent.sessions.restore.record_replayer import creation_record_of
from actgent.sessions.session_context import SessionContext, host_of
from actgent.sessions.session_record_writer import accepted_record, unless_written
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.safe_logging import LogVariable, logger_of

from .tasks_between_cluster_pools import Pools

RETRY_SECONDS = 1.0
"""Seconds between attempts to send a task's outcome after a journal error."""
_log = logger_of(__name__)


@attrs.define(eq=False, repr=False)
class Delegation(FieldRepr):
    """Delegates tasks from sessions to the agents of one runtime. Each task runs in a child session."""

    agents: Directory
    journal: Journal | None
    propagation: Propagation
    pools: Pools | None = None
    """Connection to other pools of the cluster; None without a cluster."""

    async def ask(
        self,
        opener: SessionOpener,
        caller: SessionContext,
        content: Content,
        *,
        key: str,
        priority: Priority = Priority.NORMAL,
        tries: int = 1,
    ) -> TaskOutcomeRecord:
        """Send a task to another agent and wait for the outcome. Retry a failed task, up to `tries` attempts in total.

        Each attempt has a new child session; `key` is the id of the first. If the last attempt fails, return its failure.

        Raises:
            DeadlockDetected: The child session waits for the calling session.
        """
        for number in range(tries):
            each = f"{key}/{number}" if number else key
            answered = await self.ask_once(opener, caller, content, key=each, priority=priority)
            if answered.failed is None:
                break
        return answered

    async def ask_once(
        self,
        opener: SessionOpener,
        caller: SessionContext,
        content: Content,
        *,
        key: str,
        name: str = "",
        priority: Priority = Priority.NORMAL,
        deadline: float = math.inf,
        form: TurnOptions | None = None,
    ) -> TaskOutcomeRecord:
        """Send a task to another agent without retries. Return its outcome, which can be a failure.

        If the agent stops during the task and the runtime has a journal, wait until the agent is started again.

        Args:
            opener: Session opener of the other agent.
            caller: Calling session.
            content: Task, as text or parts.
            key: Id of the child session if `name` is taken by an unrelated session.
            name: Preferred id of the child session; empty uses `key`.
            priority: Priority of the task's message.
            deadline: Seconds after which the task fails. The time during restarts of the agent counts.
            form: Options of the task's turn, such as the output type; None uses those of the other agent.

        Raises:
            DeadlockDetected: The child session waits for the calling session.
            SessionExists: An unrelated session has the id.
        """
        with host_of(caller).kept(caller):
            answered, is_known = None, False
            while answered is None:
                try:
                    child = await self._open(
                        opener,
                        caller,
                        content,
                        key=key,
                        reports=False,
                        name=name,
                        priority=priority,
                        deadline=deadline,
                        form=form,
                    )
                    is_known = True
                    answered = (
                        child
                        if isinstance(child, TaskOutcomeRecord)
                        else await self._wait(opener, child, caller)
                    )
                except NotRunning:
                    if not is_known:
                        raise
                if answered is None:  # the agent has stopped; its next start continues the task
                    opener = await self.agents.wait_restarted(opener)
            add_untrusted_sources(caller, answered.via)
            return answered

    async def _wait(
        self, opener: SessionOpener, child: SessionContext, caller: SessionContext
    ) -> TaskOutcomeRecord | None:
        """Wait for the outcome of a task. Return None if its agent has stopped before the task ended."""
        task = child.task
        assert task is not None  # noqa: S101 - the session was created for a task
        task.is_unclaimed = False
        task.future.bind_time_limits(caller)
        task.tell_deadline(opener.running.clock.steady())
        with releasing_slot(child):
            try:
                await task.future.done.wait()
            except trio.Cancelled:
                await task.future.leave(host_of(caller))  # noqa: ASYNC102 - one shielded checkpoint
                # a turn that an earlier start suspended is not attached to the future
                if task.future.abandoned:
                    host_of(child).resume_if_superseded(child)
                raise
        error = None if task.future.failure is None else task.future.failure.error
        if isinstance(error, Stopped) and host_of(child).is_durable:
            return None
        blame = "internal" if task.future.failure is None else task.future.failure.kind
        said = child.conversation
        return outcome_of(task, error, blame, origin=said.origin, via=said.via)

    async def delegate(
        self,
        opener: SessionOpener,
        caller: SessionContext,
        content: Content,
        *,
        key: str,
        name: str = "",
        priority: Priority = Priority.NORMAL,
        deadline: float = TASK_DEADLINE_SECONDS,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Start a task of another agent in a child session without waiting for it, and return the id of the task.

        The task id is `name`, or the id of the child session if `name` is empty. The id of the child session is derived from
        `name`, or is `key` if an unrelated session already has that id. The child session sends its outcome to the calling
        session as a message.

        Args:
            opener: Session opener of the other agent.
            caller: Calling session.
            content: Task, as text or parts.
            key: Id of the child session if `name` is taken by an unrelated session.
            name: Name of the task in the calling session; empty uses the child's session id.
            priority: Priority of the task's message.
            deadline: Seconds after which the task is stopped.
            metadata: Metadata of the task's message.

        Raises:
            LimitReached: The calling session has the maximum number of running tasks.
            SessionExists: An unrelated session has the id.
        """
        with host_of(caller).kept(caller), unless_written():
            await self._open(
                opener,
                caller,
                content,
                key=key,
                reports=True,
                name=name,
                priority=priority,
                deadline=deadline,
                metadata=metadata,
            )
        return name or _child_id(opener, caller, key)

    async def _open(
        self,
        opener: SessionOpener,
        caller: SessionContext,
        content: Content,
        *,
        key: str,
        reports: bool,
        priority: Priority,
        name: str = "",
        deadline: float = math.inf,
        form: TurnOptions | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SessionContext | TaskOutcomeRecord:
        """Return the child session of a task, or the outcome of a task that has ended. Create the session if it does not exist.

        The child's id is the task's `name`, or `key` if an unrelated session has that id. Concurrent calls for one task wait for
        each other. If the first call fails, the next one creates the session. `reports` is True if the child session sends its
        outcome as a message.

        Raises:
            SessionExists: An unrelated session has the id.
        """
        first_id = _child_id(opener, caller, name or key)
        await opener.wait_opened(first_id)
        with opener.marked_as_opening(first_id):
            child_id = (
                await choose_id(opener.running, caller, first_id, _child_id(opener, caller, key))
                if name
                else first_id
            )
            known = await self._find_child(opener, caller, child_id)
            if known is not None:
                return known
            if reports and caller.reports_due >= MAX_TASKS:
                raise LimitReached("delegated tasks that run at the same time", MAX_TASKS)
            task = _new_task(opener, caller, child_id, reports=reports, name=name, deadline=deadline)
            if form is not None:
                task.future.options = restored_options(task.future.options, form)
            owner = Sender(task.parent_agent, "agent")
            if not reports:
                task.future.bind_time_limits(caller)  # before sending, since the turn may start immediately
            task.tell_deadline(opener.running.clock.steady())
            child = opener.new(owner, session_id=child_id, parent=caller, task=task, is_transient=True)
            async with opener.single_message_block(child):
                message = child.new_message(
                    content, message_id=task.message_id, priority=priority, on_busy="queue", metadata=metadata
                )
                future = None if form is None else task.future  # the stored form replaces the future
                await opener.admission.accept(child, message, once=True, future=future)
            return child

    async def _find_child(
        self, opener: SessionOpener, caller: SessionContext, child_id: str
    ) -> SessionContext | TaskOutcomeRecord | None:
        """Return the child session `child_id` if its task is running, or the task's outcome if it has ended.

        Return None if no such session exists, or if it never received its task.
        """
        try:
            context = await opener.find(child_id)
        except SessionNotFound:
            closing = opener.running.sessions.get(child_id)
            return None if closing is None else await _child_of(caller, opener, closing)
        except SessionClosed:
            if await self._erase_unaccepted(opener.running.name, caller, child_id):
                return None
            return await _read_answer(opener, caller, child_id)
        return await _child_of(caller, opener, context)

    async def _erase_unaccepted(self, agent: str, caller: SessionContext, child_id: str) -> bool:
        """Erase a child session of `caller` that has never accepted its task, and return True. Older versions left such sessions.

        Return False without erasing if the session has accepted its task, or is no child of `caller`.
        """
        if self.journal is None:
            return False
        records = await self.journal.load(child_id, agent=agent)
        opened = creation_record_of(records)
        is_child = opened is not None and opened.transient and opened.parent_id == caller.id
        if not is_child or is_accepted(records, task_message_id(child_id)):
            return False
        await self.journal.delete(child_id, agent=agent)
        return True

    # --- reports -----------------------------------------------------------------------------

    async def report(
        self, child: SessionContext, error: Exception | None, failure_kind: str = "internal"
    ) -> None:
        """Send the outcome of the task of the session `child` as a message to its parent session.

        `error` is the error that ended the task; None if the task succeeded. `failure_kind` is the kind of the failure if the
        class of `error` does not determine it.

        No message is sent if the parent session is closed, erased or owned by another process. If the parent session rejects
        the message, the message becomes a dead letter. These cases raise no error.
        """
        task = child.task
        assert task is not None  # noqa: S101 - called after the end of the task
        said = child.conversation
        answered = outcome_of(task, error, failure_kind, origin=said.origin, via=said.via)
        agent = child.agent
        message = _report_of(
            answered,
            child.key,
            report_id(child, task),
            task_id=task.name or child.id,
            parent_id=task.parent_id,
            traceparent=valid_traceparent(traceparent.get()),
        )
        baggage = self.propagation.capture_storable(copy_context())
        try:
            await self._post_with_retries(child, task, message, baggage)
        except SessionMoved:
            pass  # parent and child moved together: the other process continues both
        except (SessionClosed, SessionNotFound):
            _log.info(
                "agent %s, session %s: no session waits for the result of its task",
                agent,
                LogVariable(child.id),
            )
        except Exception:  # noqa: BLE001 - e.g. of a user's `on_session`; the task must end anyway
            _log.exception(
                "agent %s, session %s: its result could not be sent to session %s",
                agent,
                LogVariable(child.id),
                LogVariable(task.parent_id),
            )
            host_of(child).dead_letter(DeadLetter(task.parent_agent, message, "it was not taken"))

    async def report_dead_letter(
        self, key: SessionKey, records: Sequence[Record], answered: TaskOutcomeRecord
    ) -> None:
        """Send the outcome of a dead-lettered task to its parent session, without opening the task's session.

        Raises:
            JournalError: The outcome could not be recorded.
        """
        opened = creation_record_of(records)
        if opened is None or not opened.reports or self.journal is None:
            return
        options = self.agents.opener(key.agent).running.runner.turn_lifecycle.options
        parent = SessionKey(opened.parent_agent, opened.parent_id or "")
        task = Task(answered.message_id, TurnFuture(options), *parent, reports=True, name=opened.task)
        scope = key.scope if opened.agent and opened.task else key.session_id
        message = _report_of(
            answered, key, report_id_of(scope), task_id=task.name or key.session_id, parent_id=task.parent_id
        )
        with suppress(
            SessionClosed, SessionNotFound
        ):  # the parent session has ended, so no turn waits for the report
            accepted = accepted_record(message, None)
            is_loaded = self.agents.trees.find(parent) is not None
            if is_loaded or not await self._write_for_later(self.journal, task, accepted):
                await self._post(task, message, None, {})

    async def _post_with_retries(
        self, child: SessionContext, task: Task, message: Message, baggage: Mapping[str, Any]
    ) -> None:
        """Send `message` with the outcome of a task to the parent session. Retry every second while the journal fails.

        Until the outcome is sent, the task stays open, also after a restart. `baggage` has the context variables
        that the journal stores with the message.
        """
        has_failed = False
        while True:
            try:
                return await self._post(task, message, funding_of_result(child), baggage)
            except (JournalFull, JournalFailed) as error:
                if not has_failed:
                    _log.warning(
                        "agent %s, session %s: its result for session %s waits until the journal works: %s",
                        child.agent,
                        LogVariable(child.id),
                        LogVariable(task.parent_id),
                        type(error).__name__,
                    )
            has_failed = True
            with releasing_slot():
                await trio.sleep(RETRY_SECONDS)

    async def _post(
        self, task: Task, message: Message, funding: Funding | None, baggage: Mapping[str, Any]
    ) -> None:
        """Deliver `message` with a task's outcome to the parent session, in any process.

        `funding` has the budget accounts of the turn that the message starts; None uses those of the parent session.
        If the parent's agent is not running, record the message in the journal for the next start of the agent. `baggage` has
        the context variables that the journal stores with the message. If the task was stopped, send nothing.

        Raises:
            NotRunning: The agent is not running, and the runtime has no journal.
        """
        while task.reports:
            try:
                opener = self.agents.opener(task.parent_agent)
                parent = await opener.find(task.parent_id)
                await opener.admission.accept(parent, message, once=True, is_granted=True, funding=funding)
            except NotRunning:
                if self.journal is None:
                    raise
                accepted = accepted_record(message, funding, baggage=baggage)
                if not await self._write_for_later(self.journal, task, accepted):
                    continue
                with suppress(NotRunning):  # a start during the write did not find the message
                    await self.agents.opener(task.parent_agent).find(task.parent_id)
            return

    async def _write_for_later(self, journal: Journal, task: Task, accepted: MessageAcceptedRecord) -> bool:
        """Write a message for the parent session of a task to the journal, so that the next load of the session finds it.

        Tasks that load the session wait until the record is written. Return False without writing if the session is in memory
        and accepts messages, or if the task was stopped.
        """
        parent = SessionKey(task.parent_agent, task.parent_id)
        pending = self.agents.pending_opens_of(parent.agent)
        await pending.wait_loaded(parent.session_id)
        with pending.block(parent.session_id, erases=True):
            # A session that is loaded now would miss the record.
            if self.agents.accepts_messages_to(parent):
                return False
            epoch = journal.epoch_of(task.parent_id)
            records = await journal.load(task.parent_id, agent=task.parent_agent)
            if any(isinstance(record, SessionClosedRecord) for record in records):
                raise SessionClosed(task.parent_id)
            if not task.reports:
                return False
            if not is_accepted(records, accepted.message.id):
                entry = Entry(
                    session_id=task.parent_id, agent=task.parent_agent, records=(accepted,), follows=True
                )
                await journal.commit(entry, epoch=epoch)
            if (context := self.agents.find_context(parent)) is not None:  # its agent is stopping
                context.add_accepted_id(accepted.message.id)
            return True


def _report_of(
    answered: TaskOutcomeRecord,
    key: SessionKey,
    message_id: str,
    *,
    task_id: str,
    parent_id: str,
    traceparent: str | None = None,
) -> Message:
    """Build the message that reports the outcome `answered` of a task to its parent session.

    `key` is the session that executed the task, `message_id` the id of the new message, and `task_id` the id of the task.
    `parent_id` is the id of the parent session. `traceparent` is the trace context of the message; None without a trace.
    """
    return Message(
        id=message_id,
        session_id=parent_id,
        sender=Sender(key.agent, "agent"),
        parts=(Text(report_text(key.agent, task_id, answered)),),
        correlation_id=answered.message_id,
        on_busy="collect",
        traceparent=traceparent,
        origin=answered.origin,
        via=answered.via,
    )


def report_id(child: SessionContext, task: Task) -> str:
    """Return the id of the message that reports the outcome of the task of `child` to the parent session."""
    return report_id_of(child.scope if task.name else child.id)


def child_ids(opener: SessionOpener, caller: SessionContext, task_id: str) -> Collection[str]:
    """Return all session ids that the child session of the task `task_id` can have."""
    made = (_child_id(opener, caller, each) for each in (task_id, task_key(caller.scope, task_id)))
    return {task_id, *made}


def _child_id(opener: SessionOpener, caller: SessionContext, key: str) -> str:
    """Return the id of the child session of `caller` that executes the task with the key `key`.

    If another process may own that id, the id is derived from the calling session's tree instead.
    """
    return child_id_of(id_in_tree(opener.running, caller, child_id_of(key)))


def _new_task(
    opener: SessionOpener, caller: SessionContext, child_id: str, *, reports: bool, name: str, deadline: float
) -> Task:
    return Task(
        task_message_id(child_id),
        TurnFuture(opener.running.runner.turn_lifecycle.options, waits_for_approvals=True),
        caller.agent,
        caller.id,
        reports=reports,
        name=name,
        deadline=0.0 if deadline == math.inf else opener.running.clock.steady() + deadline,
        seconds=deadline,
    )


async def _child_of(
    caller: SessionContext, opener: SessionOpener, child: SessionContext
) -> SessionContext | TaskOutcomeRecord:
    """Return the child session `child`, which is in memory, if its task is running. Otherwise return the outcome of its task.

    Raises:
        SessionExists: The session is not a child of the calling session.
    """
    if child.parent_key != caller.key:
        raise SessionExists(child.agent, child.id)
    if child.task is not None and not child.task.is_answered:
        return child
    if child.task is not None:
        child.task.is_unclaimed = False
    return await _read_answer(opener, caller, child.id)


async def _read_answer(opener: SessionOpener, caller: SessionContext, child_id: str) -> TaskOutcomeRecord:
    """Read the outcome of the task of the child session `child_id` from the journal.

    Raises:
        SessionExists: The session is not a child of the calling session.
    """
    journal, agent = opener.running.journal, opener.running.name
    records = () if journal is None else await journal.load(child_id, agent=agent)
    opened = creation_record_of(records)
    if opened is None or opened.parent_id != caller.id or opened.parent_agent not in ("", caller.agent):
        raise SessionExists(agent, child_id)
    return answer_in(records) or TaskOutcomeRecord(
        message_id=task_message_id(child_id), text="it was closed before it answered", failed="stopped"
    )


async def find_tasks(
    agents: Directory, journal: Journal | None, caller: SessionContext, task_id: str
) -> Sequence[SessionContext]:
    """Return the sessions that execute the unfinished task `task_id` of the calling session.

    Sessions that are only in the journal are loaded first.

    Raises:
        NotRunning: The agent of the calling session, or of a child session in the journal, is not running in this process.
        SessionMoved: Another process owns the tasks.
        JournalError: The journal cannot be read.
    """
    if journal is not None and caller.log is not None:
        ids = child_ids(agents.opener(caller.agent), caller, task_id)
        for head in await journal.children(*caller.key):
            if head.session_id in ids and not head.closed and head.key not in (caller.children or ()):
                with suppress(SessionClosed, SessionNotFound):
                    await agents.opener(head.agent).find(head.session_id)
    if host_of(caller).has_ended:  # its tasks belong to its next start
        raise NotRunning(caller.agent)
    return () if caller.children is None else caller.children.tasks(task_id)


async def stop_tasks(
    agents: Directory, journal: Journal | None, caller: SessionContext, tasks: Sequence[SessionContext]
) -> bool:
    """Cancel delegated tasks: close the child sessions `tasks` with all their descendants, durably.

    Return True if at least one of the tasks had not reported its outcome to the calling session.

    Raises:
        NotRunning: The agent of the calling session has stopped, so a task may have reported its outcome.
        SessionMoved: Another process owns the tasks.
        JournalError: The sessions are closed in memory, but the journal could not record it.
    """
    stopped = [(task, task.task) for task in tasks if task.task is not None]
    for child, task in stopped:
        if task.reports and caller.children is not None:
            caller.children.stop_report(child)
    async with AsyncExitStack() as closing:
        for child in reversed(tasks):
            closing.push_async_callback(
                close_tree, child, journal, agents.opener
            )  # the stack closes each tree even if another close fails
    if stopped and host_of(caller).has_stopped:
        raise NotRunning(caller.agent)
    return any(not caller.has_accepted(report_id(child, task)) for child, task in stopped)


async def has_received_result(
    agents: Directory, journal: Journal | None, caller: SessionContext, task_id: str
) -> bool:
    """Return True if the calling session has received the outcome of a task, and this outcome is not a cancellation.

    The outcome can be a cancellation if a node began to cancel the task and then lost the session to another node.

    Raises:
        JournalError: The journal cannot be read.
    """
    ids = child_ids(agents.opener(caller.agent), caller, task_id)
    for key in [SessionKey(agent, child_id) for child_id in ids for agent in agents]:
        if any(caller.has_accepted(report_id_of(name)) for name in (key.session_id, key.scope)):
            records = [] if journal is None else await journal.load(key.session_id, agent=key.agent)
            if not any(isinstance(each, FailureRecord) and _is_cancellation(each) for each in records):
                return True
    return False


def _is_cancellation(failed: FailureRecord) -> bool:
    return failed.fields.get("reason") == CLOSED_REASON
