"""The tools of an agent, in the order in which they were added."""

from collections.abc import Iterable, Iterator

from actgent.errors import ConfigurationError, DuplicateTool, ToolNotFound
from actgent.messages import ToolCall, ToolSpec

from .base import Tool
from .options import check_options


class ToolRegistry:
    """Tools by name. May be shared by agents that have the same tools.

    A tool that an instruction is mapped to is not offered to the model: it has no spec, and only a call that was
    made from the validated instruction reaches it.
    """

    __slots__ = ("_mapped", "_specs", "_tools")

    def __init__(self, tools: Iterable[Tool] = (), *, mapped: Iterable[str] = ()) -> None:
        """Add the tools; `mapped` are the names of those that belong to instructions.

        Raises:
            ConfigurationError: a tool that no model can use, two of one name, a mapped name without a tool.
        """
        self._tools: dict[str, Tool] = {}
        self._mapped = frozenset(mapped)
        self._specs: tuple[ToolSpec, ...] | None = None
        for tool in tools:
            self.add(tool)
        self._check_mapped()

    def _check_mapped(self) -> None:
        if missing := sorted(self._mapped - self._tools.keys()):
            raise ConfigurationError(
                f"an instruction is mapped to tool {missing[0]!r}, which is not there: pass it in tools=, "
                f"or correct the name (there are: {', '.join(self._tools) or 'none'})"
            )

    def add(self, tool: Tool) -> None:
        """Add a tool at the end.

        Raises:
            DuplicateTool: there is one of this name.
            ConfigurationError: not a tool, or one that no model can use.
        """
        if not isinstance(tool, Tool):
            raise ConfigurationError(f"{tool!r} is not a tool: decorate the function with @tool")
        check_options(tool)
        if tool.name in self._tools:
            raise DuplicateTool(tool.name)
        self._tools[tool.name] = tool
        self._specs = None

    def remove(self, name: str) -> None:
        """Take a tool away.

        Raises:
            ToolNotFound: there is none of this name.
            ConfigurationError: an instruction is mapped to it.
        """
        if name in self._mapped:
            raise ConfigurationError(f"tool {name!r} belongs to an instruction: remove the instruction first")
        if self._tools.pop(name, None) is None:
            raise ToolNotFound(name, tuple(self._tools))
        self._specs = None

    def get(self, name: str) -> Tool | None:
        """The tool of this name, mapped ones too, or None."""
        return self._tools.get(name)

    def find(self, call: ToolCall) -> Tool:
        """The tool that a call may run.

        Raises:
            ToolNotFound: there is none, or only an instruction reaches it.
        """
        tool = self._tools.get(call.name)
        if tool is None or (call.name in self._mapped and not call.mapped):
            raise ToolNotFound(call.name, [spec.name for spec in self.specs()])
        return tool

    def list(self) -> tuple[Tool, ...]:
        """All tools, in order."""
        return tuple(self._tools.values())

    @property
    def mapped(self) -> frozenset[str]:
        """The names of the tools that belong to instructions."""
        return self._mapped

    def specs(self) -> tuple[ToolSpec, ...]:
        """The specifications that a model is offered: the same tuple until a tool is added or removed."""
        if self._specs is None:
            self._specs = tuple(tool.spec for name, tool in self._tools.items() if name not in self._mapped)
        return self._specs

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)
