"""Migrate a program of AppAgent: four modes with their tools, a custom mode, state tools, an SQL database, refused transitions."""

from typing import Any

import trio

from actgent import (
    BareAgent,
    Database,
    Mode,
    ModeChangeRejected,
    Modes,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    database_tool,
    scheduling_tools,
    tool,
)
from actgent.toolsets.builtin import current_time

TABLE = "CREATE TABLE deployments (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, service TEXT NOT NULL);"
INSERT = "INSERT INTO deployments (owner, service) VALUES (?, ?)"


@tool(effect="idempotent")
async def deploy(service: str, context: ToolContext) -> str:
    """Deploy a service."""
    await context.database.execute(INSERT, (context.owner, service))
    context.state.dispatch(("last_deployed", service))
    return f"{service} is deployed"


@tool(effect="pure")
async def audit(service: str) -> str:
    """Audit a service."""
    return f"{service} is in order"


DEPLOY = ToolCall("deploy", {"service": "shop"})
SCRIPT: list[Any] = [
    [ToolCall("save_settings", {"settings": {"language": "en"}}), DEPLOY],
    "The language is set.",
    [DEPLOY, ToolCall("set_mode", {"mode": "act"})],
    "That is the plan.",
    [DEPLOY, ToolCall("set_mode", {"mode": "review"}), ToolCall("audit", {"service": "shop"})],
    ToolCall("query_database", {"sql": "SELECT service FROM deployments"}),
    "The shop is deployed and audited.",
    ToolCall("get_agent_state", {}),
    "I look at the state.",
]


async def main() -> None:
    database = Database(migrations=[TABLE])
    rows = database_tool(database)
    review = Mode("review", [audit, rows], prompt="check what was deployed.", who=["agent"])
    modes = Modes(review, universal=[current_time, *scheduling_tools()], execution=[deploy])
    app = BareAgent("app", role="an operator", llm=ScriptedLLM(SCRIPT), modes=modes, database=database)
    async with app:
        session = await app.create_session("ada")
        session.on_tool_result(lambda result: print(f"{session.mode}, {result.tool_name}: {result.text}"))
        session.on_conversation(lambda reply: print(f"{session.mode}: {reply}"))
        for mode in ("onboarding", "plan", "act", "integration"):
            await session.set_mode(mode, by="user")
            await session.chat("Deploy the shop.")
            await session.wait_idle()
        try:
            await session.set_mode("review", by="user")
        except ModeChangeRejected as error:
            print("refused:", error)
        print([f"{change.previous} -> {change.current} by {change.by}" for change in session.mode_changes])
        print(await database.query("SELECT owner, service FROM deployments"))


if __name__ == "__main__":
    trio.run(main)
