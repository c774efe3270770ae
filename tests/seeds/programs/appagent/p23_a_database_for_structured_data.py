"""A built-in SQLite database stores structured data, also after the process ends.

Document: State Management, SQLite Database.
"""

import trio

from actgent import (
    BareAgent,
    Database,
    Modes,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    database_tool,
    open_runtime,
    tool,
)

TABLES = "CREATE TABLE tasks (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, text TEXT NOT NULL);"


@tool(effect="idempotent")
async def add_task(text: str, context: ToolContext) -> str:
    """Add a task."""
    await context.database.execute("INSERT INTO tasks (owner, text) VALUES (?, ?)", (context.owner, text))
    return "added"


async def main() -> None:
    ask = ToolCall("query_database", {"sql": "SELECT text FROM tasks"})
    for script in ([ToolCall("add_task", {"text": "water the tomatoes"}), "Added."], [ask, "The tomatoes."]):
        database, results = Database(migrations=[TABLES]), []
        modes = Modes(universal=["query_database"], execution=[add_task], initial="act")
        tools = [database_tool(database)]
        app = BareAgent("app", llm=ScriptedLLM(script), tools=tools, modes=modes, database=database)
        async with open_runtime(journal="sqlite:///agents.db") as runtime:
            await runtime.start(app)
            session = await app.create_session("ada", "My tasks?")
            session.on_tool_result(
                lambda result, results=results: results.append((result.status, result.text))
            )
            await session.wait_idle()
            rows = await app.database.query("SELECT owner, text FROM tasks")
        assert rows == [{"owner": "ada", "text": "water the tomatoes"}], rows
        assert results[0][0] == "success", results
    assert "water the tomatoes" in results[0][1]


trio.run(main)
