"""Construction of an agent's actor, and of the opener of its sessions."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from actgent.actors.actor_ref import Address
from actgent.agents.session import Session, SessionServices, internal_context
from actgent.database.database import Database
from actgent.limits_and_schedules.durable_timer import DueIndex
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.custom_model_adapters import ModelLike
from actgent.llm.model_resolution import resolve_model
from actgent.messages import OnBusy
from actgent.runtime.agent_actor import AgentActor
from actgent.runtime.message_admission import MessageAdmission
from actgent.runtime.runtime import Runtime
from actgent.runtime.sessions.new_session import OnSession
from actgent.runtime.sessions.session_lifecycle import SessionLifecycle
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.sessions.session_table import SessionTable
from actgent.runtime.timer_handlers import timer_handlers
from actgent.runtime.timer_service import TimerService
from actgent.runtime.turn_runner import TurnRunner
from actgent.sessions.budget_accounts import BudgetAccounts
from actgent.sessions.pending.turn_future import CallOptions
from actgent.sessions.session_context import SessionContext
from actgent.state.reducers import Reducer
from actgent.state.session_state import StateCheck
from actgent.turns.agent_core import AgentCore
from actgent.turns.turn_lifecycle import TurnLifecycle

from .deps_for_tools import AgentDeps


def build_actor(
    runtime: Runtime,
    core: AgentCore,
    *,
    name: str,
    make_ref: Callable[[], Address],
    limits: Limits,
    options: CallOptions,
    on_stop: Callable[[], Awaitable[None]],
    deps: AgentDeps,
) -> AgentActor:
    """Build the actor of an agent: turn runner, session lifecycle and timers around the message pipeline `core`.

    Args:
        runtime: Runtime in which the agent runs.
        core: Message pipeline of the agent.
        name: Name of the agent.
        make_ref: Returns the address of the agent.
        limits: Limits of a turn.
        options: Model call options of turns that set no others.
        on_stop: Called when the actor stops.
        deps: Deps of the agent, and their check.
    """
    sessions = SessionTable(
        name,
        can_unload=runtime.journal is not None,
        on_unload=core.inbox.forget_parked,
        internal_context=internal_context,
    )
    core.inbox.owner_of = sessions.quota_owner
    turn_lifecycle = TurnLifecycle(
        agent=name,
        limits=limits,
        options=options,
        dispatcher=core.dispatcher,
        observer=core.observer,
        timer=runtime.timer,
        accounts=runtime.accounts,
        close_calls=core.close_calls,
        deliver_rest=core.deliver_rest,
        tools=deps.tools,
        deps_missing=deps.missing,
    )
    runner = TurnRunner(
        name,
        core=core,
        turn_lifecycle=turn_lifecycle,
        inbox=core.inbox,
        sessions=sessions,
        timer=runtime.timer,
        wait_started=runtime.agents.wait_started,
        on_task_done=runtime.delegation.report,
    )
    timers = DueIndex(runtime.clock)
    lifecycle = SessionLifecycle(
        runner,
        events=runtime.stream,
        timers=timers,
        journal=runtime.journal,
        memory=core.memory,
        drains=runtime.drains,
        on_ended=runtime.note_ended,
    )
    return AgentActor(
        lifecycle,
        make_ref=make_ref,
        core=core,
        clock=runtime.clock,
        timer_service=TimerService(
            name, index=timers, inbox=core.inbox, timer=runtime.timer, start_soon=runner.start_soon
        ),
        propagation=runtime.propagation,
        on_stop=on_stop,
        on_left=runtime.agents.remove,
    )


def build_opener(
    actor: AgentActor,
    runtime: Runtime,
    *,
    reducers: Mapping[str, Reducer] | None,
    state_check: StateCheck | None,
    on_busy: OnBusy,
    on_session: Sequence[OnSession],
    deps: AgentDeps,
    database: Database | None,
    runs_session_hooks: Callable[[SessionContext], bool],
) -> SessionOpener:
    """Build the session opener of an actor, and connect the actor's callbacks to it.

    Args:
        actor: Actor of the agent.
        runtime: Runtime in which the agent runs.
        reducers: Reducers of the session state by key; None for none.
        state_check: Check of state changes against the type of `state=`; None checks nothing.
        on_busy: Treatment of messages for busy sessions that set no other rule.
        on_session: Functions that are called before the first message of each session.
        deps: Deps of the agent, and their check.
        database: Database of the agent; None for none.
        runs_session_hooks: Returns True if `on_session` is called for a session.
    """
    admission = MessageAdmission(
        actor.lifecycle,
        actor.propagation,
        actor.core.guards,
        labels_senders=actor.core.calling.policy is not None,
    )
    opener = SessionOpener(
        actor,
        admission,
        partial(
            Session,
            services=SessionServices(
                actor, admission, runtime.delegation, deps.shared, database, runtime.remote_sessions
            ),
        ),
        runtime.agents.trees,
        runtime.agents.start_phase,
        reducers,
        on_busy,
        on_session,
        deps.missing_to_resume,
        runtime.remote_sessions,
        runs_session_hooks,
        state_check,
        runtime.agents.pending_opens_of(actor.name),
    )
    actor.runner.connect(
        unload=actor.lifecycle.unload_if_finished,
        on_released=_summary_starter(actor, runtime.accounts),
        on_suspended=admission.withdraw_impatient,
    )
    if runtime.remote_sessions is not None:
        actor.lifecycle.eviction.on_left = actor.runner.notify_moved
    actor.timer_service.connect(opener.loaded, partial(timer_handlers, opener, runtime.agents))
    return opener


def _summary_starter(
    actor: AgentActor, accounts: BudgetAccounts
) -> Callable[[SessionContext], object] | None:
    """Return the callback that starts a due summary of the conversation at the end of a turn.

    None if the agent's memory makes no summaries.
    """
    if not actor.core.memory.summarizes:
        return None
    from actgent.turns.conversation_summaries import SummaryMaker  # noqa: PLC0415 - most agents make none

    core = actor.core
    own: ModelLike | str | None = getattr(core.memory, "llm", None)
    maker = SummaryMaker(
        agent=actor.name,
        llm=core.models.models["default"] if own is None else resolve_model(own),
        start_soon=actor.runner.start_soon,
        metered=core.models.metered,
        budget_of=accounts.budget_outside_turns,
    )
    core.bring_summary = maker.bring
    return maker.start_if_due
