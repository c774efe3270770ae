"""What agents and their calls may be told beside what they are asked, for type checkers: the arguments by their names."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Required, TypeAlias, TypedDict, TypeVar

from actgent.control.limits import Limits
from actgent.database.database import Database
from actgent.llm.adapters import ModelLike
from actgent.llm.settings import LLMSettings
from actgent.memory.base import MemoryLike
from actgent.memory.lasting import LastingMemories
from actgent.messages import OnBusy, Priority, PriorityName, Sender
from actgent.modes.modes import Modes
from actgent.protocols.base import ClassificationType, Instruction, Protocol
from actgent.protocols.prompt_layers import Prompt
from actgent.state.reducers import Reducer
from actgent.tools.adapters import ToolShape
from actgent.tools.base import DepsT, Tool
from actgent.toolsets.toolset import Toolset
from actgent.turns.calls.approval_requests import NeedsPerson

from .narration import Verbose
from .session import Session

FormT = TypeVar("FormT")
"""The type that is asked for by one call alone."""
ToolLike: TypeAlias = Tool | Toolset | Callable[..., Any]
Tools: TypeAlias = Iterable[ToolLike] | Mapping[str, ToolLike]
"""Tools, functions `(state, args)`, other functions; a mapping names them."""


class CommonOptions(TypedDict, Generic[DepsT], total=False):
    """The arguments of all agents but those that some take in another way; `Agent` says what each is."""

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
    memories: LastingMemories | None
    database: Database | None
    recall_before_answer: bool | int
    modes: Modes | None
    approval: NeedsPerson | None
    sessions: int
    urgent_sessions: int
    on_busy: OnBusy
    inbox: int
    session_inbox: int
    urgent_inbox: int
    inbox_bytes: int
    message_bytes: int
    parallel_tools: bool
    threads: int
    handler_timeout: float
    grace: float
    thread_grace: float
    debug: bool
    verbose: Verbose
    deps: DepsT | Callable[[Session[Any]], Awaitable[DepsT]] | None


class AgentOptions(CommonOptions[DepsT], Generic[DepsT], total=False):
    """The arguments of an `Agent` beside `name` and `output`.

    For functions and classes that pass them on: `**options: Unpack[AgentOptions]`.
    """

    tools: Iterable[Tool[DepsT] | ToolShape | Toolset]


class ProcessOptions(TypedDict, Generic[DepsT], total=False):
    """The arguments of `Agent.process` beside the content, `session` and `output`."""

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
    """The arguments of `RunOptions` in a session that is known."""

    message_id: str | None
    timeout: float | None


class RunOptions(MessageOptions[DepsT], Generic[DepsT], total=False):
    """The arguments of `Agent.run` and `Agent.stream` beside the content and `output`; `run` says what each is."""

    session: Session[Any] | None
