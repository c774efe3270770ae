"""The tools of an agent, in the order in which they were added; behind them those of its toolsets, which come and go."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import orjson
import trio

from actgent.errors import ConfigurationError, DuplicateTool, ToolNotFound, ToolsetUnavailable
from actgent.errors.printable import shown
from actgent.messages import ToolCall, ToolSpec
from actgent.support.logs import logger_of

from .adapters import AdaptedTool, ToolShape, is_tool_shaped
from .base import Tool, WrappedTool
from .options import check_options
from .outputs.provenance import neutral
from .outputs.results import controls_shown

CALL_TOOL = "call_tool"
"""By which a model calls a tool that it was not offered; see `ToolRegistry.resolve`."""
FIND_TOOLS = "find_tools"
"""By which it learns of such tools; it changes nothing, so it may be called in every mode."""
READ_RESULT = "read_result"
"""By which it reads on in a long result; see `outputs/kept.py`."""
AIDS = frozenset((CALL_TOOL, FIND_TOOLS, READ_RESULT))
"""The names of tools that come with others, and by which alone nothing is reached."""
LONGEST_NAME = 64
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]+")
_WORDS = frozenset(("description", "title", "$comment"))
"""Where a schema says something to a reader."""
_VALUES = frozenset(("const", "enum", "default", "examples"))
"""Where it holds values, which stay as they are."""
_log = logger_of(__name__)


def _remedy(given: object) -> str:
    if isinstance(given, type):
        is_made = issubclass(given, Tool) or hasattr(given, "tools_from")
        return f"write {given.__name__}()" if is_made else "decorate a function with @tool"
    if hasattr(given, "as_tool"):
        return "an agent is given to another as agent.as_tool()"
    if isinstance(given, Mapping):
        return "write a function with @tool, or with @tool(parameters=...) for a JSON Schema of your own"
    if isinstance(given, str):
        return "pass the tool itself, not its name"
    return "decorate the function with @tool"


class ToolRegistry:
    """Tools by name. May be shared by agents that have the same tools.

    A tool that an instruction is mapped to is not offered to the model: it has no spec, and only a call that was
    made from the validated instruction reaches it. One that is `deferred` has none either: `find_tools` tells of it.
    """

    __slots__ = (
        "_all",
        "_groups",
        "_last",
        "_mapped",
        "_own",
        "_settled",
        "_specs",
        "_unavailable",
        "deps_tool",
        "has_toolsets",
        "unsettled",
        "version",
    )

    def __init__(self, tools: Iterable[Tool | ToolShape] = (), *, mapped: Iterable[str] = ()) -> None:
        """Add the tools; `mapped` are the names of those that belong to instructions.

        Raises:
            ConfigurationError: a tool that no model can use, two of one name, a mapped name without a tool.
        """
        self._own: dict[str, Tool] = {}
        self._groups: dict[str, tuple[Tool, ...]] = {}
        """The tools of toolsets, by name of the toolset, in the order in which they were declared."""
        self._last = ""
        """The name of a tool of its own that stands behind those of toolsets; empty if there is none."""
        self._all = self._own
        """Its own tools and those of toolsets, by the names that the model calls them by."""
        self._unavailable: dict[str, str] = {}
        """Why the tools of a toolset cannot be called now, by its name."""
        self.unsettled: dict[str, None] = {}
        """The toolsets that have neither connected nor failed yet, by name."""
        self._settled: trio.Event | None = None
        """Set when one of these has; None: nobody waits for that."""
        self.version = 0
        """Another number whenever a toolset has changed what is here."""
        self._mapped = frozenset(mapped)
        self._specs: tuple[ToolSpec, ...] | None = None
        self.deps_tool = ""
        """The name of a tool that needs deps; empty if none does."""
        self.has_toolsets = False
        """True if some of its tools may come and go."""
        for tool in tools:
            self.add(tool)
        self._check_mapped()

    def _check_mapped(self) -> None:
        if missing := sorted(self._mapped - self._own.keys()):
            raise ConfigurationError(
                f"an instruction is mapped to tool {missing[0]!r}, which is not there: pass it in tools=, "
                f"or correct the name (there are: {', '.join(self._own) or 'none'})"
            )

    def add(self, given: Tool | ToolShape, *, last: bool = False) -> None:
        """Add a tool, or what does the work of one, at the end; `last`: behind those of toolsets, too.

        Raises:
            DuplicateTool: there is one of this name.
            ConfigurationError: not a tool, or one that no model can use.
        """
        tool = to_tool(given)
        check_options(tool)
        if tool.name in self._own:
            raise DuplicateTool(tool.name)
        self._own[tool.name] = tool
        if last:
            self._last = tool.name
        self._merge()

    def remove(self, name: str) -> None:
        """Take a tool away.

        Raises:
            ToolNotFound: there is none of this name.
            ConfigurationError: an instruction is mapped to it.
        """
        if name in self._mapped:
            raise ConfigurationError(f"tool {name!r} belongs to an instruction: remove the instruction first")
        if self._own.pop(name, None) is None:
            raise ToolNotFound(name, tuple(self._own))
        self._merge()

    def get(self, name: str) -> Tool | None:
        """The tool of this name, mapped ones too, or None."""
        return self._all.get(name)

    def find(self, call: ToolCall) -> Tool:
        """The tool that a call may run.

        Raises:
            ToolNotFound: there is none, or only an instruction reaches it.
            ToolsetUnavailable: its toolset is not connected.
        """
        tool = self._all.get(call.name)
        if tool is None or (call.name in self._mapped and not call.mapped):
            raise ToolNotFound(call.name, [spec.name for spec in self.specs()], tuple(self._unavailable))
        if self._unavailable and tool.origin in self._unavailable:
            raise ToolsetUnavailable(tool.origin, self._unavailable[tool.origin])
        return tool

    def list(self) -> tuple[Tool, ...]:
        """All tools, in order."""
        return tuple(self._all.values())

    def resolve(self, call: ToolCall) -> ToolCall:
        """The call that a call of `call_tool` stands for; any other call as it is, and one that names no tool."""
        if call.name != CALL_TOOL or not isinstance(call.arguments, Mapping):
            return call
        if CALL_TOOL not in self._own or not self._own[CALL_TOOL].is_gateway:
            return call
        name = call.arguments.get("name")
        arguments = call.arguments.get("arguments", {})
        if not isinstance(name, str) or name == CALL_TOOL or name in self._mapped or name not in self._all:
            return call
        return attrs.evolve(call, name=name, arguments=arguments)

    # --- toolsets --------------------------------------------------------------------------

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Why the tools of a toolset cannot be called now, by its name."""
        return self._unavailable

    def declare(self, toolset: str) -> None:
        """Keep a place for the tools of a toolset, behind those of toolsets that were declared before.

        Raises:
            ConfigurationError: one of this name was declared.
        """
        if toolset in self._groups:
            raise ConfigurationError(
                f"two toolsets are named {toolset!r}: give one of them another name, or prefix its tools"
            )
        self._groups[toolset] = ()
        self.has_toolsets = True

    def publish(self, toolset: str, tools: Iterable[Tool], *, outside: bool = False) -> None:
        """Take these as the tools that a toolset has now, in place of those that it had.

        One that no model can use is left out, with a warning. A name that a provider refuses is made fit, and one that
        is taken gets the toolset's name in front. `outside`: what they return was written by strangers.
        """
        usable = [_usable(tool, toolset, outside=outside) for tool in tools]
        self._groups[toolset] = tuple(tool for tool in usable if tool is not None)
        self.has_toolsets = True
        self._unavailable.pop(toolset, None)
        self._merge()
        self.version += 1

    def withdraw(self, toolset: str, reason: str) -> None:
        """Let calls of a toolset's tools fail with a reason until it publishes again; its tools keep their places."""
        if self._unavailable.get(toolset) != reason:
            self._unavailable[toolset] = reason
            self.version += 1

    def expect(self, toolset: str) -> None:
        """Let calls of tools that are not there wait until a toolset has connected or failed: see `settle`."""
        self.unsettled[toolset] = None

    def settle(self, toolset: str) -> None:
        """A toolset has connected, or failed, or is not waited for any more."""
        if toolset in self.unsettled:
            del self.unsettled[toolset]
            if self._settled is not None:
                self._settled.set()
                self._settled = None

    async def wait_for(self, calls: Sequence[ToolCall]) -> None:
        """Wait until there is a tool for each call, or every toolset has connected or failed.

        That takes no longer than the `connect_timeout` of the toolsets.
        """
        await trio.lowlevel.checkpoint()
        while self.unsettled and not all(_wanted(call) in self._all for call in calls):
            if self._settled is None:
                self._settled = trio.Event()
            await self._settled.wait()

    def _merge(self) -> None:
        self._specs = None
        if self._groups:
            self._merge_groups()
        needs = (tool.name for tool in self._all.values() if tool.deps_type is not None)
        self.deps_tool = next(needs, "")

    def _merge_groups(self) -> None:
        self._all = dict(self._own)
        for toolset, tools in self._groups.items():
            for tool in tools:
                name = tool.name
                if name in self._all:
                    name = fit_name(f"{toolset}_{tool.name}")
                    _log.warning(
                        "two tools are named %s: that of toolset %s is %s here; prefixed() gives its tools names of their own",
                        shown(tool.name),
                        shown(toolset),
                        shown(name),
                    )
                self._all.setdefault(name, tool if name == tool.name else WrappedTool(tool, name=name))
        if self._last in self._own:
            self._all[self._last] = self._all.pop(self._last)

    @property
    def mapped(self) -> frozenset[str]:
        """The names of the tools that belong to instructions."""
        return self._mapped

    def specs(self) -> tuple[ToolSpec, ...]:
        """The specifications that a model is offered: the same tuple until a tool is added or removed."""
        if self._specs is None:
            self._specs = tuple(
                tool.spec
                for name, tool in self._all.items()
                if name not in self._mapped and not tool.deferred
            )
        return self._specs

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)


def _wanted(call: ToolCall) -> str:
    """The name of the tool that a call runs, by `call_tool` or by itself."""
    inner = call.arguments.get("name") if isinstance(call.arguments, Mapping) else None
    return inner if call.name == CALL_TOOL and isinstance(inner, str) else call.name


def to_tool(tool: object) -> Tool:
    """Return a tool as it is, and what does the work of one as a tool.

    Raises:
        ConfigurationError: it is none.
    """
    if is_tool_shaped(tool) and not isinstance(tool, Tool):
        return AdaptedTool(cast("ToolShape", tool))
    if not isinstance(tool, Tool):
        raise ConfigurationError(f"{tool!r:.200} is not a tool: {_remedy(tool)}")
    if getattr(tool, "is_unbound", False):
        raise ConfigurationError(
            f"tool {tool.name!r} is a method, and has no object to run with: pass it of an object, as in Shelf().{tool.name}"
        )
    return tool


def _usable(tool: Tool, toolset: str, *, outside: bool) -> Tool | None:
    """The tool under a name that a model can use; None: no model can use it."""
    try:
        tool = to_tool(tool)
        fit = WrappedTool(tool, name=fit_name(tool.name), origin=toolset, outside=outside or tool.outside)
        check_options(fit)
        _check_sendable(fit)
        if fit.outside:
            _describe_harmlessly(fit)
    except Exception as error:  # noqa: BLE001 - the edge to foreign code: attributes of a stranger's tool
        said = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        _log.warning("toolset %s: a tool is left out: %s", shown(toolset), shown(said))
        return None
    return fit


def _describe_harmlessly(tool: WrappedTool) -> None:
    """Take marks of roles and calls, and what nobody sees, out of what strangers wrote for the model about a tool."""
    tool.description = _harmless(tool.description)
    if (parameters := _with_harmless_words(tool.parameters)) != tool.parameters:
        tool.parameters = parameters


def _with_harmless_words(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: _harmless(value)
            if key in _WORDS and isinstance(value, str)
            else value
            if key in _VALUES
            else _with_harmless_words(value)
            for key, value in schema.items()
        }
    return [_with_harmless_words(each) for each in schema] if isinstance(schema, list | tuple) else schema


def _harmless(text: str) -> str:
    return neutral(controls_shown(text))


def _check_sendable(tool: Tool) -> None:
    """Refuse a specification that cannot be written as JSON: with it, no request of the agent could be."""
    try:
        orjson.dumps([tool.name, tool.description, tool.parameters], default=dict)
    except TypeError as error:
        raise ConfigurationError(f"tool {tool.name!r} cannot be sent to a model: {error}") from None


def fit_name(name: str) -> str:
    """Make a name one that a tool may have: a-z, A-Z, 0-9, _, . and -, at most 64 of them.

    What is cut or replaced leaves a digest, so that other names stay other names.
    """
    fit = _UNFIT.sub("_", name)
    if fit == name and 0 < len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.blake2s(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{fit[: LONGEST_NAME - 9]}_{digest}"
