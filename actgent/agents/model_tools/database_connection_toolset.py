"""Toolset that keeps the database of an agent open. The module imports no tools, because every agent imports the module."""

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
    """Return the tools of an agent with a toolset that keeps `database` open; without the toolset if `database` is None.

    Raises:
        ConfigurationError: `database` is not a `Database`.
    """
    if database is None:
        return tools
    value: object = database
    if not isinstance(value, Database):
        raise ConfigurationError(f"database= must be a Database(...), not {value!r:.100}")
    return (*tools, DatabaseOpen(database))
