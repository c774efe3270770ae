"""`Mode` and the four built-in modes."""

import re
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import attrs

from actgent.errors import ConfigurationError
from actgent.messages import ToolCall
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.callable_kinds import check_rule_function
from actgent.tools.tool_interface import Tool, ToolContext

Actor = Literal["user", "agent", "admin"]
"""Actor that switches the mode: the user of the session, the model (`agent`), or the operator (`admin`)."""
ModeRule = Callable[[ToolCall, Tool, ToolContext], bool]
"""Sync function without side effects that returns True if a mode allows a tool call."""

DEFAULT_MESSAGE = "The mode has changed from {{previous}} to {{mode}}."
_ACTORS: tuple[Actor, ...] = get_args(Actor)
_NAME = re.compile(r"[\w-]{1,64}")
_HUMANS: tuple[Actor, ...] = ("user", "admin")


def all_tools(_call: ToolCall, _tool: Tool, _context: ToolContext) -> bool:
    """Return True: the rule of a mode that allows every tool call, such as the integration mode."""
    return True


def _to_rule(tools: ModeRule | Iterable[Tool | str]) -> ModeRule | tuple[Tool | str, ...]:
    if callable(tools) and not isinstance(tools, Tool):
        check_rule_function("the rule of a mode", tools, takes="(call, tool, context)")
        return tools
    return to_tools(tools)


def to_tools(value: Iterable[Tool | str]) -> tuple[Tool | str, ...]:
    """Convert the argument `tools=` of a mode, a list of tools or tool names, to a tuple.

    Raises:
        ConfigurationError: The value is not a list of tools or names.
    """
    if isinstance(value, str | Tool):
        raise ConfigurationError(f"tools= of a mode must be a list of tools or names, not {value!r}")
    if not isinstance(value, Iterable):
        raise ConfigurationError(f"tools= of a mode must be a list of tools or names, not {value!r:.200}")
    tools = tuple(value)
    for tool in tools:
        if not isinstance(tool, str | Tool):
            raise ConfigurationError(f"tools= of a mode must contain tools or their names, not {tool!r:.200}")
    return tools


def _check_name(_: object, __: object, name: str) -> None:
    if not _NAME.fullmatch(str(name)):
        raise ConfigurationError(
            f"a mode's name must consist of 1 to 64 letters, digits, _ and -, not {name!r}"
        )


def to_actors(value: Iterable[str]) -> frozenset[Actor]:
    """Convert the argument `who=` of a mode, a list of `user`, `agent` and `admin`, to a set.

    Raises:
        ConfigurationError: The value is not such a list.
    """
    if not isinstance(value, Iterable):
        raise ConfigurationError(f"who= must be a list of user, agent and admin, not {value!r:.200}")
    names = [value] if isinstance(value, str) else list(value)
    actors = frozenset(actor for actor in _ACTORS if actor in names)
    if unknown := [name for name in names if name not in actors]:
        raise ConfigurationError(f"who= may contain only user, agent and admin, not {unknown[0]!r}")
    return actors


@lists_arguments
@attrs.frozen(repr=False)
class Mode(FieldRepr):
    """One mode: its tools in addition to the universal tools, its texts, and the actors that may switch to it.

    Raises:
        ConfigurationError: An argument is invalid; the text names the argument.
    """

    name: str = attrs.field(validator=_check_name)
    """Name of the mode; unique among an agent's modes."""
    tools: ModeRule | tuple[Tool | str, ...] = attrs.field(default=(), converter=_to_rule)
    """Tools or tool names that the mode allows, or a function that decides each call."""
    message: str = attrs.field(default=DEFAULT_MESSAGE, kw_only=True)
    """Text that the model reads after a switch to this mode. It may contain `{{mode}}`, `{{previous}}`, `{{by}}`, `{{reason}}`."""
    prompt: str = attrs.field(default="", kw_only=True)
    """Description of the mode in the system prompt, which lists all modes; empty adds no description."""
    who: frozenset[Actor] = attrs.field(default=_HUMANS, converter=to_actors, kw_only=True)
    """Actors that may switch a session to this mode."""


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
    """Return the names of tools, each of which is a tool object or a name."""
    return frozenset(tool if isinstance(tool, str) else tool.name for tool in tools)
