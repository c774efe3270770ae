"""Tasks between the pools of a cluster: what is asked of the other one, and what answers it there.

    asker's pool      a session of a `PoolAgent` has the task, as any child session has one, and asks for as long as its turn runs
    answering pool    a session of the agent that is meant, whose id and limits the asker made up and has in its journal

The asker asks again whatever happens, and finds the session by its id: its answer, or itself, still at work. So nothing has
to be sent to an asker that is away, and a kill of either side costs a repetition. What was granted is charged to the
asker before it asks, and what is left over is given back when it knows that the other session is closed.

A task that is to be stopped is a session of its own, with one message, in the tree of the session that asked: what is unfinished
in it goes on at the next start and at the next owner, as with any other. It leaves the journal at its end.
"""

import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import attrs
import trio

from actgent.control.budget import Amounts, Funding, spent_in
from actgent.control.limits import Limits
from actgent.errors import NotRunning, SessionClosed, SessionExists, SessionNotFound, WaitCycle
from actgent.errors.wording import safe_words
from actgent.journal.records import (
    NO_LIMITS,
    REFUSED,
    Answered,
    Closed,
    Ended,
    Record,
    Said,
    Spent,
    TurnOptions,
    message_id_of,
)
from actgent.messages import NO_USAGE, Message, Sender, Usage, new_secret
from actgent.runtime.directory import Directory
from actgent.runtime.sessions.closing import close_tree
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.slots import awaited_by, names_of_waiters, slot_lent
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handlers
from actgent.sessions.incoming import message_to
from actgent.sessions.restore import is_unused, owner_of
from actgent.sessions.waiting.task_reports import answer_in
from actgent.sessions.waiting.tasks import Task, id_below
from actgent.sessions.waiting.turn_future import TurnFuture
from actgent.sessions.waiting.turn_options import restored_options

LOOK = 0.02
"""Seconds between two looks whether a session that has answered is closed."""
GRANTED = ("model_calls", "tool_calls", "tokens", "cost")
"""What is charged to the asker; seconds pass for it anyway."""
STOPPED = "stopped"
"""The key of the state under which such a session has its task."""
PROMPT = 2.0
"""Seconds for which a stopped task is waited for; then it is stopped without anybody waiting for that."""
LATE = 60.0
"""Seconds after the deadline of a task for which it is still stopped; by then it has ended by itself."""
_KEPT = ("session_id", "agent", "asker", "owner", "limits", "deadline", "seconds")


@attrs.frozen(kw_only=True)
class PoolTask:
    """What a session asks of an agent of another pool; a repetition says the same."""

    session_id: str
    """Of the session that answers."""
    agent: str
    asker: str
    """The pool, the agent and the session that ask, with `/` between them."""
    owner: str
    """For whom it is asked, with the pool: who owns the session that answers."""
    message: Message | None = None
    """What is to be done; None where it is only to be stopped."""
    options: TurnOptions | None = None
    limits: Mapping[str, float] = NO_LIMITS
    """What was granted: bounds of the session that answers, with all below it."""
    deadline: float = 0.0
    """Unix time in seconds at which it is stopped, done or not."""
    seconds: float = 0.0
    """The same in seconds when it was given."""
    depth: int = 0
    """How many turns led to it, one from the other."""
    deepest: int = 0
    """How deep it may lead on."""
    chain: tuple[str, ...] = ()
    """Who waits for it: pool, agent and session of each, with `/` between them."""


@attrs.frozen(kw_only=True)
class PoolReport:
    """What is known of such a task."""

    answered: Answered | None = None
    """None: it is at work, or its session is not closed."""
    spent: Mapping[str, float] | None = None
    """What it took of what was granted; None: it may take more, so nothing is left over for the asker."""
    usage: Usage = NO_USAGE
    """What its session and those below it took, as far as it is known; for figures, where `spent` is for limits."""
    refused: str = ""
    """Why it was never begun."""


class Pools(typing.Protocol):
    """The way to the other pools of a cluster."""

    pool: str
    """The name of our own."""

    async def ask(self, pool: str, task: PoolTask, *, patience: float) -> PoolReport:
        """Have an agent of another pool do something, and wait for what it comes to, over kills on both sides.

        Raises:
            NotRunning: no node of the pool was ever there, for so many seconds.
        """

    async def cancel(self, pool: str, task: PoolTask) -> PoolReport:
        """Stop a task, and wait until its session is closed, or was never there and never will be, over kills on both sides."""


What = Callable[[SessionOpener, PoolTask], Awaitable[PoolReport]]
"""What is done for a task of another pool."""


# --- what is stopped -------------------------------------------------------------------------


@attrs.frozen(eq=False)
class PoolStops:
    """What the sessions of one agent have stopped in another pool."""

    pools: Pools
    pool: str
    """The name of the other one."""
    _waiting: dict[str, tuple[trio.Event, list[PoolReport]]] = attrs.field(factory=dict)
    """By the session of a task, who waits for its end, and what is told then."""

    async def stop(self, opener: SessionOpener, asker: SessionContext, task: PoolTask) -> PoolReport:
        """Have a task stopped; on return that is certain, and it is waited for no longer than `PROMPT`.

        Returns what it came to; what says nothing if that is not known by then.

        Raises:
            SessionMoved: another process goes on with who asked.
            JournalError: nobody has heard of it.
        """
        ended, told = self._waiting.setdefault(task.session_id, (trio.Event(), []))
        try:
            await self._begin(opener, asker, task)
            with slot_lent(), trio.move_on_after(PROMPT):
                await ended.wait()
        finally:
            self._waiting.pop(task.session_id, None)
        return told[0] if told else PoolReport()

    async def _begin(self, opener: SessionOpener, asker: SessionContext, task: PoolTask) -> None:
        """Note in the journal what is to be stopped, and begin with it."""
        context = opener.new(asker.owner, session_id=id_below(asker.id, new_secret()), is_transient=True)
        kept = attrs.asdict(task, filter=lambda field, _: field.name in _KEPT)
        context.state.dispatch((STOPPED, kept))
        async with opener.beginning(context):
            await opener.intake.accept(context, message_to(context, "stop it"), is_granted=True)

    async def go_on(self, context: SessionContext, kept: Mapping[str, typing.Any], *, now: float) -> None:
        """Tell the other pool until it has stopped a task, or the task has ended by itself; `now` is steady Unix time."""
        context.handlers = Handlers()  # nobody is told of it
        task = PoolTask(**kept)
        with slot_lent(), trio.move_on_after(max(task.deadline - now, 0.0) + LATE):
            report = await self.pools.cancel(self.pool, task)
            ended, told = self._waiting.get(task.session_id, (trio.Event(), []))
            told.append(report)
            ended.set()


# --- what answers ----------------------------------------------------------------------------


@attrs.frozen(eq=False)
class PoolTasks:
    """The tasks that sessions of other pools give to the agents of this one."""

    agents: Directory
    pool: str
    """The name of this one."""

    async def answer(self, task: PoolTask, *, wait: float) -> PoolReport:
        """Begin a task, unless it was begun, and tell what it came to; waits for that for so many seconds.

        Raises:
            SessionMoved, Fenced: another process is the one to ask.
        """
        return await self._tell(task, self._answer, wait=wait)

    async def cancel(self, task: PoolTask, *, wait: float) -> PoolReport:
        """Close the session of a task, also one that was never begun, so that it never will be; tell what it took.

        Raises:
            SessionMoved, Fenced: another process is the one to ask.
        """
        return await self._tell(task, self._cancel, wait=wait)

    async def _tell(self, task: PoolTask, what: What, *, wait: float) -> PoolReport:
        try:
            opener = self.agents.opener(task.agent)
        except NotRunning:
            return PoolReport(refused=self._no_agent(task.agent), spent={})
        try:
            with trio.move_on_after(wait):
                return await what(opener, task)
        except WaitCycle as error:
            return PoolReport(refused=safe_words(error))
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

    def _no_agent(self, name: str) -> str:
        known = ", ".join(repr(each) for each in sorted(self.agents)) or "none"
        return f"no agent {name!r} runs in pool {self.pool!r}: its agents are {known}"

    async def _open(self, opener: SessionOpener, task: PoolTask) -> SessionContext | None:
        """The session of a task: a new one, or that which is at work; None where it is closed, or about to be."""
        await opener.wait_opened(task.session_id)
        with opener.opens(task.session_id):
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
        assert child.task is not None and child.log is not None  # noqa: S101, PT018 - it was opened for one, in a cluster
        if asked.message is None:
            try:
                await child.log.flush()
            except BaseException:
                await opener.withdraw(child)  # noqa: ASYNC102 - it shields what it must, with a time limit
                raise
            return child
        funding = Funding(depth=asked.depth, deepest=asked.deepest)
        async with opener.beginning(child):
            said = message_to(
                child,
                asked.message.parts,
                message_id=child.task.message_id,
                priority=asked.message.priority,
                on_busy="queue",
            )
            future = None if asked.options is None else child.task.future
            await opener.intake.accept(child, said, once=True, future=future, funding=funding)
        return child

    async def _read_closed(self, opener: SessionOpener, task: PoolTask) -> PoolReport:
        """What a task came to, as soon as its session is closed; one that still waits for others has not paid all."""
        journal = opener.running.journal
        assert journal is not None  # noqa: S101 - a cluster has one
        while True:
            records = await journal.load(task.session_id, agent=task.agent)
            opened = owner_of(records)
            if opened is not None and opened.asker != task.asker:
                raise SessionExists(task.agent, task.session_id)
            if is_unused(
                records
            ):  # the journal did not take the task: it is asked for again, and begins anew
                await trio.sleep(LOOK)
                return PoolReport()
            if any(isinstance(each, Closed) for each in records):
                return _report_of(task, records)
            context = opener.running.sessions.get(task.session_id)
            answered = answer_in(records)
            if answered is not None and context is not None and context.reports_due:
                return PoolReport(answered=answered)
            await trio.sleep(LOOK)

    @contextmanager
    def _awaited(self, child: SessionContext, chain: Sequence[str]) -> Iterator[None]:
        """Note who waits for a session, as far as they are here.

        Raises:
            WaitCycle: the session waits for one of them.
        """
        with ExitStack() as edges:
            for name in chain:
                pool, _, rest = name.partition("/")
                waiter = self._find(rest) if pool == self.pool else None
                edges.enter_context(awaited_by(child, name if waiter is None else waiter))
            yield

    def _find(self, name: str) -> SessionContext | None:
        agent, _, session_id = name.partition("/")
        try:
            return self.agents.opener(agent).running.sessions.get(session_id)
        except NotRunning:
            return None


def chain_of(context: SessionContext, pool: str) -> tuple[str, ...]:
    """Who waits for a session, itself included, as `PoolTask.chain` has them."""
    return names_of_waiters(context, prefix=f"{pool}/")


def _task_of(opener: SessionOpener, asked: PoolTask) -> Task:
    options = opener.running.runner.turn_lifecycle.options
    task = Task(
        message_id_of(asked.session_id),
        TurnFuture(
            options if asked.options is None else restored_options(options, asked.options), is_patient=True
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
    return Limits(**whole)  # type: ignore[arg-type]  # checked there


def _report_of(task: PoolTask, records: Sequence[Record]) -> PoolReport:
    return PoolReport(answered=_answer_of(task, records), spent=_spent_of(records), usage=_usage_of(records))


def _answer_of(task: PoolTask, records: Sequence[Record]) -> Answered:
    message_id = message_id_of(task.session_id)
    if (answered := answer_in(records)) is not None:
        return answered
    for each in reversed(records):  # one that was refused came again, and what became of that stands behind
        if isinstance(each, Ended) and each.message_id == message_id and each.failed not in (None, REFUSED):
            return Answered(message_id=message_id, text=each.words, failed=each.failed)
    return Answered(message_id=message_id, text="it was closed before it answered", failed="stopped")


def _spent_of(records: Sequence[Record]) -> Mapping[str, float]:
    """What was taken from the bounds of a session as a whole."""
    return spent_in([each for each in records if isinstance(each, Spent) and not each.turn]).used


def _usage_of(records: Sequence[Record]) -> Usage:
    """What the model calls of a session and of those below it took."""
    return sum((each.usage for each in records if isinstance(each, Said)), NO_USAGE).total


def amounts_of(figures: Mapping[str, float]) -> Amounts:
    """The amounts of these names that are charged."""
    return Amounts(**{name: figures[name] for name in GRANTED if name in figures})  # type: ignore[arg-type]
