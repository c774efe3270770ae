"""Prompt layers: what one agent, one session or one call adds to the system prompt, or has instead of it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.protocols.base import Profile
from actgent.protocols.prompts import NOTHING_YET, PromptManager, names_of_sessions, render

Mode = Literal["append", "prepend", "replace"]
_MODES = ("append", "prepend", "replace")


@attrs.frozen
class PromptLayer:
    """Text round the system prompt, or instead of it.

    With `variables` the text is a jinja2 template over them and `profile`, written by the developer; what the
    variables hold is data and never read as a template. Without, the text stands as it is. A template of an agent's `prompt=` may
    also say `session` (`id`, `owner`, `description`), `state` and `memory`: then each session has a prompt of its own, rendered
    again when its state or its memory changes. What changes often is better said by `user_prompt=`, at the end.
    """

    text: str
    """A template or plain text."""
    mode: Mode = attrs.field(default="append", validator=attrs.validators.in_(_MODES), kw_only=True)
    """Where it stands: behind the prompt, before it, or in its place."""
    variables: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """Values of the template; None where the text is plain."""

    @property
    def is_live(self) -> bool:
        """True for a template that says `session`, `state` or `memory`: it is rendered for each session."""
        if self.variables is None:
            return False
        return bool(names_of_sessions(self.text) - self.variables.keys())

    def render(self, profile: Profile, facts: Mapping[str, Any] = MappingProxyType({})) -> str:
        """The text with its variables filled in, and with the facts of a session.

        Raises:
            ConfigurationError: the template is broken, or lacks a variable; the text names it and the line.
        """
        if self.variables is None:
            return self.text
        if "profile" in self.variables:
            raise ConfigurationError(
                "a prompt layer's variable cannot be called 'profile': that is the agent"
            )
        return render(self.text, profile, name="prompt layer", variables={**facts, **self.variables})

    def apply(self, prompt: str, profile: Profile, facts: Mapping[str, Any] = MappingProxyType({})) -> str:
        """A prompt with this layer."""
        text = self.render(profile, facts)
        match self.mode:
            case "append":
                return _joined(prompt, text)
            case "prepend":
                return _joined(text, prompt)
            case _:
                return text


Prompt = PromptLayer | str
"""A text alone is appended as it is."""


def to_layer(prompt: Prompt) -> PromptLayer:
    """The layer that a prompt stands for.

    Raises:
        ConfigurationError: it stands for none.
    """
    if isinstance(prompt, PromptLayer):
        return prompt
    if not isinstance(prompt, str):
        raise ConfigurationError(f"prompt= takes a text or a PromptLayer(...), not {prompt!r:.200}")
    return PromptLayer(prompt)


def _joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


@attrs.frozen
class SystemPrompt:
    """The system prompt of an agent, put together from what it is made of."""

    prompts: PromptManager
    """Renders the protocol's template."""
    written: str | None = attrs.field(kw_only=True)
    """The developer's text in place of what the template says of the agent; the form of answers stays."""
    of_modes: str = attrs.field(kw_only=True)
    """What it says of the agent's modes; empty where there are none."""
    layer: PromptLayer | None = attrs.field(kw_only=True)
    """What is laid round it, or said instead of it."""

    @property
    def is_live(self) -> bool:
        """True if it says something of sessions, each of which has one of its own then."""
        prompts = self.prompts
        template = prompts.template.template if self.written is None else prompts.form_template
        return bool(names_of_sessions(template)) or (self.layer is not None and self.layer.is_live)

    def first(self) -> str:
        """How it begins, before anything is known of a session; where it is not live, all of it."""
        return self.render(NOTHING_YET if self.is_live else {})

    def render(self, facts: Mapping[str, Any]) -> str:
        """The prompt over the facts of a session.

        Raises:
            ConfigurationError: a template is broken; the text names it and the line.
        """
        prompts = self.prompts
        whole = (
            prompts.rendered_for(facts) if self.written is None else prompts.with_form(self.written, facts)
        )
        whole = _joined(whole, self.of_modes)
        return whole if self.layer is None else self.layer.apply(whole, self.prompts.profile, facts)
