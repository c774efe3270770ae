"""Tools without the base class: objects with `execute(parameters)` and `get_schema()`."""

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from .base import Tool, ToolContext, execute_shaped

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
    """An object that does the work of a `Tool`; further attributes of `Tool`, such as `name`, `effect` or `timeout`, count as well.

    Without a `name` the tool has the name of the object's class, and without a `description` the docstring of that class.
    """

    def execute(self, parameters: dict[str, Any], /) -> object | Awaitable[object]:
        """Run one call; sync ones run in threads."""
        ...

    def get_schema(self) -> Mapping[str, Any]:
        """JSON Schema of the parameters, asked for once."""
        ...


def is_tool_shaped(value: object) -> bool:
    """Return True for an object, not a class, with the methods of a `ToolShape`."""
    methods = (getattr(value, "execute", None), getattr(value, "get_schema", None))
    return not isinstance(value, type) and all(map(callable, methods))


class AdaptedTool(Tool):
    """A `ToolShape` as a `Tool`."""

    def __init__(self, given: ToolShape) -> None:
        """Take the name, description, schema and options of the object.

        Raises:
            InvalidToolSchema: `get_schema` failed.
        """
        self.given = given
        kind = type(given)
        super().__init__(
            getattr(given, "name", None) or kind.__name__,
            getattr(given, "description", None) or inspect.cleandoc(vars(kind).get("__doc__") or ""),
        )
        for option in _OPTIONS:
            if hasattr(given, option):
                setattr(self, option, getattr(given, option))

    def get_schema(self) -> Mapping[str, Any]:
        """The schema of the object's parameters."""
        return self.given.get_schema()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await execute_shaped(self, self.given.execute, arguments, context)

    def __repr__(self) -> str:
        return f"AdaptedTool({self.given!r})"
