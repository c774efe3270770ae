"""Delegated tasks between the pools of a cluster: the client side (`PoolCancellations`) and the server side (`PoolTasks`).

calling pool: A session of a `PoolAgent` represents the task, and repeats the request while its turn runs.
answering pool: A session of the requested agent executes the task. The calling pool chooses the id and the limits of this
session, and records them in its own journal.

The caller retries the request after any failure, and the answering pool finds the session by its id. Therefore the
answering pool never has to notify a caller that is away, and a crash on either side costs one retry. The granted amounts
are charged to the caller before the request. The rest is refunded once the caller knows that the answering session is
closed.

Cancelling a task takes a separate session with one message, in the tree of the calling session. An unfinished
cancellation therefore resumes after a restart or on the next owner. That session is erased from the journal at its end.
"""

import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import attrs
import trio

from actgent.errors import DeadlockDetected, NotRunning, SessionClosed, SessionExists, SessionNotFound
from actgent.errors.safe_error_texts import model_error_text
from actgent.journal.record_types import (
    NO_LIMITS,
    REFUSED,
    AgentMessageRecord,
    MessageEndRecord,
    Record,
    SessionClosedRecord,
    TaskOutcomeRecord,
    TurnOptions,
    UsageRecord,
    task_message_id,
)
from actgent.limits_and_schedules.budget import Amounts, Funding, spent_in
from actgent.limits_and_schedules.limits import SHARED, Limits
from actgent.messages import NO_USAGE, Message, Sender, Usage, new_secret
from actgent.runtime.agent_directory import Directory
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.sessions.session_tree_close import close_tree
from actgent.runtime.waits_between_sessions import names_of_waiters, recording_remote_wait, releasing_slot
from actgent.sessions.pending.delegated_tasks import Task, id_below
from actgent.sessions.pending.task_reports import answer_in
from actgent.sessions.pending.turn_future import TurnFuture
from actgent.sessions.pending.turn_options import restored_options
from actgent.sessions.restore.record_replayer import creation_record_of, is_unused
from actgent.sessions.session_context import SessionContext
from actgent.sessions.session_handlers import Handlers
from actgent.support.attrs_class_repr import FieldRepr

POLL_INTERVAL_SECONDS = 0.02
"""Seconds between two checks whether the session of a finished task is closed."""
CHARGED_AMOUNTS = tuple(name for name in SHARED if name != "seconds")
"""Names of the amounts that are charged to the calling session. Seconds are not charged, because the caller's own
time limit covers them.
"""
STOPPED = "stopped"
"""State key under which the session that performs a cancellation stores the cancelled task."""
CANCEL_WAIT_SECONDS = 2.0
"""Maximum seconds that `PoolCancellations.stop` waits. A longer cancellation continues in the background."""
CANCEL_RETRY_SECONDS = 60.0
"""Seconds after a task's deadline until the retries of its cancellation end. By then, the deadline has ended the task."""
_KEPT = ("session_id", "agent", "asker", "owner", "limits", "deadline", "seconds")


@attrs.frozen(kw_only=True, repr=False)
class PoolTask(FieldRepr):
    """Request from a session to an agent of another pool. A retry sends an equal request."""

    session_id: str
    """Id of the session that executes the task."""
    agent: str
    asker: str
    """Pool, agent and id of the calling session, separated by `/`."""
    owner: str
    """Owner of the executing session, prefixed with the pool."""
    message: Message | None = None
    """Message that contains the task; None if the request only cancels the task."""
    options: TurnOptions | None = None
    limits: Mapping[str, float] = NO_LIMITS
    """Limits of the task, by limit name. The session that executes the task and its descendants share them."""
    deadline: float = 0.0
    """Unix time in seconds at which the unfinished task is stopped; 0 is no deadline."""
    seconds: float = 0.0
    """Seconds from the start of the task until its deadline; 0 if the task has no deadline."""
    depth: int = 0
    """Number of nested calls between agents that led to the task."""
    deepest: int = 0
    """Maximum number of nested calls between agents that the task's limits allow."""
    chain: tuple[str, ...] = ()
    """Sessions that wait for the task, each as pool, agent and id separated by `/`."""


@attrs.frozen(kw_only=True, repr=False)
class PoolReport(FieldRepr):
    """Status of a delegated task, as reported by the pool that executes it."""

    answered: TaskOutcomeRecord | None = None
    """Outcome of the task; None if it is running, or if its session is not closed yet."""
    spent: Mapping[str, float] | None = None
    """Amounts that the session of the task used, by limit name; None while the session is open.

    The calling session gets the unused rest of the limits back only after it knows these amounts.
    """
    usage: Usage = NO_USAGE
    """Token usage of the session and its descendants so far, for statistics. Refunds are computed from `spent`."""
    refused: str = ""
    """Reason why the other pool rejected the task; empty if it was accepted."""


class Pools(typing.Protocol):
    """Interface that sends delegated tasks to the other pools of a cluster."""

    pool: str
    """Name of the pool of this process."""

    async def ask(self, pool: str, task: PoolTask, *, retry_timeout: float) -> PoolReport:
        """Send a task to an agent of the pool `pool`, and return the report with its outcome. Retry after crashes on both sides.

        Raises:
            NotRunning: No node of the pool appeared within `retry_timeout` seconds.
        """

    async def cancel(self, pool: str, task: PoolTask) -> PoolReport:
        """Cancel a task of the pool `pool`. Return its report after the task has ended or can never start. Retry after crashes."""


RequestHandler = Callable[[SessionOpener, PoolTask], Awaitable[PoolReport]]
"""Handler of a request from another pool."""


# --- cancellations ---------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class PoolCancellations(FieldRepr):
    """Cancels tasks that sessions of one agent have delegated to another pool."""

    pools: Pools
    pool: str
    """Name of the other pool, which executes the tasks."""
    _waiting: dict[str, tuple[trio.Event, list[PoolReport]]] = attrs.field(factory=dict)
    """Event and report list of each waiting caller, by the session id of the cancelled task."""

    async def stop(self, opener: SessionOpener, caller: SessionContext, task: PoolTask) -> PoolReport:
        """Record the cancellation of a task, and wait at most `CANCEL_WAIT_SECONDS` seconds until the other pool confirms it.

        Return the report of the cancelled task; an empty report if the other pool has not confirmed yet.

        Raises:
            SessionMoved: Another process owns the calling session.
            JournalError: The cancellation could not be recorded.
        """
        ended, confirmed = self._waiting.setdefault(task.session_id, (trio.Event(), []))
        try:
            await self._begin(opener, caller, task)
            with releasing_slot(), trio.move_on_after(CANCEL_WAIT_SECONDS):
                await ended.wait()
        finally:
            self._waiting.pop(task.session_id, None)
        return confirmed[0] if confirmed else PoolReport()

    async def _begin(self, opener: SessionOpener, caller: SessionContext, task: PoolTask) -> None:
        """Record the cancellation of `task` as the message of a new internal session, and start its turn."""
        context = opener.new(caller.owner, session_id=id_below(caller.id, new_secret()), is_transient=True)
        kept = attrs.asdict(task, filter=lambda field, _: field.name in _KEPT)
        context.state.dispatch((STOPPED, kept))
        async with opener.single_message_block(context):
            await opener.admission.accept(context, context.new_message("stop it"), is_granted=True)

    async def resume(self, context: SessionContext, kept: Mapping[str, typing.Any], *, now: float) -> None:
        """Cancel a task in the other pool. `context` is the session that recorded the cancellation.

        Retry until the other pool confirms, at most until `CANCEL_RETRY_SECONDS` seconds after the task's deadline. `kept` has
        the recorded fields of the cancelled task. `now` is the steady Unix time in seconds.
        """
        context.handlers = Handlers()  # a cancelled task notifies no handlers
        task = PoolTask(**kept)
        with releasing_slot(), trio.move_on_after(max(task.deadline - now, 0.0) + CANCEL_RETRY_SECONDS):
            report = await self.pools.cancel(self.pool, task)
            ended, confirmed = self._waiting.get(task.session_id, (trio.Event(), []))
            confirmed.append(report)
            ended.set()


# --- server side -----------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class PoolTasks(FieldRepr):
    """Executes tasks of other pools with the agents of this pool."""

    agents: Directory
    pool: str
    """Name of this pool, which executes the tasks."""

    async def answer(self, task: PoolTask, *, wait: float) -> PoolReport:
        """Start a task from another pool, unless it was started before, and wait at most `wait` seconds for its end.

        Return the report of the task; an empty report if the task is still running.

        Raises:
            SessionMoved, Fenced: Another process owns the session of the task.
        """
        return await self._request_report(task, self._answer, wait=wait)

    async def cancel(self, task: PoolTask, *, wait: float) -> PoolReport:
        """Close the session of a task from another pool. Return the report; an empty one if that takes longer than `wait` seconds.

        A task that never started gets a closed session, so that it cannot start later.

        Raises:
            SessionMoved, Fenced: Another process owns the session of the task.
        """
        return await self._request_report(task, self._cancel, wait=wait)

    async def _request_report(self, task: PoolTask, handler: RequestHandler, *, wait: float) -> PoolReport:
        """Return the report of `handler` for a task; an empty report if it takes longer than `wait` seconds.

        If the agent is not running, if a session with the task's id exists already, or if waiting would be a deadlock, return a report with
        the reason.
        """
        try:
            opener = self.agents.opener(task.agent)
        except NotRunning:
            return PoolReport(refused=self._unknown_agent_text(task.agent), spent={})
        try:
            with trio.move_on_after(wait):
                return await handler(opener, task)
        except DeadlockDetected as error:
            return PoolReport(refused=model_error_text(error))
        except SessionExists:
            return PoolReport(refused=f"another session of agent {task.agent!r} has the id of this task")
        return PoolReport()

    async def _answer(self, opener: SessionOpener, task: PoolTask) -> PoolReport:
        child = await self._open(opener, task)
        if child is not None and child.task is not None and not child.task.is_answered:
            with self._awaited(child, task.chain):
                await child.task.future.done.wait()
        return await self._read_closed(opener, task)

    async def _cancel(self, opener: SessionOpener, task: PoolTask) -> PoolReport:
        child = await self._open(opener, attrs.evolve(task, message=None))
        if child is not None:
            await close_tree(child, opener.running.journal, self.agents.opener)
        return await self._read_closed(opener, task)

    def _unknown_agent_text(self, name: str) -> str:
        known = ", ".join(repr(each) for each in sorted(self.agents)) or "none"
        return f"no agent {name!r} runs in pool {self.pool!r}: its agents are {known}"

    async def _open(self, opener: SessionOpener, task: PoolTask) -> SessionContext | None:
        """Return the session that executes a task. Create the session if the task is new.

        Return None if the session is closed or being closed.
        """
        await opener.wait_opened(task.session_id)
        with opener.marked_as_opening(task.session_id):
            try:
                child = await opener.find(task.session_id)
            except SessionClosed:
                return None
            except SessionNotFound:
                if task.session_id in opener.running.sessions:
                    return None
                return await self._begin(opener, task)
        if child.task is None or child.task.asker != task.asker:
            raise SessionExists(task.agent, task.session_id)
        return child

    async def _begin(self, opener: SessionOpener, asked: PoolTask) -> SessionContext:
        child = opener.new(
            Sender(asked.owner, "agent"),
            session_id=asked.session_id,
            task=_task_of(opener, asked),
            limits=_limits_of(asked.limits),
            is_transient=True,
        )
        assert child.task is not None and child.log is not None  # noqa: S101, PT018 - the session was created for a task of a cluster
        if asked.message is None:
            try:
                await child.log.flush()
            except BaseException:
                await opener.withdraw(child)  # noqa: ASYNC102 - withdraw() shields its own cleanup, with a time limit
                raise
            return child
        funding = Funding(depth=asked.depth, deepest=asked.deepest)
        async with opener.single_message_block(child):
            message = child.new_message(
                asked.message.parts,
                message_id=child.task.message_id,
                priority=asked.message.priority,
                on_busy="queue",
                via=asked.message.via,
            )
            future = None if asked.options is None else child.task.future
            await opener.admission.accept(child, message, once=True, future=future, funding=funding)
        return child

    async def _read_closed(self, opener: SessionOpener, task: PoolTask) -> PoolReport:
        """Wait until the session of a task is closed, and return the report from its records.

        If the session has an outcome but waits for its own delegated tasks, return only the outcome. If the journal has no
        record of the task, return an empty report; the caller then repeats the request.
        """
        journal = opener.running.journal
        assert journal is not None  # noqa: S101 - clusters always have a journal
        while True:
            records = await journal.load(task.session_id, agent=task.agent)
            opened = creation_record_of(records)
            if opened is not None and opened.asker != task.asker:
                raise SessionExists(task.agent, task.session_id)
            if is_unused(records):  # the task was not recorded: request it again
                await trio.sleep(POLL_INTERVAL_SECONDS)
                return PoolReport()
            if any(isinstance(each, SessionClosedRecord) for each in records):
                return _report_of(task, records)
            context = opener.running.sessions.get(task.session_id)
            answered = answer_in(records)
            if answered is not None and context is not None and context.reports_due:
                return PoolReport(answered=answered)
            await trio.sleep(POLL_INTERVAL_SECONDS)

    @contextmanager
    def _awaited(self, child: SessionContext, chain: Sequence[str]) -> Iterator[None]:
        """Return a block in which the wait graph shows that the sessions in `chain` wait for the session `child`.

        Names of sessions of other pools are ignored.

        Raises:
            DeadlockDetected: `child` waits for one of the sessions in `chain`.
        """
        with ExitStack() as edges:
            for name in chain:
                pool, _, rest = name.partition("/")
                waiter = self._find(rest) if pool == self.pool else None
                edges.enter_context(recording_remote_wait(child, name if waiter is None else waiter))
            yield

    def _find(self, name: str) -> SessionContext | None:
        """Return the session in memory with the name `AGENT/ID`; None if it is not in memory."""
        agent, _, session_id = name.partition("/")
        try:
            return self.agents.opener(agent).running.sessions.get(session_id)
        except NotRunning:
            return None


def chain_of(context: SessionContext, pool: str) -> tuple[str, ...]:
    """Return the names of a session and of all sessions that wait for it, for the deadlock detection of another pool.

    Each name is pool, agent and id separated by `/`. `pool` is the name of this pool.
    """
    return names_of_waiters(context, prefix=f"{pool}/")


def _task_of(opener: SessionOpener, asked: PoolTask) -> Task:
    options = opener.running.runner.turn_lifecycle.options
    task = Task(
        task_message_id(asked.session_id),
        TurnFuture(
            options if asked.options is None else restored_options(options, asked.options),
            waits_for_approvals=True,
        ),
        "",
        "",
        deadline=asked.deadline,
        seconds=asked.seconds,
        asker=asked.asker,
    )
    task.tell_deadline(opener.running.clock.steady())
    return task


def _limits_of(granted: Mapping[str, float]) -> Limits | None:
    if not granted:
        return None
    whole = {name: int(each) if name not in ("cost", "seconds") else each for name, each in granted.items()}
    return Limits(**whole)  # type: ignore[arg-type]  # the constructor validates the values


def _report_of(task: PoolTask, records: Sequence[Record]) -> PoolReport:
    return PoolReport(answered=_answer_of(task, records), spent=_spent_of(records), usage=_usage_of(records))


def _answer_of(task: PoolTask, records: Sequence[Record]) -> TaskOutcomeRecord:
    message_id = task_message_id(task.session_id)
    if (answered := answer_in(records)) is not None:
        return answered
    for each in reversed(records):  # a retried message has a rejection first and its real outcome after it
        if (
            isinstance(each, MessageEndRecord)
            and each.message_id == message_id
            and each.failed not in (None, REFUSED)
        ):
            return TaskOutcomeRecord(message_id=message_id, text=each.error_text, failed=each.failed)
    return TaskOutcomeRecord(message_id=message_id, text="it was closed before it answered", failed="stopped")


def _spent_of(records: Sequence[Record]) -> Mapping[str, float]:
    """Return the amounts that a session used, by limit name, from its usage records for the whole session."""
    return spent_in([each for each in records if isinstance(each, UsageRecord) and not each.turn]).used


def _usage_of(records: Sequence[Record]) -> Usage:
    """Return the token usage of the model calls of a session and its descendants."""
    return sum((each.usage for each in records if isinstance(each, AgentMessageRecord)), NO_USAGE).total


def amounts_of(figures: Mapping[str, float]) -> Amounts:
    """Convert numbers by limit name to `Amounts`. Only the names in `CHARGED_AMOUNTS` are used."""
    return Amounts(**{name: figures[name] for name in CHARGED_AMOUNTS if name in figures})  # type: ignore[arg-type]
