"""Prompts from templates: what a developer wrote, filled with the profile of an agent."""

import functools
import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import attrs
from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from actgent.errors import ConfigurationError

from .base import Profile, Protocol

_FILE_NAME = "<template>"  # what jinja2 calls a template that comes from a string
_MISTAKES = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja2 with nothing but what templates need: values come from users, and are never templates."""
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False, cache_size=0
    )
    environment.globals.clear()  # lipsum, range, cycler ...: ways to print without end
    environment.filters["json"] = _json
    return environment


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)


_ENVIRONMENT = _environment()


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> Template:
    return _ENVIRONMENT.from_string(template)


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
    try:
        return _compiled(template).render(variables, profile=profile).strip()
    except _MISTAKES as error:
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
