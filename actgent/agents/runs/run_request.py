"""`RunRequest`: the message and arguments of one run. `RunDefaults`: the options that apply to all runs of an agent."""

from collections.abc import Collection, Mapping
from typing import Any, Self

import attrs

from actgent.agents.agent_construction import AgentDeps
from actgent.agents.agent_constructor_validation import check_call
from actgent.agents.session import Session, context_of
from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import quoted
from actgent.limits_and_schedules.id_and_number_validation import check_id, check_limits, check_seconds
from actgent.limits_and_schedules.limits import Limits
from actgent.messages import Content, Priority, Sender, ToolSpec
from actgent.protocols.prompt_layers import Prompt, PromptLayer, to_layer
from actgent.protocols.prompt_rendering import PromptManager
from actgent.protocols.protocol_interface import Profile, Protocol
from actgent.sessions.pending.turn_future import CallOptions
from actgent.sessions.pending.turn_options import turn_options
from actgent.structured_output.output_type import output_of
from actgent.support.attrs_class_repr import FieldRepr


def _parse_priority(priority: Priority | str) -> Priority:
    return Priority.named(priority)


@attrs.frozen(repr=False)
class RunRequest(FieldRepr):
    """Message and arguments of one call of `run` or `stream`.

    Raises:
        ConfigurationError: The priority or the timeout is invalid, or `message_id` is passed without a session.
    """

    content: Content
    """Text or list of parts of the message to send."""
    session: Session | None = None
    """Session to which the message is sent; None creates a new session."""
    sender: Sender | str | None = None
    """Sender of the message; None is the owner of the session."""
    priority: Priority = attrs.field(default=Priority.NORMAL, converter=_parse_priority)
    """Priority of the message in the inbox."""
    message_id: str | None = None
    """Id of the message; None creates a random id."""
    timeout: float | None = None
    """Maximum seconds until the answer; None is no limit."""
    metadata: Mapping[str, Any] | None = None
    """Metadata of the message for programs; None sends none."""

    def __attrs_post_init__(self) -> None:
        check_id("message_id", self.message_id)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        if self.message_id is not None and self.session is None:
            raise ConfigurationError(
                "message_id= needs session=: a new session has no earlier message that it could repeat"
            )


@attrs.frozen(eq=False, repr=False)
class RunDefaults(FieldRepr):
    """Options of an agent that apply to each run unless the caller passes others."""

    profile: Profile
    """Profile of the agent."""
    protocol: Protocol
    """Protocol of the agent without the instructions for the agent's output type."""
    prompts: PromptManager
    """Prompts of the agent, rendered for each session."""
    agent_deps: AgentDeps
    """Deps of the agent's tools, with their type check."""
    roles: Collection[str] = attrs.field(default=(), kw_only=True)
    """Roles of the agent's models, which `model=` of a run may name."""
    options: CallOptions = attrs.field(kw_only=True)
    """Options of model calls that the agent sets."""

    @options.default
    def _plain(self) -> CallOptions:
        return CallOptions(protocol=self.protocol)

    def with_agent_options(self, output: Any, *, temperature: float | None, max_tokens: int | None) -> Self:
        """Return a copy of these defaults with the agent's output type, temperature and token limit. None changes nothing."""
        if output is None and temperature is None and max_tokens is None:
            return self
        own = self.options_for(output, temperature=temperature, max_tokens=max_tokens)
        return attrs.evolve(self, options=own)

    def options_for(
        self,
        output: Any,
        *,
        model: str | None = None,
        temperature: float | None,
        max_tokens: int | None,
        prompt: Prompt | None = None,
        session: Session | None = None,
        limits: Limits | None = None,
        deps: Any = None,
        tools: tuple[ToolSpec, ...] = (),
    ) -> CallOptions:
        """Return the call options of one run: the arguments that are not None, and the agent's options for all others.

        A prompt layer with the mode `append` is added at the end of the conversation, so that the cached prompt of the provider
        stays valid.

        Raises:
            ConfigurationError: An argument is invalid; the text names it.
        """
        base = self.options
        check_call(temperature=temperature, max_tokens=max_tokens)
        check_limits(limits)
        if model is not None and model not in self.roles:
            raise ConfigurationError(
                f"model={quoted(model)}: the agent has no model of this role, add it to models="
            )
        layer = None if prompt is None else to_layer(prompt)
        at_end = layer is not None and layer.mode == "append"
        # Another kind of session is rejected when the message is sent.
        current = context_of(session).conversation.system if isinstance(session, Session) else None
        system = None
        if layer is not None and not at_end:
            system = layer.apply(self._base_prompt(layer) if current is None else current, self.profile)
        tail = layer.render(self.profile) if layer is not None and at_end else ""
        form = None if output is None else output_of(output)
        return CallOptions(
            protocol=base.protocol if form is None else self.protocol.with_output(form),
            model=model,
            temperature=base.temperature if temperature is None else temperature,
            max_tokens=base.max_tokens if max_tokens is None else max_tokens,
            system=system,
            tail=tail,
            limits=limits,
            deps=self.check_deps(deps),
            tools=tools,
            journal_form=turn_options(
                form,
                model=model,
                temperature=temperature,
                max_tokens=max_tokens,
                system=system,
                tail=tail,
                deps=deps is not None,
                tools=tools,
            ),
        )

    def session_prompt(self, prompt: Prompt) -> str:
        """Return the agent's system prompt with the prompt layer of one session applied."""
        layer = to_layer(prompt)
        return layer.apply(self._base_prompt(layer), self.profile)

    def _base_prompt(self, layer: PromptLayer) -> str:
        """Return the agent's system prompt, to which the caller applies the prompt layer `layer`.

        Raises:
            ConfigurationError: The prompt is rendered for each session, so only a layer with the mode `replace` is possible.
        """
        if self.prompts.live is not None and layer.mode != "replace":
            raise ConfigurationError(
                "the agent's prompt uses session, state or memory, so a layer cannot extend it: "
                'pass PromptLayer(..., mode="replace")'
            )
        return self.prompts.system_prompt()

    def check_deps(self, deps: Any) -> Any:
        """Return the deps unchanged, after a check against the types that the tools declare. None is accepted.

        Raises:
            ConfigurationError: The deps do not fit the type that a tool declares.
        """
        if deps is not None:
            self.agent_deps.check(deps)
        return deps
