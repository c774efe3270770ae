"""Client session of the MCP SDK with bounded validation of results, because a server's output schemas are untrusted.

The SDK validates in the event loop by a library without time limits: a kilobyte of schema could block the process forever.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import mcp_types
from mcp import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from pydantic import ValidationError

from actgent.errors import ConfigurationError
from actgent.errors.text_escaping import shown
from actgent.support.safe_logging import logger_of
from actgent.tools.schemas import CompiledSchema, compile_schema

from .message_repair import describe_faults, repair_result

_log = logger_of(__name__)


class BoundedSession(ClientSession):
    """Client session that validates the results of tools in bounded time, by the output schemas of the tools passed to `set_tools`.

    A schema is compiled on the first result of its tool.
    """

    def __init__(self, reading: Any, writing: Any, **options: Any) -> None:
        super().__init__(dispatcher=_RepairingDispatcher(reading, writing), **options)
        self._schemas: dict[str, Any] = {}
        self._compiled: dict[str, CompiledSchema | None] = {}

    async def send_request(self, *arguments: Any, **options: Any) -> Any:
        """Send a request to the MCP server, and return its result.

        Raises:
            MCPError: The server rejected the request, or the connection was lost.
            ValueError: The result is invalid.
        """
        try:
            return await super().send_request(*arguments, **options)
        except ValidationError as error:
            raise ValueError(f"the server's response is invalid: {describe_faults(error)}") from error

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


class _RepairingDispatcher(JSONRPCDispatcher[Any]):
    """Dispatcher of the SDK that repairs results, because the SDK would reject the whole result for one invalid item."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **more: Any
    ) -> dict[str, Any]:
        return repair_result(method, await super().send_raw_request(method, params, opts, **more))
