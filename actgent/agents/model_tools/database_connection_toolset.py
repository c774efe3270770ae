"""Database of an agent: a toolset that keeps it open. It imports no tool, as every agent imports this module."""

from collections.abc import Iterable
from typing import Any

import trio

from actgent.database.database import Database
from actgent.errors import ConfigurationError
from actgent.tools.tool_adapters import ToolProtocol
from actgent.tools.tool_interface import Tool
from actgent.toolsets.toolset import Publish, Toolset


class DatabaseOpen(Toolset):
    """Toolset without tools that keeps the database of an agent open while the agent runs."""

    required = True
    may_change = False
    outside = False

    def __init__(self, database: Database) -> None:
        self.name = "database"
        self._database = database

    async def run(self, publish: Publish) -> None:
        async with self._database:
            publish(())
            await trio.sleep_forever()


def with_database(
    tools: Iterable[Tool[Any] | ToolProtocol | Toolset], database: Database | None
) -> Iterable[Tool[Any] | ToolProtocol | Toolset]:
    """Return the tools of an agent, and a toolset that keeps its database open.

    Raises:
        ConfigurationError: `database` is not a `Database`.
    """
    if database is None:
        return tools
    given: object = database
    if not isinstance(given, Database):
        raise ConfigurationError(f"database= takes Database(...), not {given!r:.100}")
    return (*tools, DatabaseOpen(database))
