"""Assembly of a running agent: its models by role, the deps of its tools, its core, its actor and its session opener."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, get_origin

import attrs
import trio

from actgent.actors.actor_ref import Address
from actgent.actors.inbox import InboxBounds, PriorityInbox
from actgent.agents.session import Session, SessionServices, internal_context, session_of_context
from actgent.agents.teams import receivers_among
from actgent.database.database import Database
from actgent.errors import ConfigurationError, DepsMissing
from actgent.information_flow_labels import Policy
from actgent.limits_and_schedules.durable_timer import DueIndex
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.custom_model_adapters import ModelLike
from actgent.llm.model_interface import LLM
from actgent.llm.model_resolution import resolve_model
from actgent.llm.model_settings import LLMSettings
from actgent.memory.memory_interface import Memory
from actgent.messages import OnBusy, Sender, message_bytes
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import Profile
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
from actgent.support.attrs_class_repr import FieldRepr
from actgent.tools.outputs.result_text import error_text
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import ToolRegistry
from actgent.turns.agent_core import AgentCore, Router
from actgent.turns.calls.approval_requests import ApprovalRequests, NeedsPerson
from actgent.turns.calls.context_window_fitting import fitter_for
from actgent.turns.calls.model_calls import ModelCaller
from actgent.turns.calls.tool_calls import Access, ToolCaller
from actgent.turns.failure_logging import FailureLogger
from actgent.turns.message_and_answer_guards import Guards
from actgent.turns.outcome_dispatcher import Dispatcher
from actgent.turns.turn_event_publisher import Observer
from actgent.turns.turn_hooks import Hooks
from actgent.turns.turn_lifecycle import TurnLifecycle
from actgent.turns.turn_spans import TurnSpans


def build_core(
    core_type: type[AgentCore],
    runtime: Runtime,
    *,
    profile: Profile,
    memory: Memory,
    prompts: PromptManager,
    models: Mapping[str, LLM],
    tools: ToolRegistry,
    initial_tools: Iterable[Tool],
    threads: int,
    parallel_tools: bool,
    approval: NeedsPerson | None,
    policy: Policy | None,
    access: Sequence[Access],
    modes: Modes | None,
    hooks: Hooks,
    guards: Guards,
    router: Router,
    operation: str,
    failure_logger: FailureLogger,
    handler_timeout: float,
) -> AgentCore:
    """Build the `AgentCore`, the message pipeline, of an agent in a runtime.

    `tools` is the registry that toolsets extend; `initial_tools` are the tools before toolsets connect. `threads` is the
    maximum number of concurrent sync tools. `operation` is the OpenTelemetry operation name of the turns.
    """
    name = profile.name
    dispatcher = Dispatcher(failure_logger=failure_logger, timeout=handler_timeout, watch=runtime.watch)
    failure_logger.is_redacted = runtime.is_redacted
    failure_logger.shows_approvals = runtime.shows_approvals
    tracing = runtime.stream.tracing
    spans = None if tracing is None else TurnSpans(name, tracing, operation)
    observer = Observer(name, runtime.stream, spans, runtime.is_redacted)
    return core_type(
        profile=profile,
        memory=memory,
        prompts=prompts,
        models=ModelCaller(
            sender=Sender(name, "assistant"),
            models=models,
            dispatcher=dispatcher,
            observer=observer,
            timer=runtime.timer,
            guards=guards,
            fitter=fitter_for(models.values()),
        ),
        calling=ToolCaller(
            agent=name,
            registry=tools,
            threads=runtime.threads.share(name, threads),
            dispatcher=dispatcher,
            observer=observer,
            approvals=ApprovalRequests(
                agent=name, rule=approval, dispatcher=dispatcher, observer=observer, now=runtime.clock.steady
            ),
            is_parallel=parallel_tools,
            policy=policy,
            access=access,
        ),
        dispatcher=dispatcher,
        observer=observer,
        router=router,
        hooks=hooks,
        modes=modes,
        guards=guards,
        receivers=receivers_among(initial_tools, dispatcher, guards),
    )


_WAS_GIVEN = "its deps from before the restart are lost, as deps are not written to the journal"


@attrs.frozen(eq=False, repr=False)
class AgentDeps(FieldRepr):
    """The argument `deps=` of one agent, a value or a function, from which its tools get `ToolContext.deps`.

    The order of precedence is: deps of the run, of the session, of the agent, of the parent session.
    """

    agent: str
    """Name of the agent."""
    value: Any
    """Argument `deps=`: a value for all sessions, or an async function of the session; None if the agent has no deps."""
    tools: ToolRegistry
    """Tools of the agent, whose declared types the deps must fit."""

    def __attrs_post_init__(self) -> None:
        self.check(self.value)

    @property
    def is_function(self) -> bool:
        """True if `deps=` is an async function that creates the deps of each session. False if it is one value for all sessions."""
        return inspect.iscoroutinefunction(self.value)

    @property
    def shared(self) -> Any:
        """Value of `deps=` that all sessions share; None if a function creates the deps of each session."""
        return None if self.is_function else self.value

    def check(self, value: Any) -> None:
        """Raise if deps do not have the type that the tools declare. An async function that creates deps, and None, are accepted.

        Raises:
            ConfigurationError: The deps do not fit a tool; the text names the tool and both types.
        """
        if value is None or inspect.iscoroutinefunction(value):
            return
        for tool in self.tools:
            expected = _class_of(tool.deps_type)
            if expected is not None and not _fits(value, expected):
                raise ConfigurationError(
                    f"agent {self.agent!r}: deps= is a {type(value).__name__}, and tool {tool.name!r} takes "
                    f"ToolContext[{expected.__name__}]: pass a {expected.__name__}, or an async function of the session "
                    "that returns one"
                )

    def first_hooks(self, modes: Modes | None) -> list[OnSession]:
        """Return internal `on_session` functions, which run before those of the program.

        The first creates the deps of the session, if `deps=` is a function. The second replaces a mode that the agent no
        longer has, if the agent has `modes`.
        """
        hooks: list[OnSession] = [self.create_deps] if self.is_function else []
        return hooks if modes is None else [*hooks, modes.replace_unknown_mode]

    async def create_deps(self, session: Session[Any]) -> None:
        """Call the deps function of the agent for a session without deps, and store the result in the session.

        This happens before the first message of the session, and again after a restart.

        Raises:
            DepsMissing: The function failed; the exception is the cause.
            ConfigurationError: The returned value does not fit a tool.
        """
        provide: Callable[[Session[Any]], Awaitable[Any]] = self.value
        if session.own_deps is not None:
            return
        try:
            value = await provide(session)
        except Exception as error:
            why = f"its agent's function for deps failed ({error_text(error)})"
            raise DepsMissing(self.agent, session.id, why) from error
        self.check(value)
        session.store_created_deps(value)

    def missing_to_resume(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None:
        """Return the error for a loaded session with unfinished work whose tools lack deps; None if the session can resume.

        A session without unfinished work needs no deps. `was_given` is True if the program passed deps to the
        session or one of its runs before the restart.
        """
        has_work = was_given or bool(context.acceptances) or context.checkpoint is not None
        return self.missing(context, was_given=was_given) if has_work else None

    def missing(self, context: SessionContext, *, was_given: bool) -> DepsMissing | None:
        """Return the error for a session whose next turn needs deps that are not set; None if the turn can run.

        `was_given` is True if the program passed deps to this session, or to the message, before the process restarted. Then the
        program must pass them again, even if the agent has default deps.
        """
        session = session_of_context(context)
        if was_given:
            return None if session.own_deps is not None else DepsMissing(self.agent, context.id, _WAS_GIVEN)
        needs = self.tools.deps_tool
        if not needs or session.deps is not None:
            return None
        return DepsMissing(self.agent, context.id, f"tool {needs!r} needs deps, and none are set")


def _class_of(annotation: Any) -> type | None:
    """Return the class in the annotation `ToolContext[CLASS]`, against which deps are checked; None without a class."""
    declared = get_origin(annotation) or annotation
    return declared if isinstance(declared, type) and declared is not object else None


def _fits(value: Any, expected: type) -> bool:
    try:
        return isinstance(value, expected)
    except TypeError:  # a Protocol that only type checkers know
        return True


CLOSE_TIMEOUT_SECONDS = 1.0
"""Maximum seconds to close the model clients when the agent stops."""


@attrs.define(eq=False, repr=False)
class AgentModels(FieldRepr):
    """Models of an agent by role. The role `default` is used unless a protocol selects another one."""

    named: dict[str, ModelLike | LLMSettings | str]
    """Model client, settings or model name of each role, as passed to `Agent`."""
    clients: dict[str, LLM] | None = None
    """Model client of each role; None while the agent is stopped."""

    def __attrs_post_init__(self) -> None:
        self.open()

    def open(self) -> Mapping[str, LLM]:
        """Return the model client of each role, such as `default`. Create the clients if the agent was stopped.

        Raises:
            ConfigurationError: A model name is unknown.
            MissingKey: A model needs an API key, and no key is set.
        """
        if self.clients is None:
            self.clients = self.resolve()
        return self.clients

    def resolve(self) -> dict[str, LLM]:
        """Return a model client for each role.

        A model name or settings give a new client, and a passed client is returned unchanged.
        """
        return {
            role: model.build() if isinstance(model, LLMSettings) else resolve_model(model)
            for role, model in self.named.items()
        }

    async def aclose(self) -> None:
        """Close the model clients that were created from names and settings. Clients passed to `Agent` stay open.

        Cancellation does not shorten the time limit of `CLOSE_TIMEOUT_SECONDS`.
        """
        clients, self.clients = self.clients or {}, None
        created = [client for role, client in clients.items() if client is not self.named[role]]
        if created:  # a cancel scope takes 10 us
            with trio.move_on_after(CLOSE_TIMEOUT_SECONDS, shield=True):
                for client in created:
                    await client.aclose()


def build_actor(
    runtime: Runtime,
    core: AgentCore,
    *,
    name: str,
    bounds: InboxBounds,
    make_ref: Callable[[], Address],
    limits: Limits,
    options: CallOptions,
    close_connections: Callable[[], Awaitable[None]],
    deps: AgentDeps,
) -> AgentActor:
    """Build the actor of an agent: turn runner, session lifecycle and timers around the message pipeline `core`.

    Args:
        runtime: Runtime in which the agent runs.
        core: Message pipeline of the agent.
        name: Name of the agent.
        bounds: Capacities of the inbox.
        make_ref: Returns the address of the agent.
        limits: Limits of a turn.
        options: Call options of turns whose message has no options.
        close_connections: Closes the connections of the agent when it stops.
        deps: Deps of the agent, and their check.
    """
    inbox = PriorityInbox(f"agent {name}", size_of=message_bytes, **bounds._asdict())
    sessions = SessionTable(
        name,
        can_unload=runtime.journal is not None,
        on_unload=inbox.forget_parked,
        internal_context=internal_context,
    )
    inbox.owner_of = sessions.quota_owner
    turn_lifecycle = TurnLifecycle(
        agent=name,
        limits=limits,
        options=options,
        dispatcher=core.dispatcher,
        observer=core.observer,
        timer=runtime.timer,
        accounts=runtime.accounts,
        close_calls=core.close_calls,
        deliver_remaining=core.deliver_remaining,
        tools=deps.tools,
        deps_missing=deps.missing,
    )
    runner = TurnRunner(
        name,
        core=core,
        turn_lifecycle=turn_lifecycle,
        inbox=inbox,
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
            name, index=timers, inbox=inbox, timer=runtime.timer, start_soon=runner.start_soon
        ),
        propagation=runtime.propagation,
        close_connections=close_connections,
        on_stopped=runtime.agents.remove,
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
        on_busy: Default rule for messages to a busy session.
        on_session: Functions that are called before the first message of each session.
        deps: Deps of the agent, and their check.
        database: Database of the agent; None for none.
        runs_session_hooks: Predicate that returns True if the `on_session` functions are called for a session.
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
        on_suspended=admission.withdraw_during_suspension,
    )
    if runtime.remote_sessions is not None:
        actor.lifecycle.eviction.on_evicted = actor.runner.notify_moved
    actor.timer_service.connect(opener.loaded, partial(timer_handlers, opener, runtime.agents))
    return opener


def _summary_starter(
    actor: AgentActor, accounts: BudgetAccounts
) -> Callable[[SessionContext], object] | None:
    """Return the callback that starts a due summary of the conversation at the end of a turn.

    Return None if the agent's memory uses no summaries.
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
