"""Typed dictionaries of the keyword arguments of agents and runs, for type checkers."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Required, TypeAlias, TypedDict, TypeVar

from actgent.database.database import Database
from actgent.information_flow_labels import Policy
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.custom_model_adapters import ModelLike
from actgent.llm.model_settings import LLMSettings
from actgent.memory.memory_interface import LongTermMemoryBase, MemoryLike
from actgent.messages import OnBusy, Priority, PriorityName, Sender
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.protocols.prompt_layers import Prompt
from actgent.protocols.protocol_interface import ClassificationType, Instruction, Protocol
from actgent.sessions.imported_history import ImportedMessage
from actgent.state.reducers import Reducer
from actgent.tools.tool_adapters import ToolProtocol
from actgent.tools.tool_interface import DepsT, Tool
from actgent.tools.tools_run_by_caller import CallerTools
from actgent.toolsets.toolset import Toolset
from actgent.turns.calls.approval_requests import NeedsPerson

from .session import Session
from .verbose_output import Verbose

FormT = TypeVar("FormT")
"""Type variable for the output type of one call."""
ToolLike: TypeAlias = Tool | Toolset | Callable[..., Any]
"""A tool, a toolset, or a function that becomes a tool."""
Tools: TypeAlias = Iterable[ToolLike] | Mapping[str, ToolLike]
"""Tools, functions `(state, args)`, or other functions. A mapping gives their names."""


class CommonOptions(TypedDict, Generic[DepsT], total=False):
    """Keyword arguments that all agent classes share. `Agent` documents them."""

    llm: Required[ModelLike | LLMSettings | str]
    role: str
    goal: str
    capabilities: str | Sequence[str]
    body: str
    system_prompt: str | None
    prompt: Prompt | None
    assistant_prompt: str
    user_prompt: str
    instructions: Iterable[Instruction | Mapping[str, Any] | str]
    types: Iterable[ClassificationType | Mapping[str, Any]]
    protocol: Protocol | None
    models: Mapping[str, ModelLike | LLMSettings | str] | None
    temperature: float | None
    max_tokens: int | None
    limits: Limits | None
    state: type | None
    reducers: Mapping[str, Reducer] | None
    memory: MemoryLike | None
    long_term_memory: LongTermMemoryBase | None
    database: Database | None
    recall_before_answer: bool | int
    modes: Modes | None
    approval: NeedsPerson | None
    policy: Policy | None
    max_concurrent_sessions: int
    max_urgent_sessions: int
    on_busy: OnBusy
    inbox_capacity: int
    session_inbox_capacity: int
    urgent_inbox_capacity: int
    inbox_bytes: int
    message_bytes: int
    parallel_tools: bool
    max_threads: int
    handler_timeout: float
    grace: float
    thread_grace: float
    debug: bool
    verbose: Verbose
    deps: DepsT | Callable[[Session[Any]], Awaitable[DepsT]] | None


class AgentOptions(CommonOptions[DepsT], Generic[DepsT], total=False):
    """Keyword arguments of `Agent`, except `name` and `output`.

    For functions and classes that pass them on: `**options: Unpack[AgentOptions]`.
    """

    tools: Iterable[Tool[DepsT] | ToolProtocol | Toolset]


class ProcessOptions(TypedDict, Generic[DepsT], total=False):
    """Keyword arguments of `Agent.process`, except the content, `session` and `output`."""

    sender: Sender | str | None
    priority: Priority | PriorityName
    metadata: Mapping[str, Any] | None
    model: str | None
    prompt: Prompt | None
    temperature: float | None
    max_tokens: int | None
    limits: Limits | None
    deps: DepsT | None


class MessageOptions(ProcessOptions[DepsT], Generic[DepsT], total=False):
    """Keyword arguments of `Agent.run`, except the content, `output` and `session`; for functions that choose the session."""

    message_id: str | None
    timeout: float | None
    tools: CallerTools | None


class RunOptions(MessageOptions[DepsT], Generic[DepsT], total=False):
    """Keyword arguments of `Agent.run` and `Agent.stream`, except the content and `output`. `Agent.run` documents them."""

    session: Session[Any] | None


class SessionOptions(TypedDict, Generic[DepsT], total=False):
    """Keyword arguments of `Agent.create_session` and `Agent.ensure_session`, except the ids and `parent`."""

    prompt: Prompt | None
    on_busy: OnBusy | None
    limits: Limits | None
    deps: DepsT | None
    history: Iterable[ImportedMessage]
    tags: Iterable[str]
    metadata: Mapping[str, str] | None
