"""Tools of the caller of one turn: the model calls them, and the caller runs them and sends the results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import attrs

from actgent.errors import ApprovalRequired, ConfigurationError, ToolError
from actgent.messages import ToolCall, ToolSpec
from actgent.support.attrs_class_repr import FieldRepr

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
    """Exception that suspends the turn at a call of a caller's tool, until the caller sends the result."""

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
        raise ToolError(f"the caller of the turn runs the tool {self.name!r}, so it cannot be called here")


@attrs.frozen(repr=False)
class TurnTools(FieldRepr):
    """Tool lookup of one turn: the tools of the agent, and those of the caller of the turn."""

    agent: ToolRegistry
    """Tools of the agent."""
    caller: Mapping[str, CallerTool]
    """Tools that the client passed with the message of this turn, by name. The client runs them itself and sends the results.
    """

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, from the caller or from the agent; None if there is no such tool."""
        return self.caller.get(name) or self.agent.get(name)

    def find(self, call: ToolCall) -> Tool:
        """Return the tool that a call runs, of the caller or of the agent. Raises as `ToolRegistry.find`."""
        return self.caller.get(call.name) or self.agent.find(call)


def with_caller_tools(registry: ToolRegistry, specs: Sequence[ToolSpec]) -> TurnTools:
    """Combine the tools of an agent with the tools of a caller, whose specifications `check_caller_tools` has validated."""
    return TurnTools(registry, {spec.name: CallerTool(spec) for spec in specs})


def check_caller_tools(item: CallerTools | None, registry: ToolRegistry) -> tuple[ToolSpec, ...]:
    """Validate the tools that a caller offers for one turn, and return their specifications. None means no tools.

    Raises:
        ConfigurationError: A tool is invalid, two have the same name, the agent has a tool of this name, or there are more than
            `MAX_TOOLS`.
    """
    if item is None:
        return ()
    if isinstance(item, str | bytes | Mapping) or not isinstance(item, Iterable):
        raise ConfigurationError(f"tools= must be a list of tools, not {item!r:.100}")
    specs = tuple(to_spec(each) for each in item)
    if len(specs) > MAX_TOOLS:
        raise ConfigurationError(f"tools= must have at most {MAX_TOOLS} tools, not {len(specs)}")
    names: set[str] = set()
    for spec in specs:
        check_options(CallerTool(spec))
        if spec.name in registry:
            raise ConfigurationError(
                f"tools=: the agent already has a tool {spec.name!r}: give the caller's tool another name"
            )
        if spec.name in names:
            raise ConfigurationError(f"tools=: two tools have the name {spec.name!r}: rename one")
        names.add(spec.name)
    return specs


def to_spec(item: object) -> ToolSpec:
    """Convert one item of a caller's `tools=` to a tool specification.

    Raises:
        ConfigurationError: The item is neither a `ToolSpec` nor a mapping of its fields.
    """
    if isinstance(item, ToolSpec):
        return item
    if not isinstance(item, Mapping) or "name" not in item or not item.keys() <= _FIELDS:
        raise ConfigurationError(
            f"an item of tools= must be a ToolSpec or {{'name', 'description', 'parameters'}}, not {item!r:.100}"
        )
    parameters = item.get("parameters") or _NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise ConfigurationError(
            f"the parameters of a tool in tools= must be a JSON Schema, not {parameters!r:.100}"
        )
    name, description = item["name"], item.get("description") or ""
    if not isinstance(name, str) or not isinstance(description, str):
        raise ConfigurationError("the name and the description of a tool in tools= must be strings")
    return ToolSpec(name, description, cast("Mapping[str, Any]", parameters))
