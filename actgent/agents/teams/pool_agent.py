"""`PoolAgent`: an agent of another pool of the cluster, under a name in this one.

Each message of its sessions is a task for the agent that is meant: whatever can be done with an agent of this process, such
as `as_tool()`, `delegate` or a step of a pipeline, is done with this one, which asks the other pool instead of a model. What
it asked stands in the state of its session before it is asked, so that a turn that goes on after a crash asks for the same.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import trio

from actgent.agents.agent import Agent
from actgent.agents.session import Session, context_of, face_of, services_of
from actgent.agents.validation import check_each_seconds
from actgent.control.arguments import check_session_limits
from actgent.control.budget import Budget
from actgent.control.limits import Limits
from actgent.errors import ConfigurationError, RemoteError
from actgent.journal.records import Answered, Said
from actgent.llm.base import LLM, Answer, Chat, OnText
from actgent.messages import NO_USAGE, Failure, Message, Reply, Sender, Usage, new_secret, to_parts
from actgent.protocols.bare import Bare
from actgent.runtime.delegation.pools import (
    GRANTED,
    STOPPED,
    PoolReport,
    Pools,
    PoolStops,
    PoolTask,
    amounts_of,
    chain_of,
)
from actgent.runtime.directory import Directory
from actgent.runtime.runtime import Runtime
from actgent.runtime.slots import slot_lent
from actgent.sessions.context import SessionContext
from actgent.sessions.turn import Turn
from actgent.sessions.waiting.tasks import TASK_DEADLINE
from actgent.tools.base import Tool
from actgent.turns.calls.model_calls import tell_parents
from actgent.turns.core import AgentCore

ASKED = "asked"
"""What keys of the state begin with under which a session of a `PoolAgent` notes what it asked."""
SHARE = 0.5
"""The part of what is left that one task is granted where nobody says."""
UNREACHABLE = "pool"
"""The kind of the failure of a task that the other pool never began."""


class PoolAgent(Agent[Any, Any]):
    """An agent of another pool of the cluster; it is called `NAME@POOL` here, and used as any other agent.

    Each message of its sessions is a task of its own, which an agent called `name` answers on a node of the pool: in a
    session there that is closed with the answer. Kills on either side lose nothing and repeat nothing that was
    answered. It needs `open_runtime(broker=)`; see docs/guides/cluster.md.

    Args:
        name: What the agent is called in its pool.
        pool: The pool whose nodes host it.
        role: Who it is, for those that look for agents here.
        goal: What it is there for.
        capabilities: What it can do, in words.
        limits: What one task may take at most: `model_calls`, `tool_calls`, `tokens`, `cost` and `seconds`; what nobody says is
            half of what is left to who asks, if anything bounds that.
        patience: Seconds for which a pool is waited for of which no node was ever there.
        deadline: Seconds after which a task is stopped whose asker says nothing.
        sessions: How many tasks go on side by side.
        grace: Seconds to end what is accepted when the block is left.

    Raises:
        ConfigurationError: one of these is wrong.
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
        patience: float = 30.0,
        deadline: float = TASK_DEADLINE,
        sessions: int = 100,
        grace: float = 10.0,
    ) -> None:
        if not pool or "/" in pool:
            raise ConfigurationError(f"pool= is the name of a pool of the cluster, not {pool!r:.100}")
        check_each_seconds(patience=patience, deadline=deadline)
        check_session_limits(limits)
        super().__init__(
            f"{name}@{pool}",
            llm=_NoModel(),
            role=role,
            goal=goal,
            capabilities=capabilities,
            protocol=_Elsewhere(),
            sessions=sessions,
            grace=grace,
        )
        self.agent, self.pool = name, pool
        self.granted = Limits() if limits is None else limits
        """What one task may take at most."""
        self.patience, self.deadline = patience, deadline
        self._on_session.append(self._watch)
        self._asking: _Asking

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        return super().as_tool(name or re.sub(r"[^a-zA-Z0-9_-]+", "_", self.agent), description)

    def _build_core(self, runtime: Runtime) -> AgentCore:
        if runtime.delegation.pools is None:
            raise ConfigurationError(
                f"agent {self.agent!r} is in pool {self.pool!r} of a cluster: open_runtime(broker=...) says of which"
            )
        core = super()._build_core(runtime)
        self._asking = core.receivers = _Asking(
            self, runtime.delegation.pools, PoolStops(runtime.delegation.pools, self.pool), runtime.agents
        )
        return core

    def _is_told(self, context: SessionContext) -> bool:
        return STOPPED not in context.seen_state  # it is no task, but only has one stopped

    def _watch(self, session: Session) -> None:
        """Have a task stopped whose asker does not want its answer any more."""
        session.on_exception(self._give_up)

    async def _give_up(self, failure: Failure, session: Session) -> None:
        if failure.kind != "handler" and not failure.may_continue:
            await self._asking.give_up(context_of(session), failure.message_id)


@attrs.frozen(eq=False)
class _Asking:
    """Asks the other pool where agents ask models; see `turns.handovers.Receivers`."""

    agent: PoolAgent
    pools: Pools
    stops: PoolStops
    agents: Directory

    def are_due(self, context: SessionContext, turn: Turn) -> bool:
        """See `Receivers`: everything is the other agent's."""
        return True

    async def answer(self, context: SessionContext, turn: Turn) -> Reply | None:
        """See `Receivers`.

        Raises:
            RemoteError: the task failed; the failure has the kind that it had there.
            LimitReached: nothing is left of a limit that could be granted.
        """
        if (stopped := context.seen_state.get(STOPPED)) is not None:
            await self.stops.go_on(context, stopped, now=_steady_time(context))
            return Reply(text="It was stopped.")
        order = context.seen_state.get(_key(turn.message.id)) or await self._make_order(context, turn)
        if "report" not in order:
            order = await _settle(context, turn.message.id, order, await self._ask(context, turn, order))
        known = order["report"]
        if known["failed"] is not None:
            turn.control.blame = known["failed"]
            raise _failure(self.agent, known)
        return _say(context, turn, order, self.agent.name)

    async def _ask(self, context: SessionContext, turn: Turn, order: Mapping[str, Any]) -> PoolReport:
        """What the task comes to; raises `RemoteError` where it was never begun."""
        turn.control.blame = UNREACHABLE
        with slot_lent():
            report = await self.pools.ask(
                self.agent.pool, self._task(context, turn, order), patience=self.agent.patience
            )
        if report.refused:  # then it is given up as one that fails otherwise
            raise RemoteError(f"pool {self.agent.pool!r} refused a task: {report.refused}")
        turn.control.blame = "internal"
        return report

    async def give_up(self, context: SessionContext, message_id: str) -> None:
        """Have a task stopped, if it was given and nobody knows what it came to."""
        order = context.seen_state.get(_key(message_id))
        if order is None or "report" in order:
            return
        opener = self.agents.opener(self.agent.name)
        report = await self.stops.stop(opener, context, self._task(context, None, order))
        await _settle(context, message_id, order, report)

    async def _make_order(self, context: SessionContext, turn: Turn) -> Mapping[str, Any]:
        """Note what is asked, once what it may take is charged to who asks; durable on return.

        A crash before that charges it again, and nothing was asked by then.
        """
        limits = {} if turn.budget is None else _share(turn.budget, self.agent.granted.shared)
        limits = {**self.agent.granted.shared, **limits}
        if turn.budget is not None:
            await turn.budget.grant(amounts_of(limits), now=trio.current_time())
        deadline, seconds = self._time_for(context)
        order = {"session_id": new_secret(), "limits": limits, "deadline": deadline, "seconds": seconds}
        context.state.dispatch((_key(turn.message.id), order))
        if context.log is not None:
            await context.log.flush()
        return order

    def _time_for(self, context: SessionContext) -> tuple[float, float]:
        """Until when, as steady Unix time, and for how many seconds; both of the task that is worked at, if it has them."""
        if context.task is not None and context.task.deadline:
            return context.task.deadline, context.task.seconds
        return _steady_time(context) + self.agent.deadline, self.agent.deadline

    def _task(self, context: SessionContext, turn: Turn | None, order: Mapping[str, Any]) -> PoolTask:
        pool = self.pools.pool
        return PoolTask(
            session_id=order["session_id"],
            agent=self.agent.agent,
            asker=f"{pool}/{context.agent}/{context.id}",
            owner=f"{context.owner.name}@{pool}",
            message=None if turn is None else _said_together(turn),
            options=None if turn is None else turn.options.journal_form,
            limits=order["limits"],
            deadline=order["deadline"],
            seconds=order["seconds"],
            depth=0 if turn is None else turn.depth,
            deepest=0 if turn is None else turn.deepest,
            chain=chain_of(context, pool),
        )


class _Elsewhere(Bare):
    """The protocol of agents that ask no model; the type of a reply is what it lacks."""

    name: ClassVar[str] = "pool"
    template: ClassVar[str] = "{{ profile.name }}: an agent of another pool."

    def shortfall(self, message_type: str | None) -> str | None:
        return message_type


class _NoModel(LLM):
    """Stands where agents have a model."""

    name = "pool"
    dialect: ClassVar[str] = "pool"

    async def complete(self, chat: Chat, *, on_text: OnText | None = None) -> Answer:
        raise ConfigurationError("an agent of another pool has no model here")


def _steady_time(context: SessionContext) -> float:
    return services_of(face_of(context)).running.clock.steady()


def _key(message_id: str) -> str:
    return f"{ASKED}/{message_id}"


def _share(budget: Budget, given: Mapping[str, float]) -> dict[str, float]:
    """What one task is granted of a budget: what was said, or else a share of what is left, and no more than that.

    Raises:
        LimitReached: nothing is left of one of them.
    """
    limits: dict[str, float] = {}
    for name in (*GRANTED, "seconds"):
        room = budget.room(name)
        if math.isinf(room):
            continue
        is_whole = name not in ("cost", "seconds")
        budget.check(name, 1 if is_whole else math.ulp(0.0))
        share = room if name == "seconds" else math.ceil(room * SHARE) if is_whole else room * SHARE
        limits[name] = min(given.get(name, share), room)
    return limits


def _said_together(turn: Turn) -> Message:
    parts = tuple(part for each in (*turn.joined, turn.message) for part in each.parts)
    return attrs.evolve(turn.message, parts=parts, metadata={})


async def _settle(
    context: SessionContext, message_id: str, order: Mapping[str, Any], report: PoolReport
) -> Mapping[str, Any]:
    """Note what a task came to, and then give back what it left over: a crash in between loses that, and spends nothing twice.

    Returns what is known of the task by then.
    """
    answered = report.answered
    known: dict[str, Any] = {"text": report.refused, "failed": UNREACHABLE, "shortfall": "", "is_json": False}
    if answered is not None:
        known = attrs.asdict(answered)
        del known["message_id"]
    turn, order = context.turn, {**order, "report": known, "usage": attrs.asdict(report.usage)}
    with trio.CancelScope(shield=True):
        context.state.dispatch((_key(message_id), order))
        if context.log is not None:
            await context.log.flush()
        if turn is not None and turn.budget is not None and report.spent is not None:
            rest = amounts_of(order["limits"]) - amounts_of(report.spent)
            turn.budget.give_back(rest, now=trio.current_time())
    if turn is not None and known["failed"] is not None:  # no record of an answer will have it
        _count(context, turn, report.usage)
    return order


def _count(context: SessionContext, turn: Turn, usage: Usage) -> None:
    """Count what a task took for the session that gave it, and for those that this one works for."""
    turn.progress.usage = turn.progress.usage.with_child(usage)
    context.conversation.usage = context.conversation.usage.with_child(usage)
    tell_parents(context, usage)


def _failure(agent: PoolAgent, known: Mapping[str, Any]) -> RemoteError:
    """The error of a task that failed in the other pool."""
    return RemoteError(f"agent {agent.agent!r} of pool {agent.pool!r}: {known['text']}")


def _note(context: SessionContext, turn: Turn, said: Message, usage: Usage) -> None:
    """Put an answer into the record, with what it took."""
    turn.answer.id = said.id
    context.conversation.append(said)
    _count(context, turn, usage)
    if context.log is not None:
        taken = NO_USAGE.with_child(usage)
        context.log.add(Said(message=said, stop="end", calls=turn.progress.calls, usage=taken))


def _say(context: SessionContext, turn: Turn, order: Mapping[str, Any], agent: str) -> Reply:
    """The answer of the other pool, in the record, too, unless it stands there since before a restart."""
    answer, usage = Answered(message_id=turn.message.id, **order["report"]), Usage(**order.get("usage", {}))
    said = Message(
        id=f"{order['session_id']}/reply",
        session_id=context.id,
        sender=Sender(agent, "agent"),
        parts=to_parts(answer.text),
        correlation_id=turn.message.id,
        causation_id=turn.message.id,
        origin=answer.origin,
    )
    last = context.conversation.last_message
    if last is None or last.id != said.id:
        _note(context, turn, said, usage)
    data = json.loads(answer.text) if answer.is_json else None
    taken, kind = NO_USAGE.with_child(usage), answer.shortfall or None
    return Reply(
        id=said.id, text=answer.text, data=data, message_type=kind, usage=taken, origin=answer.origin
    )
