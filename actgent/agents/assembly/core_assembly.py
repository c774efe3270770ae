"""Construction of an agent's core: the message pipeline, with its model caller and tool caller."""

from collections.abc import Iterable, Mapping, Sequence

from actgent.actors.inbox import InboxBounds, PriorityInbox
from actgent.agents.teams import receivers_among
from actgent.information_flow_labels import Policy
from actgent.llm.model_interface import LLM
from actgent.memory.memory_interface import Memory
from actgent.messages import Sender, message_bytes
from actgent.modes.mode_enforcement import Modes
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import Profile
from actgent.runtime.runtime import Runtime
from actgent.tools.tool_interface import Tool
from actgent.tools.tool_registry import ToolRegistry
from actgent.turns.agent_core import AgentCore, Router
from actgent.turns.calls.approval_requests import ApprovalRequests, NeedsPerson
from actgent.turns.calls.context_fitting import fitter_for
from actgent.turns.calls.model_calls import ModelCaller
from actgent.turns.calls.tool_calls import Access, ToolCaller
from actgent.turns.content_guards import Guards
from actgent.turns.failure_logging import FailureLogger
from actgent.turns.outcome_dispatcher import Dispatcher
from actgent.turns.turn_event_publisher import Observer
from actgent.turns.turn_hooks import Hooks
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
    bounds: InboxBounds,
) -> AgentCore:
    """Build the `AgentCore`, the message pipeline, of an agent in a runtime.

    `tools` is the registry that toolsets extend; `initial_tools` are the tools before toolsets connect. `threads` is the
    maximum number of concurrent sync tools. `operation` is the OpenTelemetry operation name of the turns. `bounds` are
    the capacities of the inbox.
    """
    name = profile.name
    dispatcher = Dispatcher(failure_logger=failure_logger, timeout=handler_timeout, watch=runtime.watch)
    failure_logger.is_redacted = runtime.is_redacted
    failure_logger.asks_elsewhere = runtime.asks_elsewhere
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
                agent=name,
                rule=approval,
                dispatcher=dispatcher,
                observer=observer,
                now=runtime.clock.steady,
            ),
            is_parallel=parallel_tools,
            policy=policy,
            access=access,
        ),
        inbox=PriorityInbox(f"agent {name}", size_of=message_bytes, **bounds._asdict()),
        dispatcher=dispatcher,
        observer=observer,
        router=router,
        hooks=hooks,
        modes=modes,
        guards=guards,
        receivers=receivers_among(initial_tools, dispatcher, guards),
    )
