"""`Agent`: an LLM agent with its sessions, hooks, guards, runs and tools."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Generic, Never, Self, TypeVar, Unpack, cast, overload

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.event_loop_check import check_loop, is_asyncio_running
from actgent.actors.inbox import DEFAULT_BYTES, DEFAULT_MESSAGE_BYTES, InboxBounds
from actgent.approvals import Approval, Decision, session_of
from actgent.database.database import Database
from actgent.errors import (
    ApprovalNotFound,
    ConfigurationError,
    DeadlineExceeded,
    Fenced,
    NotRunning,
    OutsideTrio,
    SessionMoved,
    UsageError,
)
from actgent.information_flow_labels import Policy
from actgent.journal.session_tags_and_metadata import NO_ANNOTATIONS, new_annotations
from actgent.limits_and_schedules.id_and_number_validation import (
    at_least_one,
    check_flag,
    check_id,
    check_known_id,
    check_seconds,
)
from actgent.limits_and_schedules.limits import DEFAULT_LIMITS, Limits
from actgent.llm.custom_model_adapters import ModelLike
from actgent.llm.model_interface import LLM
from actgent.llm.model_settings import LLMSettings
from actgent.memory.memory_interface import LongTermMemoryBase, MemoryLike
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import (
    Content,
    DataT_co,
    Delivery,
    Message,
    OnBusy,
    Priority,
    PriorityName,
    Reply,
    Route,
    Sender,
    check_busy_rule,
    message_parts,
)
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.prompt_layers import Prompt, SystemPrompt, to_layer
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import (
    ClassificationType,
    Instruction,
    Profile,
    Protocol,
    types_from,
    validate_types,
)
from actgent.runtime.agent_actor import AgentActor
from actgent.runtime.approval_decisions import list_approvals
from actgent.runtime.resumption_during_startup import wait_started
from actgent.runtime.runtime import Host, Runtime, open_runtime
from actgent.runtime.sessions.new_session import OnSession
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.sessions.session_recovery import recover
from actgent.runtime.waits_between_sessions import add_unknown_session_source
from actgent.sessions.imported_history import ImportedMessage
from actgent.sessions.pending.turn_future import CallOptions
from actgent.sessions.pending.turn_output_stream import TurnReader, TurnStream
from actgent.sessions.session_context import SessionContext, Turn
from actgent.sessions.session_handlers import Handler, check_called
from actgent.state.reducers import Reducer
from actgent.support import span_names
from actgent.support.common_mistake_hints import OF_NEW_SESSIONS, OF_RUNS, OF_STREAMS, hints_for_agents
from actgent.support.safe_logging import logger_of
from actgent.support.unknown_name_hints import async_block, unknown_argument
from actgent.tools.outputs.oversized_results import offer_read_result
from actgent.tools.tool_adapters import ToolProtocol
from actgent.tools.tool_interface import DepsT, Tool, unwrap_tool
from actgent.tools.tools_run_by_caller import CallerTools, check_caller_tools
from actgent.tools.worker_threads import AGENT_THREADS, RUNTIME_THREADS
from actgent.toolsets.tool_search import build_registry
from actgent.toolsets.toolset import Toolset, static_tools
from actgent.turns.agent_core import AgentCore
from actgent.turns.calls.approval_requests import NeedsPerson
from actgent.turns.calls.tool_calls import Access
from actgent.turns.failure_logging import FailureLogger
from actgent.turns.message_and_answer_guards import GuardedKind, Guards
from actgent.turns.turn_hooks import Hooks

from .agent_construction import AgentDeps, AgentModels, build_actor, build_core, build_opener
from .agent_constructor_validation import (
    AgentBounds,
    check_arguments,
    check_call_rule,
    check_each_seconds,
    check_policy,
    check_reducers,
    check_stage,
    check_system_prompt,
    forms_of,
    joined_text,
    memory_of,
    own_templates,
    types_of,
)
from .keyword_argument_types import AgentOptions, FormT, MessageOptions, ProcessOptions, RunOptions
from .model_tools import long_term_memory_parts, with_database, with_extract
from .runs.await_reply import resume, send_and_wait
from .runs.first_message_rewriting import RewrittenMessage, rewrite_message
from .runs.run_request import RunDefaults, RunRequest
from .runs.runs_on_other_cluster_nodes import (
    convert_reply,
    moved_error,
    remote_agent,
    remote_outcome,
    run_remotely,
    stream_remotely,
)
from .runs.streamed_runs import STREAM_CAPACITY, open_resumed_stream, open_stream
from .session import DeliveryHandler, Session, SessionHandler, context_of, session_of_context
from .single_turn_run import ProcessResult, process_turn
from .teams import AgentRef, AgentTool, HandoffTool, excluding_approval_waits
from .verbose_output import Narration, Verbose, writer_of

R = TypeVar("R")
Query = str | None | Awaitable[str | None]
"""Return value of a function of `on_query`: the text that is added to a model call, or None."""
Q = TypeVar("Q", bound=Query)
_CLOSE_TIMEOUT_SECONDS = 5.0
"""Maximum seconds to close a session that `process` opened, also after a cancellation."""
GuardT = TypeVar("GuardT", bound=Handler)

_log = logger_of(__name__)


@hints_for_agents
class Agent(Generic[DataT_co, DepsT]):
    """An LLM agent: an actor that talks to a model.

    The agent runs in an `async with agent:` block or in a runtime, and can be started again afterwards. An agent with
    `output=Offer` has the type `Agent[Offer]`, and its `Reply.data` is an `Offer`. If the output is a union, annotate the
    agent: `agent: Agent[Offer | Refusal] = Agent(...)`.

    Args:
        name: Name of the agent in prompts, events and logs. Not empty.
        llm: An `LLM`, its settings, or a text such as `openai:MODEL`, `anthropic:MODEL`, `groq:MODEL`; see docs/guides/models.md.
        role: Role of the agent, for the system prompt.
        goal: Goal of the agent, for the system prompt.
        capabilities: Abilities of the agent, for the system prompt and for other agents: a text or a list of texts.
        body: Further text of the system prompt.
        system_prompt: Text that replaces the system prompt made of role, goal and capabilities. These then only describe the
            agent to other agents. A protocol that needs a form of answer adds the form after the text.
        prompt: Text that is appended to the system prompt, or a layer that changes it. A template over `session`, `state` or
            `memory` is rendered for each session, and again when one of these changes.
        assistant_prompt: Template of a message of the agent after the system prompt. It sees `profile`, `session` (`id`, `owner`,
            `description`), `state` and `memory`, and replaces the template of the protocol.
        user_prompt: Template of a message after the conversation, rendered for each model call and not added to the history. It
            also sees `message`, `stage`, `calls` and `repairs`, and replaces the template of the protocol.
        instructions: Forms of answer. A plain name is an instruction without a schema.
        types: Classification types, instead of instructions.
        tools: Tools, and toolsets, which are connected when the agent starts.
        protocol: Prompt template and classifier; the default takes answers as plain text.
        models: Additional models by role, for protocols that use several models.
        output: Type or JSON Schema of every final answer; the value is `Reply.data`.
        temperature: Sampling temperature of the model; None is the default of the provider.
        max_tokens: Maximum tokens of one answer; None is the default of the client.
        limits: Limits of a turn.
        state: The type of a session's state, with fields (attrs, dataclass, pydantic, TypedDict). A change that does not fit the
            type raises `InvalidState` and is not applied. The model reads the error as the result of its tool call.
        reducers: Functions that combine the old and the new value of a key of the state, e.g. `{"results": append}`.
        memory: Selects the messages that the model sees: a `Memory`, a function of the history, or an object with `manage_history(history)`. The default
            shows the whole conversation up to 180,000 tokens.
        long_term_memory: Long-term memories of owners, across sessions. The model gets the tools `remember`, `recall` and `forget`,
            and each session sees the memories of its owner.
        recall_before_answer: Add memories that match the user's message to the model call, but not to the history. True adds at
            most 1,000 tokens; a number sets another maximum of tokens.
        database: Tables of the agent, open while the agent runs. Tools use them as `ToolContext.database`.
        modes: Modes with their tools, and the rules for switching; None allows all tools at any time.
        approval: Function of (call, tool, context) that returns True or an `ApprovalRequest` if an approver must decide on the call. Tools
            with `approval=True` always need a decision. The function must have no side effects.
        policy: Checks of tool calls that depend on untrusted text; see docs/guides/prompt-injection.md. None uses the policy of
            the runtime, if it has one.
        max_concurrent_sessions: Maximum number of sessions that are processed at the same time.
        max_urgent_sessions: Maximum number of additional sessions that are processed for URGENT messages.
        on_busy: Treatment of a message for a busy session. `queue`: the message waits. `collect`: one turn answers all waiting
            messages. `interrupt`: the running turn stops, and the message is next. `reject`: `SessionBusy` is raised.
        inbox_capacity: Maximum number of waiting messages.
        session_inbox_capacity: Maximum number of waiting messages of one session.
        urgent_inbox_capacity: Maximum number of waiting URGENT messages of one session.
        inbox_bytes: Maximum bytes of all waiting messages. Waiting URGENT messages have a separate bound of the same size.
        message_bytes: Maximum bytes of one message with its pictures and files; larger messages raise `MessageTooLarge`.
        parallel_tools: True: tool calls of one answer may overlap, except calls of tools with `parallel=False`. False (the
            default): only calls of tools with `effect="pure"` overlap, all other calls run one after the other.
        max_threads: Maximum number of sync tools that run at the same time.
        handler_timeout: Maximum seconds of an async handler or hook.
        grace: Seconds to answer accepted messages at the end of the block.
        thread_grace: Seconds to wait for threads of sync tools after `grace`.
        debug: True logs a traceback for each exception of tools, models and protocols, also if a handler receives it.
        verbose: True prints the steps of the sessions as lines of text to standard error. A text file, or a function that takes
            a line, receives the lines instead.
        deps: Value that tools get as `ToolContext.deps`, or an async function of the session that returns it. The function is
            called before the first message of each session, and again after a restart. Deps are never written to a journal.

    Raises:
        ConfigurationError: An argument is wrong; the text names it.
        MissingKey: The model needs an API key, and no key is set.
    """

    default_protocol: Callable[[], Protocol] = Bare
    _operation = span_names.INVOKE_AGENT
    """OpenTelemetry operation name of this agent's turns, written to the spans of traces."""
    core_type: type[AgentCore] = AgentCore
    """Class that processes the messages: `AgentCore`, or a subclass that replaces one of its steps."""
    narration_type: type[Narration] = Narration
    """Class that formats and writes the progress lines of `verbose=`."""
    database: Database | None
    """Database with the tables of this agent; None if the agent has none."""
    _long_term_memory: LongTermMemoryBase | None = None
    """The value of `long_term_memory=`. An agent without a memory does not set this attribute in the object.

    With more than 30 attributes, CPython stores their names in each object, which takes 1 KB.
    """
    _extra_companions: "tuple[Agent[Any, Any], ...]" = ()
    """Agents that start together with this agent, in addition to the agents that its tools call."""

    @overload
    def __init__(
        self, name: str, *, output: type[DataT_co], **options: Unpack[AgentOptions[DepsT]]
    ) -> None: ...
    @overload
    def __init__(
        self, name: str, *, output: object = None, **options: Unpack[AgentOptions[DepsT]]
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        llm: ModelLike | LLMSettings | str,
        role: str = "",
        goal: str = "",
        capabilities: str | Sequence[str] = "",
        body: str = "",
        system_prompt: str | None = None,
        prompt: Prompt | None = None,
        assistant_prompt: str = "",
        user_prompt: str = "",
        instructions: Iterable[Instruction | Mapping[str, Any] | str] = (),
        types: Iterable[ClassificationType | Mapping[str, Any]] = (),
        tools: Iterable[Tool[DepsT] | ToolProtocol | Toolset] = (),
        protocol: Protocol | None = None,
        models: Mapping[str, ModelLike | LLMSettings | str] | None = None,
        output: Any = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        limits: Limits | None = None,
        state: type | None = None,
        reducers: Mapping[str, Reducer] | None = None,
        memory: MemoryLike | None = None,
        long_term_memory: LongTermMemoryBase | None = None,
        recall_before_answer: bool | int = False,
        database: Database | None = None,
        modes: Modes | None = None,
        approval: NeedsPerson | None = None,
        policy: Policy | None = None,
        max_concurrent_sessions: int = 100,
        max_urgent_sessions: int = 16,
        on_busy: OnBusy = "queue",
        inbox_capacity: int = 1000,
        session_inbox_capacity: int = 100,
        urgent_inbox_capacity: int = 64,
        inbox_bytes: int = DEFAULT_BYTES,
        message_bytes: int = DEFAULT_MESSAGE_BYTES,
        parallel_tools: bool = False,
        max_threads: int = AGENT_THREADS,
        handler_timeout: float = 30.0,
        grace: float = 10.0,
        thread_grace: float = 5.0,
        debug: bool = False,
        verbose: Verbose = False,
        deps: DepsT | Callable[[Session], Awaitable[DepsT]] | None = None,
    ) -> None:
        check_arguments(
            name=name, tools=tools, protocol=protocol, limits=limits, memory=memory, models=models
        )
        check_each_seconds(handler_timeout=handler_timeout, grace=grace, thread_grace=thread_grace)
        self.name = name
        self._failure_logger = FailureLogger(name, debug=debug)
        self.limits = DEFAULT_LIMITS if limits is None else limits
        self.grace = grace
        self.on_busy = check_busy_rule(on_busy)
        self._bounds = AgentBounds(
            parallel_tools=check_flag("parallel_tools", parallel_tools),
            max_threads=at_least_one("max_threads", max_threads),
            handler_timeout=handler_timeout,
            thread_grace=thread_grace,
            inbox=InboxBounds(
                concurrency=at_least_one("max_concurrent_sessions", max_concurrent_sessions),
                urgent_concurrency=at_least_one("max_urgent_sessions", max_urgent_sessions),
                capacity=at_least_one("inbox_capacity", inbox_capacity),
                session_capacity=at_least_one("session_inbox_capacity", session_inbox_capacity),
                urgent_capacity=at_least_one("urgent_inbox_capacity", urgent_inbox_capacity),
                capacity_bytes=at_least_one("inbox_bytes", inbox_bytes),
                message_bytes=at_least_one("message_bytes", message_bytes),
            ),
        )
        known = forms_of(instructions)
        all_types = validate_types((*types_from(known), *types_of(types)))
        policy = check_policy(policy)
        tools = with_extract(tools, policy, recalls=bool(recall_before_answer))
        if long_term_memory is not None:
            self._long_term_memory = long_term_memory
        memory_parts = long_term_memory_parts(
            with_database(tools, database), long_term_memory, recall_before_answer
        )
        self.toolsets, self.tools = build_registry(
            memory_parts.tools, mapped=[t.tool for t in all_types if t.tool]
        )
        self.database, self.modes = database, modes
        check_call_rule("approval", approval)
        self.approval_rule, self.policy = approval, policy
        self._complete_tools()
        self.profile = Profile(
            name=name,
            role=joined_text("role", role),
            goal=joined_text("goal", goal),
            capabilities=joined_text("capabilities", capabilities),
            instructions=known,
            types=all_types,
            tools=self.tools.specs,
            body=body,
        )
        self.protocol = protocol or self.default_protocol()
        self.protocol.check_fit(self.profile)
        check_system_prompt(system_prompt, body=body)
        templates = own_templates(assistant=assistant_prompt, user=user_prompt)
        self.prompts = self._make_prompts(prompt, system_prompt, templates)
        self.prompts.system_prompt()  # raises now if the template is invalid
        check_reducers(reducers)
        self._reducers, self._state_check = reducers, None if state is None else _state_check_of(state)
        self._memory = ShortTermMemory() if memory is None else memory_of(memory)
        self._deps = AgentDeps(name, deps, self.tools)
        self._models = AgentModels({**(models or {}), "default": llm})
        self._defaults = RunDefaults(
            self.profile, self.protocol, self.prompts, self._deps, roles=self._models.named.keys()
        ).with_agent_options(output, temperature=temperature, max_tokens=max_tokens)
        self._on_session: list[OnSession] = self._deps.first_hooks(modes)
        self._hooks, self._guards = Hooks(queries=list(memory_parts.on_query_hooks)), Guards()
        self._host: Host | None = None
        """Host of the running agent; None while it does not run."""
        self._opener: SessionOpener | None = None
        """Opens sessions of the running agent; None before its first use."""
        self._dead_letter: Callable[[DeadLetter], None] | None = None
        """Stores dead letters in the last runtime of the agent; None before the first start."""
        self._block: AbstractAsyncContextManager[Runtime] | None = None
        write = writer_of(verbose)
        self.narration = None if write is None else self.narration_type(write)
        """Writes a line for each step of a session; None without `verbose=`."""
        if self.narration is not None:
            self.narration.attach(self)

    def _make_prompts(
        self, prompt: Prompt | None, system_prompt: str | None, templates: Mapping[str, str]
    ) -> PromptManager:
        """Return the object that renders the prompts of the agent, after a check of all templates.

        If `system_prompt` is None, the system prompt is rendered from the protocol, the profile and the modes. Then the layer
        `prompt` is applied. `templates` has the assistant and user templates by name.

        Raises:
            ConfigurationError: A template is invalid, or does not fit the profile.
        """
        modes = None if system_prompt is not None else self.modes
        system = SystemPrompt(
            PromptManager(self.protocol, self.profile),
            replacement=system_prompt,
            mode_text="" if modes is None else modes.system_prompt(self.tools.list()),
            layer=None if prompt is None else to_layer(prompt),
        )
        prompts = PromptManager(
            self.protocol,
            self.profile,
            system=system.first(),
            live=system.render if system.is_live else None,
            **templates,
        )
        prompts.check()
        return prompts

    @property
    def system_prompt(self) -> str:
        """System prompt of the sessions that were created without `prompt=`.

        If the prompt is rendered for each session, this is only the common beginning of the prompts.
        """
        return self.prompts.system_prompt()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # --- sessions ------------------------------------------------------------------------

    async def create_session(
        self,
        owner: Sender | str,
        description: Content = "",
        *,
        session_id: str | None = None,
        parent: Session | None = None,
        prompt: Prompt | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        history: Iterable[ImportedMessage] = (),
        enhance_prompt: bool | str = False,
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        **unknown: Never,
    ) -> Session[DataT_co]:
        """Create a session of an owner, which is one conversation. A `description` that is not empty is its first message.

        The call returns immediately after the inbox has accepted the first message, without another checkpoint. So handlers that
        are attached directly after the call receive all deliveries. If the inbox is full, the call waits up to 30 seconds.

        Args:
            owner: User that owns the session: a name, or a `Sender`. Not empty.
            description: First message of the session; empty creates a session without a message.
            session_id: Id of the session; None creates a random id.
            parent: Session for which this session works. Usage of a child session also counts for the limits of its parent.
            prompt: Layer on the system prompt, for this session only.
            on_busy: Treatment of messages while the session is busy; None uses the rule of the agent.
            limits: Limits of the whole session, child sessions included: calls, tokens, cost and seconds.
            deps: Dependencies of the tools in this session; None uses those of the agent.
            history: Messages of an earlier conversation: `ChatMessage`s, messages of another session, or dicts `{"role": ...,
                "content": ...}` with the roles user and assistant. The model sees them, but no turn answers them and no hook is
                called with them.
            enhance_prompt: True rewrites the description with one model call before it is sent; a text is the instruction for
                that call. The call uses the model with the role `enhancer`, or the default model. The original text is in the
                message's metadata as `enhanced_from`.
            tags: Words by which `Runtime.sessions` and the dashboard find the session; at most 32, each of at most 64
                characters. `Session.annotate` changes the tags.
            metadata: Values by key, for programs and for finding the session; at most 16 keys with values of at most 512
                characters. They are never shown to a model.
            **unknown: Misspelt arguments, raised as an error that suggests the right name.

        Raises:
            NotRunning: The agent is not running.
            ActgentError: The model call of `enhance_prompt` failed; no session was created.
            ConfigurationError: The owner is empty or contains NUL or a lone surrogate. Or the id is not a printable text of at
                most 200 characters. Or a tag, the metadata or the history is invalid, e.g. a tool call without its result.
            SessionExists: The agent already has a session with this id. Other agents may have a session with the same id.
            WrongOwner: The parent session belongs to another owner.
            InboxFull: The inbox stayed full, so the description was not accepted.
        """
        if unknown:
            raise unknown_argument(Agent.create_session, unknown, OF_NEW_SESSIONS)
        if session_id is not None:
            check_id("session_id", session_id)
        annotations = NO_ANNOTATIONS if tags == () and metadata is None else new_annotations(tags, metadata)
        if (opener := self._opener) is None:
            opener = await self._await_opener()
        else:
            opener.running.runner.check_loop()
        first = None
        if enhance_prompt and description:
            instruction = enhance_prompt if isinstance(enhance_prompt, str) else None
            first = await self._rewrite_message(opener, description, instruction, owner)
        try:
            context = await opener.create(
                owner,
                description if first is None else first.parts,
                session_id=session_id,
                parent=None if parent is None else _parent_context(parent),
                system=None if prompt is None else self._defaults.session_prompt(prompt),
                limits=limits,
                on_busy=on_busy,
                deps=None if deps is None else self._defaults.check_deps(deps),
                history=history,
                annotations=annotations,
                message_metadata=None if first is None else first.metadata,
            )
        except Fenced as moved:
            stays = {
                "parent": parent,
                "prompt": prompt,
                "deps": deps,
                "history": history,
                "enhance_prompt": first,
            }
            remote = remote_agent(opener, moved, **stays)
            made: Session[DataT_co] = await remote.create_session(
                owner,
                description,
                session_id=session_id,
                on_busy=on_busy,
                limits=limits,
                tags=annotations.tags,
                metadata=annotations.metadata,
            )
            return made
        if first is not None:
            context.conversation.add_child_usage(first.usage)
        return session_of_context(context)

    async def _rewrite_message(
        self, opener: SessionOpener, content: Content, instruction: str | None, owner: Sender | str
    ) -> RewrittenMessage:
        """Rewrite the first message of a session with one model call, for `enhance_prompt=`.

        `instruction` is the instruction for the model; None uses the default. The tokens count for the quota of `owner`. The call
        may take at most `model_timeout` seconds.
        """
        return await rewrite_message(
            opener.running.core.models.models,
            content,
            instruction,
            owner=owner.name if isinstance(owner, Sender) else owner,
            seconds=self.limits.model_timeout,
        )

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, deps: DepsT | None = None
    ) -> Session[DataT_co]:
        """Return an existing session of this agent, from memory or from the journal.

        Args:
            session_id: Id of the session.
            owner: Expected owner of the session; None accepts any owner.
            deps: New dependencies of the session's tools; None keeps the present ones.

        Raises:
            ConfigurationError: The id is not a text.
            SessionNotFound: The agent has no session with this id. A session of another agent with the same id does not count.
            WrongOwner: The session belongs to another owner. `WrongOwner` is a subclass of `SessionNotFound`, so a service can
                handle both errors in the same way.
            SessionClosed: The session was closed.
            DepsMissing: The session was not resumed after a restart because its tools need deps. Pass `deps=` to resume it.
        """
        check_known_id("session_id", session_id)
        opener = await self._await_opener()
        try:
            context = await opener.open(session_id, owner=owner, deps=self._defaults.check_deps(deps))
        except Fenced as moved:
            remote = remote_agent(opener, moved, deps=deps)
            there: Session[DataT_co] = await remote.open_session(session_id, owner=owner)
            return there
        return _make_public_session(context, deps)

    async def ensure_session(
        self,
        owner: Sender | str,
        session_id: str,
        *,
        parent: Session | None = None,
        prompt: Prompt | None = None,
        on_busy: OnBusy | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        history: Iterable[ImportedMessage] = (),
        tags: Iterable[str] = (),
        metadata: Mapping[str, str] | None = None,
        **unknown: Never,
    ) -> Session[DataT_co]:
        """Return the session with this id, from memory or from the journal. If it does not exist, create it.

        The arguments are those of `create_session`, and apply only when the session is created. An existing session keeps its
        values, except `deps`, which replace its deps. Concurrent calls with the same id return the same session.

        Raises:
            ConfigurationError: See `create_session`; raised for existing sessions as well.
            WrongOwner: The existing session belongs to another owner; name and kind of the owner are compared.
            SessionClosed: The session was closed.
        """
        if unknown:
            raise unknown_argument(Agent.ensure_session, unknown, OF_NEW_SESSIONS)
        check_id("session_id", session_id)
        annotations = new_annotations(tags, metadata)
        opener, given = await self._await_opener(), self._defaults.check_deps(deps)
        try:
            context = await opener.ensure(
                owner,
                session_id,
                parent=_parent_context(parent),
                system=None if prompt is None else self._defaults.session_prompt(prompt),
                on_busy=on_busy,
                limits=limits,
                deps=given,
                history=history,
                annotations=annotations,
            )
        except Fenced as moved:
            remote = remote_agent(opener, moved, parent=parent, prompt=prompt, deps=deps, history=history)
            there: Session[DataT_co] = await remote.ensure_session(
                owner,
                session_id,
                on_busy=on_busy,
                limits=limits,
                tags=annotations.tags,
                metadata=annotations.metadata,
            )
            return there
        return _make_public_session(context, deps)

    async def receive(self, message: Message, *, enqueue_timeout: float = 30) -> str:
        """Enqueue a message created by `Session.create_message`, and return its id. `Session.chat` does both in one call.

        The message goes to the session in `message.session_id`. A repeated call with the same message has no effect.

        Raises:
            ConfigurationError: The value is not a `Message`, or has no content that can be sent.
            SessionNotFound: The agent has no session with the id in the message.
            InboxFull: The inbox had no room within `enqueue_timeout` seconds.
            SessionBusy: The session is busy, and the message's rule is `reject`.
            SessionClosed: The session was closed.
            NotRunning: The agent is not running.
        """
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"agent.receive() needs a Message, made by session.create_message(...), not {message!r:.200}"
            )
        message_parts(message.parts)
        check_seconds("enqueue_timeout", enqueue_timeout)
        opener = await self._await_opener()
        try:
            context = await opener.open(message.session_id)
            await opener.admission.accept(context, attrs.evolve(message, deadline=enqueue_timeout), once=True)
        except Fenced as moved:
            await remote_agent(opener, moved).receive(message, enqueue_timeout=enqueue_timeout)
        return message.id

    @property
    def model_clients(self) -> Mapping[str, LLM]:
        """Model clients of the agent by role. `default` is the client of `llm=`. Clients are created from names and settings."""
        return self._models.open()

    @property
    def long_term_memory(self) -> LongTermMemoryBase | None:
        """The value of `long_term_memory=`; None if the agent has no long-term memory."""
        return self._long_term_memory

    @property
    def inbox_bounds(self) -> InboxBounds:
        """Maximum numbers of messages and bytes in the agent's inbox."""
        return self._bounds.inbox

    async def open_toolsets(self, runtime: Runtime) -> None:
        """Connect the toolsets of the agent. `Runtime.start` calls this method; messages are processed after it.

        Raises:
            ToolsetUnavailable: A required toolset could not be connected.
        """
        if self.toolsets:
            await runtime.toolsets.open(self.name, self.tools, self.toolsets)
        if self._opener is not None:
            self._opener.running.set_toolsets_ready()

    async def __actgent_recover__(self) -> None:
        """Resume the sessions that had unfinished messages when the previous process ended.

        A session with damaged records is logged and skipped.

        Raises:
            NotRunning: The agent was stopped before its start had finished.
        """
        if self._host is None:
            raise NotRunning(self.name)
        if self._opener is not None:
            await recover(self._opener)

    def on_session(self, fn: DeliveryHandler[Session[DataT_co], R]) -> DeliveryHandler[Session[DataT_co], R]:
        """Register `fn(session)`, sync or async, to be called before the first message of every session."""
        check_called("on_session()", fn, is_alone=True)
        self._on_session.append(fn)
        return fn

    # --- hooks ---------------------------------------------------------------------------

    @overload
    def on_query(self, fn: DeliveryHandler[Message, Q]) -> DeliveryHandler[Message, Q]: ...
    @overload
    def on_query(self, fn: SessionHandler[Message, Q]) -> SessionHandler[Message, Q]: ...
    @overload
    def on_query(self, *, stage: str) -> Callable[[GuardT], GuardT]: ...
    def on_query(self, fn: Any = None, *, stage: str | None = None) -> Any:
        """Register `fn(message)`, sync or async, to be called before the agent answers a user's message.

        The returned text is added to the model calls that answer this message, as context, and is not added to the history.
        None adds no text. A function with a second parameter also gets the session.
        `@agent.on_query(stage="synthesis")` registers a function that is called with the user's message before each model call
        of that stage. The protocol `plan` has the stages `execution` and `synthesis`. At the stage `synthesis`, `session.state`
        has the results of the plan.

        Raises:
            ConfigurationError: `fn` is not a function with a parameter, or the protocol has no such stage.
        """
        if fn is None:
            return partial(self.on_query, stage=stage)
        if stage is not None:
            check_stage(self.protocol, stage)
        self._hooks.add_query(fn, stage)
        return fn

    @overload
    def on_message(
        self, fn: DeliveryHandler[Message, R], *, priority: float | None = None
    ) -> DeliveryHandler[Message, R]: ...
    @overload
    def on_message(
        self, fn: SessionHandler[Message, R], *, priority: float | None = None
    ) -> SessionHandler[Message, R]: ...
    def on_message(self, fn: Any, *, priority: float | None = None) -> Any:
        """Register `fn(message)` to be called with each message of users, models and tools when it is added to a session's history.

        Functions are called in ascending order of `priority`; functions without a priority are called last. An exception of a
        function is reported as a `Failure` of the kind `handler`, and the other functions are still called.
        """
        self._hooks.add_listener(fn, priority)
        return fn

    @overload
    def guard(self, fn: GuardT, *, on: GuardedKind = "message") -> GuardT: ...
    @overload
    def guard(self, fn: None = None, *, on: GuardedKind = "message") -> Callable[[GuardT], GuardT]: ...
    def guard(self, fn: Any = None, *, on: GuardedKind = "message") -> Any:
        """Register `fn` as a guard, which checks messages before they are answered, or with `on="answer"` replies before delivery.

        A guard returns None to accept, or `Refuse(reason)` to end the turn with `GuardrailTripped`, a `Failure` of the kind
        `guard`. It returns `ApprovalRequest(question)` to suspend the turn until an approval is decided. A guard of answers may also return
        a text that replaces the answer; the history keeps the model's answer. A function with a second parameter also gets the
        session. An async guard may take `handler_timeout` seconds.

        With `on="input"`, a sync function checks each message before it enters the inbox. It may return a text that replaces
        the text of the message; the model and the journal get only the new text. A refusal or an exception is raised in the call that sends
        the message. Schedules, results of tasks and `history=` are not checked.

        Guards of messages run concurrently with the model call. The answer is delivered after all guards have accepted, and a
        refusal cancels the call. An agent with guards of answers does not stream tokens. With a journal, decisions of guards are
        recorded and not repeated after a crash. If a guard raises, the turn ends with `HandlerFailed`.

        Raises:
            ConfigurationError: `on` is not one of the three values, or `fn` is not a function with a parameter.
        """
        if fn is None:
            return partial(self.guard, on=on)
        check_called("guard()", fn)
        self._guards.add(fn, on)
        return fn

    def remove_hook(self, fn: Handler) -> None:
        """Remove all registrations of a function by `on_session`, `on_query`, `on_message` and `guard`."""
        self._hooks.remove(fn)
        self._guards.remove(fn)
        self._on_session[:] = [
            each for each in self._on_session if each != fn
        ]  # in place: the agent's opener shares this list

    # --- one answer ----------------------------------------------------------------------

    @overload
    async def run(
        self, content: Content, *, output: type[FormT], **options: Unpack[RunOptions[DepsT]]
    ) -> Reply[FormT]: ...
    @overload
    async def run(
        self, content: Content, *, output: None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> Reply[DataT_co]: ...
    @overload
    async def run(
        self, content: Content, *, output: object, **options: Unpack[RunOptions[DepsT]]
    ) -> Reply: ...
    async def run(
        self,
        content: Content,
        *,
        session: Session | None = None,
        sender: Sender | str | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a scope alone would not stop the turn
        model: str | None = None,
        prompt: Prompt | None = None,
        output: Any = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        tools: CallerTools | None = None,
        **unknown: Never,
    ) -> Reply:
        """Send a message and wait for the answer: the last reply of the turn.

        Without `session=`, the message gets a new session, which is closed afterwards. Cancelling the call stops the turn. If the
        turn is suspended for an approval, the call raises `Suspended`, and `resume` continues the turn. A call from a tool or
        handler of another session waits for the approval instead.

        Args:
            content: Text, or a list of parts such as pictures and files.
            session: Session of this agent; None creates a new session for this message.
            sender: Sender of the message; None is the owner of the session.
            priority: Priority of the message in the inbox.
            message_id: Id of the message, accepted once. A repetition waits for the same turn, or returns its recorded outcome;
                see `repetitions`. Needs `session=`.
            metadata: Data for programs, kept with the message and not shown to a model.
            timeout: Maximum seconds until the answer; None is no limit. In a tool or handler, time in which the turn waits for
                approvals does not count.
            model: Role of the model for all calls of the turn: a key of `models`.
            prompt: Layer on the system prompt, for this turn only.
            output: Type or JSON Schema of the answer, for this turn only.
            temperature: Sampling temperature, for this turn only.
            max_tokens: Maximum tokens of one answer, for this turn only.
            limits: Limits of the turn, in place of those of the agent.
            deps: Dependencies of the tools, for this turn only.
            tools: Tools that the caller runs itself, for this turn only, each a `ToolSpec` or `{"name", "description",
                "parameters"}`. If the model calls one, `run` raises `Suspended`. Then call `resume` with
                `{id: Respond(result)}` for each of `session.caller_calls`.
            **unknown: Misspelt arguments, raised as an error that suggests the right name.

        Raises:
            DeadlineExceeded: The turn had no answer within `timeout` seconds.
            Suspended: The turn waits for the approvals with these ids. Or an earlier turn of the session waits for approvals;
                then the message was not sent.
            DuplicateMessage: The message was answered earlier, and its reply is no longer stored.
            ActgentError: The error of the `Failure` that ended the turn.
        """
        if unknown:
            raise unknown_argument(Agent.run, unknown, OF_RUNS)
        options = self._defaults.options_for(
            output,
            model=model,
            temperature=temperature,
            max_tokens=max_tokens,
            prompt=prompt,
            session=session,
            limits=limits,
            deps=deps,
            tools=() if tools is None else check_caller_tools(tools, self.tools),
        )
        request = RunRequest(content, session, sender, priority, message_id, timeout, metadata)
        if timeout is None:
            try:
                return await send_and_wait(await self._await_opener(), request, options)
            except Fenced as moved:
                return await run_remotely(
                    self._require_opener(), request, moved, options, self._changed_options(options)
                )
        check_loop(f"agent {self.name!r}")
        with trio.move_on_after(timeout) as limit, excluding_approval_waits(limit):
            try:
                return await send_and_wait(await self._await_opener(), request, options)
            except Fenced as moved:
                return await run_remotely(
                    self._require_opener(), request, moved, options, self._changed_options(options)
                )
        raise DeadlineExceeded(f"agent {self.name!r}", timeout)

    @overload
    def run_sync(
        self, content: Content, *, output: type[FormT], **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply[FormT]: ...
    @overload
    def run_sync(
        self, content: Content, *, output: None = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply[DataT_co]: ...
    @overload
    def run_sync(
        self, content: Content, *, output: object, **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply: ...
    def run_sync(
        self, content: Content, *, output: Any = None, **options: Unpack[MessageOptions[DepsT]]
    ) -> Reply:
        """Send a message and wait for the answer, in synchronous code. The options are those of `run`, without `session`.

        If the agent runs in a portal, the call is sent to the portal. Otherwise the agent is started for this call and stopped
        after it. In an `async def` function of asyncio, the call blocks the event loop and logs a warning: use `open_portal`
        instead.

        Raises:
            UsageError: The calling thread runs trio, which needs `await agent.run(...)`; or the agent runs in another thread
                without a portal.
            ActgentError: The error of the `Failure` that ended the turn.
        """
        if trio.lowlevel.in_trio_run():
            raise UsageError(
                f"run_sync() of agent {self.name!r} was called in a thread that runs trio: write `await agent.run(...)`"
            )
        if is_asyncio_running():
            _log.warning(
                "run_sync() of agent %s blocks the event loop of asyncio until the answer: use `async with open_portal()` "
                "and `await agent.run(...)`, see docs/asyncio.md",
                self.name,
            )
        start_run = partial(self.run, content, output=output, **options)
        if self._host is None:
            return trio.run(self._run_standalone, start_run)
        call = self._host.runtime.call_from_outside
        if call is None:
            raise UsageError(
                f"agent {self.name!r} runs in another thread, which run_sync() cannot reach: start the agent in open_portal()"
            )
        return call(start_run)  # type: ignore[no-any-return]

    async def _run_standalone(self, start_run: Callable[[], Awaitable[Reply]]) -> Reply:
        """Start the agent, await `start_run()`, stop the agent, and return the reply. `run_sync` calls this if the agent is stopped."""
        async with self:
            return await start_run()

    @overload
    def stream(
        self, content: Content, *, output: type[FormT], **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery[FormT]]]: ...
    @overload
    def stream(
        self, content: Content, *, output: None = None, **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery[DataT_co]]]: ...
    @overload
    def stream(
        self, content: Content, *, output: object, **options: Unpack[RunOptions[DepsT]]
    ) -> AbstractAsyncContextManager[trio.abc.ReceiveChannel[Delivery]]: ...
    @async_block(OF_STREAMS)
    async def stream(
        self,
        content: Content,
        *,
        session: Session | None = None,
        sender: Sender | str | None = None,
        priority: Priority | PriorityName = Priority.NORMAL,
        message_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a scope alone would not stop the turn
        model: str | None = None,
        prompt: Prompt | None = None,
        output: Any = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        limits: Limits | None = None,
        deps: DepsT | None = None,
        tools: CallerTools | None = None,
    ) -> AsyncGenerator[trio.abc.ReceiveChannel[Delivery], None]:
        """Send a message and receive the deliveries of its turn: `Token`, `ToolResult`, `Event`, `Route`, `Reply`, `Failure`, `Approval`.

        The arguments are those of `run`. The stream ends if the turn is suspended for an approval; `follow` streams the rest. If
        an earlier turn of the session waits for approvals, the message is not sent, and the block raises `Suspended`. If the
        message was queued already, the only delivery is a `Failure` of the kind `suspended`.

        A slow reader slows down the model's stream. Leaving the block before the end stops the turn. After `timeout` seconds
        the turn ends with a `Failure` of the kind `deadline`, the last delivery. A repeated `message_id` receives the rest of
        the turn, or only its outcome.
        """
        options = self._defaults.options_for(
            output,
            model=model,
            temperature=temperature,
            max_tokens=max_tokens,
            prompt=prompt,
            session=session,
            limits=limits,
            deps=deps,
            tools=() if tools is None else check_caller_tools(tools, self.tools),
        )
        request = RunRequest(content, session, sender, priority, message_id, timeout, metadata)
        reader = TurnReader[Delivery](STREAM_CAPACITY)
        future = self._make_stream(options, reader)
        has_begun = False
        try:
            async with open_stream(await self._await_opener(), request, future, reader):
                has_begun = True
                yield reader  # noqa: ASYNC119 - the block is a context manager
                return
        except Fenced as moved:
            if has_begun:
                raise
            opener = self._require_opener()
            remote = stream_remotely(opener, request, moved, options, self._changed_options(options))
        async with remote as deliveries:
            yield deliveries  # noqa: ASYNC119 - the block is a context manager

    def _make_stream(self, options: CallOptions, reader: TurnReader[Any]) -> TurnStream:
        """Return the future through which `stream` passes the deliveries of a turn to `reader`."""
        return TurnStream(options, reader=reader)

    def _changed_options(self, options: CallOptions) -> list[str]:
        """Return the names of the options in which the options of a run differ from those of the agent.

        Such a run must take place in this process, because these options cannot be sent to another one.
        """
        plain = self._defaults.options
        names = (field.name for field in attrs.fields(CallOptions) if field.name != "journal_form")
        return [name for name in names if getattr(options, name) is not getattr(plain, name)]

    # --- one request with its status ----------------------------------------------------------

    @overload
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: type[FormT],
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> ProcessResult[FormT]: ...
    @overload
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: None = None,
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> ProcessResult[DataT_co]: ...
    @overload
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: object,
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> ProcessResult: ...
    async def process(
        self,
        content: Content,
        *,
        session: Session | None = None,
        output: Any = None,
        **options: Unpack[ProcessOptions[DepsT]],
    ) -> ProcessResult[Any]:
        """Answer a request, and return a result with status, tool results, usage and duration. Failures are results too.

        The result has the same form for every protocol and `core_type`. Without `session`, a new session is created and closed
        afterwards. The options are those of `run` and apply to this request only. `limits` replace the agent's limits; a reached
        limit is an error in the result. An error while the new session is created, e.g. in an `on_session` function, is also an
        error in the result. If a tool call waits for an approval, the status is `suspended`, and `resume` continues the turn.
        Answers are streamed to `session.on_token` handlers.

        Raises:
            NotRunning: The agent's block is not open.
            InboxFull: The inbox was full.
        """
        if session is not None:
            return await self._process_in(session, content, output=output, **options)
        result = None
        try:
            session = await self.create_session("user")
        except (NotRunning, OutsideTrio):
            raise
        except Exception as error:  # noqa: BLE001 - raised by the program's `on_session` and `deps`, or the journal
            return ProcessResult(status="error", error=error, owner="user")
        try:
            result = await self._process_in(session, content, output=output, **options)
        finally:
            if (context_of(session).status if result is None else result.status) != "suspended":
                with trio.move_on_after(_CLOSE_TIMEOUT_SECONDS, shield=True):
                    await session.aclose()
        return result

    async def _process_in(self, session: Session, content: Content, **options: Any) -> ProcessResult:
        stream = partial(self.stream, content, session=session)
        return await process_turn(await self._await_opener(), session, self.protocol, stream, options)

    # --- approvals ------------------------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide the approval of a tool call in any session of the agent. The session is loaded if necessary.

        `approval` is the approval or its id. `by` is the name of the user who decides. Raise the same errors as `Session.answer`.
        """
        session = await self._session_of(approval if isinstance(approval, str) else approval.id)
        await session.answer(approval, decision, by=by)

    async def resume(
        self, decisions: Mapping[str, Decision], *, by: Sender | str | None = None
    ) -> Reply[DataT_co]:
        """Decide the approvals of one suspended turn, by their ids, and wait for the reply in the same way as `run`.

        Other callers that wait for the turn, e.g. a tool call of another agent, receive the answer as well. Cancelling the call
        stops the turn if the turn has resumed and no other caller waits for it.

        Raises:
            Suspended: The turn still waits for approvals, or waits for new approvals.
            UsageError: A decision was rejected by `Session.answer`. Earlier decisions of the mapping stay valid.
            ActgentError: The error of the `Failure` that ended the turn.
        """
        given: object = decisions
        if not isinstance(given, Mapping) or not given:
            raise ConfigurationError(
                f"decisions= must be a mapping of approval ids to decisions, e.g. {{approval.id: Approve()}}, not {decisions!r}"
            )
        session: object = await self._session_of(next(iter(decisions)))
        if not isinstance(session, Session):
            opener = self._require_opener()
            remote = remote_agent(opener, moved_error(opener, session))
            return convert_reply(await remote.resume(decisions, by=by), self._defaults.options)
        try:
            return await resume(session, self._defaults.options, decisions, by=by)
        except SessionMoved as moved:
            if not moved.message_id:
                raise
            return await remote_outcome(self._require_opener(), moved, self._defaults.options)

    @async_block()
    async def follow(
        self, session: Session
    ) -> AsyncGenerator[trio.abc.ReceiveChannel[Delivery[DataT_co]], None]:
        """Receive the deliveries of a suspended turn after it resumes, as `stream` does. Decide the approvals inside the block.

        Several readers may follow one turn, in addition to its caller. If the block exits before the end of a resumed turn, and no
        other caller waits for the turn, the turn is stopped.

        Raises:
            NotSuspended: No turn of the session waits for an approval.
        """
        opener, known = self._require_opener(), cast("object", session)
        if not isinstance(known, Session):
            async with remote_agent(opener, moved_error(opener, known)).follow(known) as deliveries:
                yield deliveries  # noqa: ASYNC119 - the block is a context manager
            return
        context = context_of(session)
        opener.running.sessions.check_member(context)
        reader = TurnReader[Delivery[DataT_co]](STREAM_CAPACITY)
        future = TurnStream(self._defaults.options, reader=reader)
        async with open_resumed_stream(context, future, reader):
            yield reader  # noqa: ASYNC119 - the block is a context manager

    async def approvals(
        self, *, owner: Sender | str | None = None, after: str = "", limit: int = 100
    ) -> tuple[Approval, ...]:
        """Return the open approvals of the agent's sessions, unloaded sessions included.

        Args:
            owner: Owner of the sessions; None returns approvals of all owners. A service that shows approvals to its users must
                pass the owner, because approvals contain the arguments of the calls.
            after: `session_id` of the last approval of the previous page. Sessions are sorted by id.
            limit: Maximum number of sessions in a page. An empty page is the end.
        """
        add_unknown_session_source()
        return await list_approvals(self._require_opener().running, owner=owner, after=after, limit=limit)

    async def _session_of(self, approval_id: str) -> Session:
        session_id = session_of(approval_id)
        if not session_id:
            raise ApprovalNotFound(approval_id, "")
        return await self.open_session(session_id)

    # --- other agents --------------------------------------------------------------------

    @property
    def ref(self) -> AgentRef:
        """Address of the agent for other agents and programs, with `tell` and `ask`."""
        return self._make_ref()

    def _make_ref(self) -> AgentRef:
        return AgentRef(
            self.name, run=self.run, opener=self._await_opener, dead_letter=self._store_dead_letter
        )

    def _store_dead_letter(self, letter: DeadLetter) -> None:
        if self._dead_letter is not None:
            self._dead_letter(letter)

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """Return a tool with which other agents send a task to this agent. This agent starts together with such an agent."""
        default = self.profile.goal or self.profile.capabilities or self.profile.role or self.name
        return AgentTool(
            name or re.sub(r"[^a-zA-Z0-9_-]+", "_", self.name),
            description or f"Give a task to {self.name}: {default}",
            run=self.run,
            agent=self,
            opener=self._require_opener,
        )

    def accompany(self, agent: "Agent[Any, Any]") -> None:
        """Start the agent `agent` together with this agent, at each later start of this agent.

        Use this method for an agent that this agent needs but does not have as a tool, handoff or route. If the other agent is
        already running, it stays in its runtime.
        """
        self._extra_companions = (*self._extra_companions, agent)

    def _companions(self) -> "Iterable[Agent]":
        """Return the agents that start together with this agent: agents that its tools call, and agents added by `accompany`."""
        tools = self._initial_tools()
        called = [tool.agent for tool in tools if isinstance(tool, (AgentTool, HandoffTool))]
        return [*called, *self._extra_companions]  # type: ignore[list-item]

    def _complete_tools(self) -> None:
        """Add the tools that the modes need, and `read_result` if the limits store oversized results."""
        if self.modes is not None:
            from actgent.modes.mode_tools import add_mode_tools  # noqa: PLC0415 - compiles ten tools, which takes 15 ms

            add_mode_tools(self.tools, self.modes)
        if self.limits.kept_characters:
            offer_read_result(self.tools)

    def _initial_tools(self) -> Iterable[Tool]:
        """Return the tools that the agent has before its toolsets connect. For a wrapped tool, return the tool in the wrapper."""
        given = [*self.tools.list()]
        for toolset in self.toolsets:
            given += static_tools(toolset)
        return [unwrap_tool(tool) for tool in given]

    def _access_rules(self) -> Iterable[Access]:
        """Return additional rules that may reject a tool call immediately before it runs. This class has no such rules."""
        return ()

    async def _route(self, turn: Turn, route: Route) -> Reply | None:
        """Let the agent that a route names answer, and return the reply. This class has no routes and returns None."""
        await trio.lowlevel.checkpoint()
        return None

    # --- start and stop ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        check_loop(f"agent {self.name!r}")
        if self._host is not None:
            raise ConfigurationError(
                f"agent {self.name!r} is already running: end its `async with` block before the next start"
            )
        max_threads = max(RUNTIME_THREADS, self._bounds.max_threads)
        block = open_runtime(max_threads=max_threads, thread_grace=self._bounds.thread_grace)
        runtime = await block.__aenter__()
        try:
            await runtime.start(self)
        except BaseException as error:
            await block.__aexit__(type(error), error, error.__traceback__)  # noqa: ASYNC102 - the runtime shields its own cleanup
            raise
        self._block = block
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        block, self._block = self._block, None
        assert block is not None  # noqa: S101 - __aenter__ created it
        return await block.__aexit__(kind, error, trace)  # noqa: ASYNC102 - the runtime shields its own cleanup

    def __actgent_start__(self, host: Host) -> "Sequence[Agent]":
        """Start the agent and its companions in a runtime, and return them. Only `Runtime.start` calls this method.

        Raises:
            ConfigurationError: The agent is running already.
        """
        if self._host is not None:
            raise ConfigurationError(
                f"agent {self.name!r} is already running: end its `async with` block before the next start"
            )
        agents = self._with_companions()
        runtime = host.runtime
        host.check_names([agent.name for agent in agents])
        for agent, opener in [(agent, agent._prepare(runtime)) for agent in agents]:  # noqa: SLF001
            agent._enter(host, opener)  # noqa: SLF001
        return agents

    def _prepare(self, runtime: Runtime) -> SessionOpener | None:
        """Return the session opener of a new actor, or None if the actor is built at the first use of the agent.

        Raises:
            ConfigurationError: The agent cannot run in this runtime.
        """
        if self._needs_actor_at_start(runtime):
            return self._build_opener(self._build(runtime), runtime)
        self._models.open()  # raises now if a key is missing
        return None

    def _needs_actor_at_start(self, runtime: Runtime) -> bool:
        """Return True if the actor must be built when the agent starts, and not at the first message.

        This is the case if there is work before the first message: sessions to resume, or toolsets or databases to open. It is also
        the case if the construction may raise, for example because a summary model has no API key.
        """
        return (
            runtime.journal is not None
            or bool(self.toolsets)
            or self.database is not None
            or self._memory.summarizes
            or self.core_type is not AgentCore
        )

    def _enter(self, host: Host, opener: SessionOpener | None) -> None:
        """Register the agent in the runtime, with its actor if it has one."""
        self._host = host
        self._dead_letter = host.runtime.dead_letter
        host.runtime.agents.add(self)
        if opener is None:
            host.run_at_first_use(self, grace=self.grace)
        else:
            self._connect(opener, host.runtime)
            host.run(opener.running, grace=self.grace)

    def _connect(self, opener: SessionOpener, runtime: Runtime) -> None:
        """Register the session opener of a new actor in the runtime."""
        self._opener = opener
        runtime.agents.add_opener(self.name, opener)

    def __actgent_build__(self) -> AgentActor:
        """Build the actor of the agent at its first use. Only the runtime calls this method."""
        assert self._host is not None  # noqa: S101 - the runtime is the host
        runtime = self._host.runtime
        opener = self._build_opener(self._build(runtime), runtime)
        self._connect(opener, runtime)
        opener.running.set_toolsets_ready()
        return opener.running

    def __actgent_use__(self) -> SessionOpener:
        """Return the session opener. The first call builds the agent's actor. Only the runtime calls this method."""
        return self._require_opener()

    async def __actgent_finish__(self) -> None:
        """Stop an agent that processed no message, and remove it from the runtime. Only the runtime calls this method."""
        assert self._host is not None  # noqa: S101 - the runtime is the host
        runtime = self._host.runtime
        try:
            await self._stopped()
        finally:
            runtime.agents.remove(self.name)

    def _with_companions(self) -> "list[Agent]":
        """Return this agent and all agents that start together with it, directly or indirectly, if they are not running yet."""
        agents: dict[Agent, None] = {self: None}
        waiting = [self]
        while waiting:
            found = [a for a in waiting.pop()._companions() if a._host is None and a not in agents]  # noqa: SLF001
            agents.update(dict.fromkeys(found))
            waiting += found
        return list(agents)

    def _require_opener(self) -> SessionOpener:
        """Return the session opener of the running agent. The first call builds the agent's actor.

        Raises:
            NotRunning: The agent is not running.
        """
        if self._opener is None:
            check_loop(f"agent {self.name!r}", None if self._host is None else self._host.loop)
            if self._host is None:
                raise NotRunning(self.name)
            self._host.use(self.name)
        opener = self._opener
        assert opener is not None  # noqa: S101 - `use` built it
        opener.running.runner.check_loop()
        return opener

    async def _await_opener(self) -> SessionOpener:
        """Return the session opener of this agent when the agent is ready to process messages.

        A turn that was resumed from the journal first waits for the start of this agent, at most until the end of the start phase.
        """
        if self._host is None:
            await wait_started(self.name)
        is_first_use = self._opener is None
        opener = self._require_opener()
        if is_first_use:
            await opener.running.wait_ready()
        return opener

    def _build(self, runtime: Runtime) -> AgentActor:
        if self.database is not None:
            self.database.set_default_url(
                None if runtime.journal is None else runtime.journal.sibling_url(self.name)
            )
        return build_actor(
            runtime,
            self._build_core(runtime),
            name=self.name,
            bounds=self._bounds.inbox,
            make_ref=self._make_ref,
            limits=self.limits,
            options=self._defaults.options,
            close_connections=self._stopped,
            deps=self._deps,
        )

    def _build_opener(self, running: AgentActor, runtime: Runtime) -> SessionOpener:
        return build_opener(
            running,
            runtime,
            reducers=self._reducers,
            state_check=self._state_check,
            on_busy=self.on_busy,
            on_session=self._on_session,
            deps=self._deps,
            database=self.database,
            runs_session_hooks=self._runs_session_hooks,
        )

    def _runs_session_hooks(self, context: SessionContext) -> bool:
        """Return True if the functions of `on_session` are called for this session. Subclasses can exclude sessions."""
        return True

    def _build_core(self, runtime: Runtime) -> AgentCore:
        return build_core(
            self.core_type,
            runtime,
            profile=self.profile,
            memory=self._memory,
            prompts=self.prompts,
            models=self.model_clients,
            tools=self.tools,
            initial_tools=self._initial_tools(),
            threads=self._bounds.max_threads,
            parallel_tools=self._bounds.parallel_tools,
            approval=self.approval_rule,
            policy=runtime.policy if self.policy is None else self.policy,
            access=(*([] if self.modes is None else [self.modes.refusal]), *self._access_rules()),
            modes=self.modes,
            hooks=self._hooks,
            guards=self._guards,
            router=self._route,
            operation=self._operation,
            failure_logger=self._failure_logger,
            handler_timeout=self._bounds.handler_timeout,
        )

    async def _stopped(self) -> None:
        assert self._host is not None  # noqa: S101 - it was started
        runtime, self._host, self._opener = self._host.runtime, None, None
        runtime.toolsets.close(self.tools)
        await self._models.aclose()


def _make_public_session(context: SessionContext, deps: object) -> Session[Any]:
    """Return the public `Session` of a session context. `deps` become the deps of the session's tools; None keeps the present ones."""
    session = session_of_context(context)
    if deps is not None:
        session.own_deps = deps
    return session


def _parent_context(parent: object) -> SessionContext | None:
    """Return the internal context of the session in the argument `parent=`; None if `parent` is None.

    Raises:
        ConfigurationError: The value is not a `Session`.
    """
    if parent is None:
        return None
    if not isinstance(parent, Session):
        raise ConfigurationError(f"parent= must be a Session, not {parent!r}")
    return context_of(parent)


def _state_check_of(declared: Any) -> Any:
    from .session_state_type_check import state_check_of  # noqa: PLC0415 - few agents declare a type of their state

    return state_check_of(declared)
