"""`PoolAgent`: a proxy for an agent of another pool of the cluster.

A *pool* is a set of cluster nodes that run the same agents. Each message of the proxy's sessions is sent as a task to the agent in
the other pool. So the proxy can be used like a local agent, e.g. with `as_tool()`, `delegate` or in a pipeline. The task is stored
in the session's state before it is sent. So a turn that resumes after a crash sends the same task.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.agent_constructor_validation import check_each_seconds
from actgent.agents.session import Session, context_of, services_of, session_of_context
from actgent.errors import ConfigurationError, RemoteError
from actgent.journal.record_types import AgentMessageRecord, TaskOutcomeRecord
from actgent.limits_and_schedules.budget import Budget
from actgent.limits_and_schedules.id_and_number_validation import check_session_limits
from actgent.limits_and_schedules.limits import SHARED, Limits
from actgent.llm.model_interface import LLM, ModelRequest, ModelResponse, OnText
from actgent.messages import NO_USAGE, Failure, Message, Reply, Sender, Usage, new_secret, to_parts
from actgent.protocols.bare_text_protocol import Bare
from actgent.runtime.agent_directory import Directory
from actgent.runtime.delegation.tasks_between_cluster_pools import (
    STOPPED,
    PoolCancellations,
    PoolReport,
    Pools,
    PoolTask,
    amounts_of,
    chain_of,
)
from actgent.runtime.runtime import Runtime
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.waits_between_sessions import releasing_slot
from actgent.sessions.pending.delegated_tasks import TASK_DEADLINE_SECONDS
from actgent.sessions.session_context import SessionContext, Turn
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.tool_interface import Tool
from actgent.turns.agent_core import AgentCore
from actgent.turns.calls.model_calls import add_to_parents

TASK_KEY_PREFIX = "asked"
"""Prefix of the state keys under which a session of a `PoolAgent` records its tasks."""
DEFAULT_SHARE = 0.5
"""Fraction of the remaining budget that one task is granted by default."""
UNREACHABLE = "pool"
"""Failure kind of a task that the other pool did not start."""


@lists_arguments
class PoolAgent(Agent[Any, Any]):
    """Proxy for an agent of another pool of the cluster, with the name `NAME@POOL`.

    Each message of the proxy's sessions is a task. The agent `name` answers the task on a node of the pool, in a session that is
    closed with the answer. Crashes on either side lose no task and repeat no answered task. The runtime needs
    `open_runtime(cluster=)`; see docs/guides/cluster.md.

    Args:
        name: Name of the agent in its pool.
        pool: Name of the pool whose nodes run the agent.
        role: Role of the agent, for agents that search for it.
        goal: Goal of the agent.
        capabilities: Abilities of the agent, as text.
        limits: Maximum `model_calls`, `tool_calls`, `tokens`, `cost` and `seconds` of one task. The default of each is half of
            the remaining budget of the calling session, if the session has a budget.
        retry_timeout: Maximum seconds to wait for the first node of a pool.
        deadline: Seconds after which a task is stopped if its caller sets no deadline.
        max_concurrent_sessions: Maximum number of concurrent tasks.
        grace: Seconds to finish accepted messages when the agent stops.

    Raises:
        ConfigurationError: An argument is invalid.
    """

    def __init__(
        self,
        name: str,
        *,
        pool: str,
        role: str = "",
        goal: str = "",
        capabilities: str = "",
        limits: Limits | None = None,
        retry_timeout: float = 30.0,
        deadline: float = TASK_DEADLINE_SECONDS,
        max_concurrent_sessions: int = 100,
        grace: float = 10.0,
    ) -> None:
        if not pool or "/" in pool:
            raise ConfigurationError(
                f"pool= must be the name of a pool of the cluster, as text, not {pool!r:.100}"
            )
        check_each_seconds(retry_timeout=retry_timeout, deadline=deadline)
        check_session_limits(limits)
        super().__init__(
            f"{name}@{pool}",
            llm=_NoModel(),
            role=role,
            goal=goal,
            capabilities=capabilities,
            protocol=_PoolProtocol(),
            max_concurrent_sessions=max_concurrent_sessions,
            grace=grace,
        )
        self.agent, self.pool = name, pool
        self.granted = Limits() if limits is None else limits
        """Maximum limits of one task."""
        self.retry_timeout, self.deadline = retry_timeout, deadline
        self._on_session.append(self._register_handler)
        self._receiver: _PoolReceiver

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        return super().as_tool(name or re.sub(r"[^a-zA-Z0-9_-]+", "_", self.agent), description)

    def _prepare(self, runtime: Runtime) -> SessionOpener | None:
        if runtime.delegation.pools is None:
            raise ConfigurationError(
                f"agent {self.agent!r} is in pool {self.pool!r} of a cluster: open the runtime with open_runtime(cluster=...)"
            )
        return super()._prepare(runtime)

    def _build_core(self, runtime: Runtime) -> AgentCore:
        pools = runtime.delegation.pools
        assert pools is not None  # noqa: S101 - `_prepare` has checked it
        core = super()._build_core(runtime)
        self._receiver = core.receivers = _PoolReceiver(
            self, pools, PoolCancellations(pools, self.pool), runtime.agents
        )
        return core

    def _runs_session_hooks(self, context: SessionContext) -> bool:
        return STOPPED not in context.seen_state  # this session only stops a task

    def _register_handler(self, session: Session) -> None:
        """Register a handler that stops the task in the other pool if the turn that has sent the task fails."""
        session.on_exception(self._stop_task_of)

    async def _stop_task_of(self, failure: Failure, session: Session) -> None:
        if failure.kind != "handler" and not failure.may_continue:
            await self._receiver.stop_task(context_of(session), failure.message_id)


@attrs.frozen(eq=False)
class _PoolReceiver:
    """Receiver of a proxy agent's messages: it sends each one to the agent in the other pool, in place of a model call."""

    agent: PoolAgent
    """The proxy agent whose messages are sent."""
    pools: Pools
    """Connection to the other pools of the cluster."""
    stops: PoolCancellations
    """Service that cancels tasks in other pools."""
    agents: Directory
    """Running agents of this runtime."""

    def must_answer(self, turn: Turn) -> bool:
        """Return True, because the agent in the other pool answers all messages."""
        return True

    async def answer(self, turn: Turn) -> Reply | None:
        """Send the message to the other pool as a task, and return its reply.

        Raises:
            RemoteError: The task failed; the failure has the kind of the remote failure.
            LimitReached: A limit of the calling session is used up, so the task cannot get a part of it.
        """
        context = turn.session
        if (stopped := context.seen_state.get(STOPPED)) is not None:
            await self.stops.resume(context, stopped, now=_steady_time(context))
            return Reply(text="It was stopped.")
        task = context.seen_state.get(_key(turn.message.id)) or await self._record_task(turn)
        if "report" not in task:
            task = await _record_outcome(context, turn.message.id, task, await self._ask(turn, task))
        outcome = task["report"]
        if outcome["failed"] is not None:
            turn.blame = outcome["failed"]
            raise _failure(self.agent, outcome)
        return _deliver_reply(turn, task, self.agent.name)

    async def _ask(self, turn: Turn, task: Mapping[str, Any]) -> PoolReport:
        """Send the recorded task of a turn to the other pool, and wait for the pool's report.

        Raises:
            RemoteError: The pool rejected the task.
        """
        turn.blame = UNREACHABLE
        with releasing_slot():
            report = await self.pools.ask(
                self.agent.pool, self._task(turn.session, turn, task), retry_timeout=self.agent.retry_timeout
            )
        if report.refused:  # a rejected cancellation leaves the task stopped, like a failed task
            raise RemoteError(f"pool {self.agent.pool!r} rejected the task: {report.refused}")
        turn.blame = "internal"
        return report

    async def stop_task(self, context: SessionContext, message_id: str) -> None:
        """Stop the task that was sent for a message. Do nothing if no task was sent or the outcome is already recorded."""
        task = context.seen_state.get(_key(message_id))
        if task is None or "report" in task:
            return
        opener = self.agents.opener(self.agent.name)
        report = await self.stops.stop(opener, context, self._task(context, None, task))
        await _record_outcome(context, message_id, task, report)

    async def _record_task(self, turn: Turn) -> Mapping[str, Any]:
        """Reserve the task's limits in the budget of the turn, record the task in the session state, and return the recorded task.

        The record is durable on return, and the task is sent only after that. If the process crashes before the record is
        durable, the next try reserves the limits again.
        """
        context = turn.session
        limits = {} if turn.budget is None else _granted_limits(turn.budget, self.agent.granted.shared)
        limits = {**self.agent.granted.shared, **limits}
        if turn.budget is not None:
            await turn.budget.grant(amounts_of(limits), now=trio.current_time())
        deadline, seconds = self._deadline_for(context)
        task = {"session_id": new_secret(), "limits": limits, "deadline": deadline, "seconds": seconds}
        context.state.dispatch((_key(turn.message.id), task))
        if context.log is not None:
            await context.log.flush()
        return task

    def _deadline_for(self, context: SessionContext) -> tuple[float, float]:
        """Return the deadline of a task, as steady Unix time in seconds, and the seconds until the deadline.

        If the calling session itself executes a task with a deadline, both values are those of that task.
        """
        if context.task is not None and context.task.deadline:
            return context.task.deadline, context.task.seconds
        return _steady_time(context) + self.agent.deadline, self.agent.deadline

    def _task(self, context: SessionContext, turn: Turn | None, task: Mapping[str, Any]) -> PoolTask:
        pool = self.pools.pool
        return PoolTask(
            session_id=task["session_id"],
            agent=self.agent.agent,
            asker=f"{pool}/{context.agent}/{context.id}",
            owner=f"{context.owner.name}@{pool}",
            message=None if turn is None else _joined_message(turn, via=context.conversation.sources),
            options=None if turn is None else turn.options.journal_form,
            limits=task["limits"],
            deadline=task["deadline"],
            seconds=task["seconds"],
            depth=0 if turn is None else turn.depth,
            deepest=0 if turn is None else turn.deepest,
            chain=chain_of(context, pool),
        )


class _PoolProtocol(Bare):
    """Protocol of agents in another pool, which need no model here. The `message_type` of a reply says why it is incomplete."""

    name: ClassVar[str] = "pool"
    template: ClassVar[str] = "{{ profile.name }}: an agent of another pool."

    def shortfall(self, message_type: str | None) -> str | None:
        return message_type


class _NoModel(LLM):
    """Model client of agents in another pool. A call of it raises an error, because the model runs in the other pool."""

    name = "pool"
    dialect: ClassVar[str] = "pool"

    async def complete(self, chat: ModelRequest, *, on_text: OnText | None = None) -> ModelResponse:
        raise ConfigurationError(
            "the agent of another pool has no model in this process: send it a message instead of a model call"
        )


def _steady_time(context: SessionContext) -> float:
    return services_of(session_of_context(context)).running.clock.steady()


def _key(message_id: str) -> str:
    return f"{TASK_KEY_PREFIX}/{message_id}"


def _granted_limits(budget: Budget, declared: Mapping[str, float]) -> dict[str, float]:
    """Return the part of the turn's remaining budget that a task in another pool may use, by limit name.

    For each amount, this is the limit in `declared`, or else a share of the remaining amount, and at most the remaining amount.
    Amounts that the budget does not limit are omitted.

    Raises:
        LimitReached: One of the limits is used up.
    """
    limits: dict[str, float] = {}
    for name in SHARED:
        room = budget.room(name)
        if math.isinf(room):
            continue
        is_whole = name not in ("cost", "seconds")
        budget.check(name, 1 if is_whole else math.ulp(0.0))
        share = (
            room
            if name == "seconds"
            else math.ceil(room * DEFAULT_SHARE)
            if is_whole
            else room * DEFAULT_SHARE
        )
        limits[name] = min(declared.get(name, share), room)
    return limits


def _joined_message(turn: Turn, *, via: str) -> Message:
    parts = tuple(part for each in (*turn.joined, turn.message) for part in each.parts)
    return attrs.evolve(turn.message, parts=parts, metadata={}, via=via)


async def _record_outcome(
    context: SessionContext, message_id: str, task: Mapping[str, Any], report: PoolReport
) -> Mapping[str, Any]:
    """Record the outcome of a message's task from the report of the other pool, and return the task with its outcome.

    Then refund the part of the budget that the task did not use. A crash between both steps loses this part, and charges
    nothing twice.
    """
    answered = report.answered
    outcome: dict[str, Any] = {
        "text": report.refused,
        "failed": UNREACHABLE,
        "shortfall": "",
        "is_json": False,
    }
    if answered is not None:
        outcome = attrs.asdict(answered)
        if not answered.via:
            del outcome["via"]
        del outcome["message_id"]
    turn, task = context.turn, {**task, "report": outcome, "usage": attrs.asdict(report.usage)}
    with trio.CancelScope(shield=True):
        context.state.dispatch((_key(message_id), task))
        if context.log is not None:
            await context.log.flush()
        if turn is not None and turn.budget is not None and report.spent is not None:
            rest = amounts_of(task["limits"]) - amounts_of(report.spent)
            turn.budget.give_back(rest, now=trio.current_time())
    if turn is not None and outcome["failed"] is not None:  # only an answer records the usage, not a failure
        _count_usage(turn, report.usage)
    return task


def _count_usage(turn: Turn, usage: Usage) -> None:
    """Add the tokens and cost of a task to the turn, its session and the parents of the session."""
    context = turn.session
    turn.progress.usage = turn.progress.usage.with_child(usage)
    context.conversation.usage = context.conversation.usage.with_child(usage)
    add_to_parents(context, usage)


def _failure(agent: PoolAgent, outcome: Mapping[str, Any]) -> RemoteError:
    """Return the error of a failed task, with the agent, the pool and the reason."""
    return RemoteError(f"agent {agent.agent!r} of pool {agent.pool!r}: {outcome['text']}")


def _add_answer(turn: Turn, message: Message, usage: Usage) -> None:
    """Add the answer of the other pool to the history and the journal, and its usage to the session and its parents."""
    context = turn.session
    turn.answer_id = message.id
    context.conversation.append(message)
    _count_usage(turn, usage)
    if context.log is not None:
        taken = NO_USAGE.with_child(usage)
        context.log.add(
            AgentMessageRecord(message=message, stop="end", calls=turn.progress.calls, usage=taken)
        )


def _deliver_reply(turn: Turn, task: Mapping[str, Any], agent: str) -> Reply:
    """Convert the recorded outcome of a task to the reply of the turn, add the reply to the history, and return it.

    A reply that was added before a restart is not added again.
    """
    context = turn.session
    answer, usage = (
        TaskOutcomeRecord(message_id=turn.message.id, **task["report"]),
        Usage(**task.get("usage", {})),
    )
    message = Message(
        id=f"{task['session_id']}/reply",
        session_id=context.id,
        sender=Sender(agent, "agent"),
        parts=to_parts(answer.text),
        correlation_id=turn.message.id,
        causation_id=turn.message.id,
        origin=answer.origin,
        via=answer.via,
    )
    last = context.conversation.last_message
    if last is None or last.id != message.id:
        _add_answer(turn, message, usage)
    data = json.loads(answer.text) if answer.is_json else None
    taken, kind = NO_USAGE.with_child(usage), answer.shortfall or None
    return Reply(
        id=message.id,
        text=answer.text,
        data=data,
        message_type=kind,
        usage=taken,
        origin=answer.origin,
        via=answer.via,
    )
