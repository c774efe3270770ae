"""Client session of the MCP SDK with bounded validation of results, because a server's output schemas are untrusted.

The SDK validates in the event loop by a library without time limits: a kilobyte of schema could block the process forever.
"""

from collections.abc import Iterable
from typing import Any, Self

import mcp_types
from mcp import ClientSession

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import shown
from actgent.support.safe_logging import logger_of
from actgent.tools.schemas import CompiledSchema, compile_schema

_log = logger_of(__name__)


class BoundedSession(ClientSession):
    """Client session that validates the results of tools in bounded time, by the output schemas of the tools passed to `set_tools`.

    A schema is compiled on the first result of its tool.
    """

    def __init__(self, reading: Any, writing: Any, **options: Any) -> None:
        super().__init__(_ToolLists(reading), writing, **options)
        self._schemas: dict[str, Any] = {}
        self._compiled: dict[str, CompiledSchema | None] = {}

    def set_tools(self, listed: Iterable[mcp_types.Tool]) -> None:
        """Set the tools of the server, whose output schemas validate later results."""
        self._schemas = {each.name: each.output_schema for each in listed if each.output_schema is not None}
        self._compiled.clear()

    async def validate_tool_result(self, name: str, result: mcp_types.CallToolResult) -> None:
        """Validate the structured content of a result of the tool `name`.

        Raises:
            ValueError: The content does not match the tool's output schema.
        """
        if result.structured_content is None or (schema := self._schema_of(name)) is None:
            return
        if reason := schema.reason(result.structured_content):
            raise ValueError(f"the result does not match the server's output schema: {reason}")

    def _schema_of(self, name: str) -> CompiledSchema | None:
        """Return the compiled output schema of a tool; None if the tool has no output schema or an invalid one."""
        if name not in self._schemas:
            return None
        if name not in self._compiled:
            try:
                self._compiled[name] = compile_schema(
                    self._schemas[name], owner=f"the results of {name:.100}"
                )
            except ConfigurationError as error:
                _log.warning("results of an MCP server's tool are not validated: %s", shown(str(error)))
                self._compiled[name] = None
        return self._compiled[name]


class _ToolLists:
    """Message stream from a server without the invalid tools in tool lists, for which the SDK would reject the whole list."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._messages.__aexit__(*error)  # noqa: ASYNC102 - the caller shields it

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return _with_usable_tools(await self._messages.__anext__())

    async def receive(self) -> Any:
        return _with_usable_tools(await self._messages.receive())


def _with_usable_tools(item: Any) -> Any:
    result = getattr(getattr(item, "message", None), "result", None)
    if isinstance(result, dict) and isinstance(tools := result.get("tools"), list):
        result["tools"] = [each for each in tools if not isinstance(each, dict) or _make_usable(each)]
    return item


def _make_usable(tool: dict[str, Any]) -> bool:
    """Add the type `object` to the input schema of a listed tool if the schema has no type.

    Return False if the schema has another type; models can only pass objects.
    """
    schema = tool.get("inputSchema")
    if not schema or not isinstance(schema, dict):
        schema = tool["inputSchema"] = {"type": "object", "properties": {}}
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        _log.warning(
            "the tool %s of an MCP server is left out: the type of its arguments is %s, not object",
            shown(str(tool.get("name"))[:100]),
            shown(str(kinds)[:100]),
        )
        return False
    schema["type"] = "object"
    output = tool.get("outputSchema")
    if output is not None and not (isinstance(output, dict) and output.get("type") == "object"):
        del tool["outputSchema"]  # the SDK accepts only objects; without a schema results are not validated
    return True
