"""`AgentBuilder` and `SchemaBuilder`: immutable builders of agents and classification types. Each method returns a new builder."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import attrs

from actgent.agents.steps import StepsAgent
from actgent.database.database import Database
from actgent.definitions.agent_folder import AgentFolder, read_folder
from actgent.definitions.tools_file_loading import load_tools
from actgent.errors import ConfigurationError, did_you_mean_or_list
from actgent.information_flow_labels import Policy
from actgent.limits_and_schedules.limits import Limits
from actgent.llm.custom_model_adapters import ModelLike
from actgent.llm.model_interface import LLM
from actgent.llm.model_resolution import resolve_model
from actgent.llm.model_settings import LLMSettings, load_models, load_settings
from actgent.memory.memory_interface import LongTermMemoryBase, MemoryLike
from actgent.memory.short_term_memory import ShortTermMemory
from actgent.messages import OnBusy
from actgent.protocols import PROTOCOLS, make_protocol
from actgent.protocols.bare_text_protocol import Bare
from actgent.protocols.direct_or_react_choice import AutoSwitching, KeywordStrategy, Strategy, UserPreference
from actgent.protocols.goal.goal_protocol import Goal
from actgent.protocols.plan import Planning
from actgent.protocols.prompt_layers import Prompt
from actgent.protocols.protocol_interface import ClassificationType, Instruction, Protocol, types_from
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.simple_protocol import Simple
from actgent.protocols.steps_protocol import Steps
from actgent.runtime.sessions.new_session import OnSession
from actgent.sessions.session_handlers import Handler
from actgent.support.common_mistake_hints import hints_for_builders
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.tool_adapters import ToolProtocol
from actgent.tools.tool_interface import Tool
from actgent.toolsets.toolset import Toolset
from actgent.turns.message_and_answer_guards import GuardedKind

from .agent import Agent
from .agent_constructor_validation import forms_of
from .builtin_agents import RouterAgent
from .goal import GoalAgent
from .plan_agent import PlanAgent

KINDS: Mapping[type[Protocol], type[Agent]] = {Steps: StepsAgent, Planning: PlanAgent, Goal: GoalAgent}
"""Agent class by protocol class; other protocols use `Agent`."""
STRATEGIES: Mapping[str, Callable[[], Strategy]] = {
    "keyword": KeywordStrategy,
    "auto": AutoSwitching,
    "preference": UserPreference,
}
"""Strategy classes by the names that `AgentBuilder.strategy` accepts."""
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
        "completion", "The task is done; say what came of it.", {"result": "<what came of it>"}
    ),
    ClassificationType(
        "error",
        "The task cannot be done; say why, and what would help.",
        {"reason": "<why it cannot be done>", "remedy": "<what would help>"},
    ),
)
"""Classification types that suit most agents: clarification, confirmation, completion, error."""


@lists_arguments
@attrs.frozen
class SchemaBuilder:
    """Builder of classification types from instructions. Without instructions, it builds the default types.

    Each instruction is an object, a name, or a dict with `name`, `description`, `schema` (or `schemaTemplate`) and `tool`.
    """

    instructions: Sequence[Instruction] = attrs.field(default=(), converter=forms_of)
    """Answer types (instructions) of the agent, in the order in which the model sees them."""

    def add(self, *instructions: Instruction | Mapping[str, Any] | str) -> Self:
        """Return a builder with additional instructions at the end."""
        return attrs.evolve(self, instructions=(*self.instructions, *instructions))

    def remove(self, *names: str) -> Self:
        """Return a builder without the instructions of these names.

        Raises:
            ConfigurationError: The builder has no instruction with one of the names.
        """
        known = [instruction.name for instruction in self.instructions]
        if unknown := [name for name in names if name not in known]:
            raise ConfigurationError(
                f"the builder has no instruction {unknown[0]!r} to remove: {did_you_mean_or_list(unknown[0], known) if known else 'it has no instructions at all'}"
            )
        return attrs.evolve(self, instructions=[i for i in self.instructions if i.name not in names])

    def build(self) -> tuple[ClassificationType, ...]:
        """Return the classification types, in the order of their instructions.

        Raises:
            ConfigurationError: A name is empty or used twice, or a schema is invalid.
        """
        return types_from(tuple(self.instructions)) if self.instructions else DEFAULT_TYPES


@hints_for_builders
@attrs.frozen
class AgentBuilder:
    """Builder of an agent.

    ```python
    agent = AgentBuilder("tutor").role("maths tutor").protocol("react").tools(add).llm("openai:gpt-5.2").build()
    ```
    """

    name: str
    """Name of the agent. After `from_folder`, it is the name in the folder's definition."""
    _options: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Arguments for `Agent` that methods of this builder have set, by name."""
    _schemas: SchemaBuilder = attrs.field(factory=SchemaBuilder, repr=False)
    """Builder with the instructions of the agent."""
    _file: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Model settings that were read from the agent's folder, by name."""
    _model: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """Model and model settings that were passed to the method `llm`, by name."""
    _strategy: Strategy | None = attrs.field(default=None, repr=False)
    _hooks: tuple[Callable[[Agent], object], ...] = attrs.field(default=(), repr=False)

    @classmethod
    def from_folder(
        cls, path: str | os.PathLike[str] | AgentFolder, *, tools: Iterable[Tool | Toolset] = ()
    ) -> Self:
        """Return a builder with the definition of a folder, given by its path or as the result of `read_folder`.

        The code of the folder's tools is executed. `tools` are added to them.

        Raises:
            InvalidFolder: The folder has errors; the text has a line for each.
            ConfigurationError: A variable in `mcp_config.json` is not set.
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
        if read.policy is not None:
            builder = builder.policy(read.policy)
        if read.strategy is not None:
            builder = builder.strategy(read.strategy)
        return builder if read.protocol is None else builder.protocol(read.protocol)

    # --- profile -----------------------------------------------------------------------

    def role(self, text: str) -> Self:
        """Set the role of the agent, used in the system prompt."""
        return self._set_options(role=text)

    def goal(self, text: str) -> Self:
        """Set the goal of the agent, used in the system prompt."""
        return self._set_options(goal=text)

    def capabilities(self, text: str) -> Self:
        """Set the abilities of the agent, used in the system prompt and for the search of agents by capability."""
        return self._set_options(capabilities=text)

    def body(self, text: str) -> Self:
        """Set additional text of the system prompt."""
        return self._set_options(body=text)

    def system_prompt(self, text: str) -> Self:
        """Set the whole system prompt. The protocol adds its form of answers after the text."""
        return self._set_options(system_prompt=text)

    def prompt(self, layer: Prompt) -> Self:
        """Set a layer that extends or replaces the system prompt."""
        return self._set_options(prompt=layer)

    def assistant_prompt(self, template: str) -> Self:
        """Set the template of an assistant message that each request contains after the system prompt."""
        return self._set_options(assistant_prompt=template)

    def user_prompt(self, template: str) -> Self:
        """Set the template of a message after the conversation, in each model call."""
        return self._set_options(user_prompt=template)

    # --- answers ------------------------------------------------------------------

    def instructions(self, *instructions: Instruction | Mapping[str, Any] | str) -> Self:
        """Add instructions (forms of answer), as objects, dicts or names."""
        return attrs.evolve(self, schemas=self._schemas.add(*instructions))

    def types(self, *types: ClassificationType | Mapping[str, Any]) -> Self:
        """Add classification types, as objects or dicts. `DEFAULT_TYPES` has common ones."""
        return self._set_options(types=(*self._options.get("types", ()), *types))

    def protocol(self, protocol: str | Protocol) -> Self:
        """Set the protocol: a name in `PROTOCOLS`, or a protocol object.

        The default is `simple` for an agent with instructions, and plain text for other agents.
        """
        known = {name: functools.partial(make_protocol, name) for name in PROTOCOLS}
        return self._set_options(protocol=_object_named(known, protocol, "protocol"))

    def strategy(self, strategy: str | Strategy) -> Self:
        """Set how `react` chooses its mode: `keyword`, `auto`, `preference`, or a custom strategy."""
        return attrs.evolve(self, strategy=_object_named(STRATEGIES, strategy, "strategy"))

    def output(self, output: Any) -> Self:
        """Set a type or JSON Schema for every final answer."""
        return self._set_options(output=output)

    # --- model, tools and limits ---------------------------------------------------------------------

    def llm(self, model: ModelLike | str | None = None, **settings: Any) -> Self:
        """Set the model of the agent.

        Args:
            model: Model or its name, such as `anthropic:claude-sonnet-5`; None leaves the model unchanged.
            **settings: Parameters of `load_settings`, such as `temperature`. They take precedence over environment variables and
                the settings file of an agent folder.
        """
        given = {**self._model, **settings}
        return attrs.evolve(self, model=given if model is None else {**given, "model": model})

    def deps(self, deps: Any) -> Self:
        """Set the `deps` of the agent: the value of `ToolContext.deps`, or an async function of the session that returns this value."""
        return self._set_options(deps=deps)

    def tools(self, *tools: Tool | ToolProtocol | Toolset) -> Self:
        """Add tools and toolsets to the tools that were added before. The model may call all of them."""
        return self._set_options(tools=(*self._options.get("tools", ()), *tools))

    def memory(self, memory: MemoryLike) -> Self:
        """Set the memory that selects the messages the model sees."""
        return self._set_options(memory=memory)

    def long_term_memory(
        self, memories: LongTermMemoryBase, *, recall_before_answer: bool | int = False
    ) -> Self:
        """Set the long-term memory, and add tools with which the model searches and changes it.

        Each owner has separate memories, which all sessions of the owner share.

        `recall_before_answer` also adds the memories that match the user's message to each model call. A number is their maximum
        size in tokens; True means 1,000 tokens.
        """
        return self._set_options(long_term_memory=memories, recall_before_answer=recall_before_answer)

    def database(self, database: Database) -> Self:
        """Set the database whose tables the tools of the agent use, as `ToolContext.database`."""
        return self._set_options(database=database)

    def limits(self, limits: Limits | None = None, **bounds: Any) -> Self:
        """Set the limits of a turn. `bounds` change single limits and keep the others."""
        start = limits or self._options.get("limits") or Limits()
        return self._set_options(limits=attrs.evolve(start, **bounds))

    def policy(self, policy: Policy | None) -> Self:
        """Set the checks of tool calls that depend on untrusted text. None checks nothing."""
        return self._set_options(policy=policy)

    def handler_timeout(self, seconds: float) -> Self:
        """Set the maximum seconds of an async handler or hook."""
        return self._set_options(handler_timeout=seconds)

    def on_busy(self, rule: OnBusy) -> Self:
        """Set the rule for messages to a busy session: `queue`, `collect`, `interrupt` or `reject`."""
        return self._set_options(on_busy=rule)

    def routes(self, routes: Mapping[str, Agent]) -> Self:
        """Set the agents that answer the actions of the `router` protocol."""
        return self._set_options(routes=routes)

    # --- hooks ---------------------------------------------------------------------------

    def on_session(self, fn: OnSession) -> Self:
        """Register a function that is called before the first message of each session, as `Agent.on_session` does."""
        return self._add_hook(lambda agent: agent.on_session(fn))

    def on_query(self, fn: Handler) -> Self:
        """Register a function that adds context to the model calls of a user's message, as `Agent.on_query` does."""
        return self._add_hook(lambda agent: agent.on_query(fn))

    def on_message(self, fn: Handler, *, priority: float | None = None) -> Self:
        """Register a function that is called with each message added to a history, as `Agent.on_message` does."""
        return self._add_hook(lambda agent: agent.on_message(fn, priority=priority))

    def guard(self, fn: Handler, *, on: GuardedKind = "message") -> Self:
        """Register a guard that checks messages, answers or inputs, as `Agent.guard` does."""
        return self._add_hook(lambda agent: agent.guard(fn, on=on))

    # --- building -------------------------------------------------------------------------

    def build(self, **options: Any) -> Agent:
        """Create the agent. `options` are further arguments of `Agent`, and override those of the builder.

        Raises:
            ConfigurationError: An argument is invalid, or no model is set.
            MissingKey: The model needs an API key, and no key is set.
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
            raise ConfigurationError(
                f"strategy() needs the protocol 'react', and the builder has the protocol {protocol.name!r}"
            )
        return ReAct(self._strategy)

    def settings(self) -> LLM | LLMSettings:
        """Return the model, or its settings from arguments, environment and folder.

        Raises:
            ConfigurationError: A variable or an argument is invalid.
        """
        model = self._model.get("model")
        if model is None or isinstance(model, str):
            return load_settings(self._file, **self._model)
        return resolve_model(model)

    def _set_options(self, **options: Any) -> Self:
        return attrs.evolve(self, options={**self._options, **options})

    def _add_hook(self, hook: Callable[[Agent], object]) -> Self:
        return attrs.evolve(self, hooks=(*self._hooks, hook))


def _object_named(makers: Mapping[str, Callable[[], Any]], chosen: Any, label: str) -> Any:
    """Return the object that the maker with the name `chosen` creates, or `chosen` if it is no name. `label` is for the error."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in makers:
        raise ConfigurationError(f"unknown {label} {chosen!r}: choose one of {', '.join(makers)}")
    return makers[chosen]()
