"""Tool with which a model reads the database of its agent."""

from collections.abc import Mapping
from typing import Any

from actgent.database.database import Database
from actgent.tools.tool_interface import Tool, ToolContext
from actgent.toolsets.builtin import MAX_ROWS, sql_tool

_FORM = "sqlite:///any"
_VALUES = "Values go into `parameters`, and into the statement as :name, or as %(name)s where the database is PostgreSQL."


class QueryDatabase(Tool):
    """Tool that runs one SELECT statement per call. The database rejects all other statements."""

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
    """Return a tool with which the model runs SELECT statements on the agent's tables. The model cannot change the tables.

    The tool reads the rows of all owners. If owners must not see each other's rows, write a tool with `Database.query`.

    Args:
        database: Database of the agent, as in `Agent(database=...)`.
        name: Name of the tool.
        description: Description of the tables, for the model.
        max_rows: Maximum number of rows in a result.
    """
    return QueryDatabase(database, name, description, max_rows)
