"""Prompts from templates: what a developer wrote, filled with the profile of an agent."""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import attrs

from actgent.errors import ConfigurationError

from .base import Profile, Protocol

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_FILE_NAME = "<template>"  # what jinja2 calls a template that comes from a string
_MISTAKES = (
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)

# The parts that the system prompts of several protocols share.
WHO = """\
You are {{ profile.name }}{% if profile.role %}, {{ profile.role }}{% endif %}.
{% if profile.goal %}
Your goal: {{ profile.goal }}
{% endif %}
{% if profile.capabilities %}
What you can do: {{ profile.capabilities }}
{% endif %}
{% if profile.body %}

{{ profile.body }}
{% endif %}
"""

TYPES = """\
{% for type in profile.types %}
- {{ type.name }}{% if type.description %}: {{ type.description }}{% endif %}

{% if type.schema %}
{{ type.schema | json }}
{% endif %}
{% endfor %}
"""
"""Each classification type with its form; `"<...>"` in a form stands for a value."""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)


@functools.cache
def _from_string() -> Callable[[str], Any]:
    """Jinja2 with nothing but what templates need: values come from users, and are never templates."""
    from jinja2 import StrictUndefined  # noqa: PLC0415 - with the first prompt: whoever reads answers needs none
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False, cache_size=0
    )
    environment.globals.clear()  # lipsum, range, cycler ...: ways to print without end
    environment.filters["json"] = _json
    return environment.from_string


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> Callable[..., str]:
    rendering: Callable[..., str] = _from_string()(template).render
    return rendering


@attrs.frozen
class PromptManager:
    """Renders the system prompt of one agent. The same protocol and profile give the same bytes."""

    protocol: Protocol
    profile: Profile

    def system_prompt(self) -> str:
        """The protocol's template over the profile: `{{ profile.role }}`, `goal`, `capabilities`, `types` ...

        What a profile says is inserted as it is and never read as a template.

        Raises:
            ConfigurationError: the template is broken; the text names it and the line.
        """
        return render(self.protocol.template, self.profile, name=self.protocol.name)


def render(
    template: str, profile: Profile, *, name: str, variables: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """A template over a profile and variables, without blank lines at its ends; `name` is what errors call it.

    Raises:
        ConfigurationError: the template is broken; the text names it and the line.
    """
    from jinja2 import TemplateError, TemplateSyntaxError  # noqa: PLC0415

    try:
        return _compiled(template)(variables, profile=profile).strip()
    except (TemplateError, *_MISTAKES) as error:
        line = error.lineno if isinstance(error, TemplateSyntaxError) else _line(error.__traceback__)
        raise ConfigurationError(f"template {name!r}, line {line}: {error}") from error


def _line(traceback: TracebackType | None) -> int:
    """The line of a template that an error came from; 0 if none is known."""
    return max((step.tb_lineno for step in _steps(traceback) if _is_template(step)), default=0)


def _steps(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_template(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_filename == _FILE_NAME


def fill_template(template: str, values: Mapping[str, object]) -> str:
    """A short text with its `{{name}}` replaced by their values, which are never read as a template.

    Placeholders without a value stay as they are.
    """
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), template)
