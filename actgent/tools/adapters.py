"""Tools without the base class: objects with a name, a description, `execute(parameters)` and `get_schema()`."""

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from .base import Tool, ToolContext
from .threads import Threads

_OPTIONS = frozenset(Tool.__annotations__) - {
    "name",
    "description",
    "parameters",
    "hooks",
    "origin",
    "inline",
}
"""What an object may say of itself besides, in the words of `Tool`."""


class ToolShape(Protocol):
    """An object that does the work of a `Tool`; further attributes of `Tool`, such as `effect` or `timeout`, count as well."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    def execute(self, parameters: dict[str, Any], /) -> object | Awaitable[object]:
        """Run one call; sync ones run in threads."""
        ...

    def get_schema(self) -> Mapping[str, Any]:
        """JSON Schema of the parameters, asked for once."""
        ...


def is_tool_shaped(value: object) -> bool:
    """Return True for an object, not a class, with the methods of a `ToolShape`."""
    methods = (getattr(value, "execute", None), getattr(value, "get_schema", None))
    return not isinstance(value, type) and all(map(callable, methods)) and hasattr(value, "name")


class AdaptedTool(Tool):
    """A `ToolShape` as a `Tool`."""

    def __init__(self, given: ToolShape) -> None:
        """Take over what the object says of itself."""
        self.given = given
        self.name, self.description = given.name, given.description
        self.parameters = given.get_schema()
        for option in _OPTIONS:
            if hasattr(given, option):
                setattr(self, option, getattr(given, option))
        self._is_async = inspect.iscoroutinefunction(given.execute)

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        if self._is_async:
            result = self.given.execute(dict(arguments))
        else:
            threads = context.threads or Threads()
            result = await threads.run_sync(
                lambda: self.given.execute(dict(arguments)),
                name=self.name,
                never_began=context.never_began,
            )
        return await result if inspect.isawaitable(result) else result

    def __repr__(self) -> str:
        return f"AdaptedTool({self.given!r})"
