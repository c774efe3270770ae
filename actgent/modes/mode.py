"""`Mode` and the four built-in modes."""

import re
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import ToolCall
from actgent.tools.base import Tool, ToolContext
from actgent.tools.generators import check_rule_function

Actor = Literal["user", "agent", "admin"]
"""Who switches: someone who talks to the agent, the model itself, or whoever runs it."""
ModeRule = Callable[[ToolCall, Tool, ToolContext], bool]
"""True if a mode allows a call; sync and pure."""

DEFAULT_MESSAGE = "The mode has changed from {{previous}} to {{mode}}."
_ACTORS: tuple[Actor, ...] = get_args(Actor)
_NAME = re.compile(r"[\w-]{1,64}")
_PEOPLE: tuple[Actor, ...] = ("user", "admin")


def all_tools(_call: ToolCall, _tool: Tool, _told: ToolContext) -> bool:
    """The rule of a mode that allows every tool."""
    return True


def _to_rule(given: ModeRule | Iterable[Tool | str]) -> ModeRule | tuple[Tool | str, ...]:
    if callable(given) and not isinstance(given, Tool):
        check_rule_function("the rule of a mode", given, takes="(call, tool, context)")
        return given
    return to_tools(given)


def to_tools(given: Iterable[Tool | str]) -> tuple[Tool | str, ...]:
    """A list of tools or names.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(given, str | Tool):
        raise ConfigurationError(f"tools of a mode are a list of tools or names, not {given!r}")
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"tools of a mode are a list of tools or names, not {given!r:.200}")
    tools = tuple(given)
    for tool in tools:
        if not isinstance(tool, str | Tool):
            raise ConfigurationError(f"tools of a mode are tools or their names, not {tool!r:.200}")
    return tools


def _check_name(_: object, __: object, name: str) -> None:
    if not _NAME.fullmatch(str(name)):
        raise ConfigurationError(f"a mode's name is 1 to 64 letters, digits, _ and -, not {name!r}")


def to_actors(given: Iterable[str]) -> frozenset[Actor]:
    """Convert the actors that may do something.

    Raises:
        ConfigurationError: someone is not known.
    """
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"who may switch is a list of user, agent and admin, not {given!r:.200}")
    names = [given] if isinstance(given, str) else list(given)
    actors = frozenset(actor for actor in _ACTORS if actor in names)
    if unknown := [name for name in names if name not in actors]:
        raise ConfigurationError(f"who may switch is user, agent or admin, not {unknown[0]!r}")
    return actors


@attrs.frozen
class Mode:
    """A mode: its tools beside the universal ones, what is said of it, and who may switch to it.

    Raises:
        ConfigurationError: one of these is wrong; the text names it.
    """

    name: str = attrs.field(validator=_check_name)
    """Unique among an agent's modes."""
    tools: ModeRule | tuple[Tool | str, ...] = attrs.field(default=(), converter=_to_rule)
    """Tools or their names, or a rule of your own."""
    message: str = attrs.field(default=DEFAULT_MESSAGE, kw_only=True)
    """What the conversation is told when it begins: `{{mode}}`, `{{previous}}`, `{{by}}` and `{{reason}}` are filled in."""
    prompt: str = attrs.field(default="", kw_only=True)
    """What the system prompt says of it, at all times."""
    who: frozenset[Actor] = attrs.field(default=_PEOPLE, converter=to_actors, kw_only=True)
    """Who may switch to it."""


ONBOARDING = Mode(
    "onboarding",
    message="The mode is now {{mode}} (before: {{previous}}). Find out what is missing in the settings, ask for it, "
    "save it, and complete the onboarding.",
    prompt="configure the agent together with the user, before it works.",
)
INTEGRATION = Mode(
    "integration",
    all_tools,
    message="The mode is now {{mode}} (before: {{previous}}). Every tool may be called, to test and document it.",
    prompt="an administrator tests and documents the tools. Every tool may be called.",
)
PLAN = Mode(
    "plan",
    message="The mode is now {{mode}} (before: {{previous}}). Think, look things up and plan; nothing is carried out.",
    prompt="analyse the task and plan the steps; nothing is carried out.",
    who=("user", "agent", "admin"),
)
ACT = Mode(
    "act",
    message="The mode is now {{mode}} (before: {{previous}}). Carry out what was planned.",
    prompt="carry out the steps, with effects outside.",
)


def names_of(tools: Iterable[Tool | str]) -> frozenset[str]:
    """The names of tools that may be names already."""
    return frozenset(tool if isinstance(tool, str) else tool.name for tool in tools)
