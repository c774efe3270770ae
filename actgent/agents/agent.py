"""The agent as a developer writes it: who it is, what it talks to, and how it is talked to."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
)
from functools import partial
from types import TracebackType
from typing import Any, Generic, Never, Self, TypeVar, Unpack, cast, overload

import attrs
import trio

from actgent.actors.dead_letters import DeadLetter
from actgent.actors.event_loop import check_loop, is_asyncio_running
from actgent.actors.inbox import DEFAULT_BYTES, DEFAULT_MESSAGE_BYTES
from actgent.approvals import Approval, Decision, session_of
from actgent.control.arguments import at_least_one, check_flag, check_id, check_seconds
from actgent.control.limits import Limits
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
from actgent.llm.adapters import ModelLike
from actgent.llm.settings import LLMSettings
from actgent.memory.base import MemoryLike
from actgent.memory.lasting import LastingMemories
from actgent.memory.short_term import ShortTermMemory
from actgent.messages import DataT_co, Delivery, Message, OnBusy, Priority, PriorityName, Reply, Route, Sender
from actgent.modes.modes import Modes
from actgent.modes.prompt import prompt_of
from actgent.modes.tools import equip
from actgent.protocols.bare import Bare
from actgent.protocols.base import (
    ClassificationType,
    Instruction,
    Profile,
    Protocol,
    checked_types,
    types_from,
)
from actgent.protocols.prompt_layers import Prompt, SystemPrompt, to_layer
from actgent.protocols.prompts import PromptManager
from actgent.runtime.actor import AgentActor
from actgent.runtime.approval_decisions import list_approvals
from actgent.runtime.runtime import Host, Runtime, open_runtime
from actgent.runtime.sessions.new_session import OnSession
from actgent.runtime.sessions.opener import SessionOpener
from actgent.runtime.sessions.recovering import recover
from actgent.runtime.starting import wait_started
from actgent.sessions.context import SessionContext
from actgent.sessions.handlers import Handler, check_called
from actgent.sessions.history import Former
from actgent.sessions.incoming import Content, check_rule, sayable_parts
from actgent.sessions.turn import Turn
from actgent.sessions.waiting.turn_future import CallOptions
from actgent.sessions.waiting.turn_reader import TurnReader, TurnStream
from actgent.state.reducers import Reducer
from actgent.support.hints import async_block, unknown_argument
from actgent.support.leads import OF_NEW_SESSIONS, OF_RUNS, OF_STREAMS, for_agents
from actgent.support.logs import logger_of
from actgent.tools.adapters import ToolShape
from actgent.tools.base import DepsT, Tool, innermost
from actgent.tools.outputs.kept import offer_read_result
from actgent.tools.threads import ALL_THREADS, DEFAULT_THREADS
from actgent.toolsets.gateway import registry_of
from actgent.toolsets.toolset import Toolset, static_tools
from actgent.turns.calls.approval_requests import NeedsPerson
from actgent.turns.calls.tool_calls import Access
from actgent.turns.core import AgentCore
from actgent.turns.guards import GuardedKind, Guards
from actgent.turns.hooks import Hooks
from actgent.turns.reports import Reports

from .assembly import AgentDeps, AgentModels, build_actor, build_core, build_opener
from .model_tools import lasting_of, with_database
from .narration import Narration, Verbose, writer_of
from .options import AgentOptions, FormT, MessageOptions, ProcessOptions, RunOptions
from .processing import ProcessResult, process_turn
from .runs import (
    STREAM_CAPACITY,
    Enhanced,
    Question,
    RunDefaults,
    agent_elsewhere,
    answer_to,
    enhance,
    moved_of,
    outcome_elsewhere,
    read_along,
    read_suspended,
    resume,
    run_elsewhere,
    stream_elsewhere,
    typed,
)
from .session import Hears, HearsIn, Session, context_of, face_of
from .teams import AgentRef, AgentTool, HandoffTool, limited
from .validation import (
    check_arguments,
    check_call_rule,
    check_each_seconds,
    check_reducers,
    check_stage,
    check_system_prompt,
    forms_of,
    joined_text,
    memory_of,
    own_templates,
    types_of,
)

R = TypeVar("R")
Query = str | None | Awaitable[str | None]
"""The text that a function of `on_query` adds to a message."""
Q = TypeVar("Q", bound=Query)
_CLOSING = 5.0
"""Seconds to close a session that `process` opened, also when it is cancelled."""
GuardT = TypeVar("GuardT", bound=Handler)

_log = logger_of(__name__)


@for_agents
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
        system_prompt: Text instead of the system prompt made of role, goal and capabilities, which then only describe the agent
            to other agents. A protocol that needs a form of answer adds that form after the text.
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
        state: The type of a session's state, with fields (attrs, dataclass, pydantic, TypedDict). A change that does not fit raises
            `InvalidState`, which the model reads as the error of its call; the state stays as it was.
        reducers: Functions that combine the old and the new value of a key of the state, e.g. `{"results": append}`.
        memory: Selects the messages that the model sees: a `Memory`, a function of the history, or an object with `manage_history(history)`. The default
            shows the whole conversation up to 180,000 tokens.
        memories: Long-term memories of owners, across sessions. The model gets the tools `remember`, `recall` and `forget`,
            and each session sees the memories of its owner.
        recall_before_answer: Add memories that match the user's message to the model call, without adding them to the history:
            True for at most 1,000 tokens, or the maximum number of tokens.
        database: Tables of the agent, open while the agent runs. Tools use them as `ToolContext.database`.
        modes: Modes with their tools, and the rules for switching; None allows all tools at any time.
        approval: Function of (call, tool, context) that returns True or an `Ask` if a person has to approve the call. Tools
            with `approval=True` always ask. The function has no effects.
        sessions: Maximum number of sessions that are processed at the same time.
        urgent_sessions: Maximum number of additional sessions that are processed for URGENT messages.
        on_busy: Treatment of a message for a busy session: `queue` (wait), `collect` (answer it together with other waiting
            messages), `interrupt` (stop the running turn and go next) or `reject` (raise `SessionBusy`).
        inbox: Maximum number of waiting messages.
        session_inbox: Maximum number of waiting messages of one session.
        urgent_inbox: Maximum number of waiting URGENT messages of one session.
        inbox_bytes: Maximum bytes of all waiting messages. Waiting URGENT messages have a separate bound of the same size.
        message_bytes: Maximum bytes of one message with its pictures and files; larger messages raise `MessageTooLarge`.
        parallel_tools: True lets tool calls of one answer overlap, except calls of tools with `parallel=False`. False (the
            default): only calls of tools with `effect="pure"` overlap, all other calls run one after the other.
        threads: Maximum number of sync tools that run at the same time.
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
    core_type: type[AgentCore] = AgentCore
    """The pipeline of its messages: `AgentCore`, or a class made from it that does one of its steps in another way."""
    narration_type: type[Narration] = Narration
    """The class that words the lines of `verbose=`."""
    database: Database | None
    """Tables of its own; None if it has none."""
    _beside: "tuple[Agent[Any, Any], ...]" = ()
    """Agents that are started together with it, besides those that its tools call."""

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
        tools: Iterable[Tool[DepsT] | ToolShape | Toolset] = (),
        protocol: Protocol | None = None,
        models: Mapping[str, ModelLike | LLMSettings | str] | None = None,
        output: Any = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        limits: Limits | None = None,
        state: type | None = None,
        reducers: Mapping[str, Reducer] | None = None,
        memory: MemoryLike | None = None,
        memories: LastingMemories | None = None,
        recall_before_answer: bool | int = False,
        database: Database | None = None,
        modes: Modes | None = None,
        approval: NeedsPerson | None = None,
        sessions: int = 100,
        urgent_sessions: int = 16,
        on_busy: OnBusy = "queue",
        inbox: int = 1000,
        session_inbox: int = 100,
        urgent_inbox: int = 64,
        inbox_bytes: int = DEFAULT_BYTES,
        message_bytes: int = DEFAULT_MESSAGE_BYTES,
        parallel_tools: bool = False,
        threads: int = DEFAULT_THREADS,
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
        self._reports = Reports(name, debug=debug)
        self.limits = limits or Limits()
        self.grace, self._thread_grace = grace, thread_grace
        self.on_busy = check_rule(on_busy)
        self._handler_timeout = handler_timeout
        self._parallel_tools = check_flag("parallel_tools", parallel_tools)
        self._threads = at_least_one("threads", threads)
        self._bounds: dict[str, Any] = {
            "concurrency": at_least_one("sessions", sessions),
            "urgent_concurrency": at_least_one("urgent_sessions", urgent_sessions),
            "capacity": at_least_one("inbox", inbox),
            "session_capacity": at_least_one("session_inbox", session_inbox),
            "urgent_capacity": at_least_one("urgent_inbox", urgent_inbox),
            "capacity_bytes": at_least_one("inbox_bytes", inbox_bytes),
            "message_bytes": at_least_one("message_bytes", message_bytes),
        }
        known = forms_of(instructions)
        all_types = checked_types((*types_from(known), *types_of(types)))
        lasting = lasting_of(with_database(tools, database), memories, recall_before_answer)
        self.toolsets, self.tools = registry_of(lasting.tools, mapped=[t.tool for t in all_types if t.tool])
        self.database, self.modes = database, modes
        check_call_rule("approval", approval)
        self.approval_rule = approval
        self._complete_tools()
        self.profile = Profile(
            name=name,
            role=joined_text("role", role),
            goal=joined_text("goal", goal),
            capabilities=joined_text("capabilities", capabilities),
            instructions=known,
            types=all_types,
            tools=self.tools.specs(),
            body=body,
        )
        self.protocol = protocol or self.default_protocol()
        self.protocol.check_fit(self.profile)
        check_system_prompt(system_prompt, body=body)
        templates = own_templates(assistant=assistant_prompt, user=user_prompt)
        self.prompts = self._make_prompts(prompt, system_prompt, templates)
        self.system_prompt = self.prompts.system_prompt()
        """The same for all sessions and turns that have no layer of their own, or how it begins where it says something of sessions."""
        check_reducers(reducers)
        self._reducers, self._state_check = reducers, None if state is None else _state_check_of(state)
        self._memory = ShortTermMemory() if memory is None else memory_of(memory)
        self._deps = AgentDeps(name, deps, self.tools)
        self._models = AgentModels({**(models or {}), "default": llm})
        self._defaults = RunDefaults(
            self.profile, self.protocol, self.prompts, self._deps, roles=self._models.named.keys()
        ).with_own(output, temperature=temperature, max_tokens=max_tokens)
        self._on_session: list[OnSession] = self._deps.first_hooks(modes)
        self._hooks, self._guards = Hooks(queries=list(lasting.queries)), Guards()
        self._opener: SessionOpener | None = None
        """While it runs."""
        self._bury: Callable[[DeadLetter], None] | None = None
        """Keeps messages for an agent that is gone, in the runtime that it was in last."""
        self._block: AsyncExitStack | None = None
        write = writer_of(verbose)
        self.narration = None if write is None else self.narration_type(write)
        """Writes the steps of its sessions; None without `verbose=`."""
        if self.narration is not None:
            self.narration.attach(self)

    def _make_prompts(
        self, prompt: Prompt | None, written: str | None, templates: Mapping[str, str]
    ) -> PromptManager:
        """Put together what renders the prompts: protocol, profile and modes, or what was written, with `prompt` laid round it.

        Raises:
            ConfigurationError: a template is broken, or does not fit the profile.
        """
        of_modes = prompt_of(self.modes, self.tools) if self.modes is not None and written is None else ""
        system = SystemPrompt(
            PromptManager(self.protocol, self.profile),
            written=written,
            of_modes=of_modes,
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
        history: Iterable[Former] = (),
        enhance_prompt: bool | str = False,
        **unknown: Never,
    ) -> Session[DataT_co]:
        """Open a conversation; a `description` that is not empty is its first message.

        That message goes into the inbox as the last act, without a pause after it: handlers attached
        straight after this call miss nothing. Waits up to 30 s for room. `on_busy` is the session's own rule.

        `limits` bound the session as a whole, with its children: of them the calls, tokens, cost and seconds count.
        `deps` are those of this session's tools, instead of the agent's.
        `history` is what was said elsewhere: `ChatMessage`s, another session's messages, or `{"role": ..., "content": ...}`
        of users and assistants. The model is shown it as if it had been said here; no turn answers it, and no hook is called with it.
        With `enhance_prompt` one model call words the description anew before it is said, of the model `enhancer` if the agent has
        one; a text says how. The message's metadata has the words of its owner as `enhanced_from`.

        Raises:
            NotRunning: the agent's block is not open.
            ActgentError: with `enhance_prompt`, what the model raised; no session was made.
            ConfigurationError: the owner is empty or has NUL or half of a surrogate pair in the name, the id is no printable text
                of at most 200 characters, or the history is none that a model takes, e.g. a tool call without its result.
            SessionExists: this agent has a session of this id already; other agents may have one.
            WrongOwner: the parent is another user's.
            InboxFull: the inbox was full, so the description was not taken.
        """
        if unknown:
            raise unknown_argument(Agent.create_session, unknown, OF_NEW_SESSIONS)
        if session_id is not None:
            check_id("session_id", session_id)
        opener = self._require_opener() if self._opener is not None else await self._await_opener()
        first = None
        if enhance_prompt and description:
            instruction = enhance_prompt if isinstance(enhance_prompt, str) else None
            first = await self._enhanced(opener, description, instruction, owner)
        try:
            context = await opener.create(
                owner,
                description if first is None else first.parts,
                session_id=session_id,
                parent=None if parent is None else _below(parent),
                system=self._defaults.layered(prompt),
                limits=limits,
                on_busy=on_busy,
                deps=self._defaults.checked(deps),
                history=history,
                metadata=None if first is None else first.metadata,
            )
        except Fenced as moved:
            stays = {
                "parent": parent,
                "prompt": prompt,
                "deps": deps,
                "history": history,
                "enhance_prompt": first,
            }
            remote = agent_elsewhere(opener, moved, **stays)
            made: Session[DataT_co] = await remote.create_session(
                owner, description, session_id=session_id, on_busy=on_busy, limits=limits
            )
            return made
        if first is not None:
            context.conversation.add_child_usage(first.usage)
        return face_of(context)

    async def _enhanced(
        self, opener: SessionOpener, content: Content, instruction: str | None, owner: Sender | str
    ) -> Enhanced:
        """A first message in a model's words."""
        return await enhance(
            opener.running.core.models.models,
            content,
            instruction,
            owner=owner.name if isinstance(owner, Sender) else owner,
            seconds=self.limits.model_timeout,
        )

    async def open_session(
        self, session_id: str, *, owner: Sender | str | None = None, deps: DepsT | None = None
    ) -> Session[DataT_co]:
        """The session of this agent that has this id, and belongs to this owner if one is given.

        `deps` are those of its tools from now on.

        Raises:
            SessionNotFound: there is none; another agent's session of this id is another one.
            WrongOwner: it is another owner's. It is a `SessionNotFound`, so that services may answer both alike.
            SessionClosed: it was closed.
            DepsMissing: it was left out after a restart, since its tools need deps: pass them here, and it goes on.
        """
        opener = await self._await_opener()
        try:
            context = await opener.open(session_id, owner=owner, deps=self._defaults.checked(deps))
        except Fenced as moved:
            remote = agent_elsewhere(opener, moved, deps=deps)
            there: Session[DataT_co] = await remote.open_session(session_id, owner=owner)
            return there
        return _with_deps(context, deps)

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
        history: Iterable[Former] = (),
        **unknown: Never,
    ) -> Session[DataT_co]:
        """This agent's session of this id, in memory or in the journal, created if there is none.

        The rest is what `create_session` gives it then; a session that is there keeps what it was created with, but for
        `deps`, which are those of its tools from now on. Callers that come together get the same session.

        Raises:
            ConfigurationError: see `create_session`; also where there is such a session.
            WrongOwner: the session of this id is another owner's; names and kinds are compared.
            SessionClosed: it was closed.
        """
        if unknown:
            raise unknown_argument(Agent.ensure_session, unknown, OF_NEW_SESSIONS)
        opener, given = await self._await_opener(), self._defaults.checked(deps)
        try:
            context = await opener.ensure(
                owner,
                session_id,
                parent=_below(parent),
                system=self._defaults.layered(prompt),
                on_busy=on_busy,
                limits=limits,
                deps=given,
                history=history,
            )
        except Fenced as moved:
            remote = agent_elsewhere(opener, moved, parent=parent, prompt=prompt, deps=deps, history=history)
            there: Session[DataT_co] = await remote.ensure_session(
                owner, session_id, on_busy=on_busy, limits=limits
            )
            return there
        return _with_deps(context, deps)

    async def receive(self, message: Message, *, enqueue_timeout: float = 30) -> str:
        """Send what `Session.create_message` made; with that it is `Session.chat`. Returns the message's id.

        The message goes to the session whose id it bears, and is accepted once.

        Raises:
            ConfigurationError: it is no message that can be said.
            SessionNotFound: this agent has no session of that id.
            InboxFull, SessionBusy, SessionClosed, NotRunning: see `Session.chat`.
        """
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"agent.receive() takes a Message: session.create_message(...), not {message!r:.200}"
            )
        sayable_parts(message.parts)
        check_seconds("enqueue_timeout", enqueue_timeout)
        opener = await self._await_opener()
        try:
            context = await opener.open(message.session_id)
            await opener.intake.accept(context, attrs.evolve(message, deadline=enqueue_timeout), once=True)
        except Fenced as moved:
            await agent_elsewhere(opener, moved).receive(message, enqueue_timeout=enqueue_timeout)
        return message.id

    async def open_toolsets(self, runtime: Runtime) -> None:
        """Connect its toolsets, after which it serves; `Runtime.start` is the way to call it.

        Raises:
            ToolsetUnavailable: a required one could not be connected.
        """
        if self.toolsets:
            await runtime.toolsets.open(self.tools, self.toolsets)
        if self._opener is not None:
            self._opener.running.equipped.set()

    async def __actgent_recover__(self) -> None:
        """Go on with the sessions whose messages were accepted and not dealt with when the last process ended.

        A session whose records are damaged is named in the log, and left alone.
        """
        await recover(self._require_opener())

    def on_session(self, fn: Hears[Session[DataT_co], R]) -> Hears[Session[DataT_co], R]:
        """Have `fn(session)` called, and awaited if it is async, before the first message of every session."""
        check_called("on_session()", fn, is_alone=True)
        self._on_session.append(fn)
        return fn

    # --- hooks ---------------------------------------------------------------------------

    @overload
    def on_query(self, fn: Hears[Message, Q]) -> Hears[Message, Q]: ...
    @overload
    def on_query(self, fn: HearsIn[Message, Q]) -> HearsIn[Message, Q]: ...
    @overload
    def on_query(self, *, stage: str) -> Callable[[GuardT], GuardT]: ...
    def on_query(self, fn: Any = None, *, stage: str | None = None) -> Any:
        """Have `fn(message)` called, and awaited if it is async, before a user's message is answered.

        The text that it returns goes with the model call that answers the message, as context, and is not
        remembered; None adds nothing. With a second parameter it gets the session, too.
        `@agent.on_query(stage="synthesis")` has it called before each call of that stage of the protocol instead, with the
        user's message: of `plan` these are `execution` and `synthesis`, of which `session.state` has the results by then.

        Raises:
            ConfigurationError: `fn` is no function that takes something, or the protocol has no such stage.
        """
        if fn is None:
            return partial(self.on_query, stage=stage)
        if stage is not None:
            check_stage(self.protocol, stage)
        self._hooks.add_query(fn, stage)
        return fn

    @overload
    def on_message(self, fn: Hears[Message, R], *, priority: float | None = None) -> Hears[Message, R]: ...
    @overload
    def on_message(
        self, fn: HearsIn[Message, R], *, priority: float | None = None
    ) -> HearsIn[Message, R]: ...
    def on_message(self, fn: Any, *, priority: float | None = None) -> Any:
        """Have `fn(message)` called with what users, models and tools say, as it enters a session's record.

        The lowest priority is called first, those without one last. What one does wrong is a `Failure` of the kind
        `handler`, and the others are called all the same.
        """
        self._hooks.add_listener(fn, priority)
        return fn

    @overload
    def guard(self, fn: GuardT, *, on: GuardedKind = "message") -> GuardT: ...
    @overload
    def guard(self, fn: None = None, *, on: GuardedKind = "message") -> Callable[[GuardT], GuardT]: ...
    def guard(self, fn: Any = None, *, on: GuardedKind = "message") -> Any:
        """Have `fn` look at each message from outside, or with `on="answer"` at each reply, before handlers and callers get it.

        It returns None where it agrees, or `Refuse(reason)`: the turn ends with `GuardRefused`, a `Failure` of the kind
        `guard`; or `Ask(question)`: a person decides, by an approval that the turn waits for. One of answers may also return
        a text, which is said instead; the record keeps what the model said. With a second parameter it gets the session,
        too; it is awaited if it is async, for `handler_timeout` seconds.

        With `on="input"` a plain function looks at each message before it is in the inbox, and may also return a text, which
        is said in place of the message's own: neither the model nor the journal has that. What it refuses or raises is
        raised where the message was sent. Schedules, results of tasks and `history=` do not pass it.

        Guards of messages run beside the model call, whose answer is held until they agree, and which a refusal cancels.
        With one of answers there are no tokens. With a journal a decision is not made again after a crash. One that raises
        lets nothing through: the turn ends with `HandlerFailed`.

        Raises:
            ConfigurationError: `on` is none of these, or `fn` is no function that takes something.
        """
        if fn is None:
            return partial(self.guard, on=on)
        check_called("guard()", fn)
        self._guards.add(fn, on)
        return fn

    def remove_hook(self, fn: Handler) -> None:
        """Call a function of `on_session`, `on_query`, `on_message` or `guard` no more, however often it was given."""
        self._hooks.remove(fn)
        self._guards.remove(fn)
        self._on_session[:] = [
            each for each in self._on_session if each != fn
        ]  # its opener has the same list

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
        **unknown: Never,
    ) -> Reply:
        """Say something and wait for the answer: the turn's last reply.

        Without a session a fresh one, closed after. A cancelled run stops the turn, and so does one that took `timeout`
        seconds; in a tool or handler, time in which the turn waits for people does not count. `sender` and `priority`
        are those of `Session.chat`, as `metadata` is. `deps` are those of this turn's tools alone, and `model` is the role, a key of
        `models`, that all its calls ask. The same `message_id` is said once: a repetition waits for the same turn, or gets
        what it came to, where that is known (see `repetitions`).

        Where a tool call waits for a person, the turn is suspended: it goes on by `resume`. In a turn of another
        session, e.g. in a tool, that is waited for.

        Raises:
            DeadlineExceeded: there was no answer within `timeout` seconds.
            Suspended: the turn waits for the approvals of these ids, or one before it does: then nothing was said.
            AlreadyAnswered: the message was answered before, and the reply is not known any more.
            ActgentError: the error of the Failure that the turn ended with.
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
        )
        said = Question(content, session, sender, priority, message_id, timeout, metadata)
        if timeout is None:
            try:
                return await answer_to(await self._await_opener(), said, options)
            except Fenced as moved:
                return await run_elsewhere(self._require_opener(), said, moved, options, self._own(options))
        check_loop(f"agent {self.name!r}")
        with trio.move_on_after(timeout) as limit, limited(limit):
            try:
                return await answer_to(await self._await_opener(), said, options)
            except Fenced as moved:
                return await run_elsewhere(self._require_opener(), said, moved, options, self._own(options))
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
        """Say something and wait for the answer, in synchronous code: `run` without a session.

        An agent that was started in a portal answers there, any other one in a block that is opened for this answer alone.
        In `async def` of asyncio it blocks the event loop, and a warning is logged: use `open_portal` there.

        Raises:
            UsageError: trio runs here, where `run` is awaited; or the agent runs, but in no portal.
            ActgentError: what `run` raises.
        """
        if trio.lowlevel.in_trio_run():
            raise UsageError(f"trio runs here: take `await agent.run(...)` of agent {self.name!r}")
        if is_asyncio_running():
            _log.warning(
                "run_sync() of agent %s blocks the event loop of asyncio until the answer: take `async with open_portal()` "
                "and `await agent.run(...)`, see docs/asyncio.md",
                self.name,
            )
        running = partial(self.run, content, output=output, **options)
        if self._opener is None:
            return trio.run(self._alone, running)
        call = self._opener.running.call_from_outside
        if call is None:
            raise UsageError(
                f"agent {self.name!r} runs in another thread, and in no portal: see open_portal()"
            )
        return call(running)  # type: ignore[no-any-return]

    async def _alone(self, running: Callable[[], Awaitable[Reply]]) -> Reply:
        """Open the block of this agent for one thing."""
        async with self:
            return await running()

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
    ) -> AsyncGenerator[trio.abc.ReceiveChannel[Delivery], None]:
        """Say something and read what comes of it: `Token`, `ToolResult`, `Event`, `Route`, `Reply`, `Failure`, `Approval`.

        Where the turn waits for people, it ends here, and `follow` reads on. Behind another turn that waits for people nothing
        is said: that is `Suspended`, or the stream's only delivery, a `Failure` of that kind, where it was queued by then.
        A slow reader slows the model's stream down. Leaving the block early stops the turn.

        The arguments are those of `run`. After `timeout` seconds the turn ends with a
        `Failure` of the kind `deadline`, the last delivery. A repetition of a `message_id` reads the rest of the turn, or
        what it came to alone.
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
        )
        said = Question(content, session, sender, priority, message_id, timeout, metadata)
        reader = TurnReader[Delivery](STREAM_CAPACITY)
        future = TurnStream(options, reader=reader)
        has_begun = False
        try:
            async with read_along(await self._await_opener(), said, future, reader):
                has_begun = True
                yield reader  # noqa: ASYNC119 - the block is a context manager
                return
        except Fenced as moved:
            if has_begun:
                raise
            opener = self._require_opener()
            remote = stream_elsewhere(opener, said, moved, options, self._own(options))
        async with remote as deliveries:
            yield deliveries  # noqa: ASYNC119 - the block is a context manager

    def _own(self, options: CallOptions) -> list[str]:
        """Name what of these options was given for one run alone."""
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
        """Answer a request, and return a result with its status, tool results, usage and duration, also if it fails.

        It works the same with every protocol and `core_type`, so that a program can exchange how its agent reasons. Without a
        session a fresh one is opened, and closed after. The options are those of `run`, for this request alone. `limits` replace
        those of the agent; reaching one is an error in the result. So is an error that prevents the fresh session, e.g. of an
        `on_session` function. If a tool call waits for a person, the status is `suspended`
        and `resume` continues the turn. Answers are streamed to `session.on_token` handlers.

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
                with trio.move_on_after(_CLOSING, shield=True):
                    await session.aclose()
        return result

    async def _process_in(self, session: Session, content: Content, **options: Any) -> ProcessResult:
        stream = partial(self.stream, content, session=session)
        return await process_turn(await self._await_opener(), session, self.protocol, stream, options)

    # --- people ------------------------------------------------------------------------------

    async def answer(
        self, approval: Approval | str, decision: Decision, *, by: Sender | str | None = None
    ) -> None:
        """Decide over a tool call that waits in any session, which is opened for that; see `Session.answer`."""
        session = await self._session_of(approval if isinstance(approval, str) else approval.id)
        await session.answer(approval, decision, by=by)

    async def resume(
        self, decisions: Mapping[str, Decision], *, by: Sender | str | None = None
    ) -> Reply[DataT_co]:
        """Decide over tool calls of one suspended turn, by the ids of their approvals, and wait for its answer as `run` does.

        Others that wait for the turn, e.g. another agent's tool call, get its answer, too. A cancelled call stops the turn
        if it goes on already and nobody else waits for it.

        Raises:
            Suspended: the turn still waits, or again.
            UsageError: one of the decisions does not count, see `Session.answer`; those before it do.
            ActgentError: the error of the Failure that the turn ended with.
        """
        if not decisions:
            raise ConfigurationError("decisions= is a mapping of approval ids to decisions, and not empty")
        session: object = await self._session_of(next(iter(decisions)))
        if not isinstance(session, Session):
            opener = self._require_opener()
            remote = agent_elsewhere(opener, moved_of(opener, session))
            return typed(await remote.resume(decisions, by=by), self._defaults.options)
        try:
            return await resume(session, self._defaults.options, decisions, by=by)
        except SessionMoved as moved:
            if not moved.message_id:
                raise
            return await outcome_elsewhere(self._require_opener(), moved, self._defaults.options)

    @async_block()
    async def follow(
        self, session: Session
    ) -> AsyncGenerator[trio.abc.ReceiveChannel[Delivery[DataT_co]], None]:
        """Read what comes of a suspended turn when it goes on, as `stream` does; decide inside of the block.

        Any number may follow a turn, and whoever waits for it does not lose it by that. Leaving the block early stops the
        turn if it goes on already and nobody else waits for it.

        Raises:
            NotSuspended: no turn of the session waits for a person.
        """
        opener, known = self._require_opener(), cast("object", session)
        if not isinstance(known, Session):
            async with agent_elsewhere(opener, moved_of(opener, known)).follow(known) as deliveries:
                yield deliveries  # noqa: ASYNC119 - the block is a context manager
            return
        context = context_of(session)
        opener.running.sessions.check_member(context)
        reader = TurnReader[Delivery[DataT_co]](STREAM_CAPACITY)
        future = TurnStream(self._defaults.options, reader=reader)
        async with read_suspended(context, future, reader):
            yield reader  # noqa: ASYNC119 - the block is a context manager

    async def approvals(
        self, *, owner: Sender | str | None = None, after: str = "", limit: int = 100
    ) -> tuple[Approval, ...]:
        """List the open approvals of this agent's sessions. Sessions that were unloaded to the journal are included.

        Args:
            owner: Only approvals of this owner's sessions; None lists those of all owners. A service that shows approvals to
                its users has to pass it, because approvals have the arguments of the calls.
            after: The `session_id` of the last approval of the page before; sessions are in the order of their ids.
            limit: The most sessions of a page. An empty page is the end.
        """
        return await list_approvals(self._require_opener().running, owner=owner, after=after, limit=limit)

    async def _session_of(self, approval_id: str) -> Session:
        session_id = session_of(approval_id)
        if not session_id:
            raise ApprovalNotFound(approval_id, "")
        return await self.open_session(session_id)

    # --- other agents --------------------------------------------------------------------

    @property
    def ref(self) -> AgentRef:
        """The agent's address for other agents and programs: `tell` and `ask`."""
        return AgentRef(self.name, run=self.run, opener=self._await_opener, bury=self._keep_dead)

    def _keep_dead(self, letter: DeadLetter) -> None:
        if self._bury is not None:
            self._bury(letter)

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """This agent as a tool of another, which is started together with that one."""
        default = self.profile.goal or self.profile.capabilities or self.profile.role or self.name
        return AgentTool(
            name or re.sub(r"[^a-zA-Z0-9_-]+", "_", self.name),
            description or f"Give a task to {self.name}: {default}",
            run=self.run,
            agent=self,
            opener=self._require_opener,
        )

    def accompany(self, agent: "Agent[Any, Any]") -> None:
        """Have another agent started together with this one, unless it runs by then."""
        self._beside = (*self._beside, agent)

    def _companions(self) -> "Iterable[Agent]":
        """The agents that this one needs to be running."""
        tools = self._given_tools()
        called = [tool.agent for tool in tools if isinstance(tool, (AgentTool, HandoffTool))]
        return [*called, *self._beside]  # type: ignore[list-item]

    def _complete_tools(self) -> None:
        """Add the tools that come with others: those of modes, and `read_result`."""
        if self.modes is not None:
            equip(self.tools, self.modes)
        if self.limits.kept_characters:
            offer_read_result(self.tools)

    def _given_tools(self) -> Iterable[Tool]:
        """Its tools that are known before it starts, without their wrappers."""
        given = (*self.tools, *(tool for toolset in self.toolsets for tool in static_tools(toolset)))
        return [innermost(tool) for tool in given]

    def _access_rules(self) -> Iterable[Access]:
        """Rules that a call has to pass at the moment it is about to start."""
        return ()

    async def _route(self, context: SessionContext, turn: Turn, route: Route) -> Reply | None:
        """Give the message to the agent of a route; does nothing unless the agent has routes."""
        await trio.lowlevel.checkpoint()
        return None

    # --- life ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        check_loop(f"agent {self.name!r}")
        if self._opener is not None:
            raise ConfigurationError(f"agent {self.name!r} runs already: one block at a time")
        async with AsyncExitStack() as block:
            threads = max(ALL_THREADS, self._threads)
            runtime = await block.enter_async_context(
                open_runtime(threads=threads, thread_grace=self._thread_grace)
            )
            await runtime.start(self)
            self._block = block.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        block, self._block = self._block, None
        assert block is not None  # noqa: S101 - __aenter__ made it
        return await block.__aexit__(kind, error, trace)  # noqa: ASYNC102 - the runtime shields what it must

    def __actgent_start__(self, host: Host) -> "Sequence[Agent]":
        """Run in a runtime, companions too; called by `Runtime.start` alone."""
        if self._opener is not None:
            raise ConfigurationError(f"agent {self.name!r} runs already: one block at a time")
        agents = self._with_companions()
        runtime = host.runtime
        host.check_names([agent.name for agent in agents])
        for agent, running in [(agent, agent._build(runtime)) for agent in agents]:  # noqa: SLF001
            agent._enter(host, running)  # noqa: SLF001
        return agents

    def _enter(self, host: Host, running: AgentActor) -> None:
        """Run as this actor, and be found in the runtime."""
        host.run(running, grace=self.grace)
        self._opener = self._build_opener(running, host.runtime)
        self._bury = host.runtime.bury
        host.runtime.agents.add(self, self._opener)

    def _with_companions(self) -> "list[Agent]":
        """Itself, its companions, theirs ...: all that do not run yet, each once."""
        agents: dict[Agent, None] = {self: None}
        waiting = [self]
        while waiting:
            found = [a for a in waiting.pop()._companions() if a._opener is None and a not in agents]  # noqa: SLF001
            agents.update(dict.fromkeys(found))
            waiting += found
        return list(agents)

    def _require_opener(self) -> SessionOpener:
        if self._opener is None:
            check_loop(f"agent {self.name!r}")
            raise NotRunning(self.name)
        self._opener.running.check_loop()
        return self._opener

    async def _await_opener(self) -> SessionOpener:
        """The same, for a turn from the journal as soon as its program has started this agent."""
        if self._opener is None:
            await wait_started(self.name)
        return self._require_opener()

    def _build(self, runtime: Runtime) -> AgentActor:
        if self.database is not None:
            self.database.place_beside(None if runtime.journal is None else runtime.journal.beside(self.name))
        return build_actor(
            runtime,
            self._build_core(runtime),
            name=self.name,
            ref=self.ref,
            limits=self.limits,
            options=self._defaults.options,
            on_stop=partial(self._stopped, runtime),
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
            is_told=self._is_told,
        )

    def _is_told(self, context: SessionContext) -> bool:
        """Return True for a session with which the functions of `on_session` are called."""
        return True

    def _build_core(self, runtime: Runtime) -> AgentCore:
        return build_core(
            self.core_type,
            runtime,
            profile=self.profile,
            memory=self._memory,
            prompts=self.prompts,
            models=self._models.open(),
            tools=self.tools,
            given_tools=self._given_tools(),
            threads=self._threads,
            parallel_tools=self._parallel_tools,
            approval=self.approval_rule,
            access=(*([] if self.modes is None else [self.modes.refusal]), *self._access_rules()),
            modes=self.modes,
            hooks=self._hooks,
            guards=self._guards,
            router=self._route,
            reports=self._reports,
            handler_timeout=self._handler_timeout,
            bounds=self._bounds,
        )

    async def _stopped(self, runtime: Runtime) -> None:
        self._opener = None
        runtime.toolsets.close(self.tools)
        await self._models.aclose()


def _with_deps(context: SessionContext, deps: object) -> Session[Any]:
    """The user's end of a session, which has these deps from now on, if there are any."""
    session = face_of(context)
    if deps is not None:
        session.own_deps = deps
    return session


def _below(parent: object) -> SessionContext | None:
    """The agent's end of what is given as a parent.

    Raises:
        ConfigurationError: it is no session.
    """
    if parent is None:
        return None
    if not isinstance(parent, Session):
        raise ConfigurationError(f"parent= takes a Session, not {parent!r}")
    return context_of(parent)


def _state_check_of(declared: Any) -> Any:
    from .typed_state import state_check_of  # noqa: PLC0415 - few agents declare a type of their state

    return state_check_of(declared)
