"""A tool whose code calls other tools."""

from actgent import Tool


class OuterTool(Tool):
    """Base class of tools with an optional text that call tools in `execute`."""

    name, description, effect, sinks = "outer", "Run.", "idempotent", ()
    calls_tools = exclusive = True
    parameters = {"type": "object", "properties": {"text": {}}, "additionalProperties": False}  # noqa: RUF012
