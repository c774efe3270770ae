"""The options of one run: the agent's own, but for what its caller gave."""

from collections.abc import Collection
from typing import Any, Self

import attrs

from actgent.agents.assembly import AgentDeps
from actgent.agents.session import Session, context_of
from actgent.agents.validation import check_call
from actgent.control.arguments import check_limits
from actgent.control.limits import Limits
from actgent.errors import ConfigurationError
from actgent.errors.printable import quoted
from actgent.protocols.base import Profile, Protocol
from actgent.protocols.prompt_layers import Prompt, PromptLayer, to_layer
from actgent.protocols.prompts import PromptManager
from actgent.sessions.waiting.turn_future import CallOptions
from actgent.sessions.waiting.turn_options import turn_options
from actgent.structured.output import output_of


@attrs.frozen(eq=False)
class RunDefaults:
    """What a run of an agent has where its caller says nothing else."""

    profile: Profile
    protocol: Protocol
    """Without a form of its answers that the agent declares."""
    prompts: PromptManager
    agent_deps: AgentDeps
    roles: Collection[str] = attrs.field(default=(), kw_only=True)
    """Of the agent's models."""
    options: CallOptions = attrs.field(kw_only=True)
    """Those of the agent."""

    @options.default
    def _plain(self) -> CallOptions:
        return CallOptions(protocol=self.protocol)

    def with_own(self, output: Any, *, temperature: float | None, max_tokens: int | None) -> Self:
        """Return the same with what the agent itself declares."""
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
    ) -> CallOptions:
        """Return the agent's own options, but for what is given.

        A layer that appends stands at the end of the conversation, so that the prompt before it stays as it is.

        Raises:
            ConfigurationError: one of these is wrong; the text names it.
        """
        base = self.options
        check_call(temperature=temperature, max_tokens=max_tokens)
        check_limits(limits)
        if model is not None and model not in self.roles:
            raise ConfigurationError(f"model={quoted(model)}: the agent has no such model, add it to models=")
        layer = None if prompt is None else to_layer(prompt)
        at_end = layer is not None and layer.mode == "append"
        # What is no session of ours is looked at where something is said to it.
        below = context_of(session).conversation.system if isinstance(session, Session) else None
        system = None
        if layer is not None and not at_end:
            system = layer.apply(self._standing(layer) if below is None else below, self.profile)
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
            deps=self.checked(deps),
            journal_form=turn_options(
                form,
                model=model,
                temperature=temperature,
                max_tokens=max_tokens,
                system=system,
                tail=tail,
                deps=deps is not None,
            ),
        )

    def layered(self, prompt: Prompt | None) -> str | None:
        """Return the system prompt of a session with a layer of its own; None without one."""
        if prompt is None:
            return None
        layer = to_layer(prompt)
        return layer.apply(self._standing(layer), self.profile)

    def _standing(self, layer: PromptLayer) -> str:
        """The system prompt that a layer is laid round.

        Raises:
            ConfigurationError: each session has one of its own, which changes.
        """
        if self.prompts.live is not None and layer.mode != "replace":
            raise ConfigurationError(
                "the agent's prompt says session, state or memory, so that it changes: nothing can be laid round it but by "
                'the agent itself; take PromptLayer(..., mode="replace")'
            )
        return self.prompts.system_prompt()

    def checked(self, deps: Any) -> Any:
        """Return the deps of one session or run.

        Raises:
            ConfigurationError: they are of another type than a tool takes.
        """
        if deps is not None:
            self.agent_deps.check(deps)
        return deps
