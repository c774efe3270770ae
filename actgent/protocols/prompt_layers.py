"""Prompt layers: text that an agent, a session or a call adds to the system prompt or replaces it with."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.protocols.prompt_rendering import EMPTY_SESSION_FACTS, PromptManager, render, session_names_in
from actgent.protocols.protocol_interface import Profile
from actgent.support.attrs_class_repr import FieldRepr

Mode = Literal["append", "prepend", "replace"]
_MODES = ("append", "prepend", "replace")


@attrs.frozen(repr=False)
class PromptLayer(FieldRepr):
    """Text that is added before or after the system prompt, or replaces it.

    With `variables` the text is a jinja2 template over them and `profile`. The values of variables are data
    and never parsed as templates. Without `variables` the text is used unchanged.

    A template in an agent's `prompt=` may also use `session` (`id`, `owner`, `description`), `state` and
    `memory`. Then each session has its own system prompt, rendered again when its state or memory changes.
    Use `user_prompt=` for values that change often: it is at the end of the prompt.
    """

    text: str
    """The text of the layer: a jinja2 template if `variables` is set, otherwise plain text."""
    mode: Mode = attrs.field(default="append", validator=attrs.validators.in_(_MODES), kw_only=True)
    """Position of the text: after the prompt (`append`), before it (`prepend`), or instead of it (`replace`)."""
    variables: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """Values of the template's variables; None means that the text is plain."""

    @property
    def is_live(self) -> bool:
        """True if the text must be rendered for each session, because it uses `session`, `state` or `memory`."""
        if self.variables is None:
            return False
        return bool(session_names_in(self.text) - self.variables.keys())

    def render(self, profile: Profile, facts: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return the layer's text with its variables and the facts of a session filled in.

        Raises:
            ConfigurationError: The template is invalid or a variable is missing; the text names it and the
                line.
        """
        if self.variables is None:
            return self.text
        if "profile" in self.variables:
            raise ConfigurationError(
                "a prompt layer's variable cannot be named 'profile': that name is the agent's profile"
            )
        return render(self.text, profile, name="prompt layer", variables={**facts, **self.variables})

    def apply(self, prompt: str, profile: Profile, facts: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return a prompt with the text of this layer after it, before it, or in place of it, as `mode` says."""
        text = self.render(profile, facts)
        match self.mode:
            case "append":
                return _join_texts(prompt, text)
            case "prepend":
                return _join_texts(text, prompt)
            case _:
                return text


Prompt = PromptLayer | str
"""A layer; plain text is appended."""


def to_layer(prompt: Prompt) -> PromptLayer:
    """Convert the value of a prompt argument to a prompt layer.

    Raises:
        ConfigurationError: The argument is neither text nor a `PromptLayer`.
    """
    if isinstance(prompt, PromptLayer):
        return prompt
    if not isinstance(prompt, str):
        raise ConfigurationError(f"prompt= must be a string or a PromptLayer(...), not {prompt!r:.200}")
    return PromptLayer(prompt)


def _join_texts(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text)


@attrs.frozen(repr=False)
class SystemPrompt(FieldRepr):
    """The system prompt of an agent, assembled from its parts."""

    prompts: PromptManager
    """Prompt manager, which renders the protocol's template."""
    replacement: str | None = attrs.field(kw_only=True)
    """The developer's text in place of the template's description of the agent; the answer format is kept.

    None keeps the template's description.
    """
    mode_text: str = attrs.field(kw_only=True)
    """Description of the agent's modes; empty without modes."""
    layer: PromptLayer | None = attrs.field(kw_only=True)
    """Prompt layer that is added to the prompt or replaces it; None for no layer."""

    @property
    def is_live(self) -> bool:
        """True if the prompt depends on the session, so that each session has a separate system prompt."""
        prompts = self.prompts
        template = prompts.template.template if self.replacement is None else prompts.form_template
        return bool(session_names_in(template)) or (self.layer is not None and self.layer.is_live)

    def first(self) -> str:
        """Return the system prompt of a new session without state and memory.

        If the prompt does not depend on the session, it is the prompt of all sessions.
        """
        return self.render(EMPTY_SESSION_FACTS if self.is_live else {})

    def render(self, facts: Mapping[str, Any]) -> str:
        """Return the system prompt with the facts of a session filled in.

        Raises:
            ConfigurationError: A template is invalid; the text names it and the line.
        """
        prompts = self.prompts
        whole = (
            prompts.render_template(facts)
            if self.replacement is None
            else prompts.with_form(self.replacement, facts)
        )
        whole = _join_texts(whole, self.mode_text)
        return whole if self.layer is None else self.layer.apply(whole, self.prompts.profile, facts)
