"""`ToolRegistry`: the tools of an agent in registration order, followed by the tools of its toolsets."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import orjson
import trio

from actgent.errors import ConfigurationError, DuplicateTool, ToolNotFound, ToolsetUnavailable
from actgent.errors.text_escaping import shown
from actgent.messages import ToolCall, ToolSpec
from actgent.support.safe_logging import logger_of

from .outputs.result_text import replace_control_characters
from .outputs.untrusted_result_delimiters import replace_special_tokens
from .tool_adapters import AdaptedTool, ToolProtocol, is_tool_like
from .tool_interface import Tool, WrappedTool
from .tool_option_checks import check_options

CALL_TOOL = "call_tool"
"""Name of the tool by which a model calls a deferred tool."""
FIND_TOOLS = "find_tools"
"""Name of the tool by which a model searches deferred tools. It has no side effect and is allowed in every mode."""
READ_RESULT = "read_result"
"""Name of the tool by which a model reads a stored oversized result."""
HELPER_TOOLS = frozenset((CALL_TOOL, FIND_TOOLS, READ_RESULT))
"""Names of the tools that the framework adds; they give access to other tools or results only."""
MAX_NAME_CHARACTERS = 64
"""Maximum length of a tool name in characters."""
_INVALID_CHARACTERS = re.compile(r"[^a-zA-Z0-9_.-]+")
_NO_NAMES: frozenset[str] = frozenset()
_TEXT_KEYWORDS = frozenset(("description", "title", "$comment"))
"""JSON Schema keywords whose value is text for people: titles and descriptions."""
_VALUE_KEYWORDS = frozenset(("const", "enum", "default", "examples"))
"""JSON Schema keywords whose values are data and must not be changed."""
_log = logger_of(__name__)


def _remedy(candidate: object) -> str:
    """Return a hint for an error that says how to make a tool of a value which is not a tool."""
    if isinstance(candidate, type):
        is_made = issubclass(candidate, Tool) or hasattr(candidate, "tools_from")
        return f"write {candidate.__name__}()" if is_made else "decorate a function with @tool"
    if hasattr(candidate, "as_tool"):
        return "an agent is candidate to another as agent.as_tool()"
    if isinstance(candidate, Mapping):
        return "write a function with @tool, or with @tool(parameters=...) for a custom JSON Schema"
    if isinstance(candidate, str):
        return "pass the tool itself, not its name"
    return "decorate the function with @tool"


class ToolRegistry:
    """Tools by name. Agents with the same tools may share a registry.

    A tool that is mapped to an instruction has no spec, so it is not offered to the model. Only a call that is created from a
    validated instruction runs it. A `deferred` tool also has no spec; the model finds it with `find_tools`.
    """

    __slots__ = (
        "_all",
        "_last_name",
        "_mapped",
        "_own_tools",
        "_progressed",
        "_toolset_tools",
        "_unavailable",
        "connecting",
        "deps_tool",
        "has_toolsets",
        "specs",
        "version",
    )

    def __init__(self, tools: Iterable[Tool | ToolProtocol] = (), *, mapped: Iterable[str] = ()) -> None:
        """Add tools. `mapped` are the names of tools that are mapped to instructions.

        Raises:
            ConfigurationError: A tool is not usable by a model, two tools have the same name, or a mapped name has no
                tool.
        """
        self._own_tools: dict[str, Tool] = {}
        self._toolset_tools: dict[str, tuple[Tool, ...]] = {}
        """Tools of each toolset by toolset name, in the order in which the toolsets were declared."""
        self._last_name = ""
        """Name of the agent's tool that is listed after the tools of toolsets; empty if there is none."""
        self._all = self._own_tools
        """All tools, including those of toolsets, by the name that the model uses."""
        self._unavailable: dict[str, str] = {}
        """Reasons why the tools of unavailable toolsets cannot be called, by toolset name."""
        self.connecting: dict[str, None] = {}
        """Names of toolsets that have neither connected nor failed yet."""
        self._progressed: trio.Event | None = None
        """Set when a toolset has connected or failed; None if no task waits."""
        self.version = 0
        """Version number; changes whenever a toolset changes its tools or their availability."""
        self._mapped = frozenset(mapped) or _NO_NAMES
        self.specs: tuple[ToolSpec, ...] = ()
        """Specifications of all tools that models are offered. The tuple is the same object until the tools change."""
        self.deps_tool = ""
        """Name of a tool that requires deps; empty if none does."""
        self.has_toolsets = False
        """True if toolsets may add or remove tools."""
        for tool in tools:
            self._insert(tool)
        self._merge()
        self._check_mapped()

    def _check_mapped(self) -> None:
        if missing := sorted(self._mapped - self._own_tools.keys()):
            raise ConfigurationError(
                f"an instruction is mapped to tool {missing[0]!r}, which is not registered: pass it in tools=, "
                f"or correct the name (registered tools: {', '.join(self._own_tools) or 'none'})"
            )

    def add(self, candidate: Tool | ToolProtocol) -> None:
        """Append a tool, or an object with `execute` and `get_schema`, to the agent's tools.

        Raises:
            DuplicateTool: The registry has a tool of this name.
            ConfigurationError: The object is not a tool, or a model cannot use it.
        """
        self._insert(candidate)
        self._merge()

    def _insert(self, candidate: Tool | ToolProtocol) -> None:
        """Add a tool to the agent's own tools. The caller must call `_merge` afterwards.

        Raises:
            DuplicateTool: The agent has a tool with this name.
        """
        tool = to_tool(candidate)
        check_options(tool)
        if tool.name in self._own_tools:
            raise DuplicateTool(tool.name)
        self._own_tools[tool.name] = tool

    def add_last(self, tool: Tool) -> None:
        """Add a tool that the model sees after all other tools of the agent. Its name must be free."""
        self._own_tools[tool.name] = tool
        self._last_name = tool.name
        self._merge()

    def remove(self, name: str) -> None:
        """Remove one of the agent's own tools by its name.

        Raises:
            ToolNotFound: The registry has no tool of this name.
            ConfigurationError: An instruction is mapped to the tool.
        """
        if name in self._mapped:
            raise ConfigurationError(f"tool {name!r} belongs to an instruction: remove the instruction first")
        if self._own_tools.pop(name, None) is None:
            raise ToolNotFound(name, tuple(self._own_tools))
        self._merge()

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, even if an instruction names the tool; None if the registry has no such tool."""
        return self._all.get(name)

    def find(self, call: ToolCall) -> Tool:
        """Return the tool that a call runs.

        A call by the model cannot run tools that are mapped to instructions.

        Raises:
            ToolNotFound: The registry has no such tool, or the tool is mapped to an instruction.
            ToolsetUnavailable: The toolset of the tool is not connected.
        """
        tool = self._all.get(call.name)
        if tool is None or (call.name in self._mapped and not call.mapped):
            raise ToolNotFound(call.name, [spec.name for spec in self.specs], tuple(self._unavailable))
        if self._unavailable and tool.origin in self._unavailable:
            raise ToolsetUnavailable(tool.origin, self._unavailable[tool.origin])
        return tool

    def list(self) -> tuple[Tool, ...]:
        """Return all tools of the agent and of its toolsets, in the order of their registration."""
        return tuple(self._all.values())

    def resolve(self, call: ToolCall) -> ToolCall:
        """Convert a call of `call_tool` to the call of the tool in its arguments.

        Other calls are returned unchanged.
        """
        if call.name != CALL_TOOL or not isinstance(call.arguments, Mapping):
            return call
        if CALL_TOOL not in self._own_tools or not self._own_tools[CALL_TOOL].is_gateway:
            return call
        name = call.arguments.get("name")
        arguments = call.arguments.get("arguments", {})
        if not isinstance(name, str) or name == CALL_TOOL or name in self._mapped or name not in self._all:
            return call
        return attrs.evolve(call, name=name, arguments=arguments)

    # --- toolsets --------------------------------------------------------------------------

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Reasons why the tools of unavailable toolsets cannot be called, by toolset name."""
        return self._unavailable

    def declare(self, toolset: str) -> None:
        """Reserve the position of a toolset's tools, after those of the toolsets declared before.

        Raises:
            ConfigurationError: A toolset of this name was declared.
        """
        if toolset in self._toolset_tools:
            raise ConfigurationError(
                f"two toolsets are named {toolset!r}: give one of them another name, or prefix its tools"
            )
        self._toolset_tools[toolset] = ()
        self.has_toolsets = True

    def publish(self, toolset: str, tools: Iterable[Tool], *, outside: bool = False) -> None:
        """Replace the tools of a toolset, and mark the toolset as available.

        A tool that a model cannot use is left out with a warning. Invalid names are made valid. If a name is taken,
        the toolset's name becomes its prefix. `outside` marks the results of all its tools as untrusted.
        """
        usable = [_prepare_toolset_tool(tool, toolset, outside=outside) for tool in tools]
        self._toolset_tools[toolset] = tuple(tool for tool in usable if tool is not None)
        self.has_toolsets = True
        self._unavailable.pop(toolset, None)
        self._merge()
        self.version += 1

    def mark_unavailable(self, toolset: str, reason: str) -> None:
        """Make calls of a toolset's tools fail with `reason` until the toolset publishes again. Its tools stay listed."""
        if self._unavailable.get(toolset) != reason:
            self._unavailable[toolset] = reason
            self.version += 1

    def mark_connecting(self, toolset: str) -> None:
        """Mark a toolset as connecting: `wait_for_tools` waits until `mark_settled` is called for it."""
        self.connecting[toolset] = None

    def mark_settled(self, toolset: str) -> None:
        """Record that a toolset has connected, has failed or was removed, and wake `wait_for_tools`."""
        if toolset in self.connecting:
            del self.connecting[toolset]
            if self._progressed is not None:
                self._progressed.set()
                self._progressed = None

    async def wait_for_tools(self, calls: Sequence[ToolCall]) -> None:
        """Wait until each call has a tool, or every toolset has connected or failed.

        Bounded by the `connect_timeout` of the toolsets.
        """
        await trio.lowlevel.checkpoint()
        while self.connecting and not all(_target_name(call) in self._all for call in calls):
            if self._progressed is None:
                self._progressed = trio.Event()
            await self._progressed.wait()

    def _merge(self) -> None:
        """Update the values derived from the agent's tools and those of toolsets: merged tools, specifications, `deps_tool`."""
        if self._toolset_tools:
            self._merge_toolsets()
        listed = (tool for name, tool in self._all.items() if name not in self._mapped and not tool.deferred)
        self.specs = tuple([tool.spec for tool in listed])
        needs = (tool.name for tool in self._all.values() if tool.deps_type is not None)
        self.deps_tool = next(needs, "")

    def _merge_toolsets(self) -> None:
        self._all = dict(self._own_tools)
        for toolset, tools in self._toolset_tools.items():
            for tool in tools:
                name = tool.name
                if name in self._all:
                    name = make_valid_name(f"{toolset}_{tool.name}")
                    _log.warning(
                        "two tools are named %s: the tool of toolset %s is renamed to %s; use prefixed() to give its tools unique names",
                        shown(tool.name),
                        shown(toolset),
                        shown(name),
                    )
                self._all.setdefault(name, tool if name == tool.name else WrappedTool(tool, name=name))
        if self._last_name in self._own_tools:
            self._all[self._last_name] = self._all.pop(self._last_name)

    @property
    def mapped(self) -> frozenset[str]:
        """Names of the tools that are mapped to instructions."""
        return self._mapped

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)


def _target_name(call: ToolCall) -> str:
    """Return the name of the tool that a call runs. A call of `call_tool` runs the tool that its arguments name."""
    inner = call.arguments.get("name") if isinstance(call.arguments, Mapping) else None
    return inner if call.name == CALL_TOOL and isinstance(inner, str) else call.name


def to_tool(tool: object) -> Tool:
    """Return a `Tool` unchanged, or wrap an object with `execute` and `get_schema` in a `Tool`.

    Raises:
        ConfigurationError: The object is not a tool, or is an unbound method.
    """
    if is_tool_like(tool) and not isinstance(tool, Tool):
        return AdaptedTool(cast("ToolProtocol", tool))
    if not isinstance(tool, Tool):
        raise ConfigurationError(f"{tool!r:.200} is not a tool: {_remedy(tool)}")
    if getattr(tool, "is_unbound", False):
        raise ConfigurationError(
            f"tool {tool.name!r} is an unbound method: pass it from an instance, as in Shelf().{tool.name}"
        )
    return tool


def _prepare_toolset_tool(tool: Tool, toolset: str, *, outside: bool) -> Tool | None:
    """Wrap a tool of a toolset, so that its name is valid and its texts contain no system tags.

    Return None if no model can use the tool, and log the reason. `outside` marks its results as untrusted.
    """
    try:
        tool = to_tool(tool)
        is_untrusted = tool.outside or (outside and not tool.declared_trusted)
        fit = WrappedTool(tool, name=make_valid_name(tool.name), origin=toolset, outside=is_untrusted)
        check_options(fit)
        _check_serializable(fit)
        if (
            outside or tool.outside
        ):  # a third party wrote the description, also of a tool with trusted results
            fit.description = _neutralize(fit.description)
            if (parameters := _neutralize_schema(fit.parameters)) != fit.parameters:
                fit.parameters = parameters
    except Exception as error:  # noqa: BLE001 - attributes of a third-party tool may raise anything
        reason = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        _log.warning("toolset %s: a tool is left out: %s", shown(toolset), shown(reason))
        return None
    return fit


def _neutralize_schema(schema: Any) -> Any:
    """Return a tool's schema with neutralized titles and descriptions: no control characters, no special tokens of models."""
    if isinstance(schema, Mapping):
        return {
            key: _neutralize(value)
            if key in _TEXT_KEYWORDS and isinstance(value, str)
            else value
            if key in _VALUE_KEYWORDS
            else _neutralize_schema(value)
            for key, value in schema.items()
        }
    return [_neutralize_schema(each) for each in schema] if isinstance(schema, list | tuple) else schema


def _neutralize(text: str) -> str:
    """Remove control characters from a text, and break the special tokens by which models mark roles and calls."""
    return replace_special_tokens(replace_control_characters(text))


def _check_serializable(tool: Tool) -> None:
    """Raise `ConfigurationError` if a tool's specification is not JSON. With such a tool, every request of the agent would fail."""
    try:
        orjson.dumps([tool.name, tool.description, tool.parameters], default=dict)
    except TypeError as error:
        raise ConfigurationError(f"tool {tool.name!r} cannot be sent to a model: {error}") from None


def make_valid_name(name: str) -> str:
    """Convert a name to a valid tool name: at most 64 characters, only a-z, A-Z, 0-9, _, . and -.

    A changed name ends with a digest of the original, so that different names stay different.
    """
    fit = _INVALID_CHARACTERS.sub("_", name)
    if fit == name and 0 < len(name) <= MAX_NAME_CHARACTERS:
        return name
    digest = hashlib.blake2s(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{fit[: MAX_NAME_CHARACTERS - 9]}_{digest}"
