"""Prompt layers: what one agent, one session or one call adds to the system prompt, or has instead of it."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from actgent.errors import ConfigurationError
from actgent.protocols.base import Profile
from actgent.protocols.prompts import render

Mode = Literal["append", "prepend", "replace"]
_MODES = ("append", "prepend", "replace")


@attrs.frozen
class PromptLayer:
    """Text round the system prompt, or instead of it.

    With `variables` the text is a jinja2 template over them and `profile`, written by the developer; what the
    variables hold is data and never read as a template. Without, the text stands as it is.
    """

    text: str
    """A template or plain text."""
    mode: Mode = attrs.field(default="append", validator=attrs.validators.in_(_MODES), kw_only=True)
    """Where it stands: behind the prompt, before it, or in its place."""
    variables: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)
    """Values of the template; None where the text is plain."""

    def render(self, profile: Profile) -> str:
        """The text with its variables filled in.

        Raises:
            ConfigurationError: the template is broken, or lacks a variable; the text names it and the line.
        """
        if self.variables is None:
            return self.text
        if "profile" in self.variables:
            raise ConfigurationError(
                "a prompt layer's variable cannot be called 'profile': that is the agent"
            )
        return render(self.text, profile, name="prompt layer", variables=self.variables)

    def apply(self, prompt: str, profile: Profile) -> str:
        """A prompt with this layer."""
        text = self.render(profile)
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
