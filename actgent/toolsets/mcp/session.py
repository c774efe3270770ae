"""The SDK's session, but for the check of results: a server's own schema is a stranger's, and checked by what is bounded.

The SDK checks in the event loop, by a library that tries branches and patterns for as long as it takes: a kilobyte of schema
would keep the whole process busy for ever.
"""

from collections.abc import Iterable
from typing import Any

import mcp_types
from mcp import ClientSession

from actgent.errors import ConfigurationError
from actgent.errors.printable import shown
from actgent.support.logs import logger_of
from actgent.tools.schemas import CheckedSchema, compile_schema

_log = logger_of(__name__)


class BoundedSession(ClientSession):
    """A session whose results are checked against the schemas of `take`, each compiled when its first result comes."""

    def __init__(self, *streams: Any, **options: Any) -> None:
        super().__init__(*streams, **options)
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
