"""The state of a thread is loaded with the thread and saved after a change, also over a restart. Each thread has a
separate state.

Document: The 6 Stages of PES Execution, 1. Initiation and 6. Finalization.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, ToolContext, open_runtime, tool

PLAN = json.dumps(
    {"intent": "note", "plan": "note it", "toolCalls": [{"toolName": "note", "arguments": {"text": "milk"}}]}
)


@tool(effect="idempotent")
async def note(text: str, context: ToolContext) -> str:
    """Note something in the state."""
    context.state.dispatch(("notes", [*context.state.get("notes", ()), text]))
    return "noted"


def art() -> PlanAgent:
    return PlanAgent("guide", llm=ScriptedLLM([PLAN, "Noted."]), tools=[note])


async def main() -> None:
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        agent = await runtime.start(art())
        thread = await agent.ensure_session("ada", "t1")
        await agent.process("Note milk.", session=thread)
        assert list(thread.state["notes"]) == ["milk"]
    async with open_runtime(journal="sqlite:///agents.db") as runtime:
        agent = await runtime.start(art())
        thread = await agent.ensure_session("ada", "t1")
        assert list(thread.state["notes"]) == ["milk"]
        assert "notes" not in (await agent.ensure_session("ada", "t2")).state


trio.run(main)
