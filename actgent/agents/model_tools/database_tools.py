"""The tables of an agent: kept open while it runs, and asked by its model, which can change nothing in them."""

from collections.abc import Iterable, Mapping
from typing import Any

import trio

from actgent.database.database import Database
from actgent.errors import ConfigurationError
from actgent.tools.adapters import ToolShape
from actgent.tools.base import Tool, ToolContext
from actgent.toolsets.ready import MAX_ROWS, sql_tool
from actgent.toolsets.toolset import Publish, Toolset

_FORM = "sqlite:///any"
_VALUES = "Values go into `parameters`, and into the statement as :name, or as %(name)s where the database is PostgreSQL."


class DatabaseOpen(Toolset):
    """Keeps the tables of an agent open while it runs; it has no tools of its own."""

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
    tools: Iterable[Tool[Any] | ToolShape | Toolset], database: Database | None
) -> Iterable[Tool[Any] | ToolShape | Toolset]:
    """The tools of an agent, and what keeps its tables open.

    Raises:
        ConfigurationError: `database=` is something else.
    """
    if database is None:
        return tools
    given: object = database
    if not isinstance(given, Database):
        raise ConfigurationError(f"database= takes Database(...), not {given!r:.100}")
    return (*tools, DatabaseOpen(database))


class QueryDatabase(Tool):
    """One SELECT a call; the database refuses the rest. See `sql_tool`."""

    def __init__(self, database: Database, name: str, description: str, max_rows: int) -> None:
        form = sql_tool(_FORM, name, max_rows=max_rows)
        self.name, self.parameters = name, form.parameters
        self.description = f"{description} {_VALUES}"
        self.effect, self.timeout, self.outside = form.effect, form.timeout, form.outside
        self._database = database
        self._max_rows = max_rows

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> object:
        asked = sql_tool(self._database.address, self.name, max_rows=self._max_rows)
        return await asked.execute(arguments, context)


def database_tool(
    database: Database,
    name: str = "query_database",
    *,
    description: str = "Ask the agent's own tables one SELECT statement.",
    max_rows: int = MAX_ROWS,
) -> Tool:
    """Return a tool with which the model runs SELECT statements on the agent's tables. It cannot change them.

    The tool reads the rows of all owners. If owners must not see each other's rows, write a tool with `Database.query`.

    Args:
        database: Database of the agent, as in `Agent(database=...)`.
        name: Name of the tool.
        description: Description of the tables, for the model.
        max_rows: Maximum number of rows in a result.
    """
    return QueryDatabase(database, name, description, max_rows)
