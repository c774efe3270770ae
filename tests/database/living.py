"""An agent whose tool writes a task and then blocks, to be killed between the two steps.

Usage: `living.py JOURNAL [wait]`.
"""

import sys

import trio

from actgent import BareAgent, Database, ScriptedLLM, ToolCall, ToolContext, open_runtime, tool

TABLE = "CREATE TABLE tasks (id INTEGER PRIMARY KEY, text TEXT NOT NULL);"
POSTGRES_TABLE = "CREATE TABLE tasks (id SERIAL PRIMARY KEY, text TEXT NOT NULL);"
waits = len(sys.argv) > 2


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@tool(effect="idempotent")
async def add_task(text: str, context: ToolContext) -> str:
    """Add a task."""
    sign = "%s" if is_postgres else "?"
    await context.database.execute(f"INSERT INTO tasks (text) VALUES ({sign})", (text,))
    number = await context.database.change(lambda db: len(db.query("SELECT id FROM tasks")))
    say("written")
    if waits:
        await trio.sleep_forever()
    return f"{number} tasks"


def model(chat):
    done = [part for each in chat.messages for part in each.parts if type(part).__name__ == "ToolResult"]
    return f"So: {done[-1].content}" if done else ToolCall("add_task", {"text": "tea"})


async def main() -> None:
    table = POSTGRES_TABLE if is_postgres else TABLE
    clerk = BareAgent(
        "clerk", llm=ScriptedLLM(model), tools=[add_task], database=Database(migrations=[table])
    )
    async with open_runtime(journal=sys.argv[1]) as runtime:
        await runtime.start(clerk)
        session = await clerk.ensure_session("ada", "s")
        session.on_conversation(lambda reply: say(reply.text))
        await session.chat("Add tea.", message_id="m")
        await session.wait_idle()
        for row in await clerk.database.query("SELECT text FROM tasks"):
            say(f"task {row['text']}")


is_postgres = sys.argv[1].startswith("postgres")
if __name__ == "__main__":
    trio.run(main)
