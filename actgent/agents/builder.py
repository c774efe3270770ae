"""Agents and classification types, put together step by step. Every step gives a new builder and leaves the old one."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import attrs

from actgent.agents.steps import StepsAgent
from actgent.control.limits import Limits
from actgent.database.database import Database
from actgent.definitions.instructions import AgentFolder, read_folder
from actgent.definitions.tools_file import load_tools
from actgent.errors import ConfigurationError, nearest
from actgent.llm.adapters import ModelLike
from actgent.llm.base import LLM
from actgent.llm.models import resolve_model
from actgent.llm.settings import LLMSettings, load_models, load_settings
from actgent.memory.base import MemoryLike
from actgent.memory.lasting import LastingMemories
from actgent.memory.short_term import ShortTermMemory
from actgent.messages import OnBusy
from actgent.protocols import PROTOCOLS, make_protocol
from actgent.protocols.bare import Bare
from actgent.protocols.base import ClassificationType, Instruction, Protocol, types_from
from actgent.protocols.goal import Goal
from actgent.protocols.plan import Planning
from actgent.protocols.prompt_layers import Prompt
from actgent.protocols.react import ReAct
from actgent.protocols.simple import Simple
from actgent.protocols.steps import Steps
from actgent.protocols.strategies import AutoSwitching, KeywordStrategy, Strategy, UserPreference
from actgent.runtime.sessions.new_session import OnSession
from actgent.sessions.handlers import Handler
from actgent.support.leads import for_builders
from actgent.tools.adapters import ToolShape
from actgent.tools.base import Tool
from actgent.toolsets.toolset import Toolset
from actgent.turns.guards import GuardedKind

from .agent import Agent
from .goal import GoalAgent
from .plan import PlanAgent
from .presets import RouterAgent
from .validation import forms_of

KINDS: Mapping[type[Protocol], type[Agent]] = {Steps: StepsAgent, Planning: PlanAgent, Goal: GoalAgent}
"""Agents that can do more than others with their protocol."""
STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "keyword": KeywordStrategy,
    "auto": AutoSwitching,
    "preference": UserPreference,
}
DEFAULT_TYPES = (
    ClassificationType(
        "clarification",
        "You need to know more before you can go on; ask for it.",
        {"questions": ["<what you need to know, as a question>"]},
    ),
    ClassificationType(
        "confirmation",
        "Something has consequences; ask whether it shall be done.",
        {"action": "<what would be done>", "consequences": "<what comes of it>"},
    ),
    ClassificationType(
        "completion",
        "The task is done; say what came of it.",
        {"result": "<what came of it>"},
    ),
    ClassificationType(
        "error",
        "The task cannot be done; say why, and what would help.",
        {"reason": "<why it cannot be done>", "remedy": "<what would help>"},
    ),
)
"""Forms of answer that most agents can use."""


@attrs.frozen
class SchemaBuilder:
    """Classification types from instructions; without any, the default types.

    Each instruction is an object, a name, or a dict with `name`, `description`, `schema` (or `schemaTemplate`) and `tool`.
    """

    instructions: Sequence[Instruction] = attrs.field(default=(), converter=forms_of)
    """In the order in which the model is shown them."""

    def add(self, *instructions: Instruction | Mapping[str, Any] | str) -> Self:
        """Return a builder with these instructions at the end."""
        return attrs.evolve(self, instructions=(*self.instructions, *instructions))

    def remove(self, *names: str) -> Self:
        """Without the instructions of these names.

        Raises:
            ConfigurationError: there is none of such a name.
        """
        known = [instruction.name for instruction in self.instructions]
        if unknown := [name for name in names if name not in known]:
            raise ConfigurationError(
                f"there is no instruction {unknown[0]!r} to remove: {nearest(unknown[0], known) if known else 'there are none'}"
            )
        return attrs.evolve(self, instructions=[i for i in self.instructions if i.name not in names])

    def build(self) -> tuple[ClassificationType, ...]:
        """The types, in the order of their instructions.

        Raises:
            ConfigurationError: a name is empty or there twice, or a schema is not usable.
        """
        return types_from(tuple(self.instructions)) if self.instructions else DEFAULT_TYPES


@for_builders
@attrs.frozen
class AgentBuilder:
    """An agent in the making.

    ```python
    agent = AgentBuilder("tutor").role("maths tutor").protocol("react").tools(add).llm("openai:gpt-5.2").build()
    ```
    """

    name: str
    """The agent's name, or that of its folder."""
    _options: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Arguments of `Agent`, as they were given."""
    _schemas: SchemaBuilder = attrs.field(factory=SchemaBuilder, repr=False)
    _file: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Settings of the model in the folder."""
    _model: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Settings of the model by the program."""
    _strategy: Strategy | None = attrs.field(default=None, repr=False)
    _hooks: tuple[Callable[[Agent], object], ...] = attrs.field(default=(), repr=False)

    @classmethod
    def from_folder(
        cls, path: str | os.PathLike[str] | AgentFolder, *, tools: Iterable[Tool | Toolset] = ()
    ) -> Self:
        """Start with the definition in a folder, given by its path or as `read_folder` returned it.

        The code of the folder's tools is run here; `tools` are added to them.

        Raises:
            InvalidFolder: something is wrong in it; the text has a line for each thing that is.
            ConfigurationError: a variable that its mcp_config.json names is not set.
        """
        given = tuple(tools)
        names = [tool.name for tool in given if isinstance(tool, Tool)]
        read = path if isinstance(path, AgentFolder) else read_folder(path, tools=names)
        named = (*load_tools(read), *given)
        builder = cls(
            read.name,
            {"role": read.role, "goal": read.goal, "capabilities": read.capabilities, "body": read.body},
            file=read.llm,
        )
        builder = builder.instructions(*read.instructions).tools(*named)
        builder = builder.limits(read.limits).handler_timeout(read.handler_timeout).on_busy(read.on_busy)
        if read.max_tokens is not None:
            builder = builder.memory(ShortTermMemory(read.max_tokens))
        if read.strategy is not None:
            builder = builder.strategy(read.strategy)
        return builder if read.protocol is None else builder.protocol(read.protocol)

    # --- who it is -----------------------------------------------------------------------

    def role(self, text: str) -> Self:
        return self._with(role=text)

    def goal(self, text: str) -> Self:
        return self._with(goal=text)

    def capabilities(self, text: str) -> Self:
        return self._with(capabilities=text)

    def body(self, text: str) -> Self:
        """Set the rest of the system prompt."""
        return self._with(body=text)

    def system_prompt(self, text: str) -> Self:
        """Set the system prompt; the protocol adds its form of answers after the text."""
        return self._with(system_prompt=text)

    def prompt(self, layer: Prompt) -> Self:
        """A layer round the system prompt, or instead of it."""
        return self._with(prompt=layer)

    def assistant_prompt(self, template: str) -> Self:
        """A template said as the agent's own words behind the system prompt."""
        return self._with(assistant_prompt=template)

    def user_prompt(self, template: str) -> Self:
        """A template said behind the conversation in each call."""
        return self._with(user_prompt=template)

    # --- how it answers ------------------------------------------------------------------

    def instructions(self, *instructions: Instruction | Mapping[str, Any] | str) -> Self:
        """Add instructions, as objects, dicts or names; see `SchemaBuilder`."""
        return attrs.evolve(self, schemas=self._schemas.add(*instructions))

    def types(self, *types: ClassificationType | Mapping[str, Any]) -> Self:
        """Add classification types, as objects or dicts; `*DEFAULT_TYPES` are some."""
        return self._with(types=(*self._options.get("types", ()), *types))

    def protocol(self, protocol: str | Protocol) -> Self:
        """One of `PROTOCOLS` by its name, or a pair of your own; without it `simple` if there are instructions."""
        known = {name: functools.partial(make_protocol, name) for name in PROTOCOLS}
        return self._with(protocol=_named(known, protocol, "protocol"))

    def strategy(self, strategy: str | Strategy) -> Self:
        """Set how `react` chooses its mode: `keyword`, `auto`, `preference`, or a custom strategy."""
        return attrs.evolve(self, strategy=_named(STRATEGIES, strategy, "strategy"))

    def output(self, output: Any) -> Self:
        """A type or JSON Schema that every final answer has to fit."""
        return self._with(output=output)

    # --- what it has ---------------------------------------------------------------------

    def llm(self, model: ModelLike | str | None = None, **settings: Any) -> Self:
        """The model; the settings are those of `load_settings`, and go before environment and folder."""
        given = {**self._model, **settings}
        return attrs.evolve(self, model=given if model is None else {**given, "model": model})

    def deps(self, deps: Any) -> Self:
        """What the tools find in `ToolContext.deps`: a value, or an async function of the session."""
        return self._with(deps=deps)

    def tools(self, *tools: Tool | ToolShape | Toolset) -> Self:
        """Further tools."""
        return self._with(tools=(*self._options.get("tools", ()), *tools))

    def memory(self, memory: MemoryLike) -> Self:
        return self._with(memory=memory)

    def memories(self, memories: LastingMemories, *, recall_before_answer: bool | int = False) -> Self:
        """What it remembers of owners beyond a session; see `Agent`."""
        return self._with(memories=memories, recall_before_answer=recall_before_answer)

    def database(self, database: Database) -> Self:
        """Tables of its own, for its tools."""
        return self._with(database=database)

    def limits(self, limits: Limits | None = None, **bounds: Any) -> Self:
        """The bounds of a turn; single ones change what was there."""
        start = limits or self._options.get("limits") or Limits()
        return self._with(limits=attrs.evolve(start, **bounds))

    def handler_timeout(self, seconds: float) -> Self:
        """Set how many seconds an async handler or hook may take."""
        return self._with(handler_timeout=seconds)

    def on_busy(self, rule: OnBusy) -> Self:
        """Set what a message does while its session works: queue, collect, interrupt or reject."""
        return self._with(on_busy=rule)

    def routes(self, routes: Mapping[str, Agent]) -> Self:
        """For the `router` protocol: who answers for which action."""
        return self._with(routes=routes)

    # --- hooks ---------------------------------------------------------------------------

    def on_session(self, fn: OnSession) -> Self:
        """See `Agent.on_session`."""
        return self._hooked(lambda agent: agent.on_session(fn))

    def on_query(self, fn: Handler) -> Self:
        """See `Agent.on_query`."""
        return self._hooked(lambda agent: agent.on_query(fn))

    def on_message(self, fn: Handler, *, priority: float | None = None) -> Self:
        """See `Agent.on_message`."""
        return self._hooked(lambda agent: agent.on_message(fn, priority=priority))

    def guard(self, fn: Handler, *, on: GuardedKind = "message") -> Self:
        """See `Agent.guard`."""
        return self._hooked(lambda agent: agent.guard(fn, on=on))

    # --- the end -------------------------------------------------------------------------

    def build(self, **options: Any) -> Agent:
        """The agent; `options` are further arguments of `Agent`, and go before what was said.

        Raises:
            ConfigurationError: one of the parts is wrong, or no model is named.
            MissingKey: the model needs a key, and there is none.
        """
        known = self._schemas.instructions
        arguments: dict[str, Any] = {"instructions": known, **self._options, **options}
        arguments["protocol"] = self._protocol(arguments)
        if "llm" not in options:
            arguments["llm"] = self.settings()
        if named := load_models(arguments["protocol"].roles):
            arguments["models"] = {**named, **(arguments.get("models") or {})}
        kind = RouterAgent if "routes" in arguments else KINDS.get(type(arguments["protocol"]), Agent)
        agent = kind(self.name, **arguments)
        for hook in self._hooks:
            hook(agent)
        return agent

    def _protocol(self, arguments: Mapping[str, Any]) -> Protocol:
        protocol: Protocol | None = arguments.get("protocol")
        if protocol is None:
            has_types = arguments["instructions"] or arguments.get("types")
            protocol = ReAct() if self._strategy else Simple() if has_types else Bare()
        if self._strategy is None:
            return protocol
        if not isinstance(protocol, ReAct):
            raise ConfigurationError(f"the protocol {protocol.name!r} has no strategy: only react has one")
        return ReAct(self._strategy)

    def settings(self) -> LLM | LLMSettings:
        """The model as it stands: from arguments, environment and folder.

        Raises:
            ConfigurationError: a variable or an argument is not what it has to be.
        """
        model = self._model.get("model")
        if model is None or isinstance(model, str):
            return load_settings(self._file, **self._model)
        return resolve_model(model)

    def _with(self, **options: Any) -> Self:
        return attrs.evolve(self, options={**self._options, **options})

    def _hooked(self, hook: Callable[[Agent], object]) -> Self:
        return attrs.evolve(self, hooks=(*self._hooks, hook))


def _named(known: Mapping[str, Callable[[], Any]], chosen: Any, what: str) -> Any:
    if not isinstance(chosen, str):
        return chosen
    if chosen not in known:
        raise ConfigurationError(f"unknown {what} {chosen!r}: choose one of {', '.join(known)}")
    return known[chosen]()
