"""Plan mode helps to analyze and plan, and has only universal tools.

Document: Agent Modes, Plan Mode; Mode-Based Tool Access Control.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool

RAN = []


@tool(thread=False)
def browse(address: str) -> str:
    """Read a page."""
    return f"the page of {address}"


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    RAN.append(service)
    return "deployed"


async def main() -> None:
    calls = [
        ToolCall("browse", {"address": "example.org"}),
        ToolCall("get_agent_state", {}),
        ToolCall("deploy", {"service": "shop"}),
        ToolCall("save_settings", {"settings": {}}),
        ToolCall("generate_test_report", {}),
    ]
    script = [calls, "1. Read the page. 2. Deploy in act mode."]
    modes = Modes(universal=[browse], execution=[deploy], initial="plan")
    async with BareAgent("app", llm=ScriptedLLM(script), modes=modes) as app:
        session = await app.create_session("ada", "Plan the next release.")
        results, answers = [], []
        session.on_tool_result(lambda result: results.append(result.status))
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await session.wait_idle()
    assert results == ["success", "success", "error", "error", "error"], results
    assert RAN == []
    assert answers == [script[1]]


trio.run(main)
