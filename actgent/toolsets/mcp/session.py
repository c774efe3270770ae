"""The SDK's session, but for the check of results: a server's own schema is a stranger's, and checked by what is bounded.

The SDK checks in the event loop, by a library that tries branches and patterns for as long as it takes: a kilobyte of schema
would keep the whole process busy for ever.
"""

from collections.abc import Iterable
from typing import Any, Self

import mcp_types
from mcp import ClientSession

from actgent.errors import ConfigurationError
from actgent.errors.printable import shown
from actgent.support.logs import logger_of
from actgent.tools.schemas import CheckedSchema, compile_schema

_log = logger_of(__name__)


class BoundedSession(ClientSession):
    """A session whose results are checked against the schemas of `take`, each compiled when its first result comes."""

    def __init__(self, reading: Any, writing: Any, **options: Any) -> None:
        super().__init__(_ToolLists(reading), writing, **options)
        self._schemas: dict[str, Any] = {}
        self._compiled: dict[str, CheckedSchema | None] = {}

    def take(self, listed: Iterable[mcp_types.Tool]) -> None:
        """Check results of these tools from now on, and of no others."""
        self._schemas = {each.name: each.output_schema for each in listed if each.output_schema is not None}
        self._compiled.clear()

    async def validate_tool_result(self, name: str, result: mcp_types.CallToolResult) -> None:
        """Check a result.

        Raises:
            ValueError: it does not fit.
        """
        if result.structured_content is None or (schema := self._schema_of(name)) is None:
            return
        if reason := schema.reason(result.structured_content):
            raise ValueError(f"it does not fit the schema that the server gave: {reason}")

    def _schema_of(self, name: str) -> CheckedSchema | None:
        """The compiled schema of a tool's results; None where there is none, or one that cannot be used."""
        if name not in self._schemas:
            return None
        if name not in self._compiled:
            try:
                self._compiled[name] = compile_schema(
                    self._schemas[name], owner=f"the results of {name:.100}"
                )
            except ConfigurationError as error:
                _log.warning("results of an MCP server's tool are not checked: %s", shown(str(error)))
                self._compiled[name] = None
        return self._compiled[name]


class _ToolLists:
    """The messages of a server, in whose lists of tools no single tool can make the SDK refuse all of them."""

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
    """Name the type of the root where a server leaves it out; False for a tool whose arguments are no object."""
    schema = tool.get("inputSchema")
    if not schema or not isinstance(schema, dict):
        schema = tool["inputSchema"] = {"type": "object", "properties": {}}
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        _log.warning(
            "the tool %s of an MCP server is withheld: its arguments are %s and not an object",
            shown(str(tool.get("name"))[:100]),
            shown(str(kinds)[:100]),
        )
        return False
    schema["type"] = "object"
    output = tool.get("outputSchema")
    if output is not None and not (isinstance(output, dict) and output.get("type") == "object"):
        del tool["outputSchema"]  # the SDK takes an object alone; without it results are not checked
    return True
