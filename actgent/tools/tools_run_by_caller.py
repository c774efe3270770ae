"""Tools of the caller of one turn: the model calls them, and the caller runs them and sends the results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import attrs

from actgent.errors import ApprovalRequired, ConfigurationError, ToolError
from actgent.messages import ToolCall, ToolSpec
from actgent.support.field_repr import FieldRepr

from .tool_interface import Tool, ToolContext
from .tool_option_checks import check_options
from .tool_registry import ToolRegistry

MAX_TOOLS = 128
"""Maximum number of tools of a caller in one turn."""
QUESTION = "the caller of the turn runs this tool and sends the result"
"""Question to the approver of a call of a caller's tool."""
_FIELDS = frozenset(("name", "description", "parameters"))
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

CallerTools = Iterable[ToolSpec | Mapping[str, Any]]
"""Tools of a caller: each a `ToolSpec`, or `{"name": ..., "description": ..., "parameters": JSON Schema}`."""


class AskCaller(ApprovalRequired):
    """Raised for a call of a tool of the caller: the turn is suspended until the caller sends the result."""

    def __init__(self) -> None:
        super().__init__(QUESTION)


class CallerTool(Tool):
    """A tool that the caller of a turn runs. A call suspends the turn until the caller has sent the result."""

    is_of_caller = True
    in_every_mode = True  # modes limit the access of the agent, and the agent does not run it

    def __init__(self, spec: ToolSpec) -> None:
        super().__init__(spec.name, spec.description)
        self.parameters = spec.parameters

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        raise ToolError(f"the caller runs {self.name!r}: it cannot be called here")


@attrs.frozen(repr=False)
class TurnTools(FieldRepr):
    """The tools of an agent, and those of the caller of one turn."""

    agent: ToolRegistry
    """Tools of the agent."""
    caller: Mapping[str, CallerTool]
    """Tools of the caller, by name."""

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, of the caller or of the agent. None if there is none."""
        return self.caller.get(name) or self.agent.get(name)

    def find(self, call: ToolCall) -> Tool:
        """Return the tool that a call runs, of the caller or of the agent. Raises as `ToolRegistry.find`."""
        return self.caller.get(call.name) or self.agent.find(call)


def with_caller_tools(registry: ToolRegistry, specs: Sequence[ToolSpec]) -> TurnTools:
    """Combine the tools of an agent with tools of a caller. `check_caller_tools` has validated them."""
    return TurnTools(registry, {spec.name: CallerTool(spec) for spec in specs})


def check_caller_tools(given: CallerTools | None, registry: ToolRegistry) -> tuple[ToolSpec, ...]:
    """Validate the tools that a caller offers for one turn, and return them.

    None gives no tools.

    Raises:
        ConfigurationError: A tool is invalid, two have the same name, the agent has a tool of this name, or there are more than
            `MAX_TOOLS`.
    """
    if given is None:
        return ()
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"tools= is a list of tools, not {given!r:.100}")
    specs = tuple(to_spec(each) for each in given)
    if len(specs) > MAX_TOOLS:
        raise ConfigurationError(f"tools= has {len(specs)} tools, more than {MAX_TOOLS}")
    names: set[str] = set()
    for spec in specs:
        check_options(CallerTool(spec))
        if spec.name in registry:
            raise ConfigurationError(
                f"tools=: the agent has a tool {spec.name!r} itself: give the tool of the caller another name"
            )
        if spec.name in names:
            raise ConfigurationError(f"tools=: two tools have the name {spec.name!r}")
        names.add(spec.name)
    return specs


def to_spec(given: object) -> ToolSpec:
    """Convert one tool of a caller to a specification.

    Raises:
        ConfigurationError: It is neither a `ToolSpec` nor a mapping of its fields.
    """
    if isinstance(given, ToolSpec):
        return given
    if not isinstance(given, Mapping) or "name" not in given or not given.keys() <= _FIELDS:
        raise ConfigurationError(
            f"a tool of tools= is a ToolSpec or {{'name', 'description', 'parameters'}}, not {given!r:.100}"
        )
    parameters = given.get("parameters") or _NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise ConfigurationError(f"the parameters of a tool are a JSON Schema, not {parameters!r:.100}")
    name, description = given["name"], given.get("description") or ""
    if not isinstance(name, str) or not isinstance(description, str):
        raise ConfigurationError("the name and the description of a tool of tools= are texts")
    return ToolSpec(name, description, cast("Mapping[str, Any]", parameters))
