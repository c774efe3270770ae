"""Adapter that makes a `Tool` of an object with `execute(parameters)` and `get_schema()`."""

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from .tool_interface import Tool, ToolContext, execute_short_form

_OPTIONS = frozenset(Tool.__annotations__) - {
    "name",
    "description",
    "parameters",
    "hooks",
    "origin",
    "inline",
}
"""Attributes of `Tool` that an adapted object may define."""


class ToolProtocol(Protocol):
    """Protocol of an object that can be used as a tool without subclassing `Tool`.

    Other attributes of `Tool`, such as `effect` or `timeout`, are read from the object if present. `name` defaults to
    its class name, and `description` to the docstring of its class.
    """

    def execute(self, parameters: dict[str, Any], /) -> object | Awaitable[object]:
        """Run one call with these arguments, and return its value. A sync method runs in a worker thread."""
        ...

    def get_schema(self) -> Mapping[str, Any]:
        """Return the JSON Schema of the parameters. It is called once, when the tool is registered."""
        ...


def is_tool_like(value: object) -> bool:
    """Return True if a value is an object (not a class) with callable `execute` and `get_schema`."""
    methods = (getattr(value, "execute", None), getattr(value, "get_schema", None))
    return not isinstance(value, type) and all(map(callable, methods))


class AdaptedTool(Tool):
    """A `Tool` that delegates to a `ToolProtocol` object."""

    def __init__(self, wrapped: ToolProtocol) -> None:
        """Copy the name, description, schema and options of the object.

        Raises:
            InvalidToolSchema: `get_schema` of the object raised an exception.
        """
        self.wrapped = wrapped
        kind = type(wrapped)
        super().__init__(
            getattr(wrapped, "name", None) or kind.__name__,
            getattr(wrapped, "description", None) or inspect.cleandoc(vars(kind).get("__doc__") or ""),
        )
        for option in _OPTIONS:
            if hasattr(wrapped, option):
                setattr(self, option, getattr(wrapped, option))

    def get_schema(self) -> Mapping[str, Any]:
        """Return the JSON Schema of the object's parameters."""
        return self.wrapped.get_schema()

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        return await execute_short_form(self, self.wrapped.execute, arguments, context)

    def __repr__(self) -> str:
        return f"AdaptedTool({self.wrapped!r})"
