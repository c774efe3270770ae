"""Onboarding mode has tools that help users to configure the settings of the agent and the initial setup.

Document: Agent Modes, Onboarding Mode.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall


async def main() -> None:
    settings = {"language": "en", "operators": ["ada"], "admin_contact": "ada@example.org"}
    script = [
        ToolCall("complete_onboarding", {}),
        ToolCall("save_settings", {"settings": settings}),
        ToolCall("complete_onboarding", {}),
        "You are set up.",
    ]
    async with BareAgent("app", llm=ScriptedLLM(script), modes=Modes()) as app:
        session = await app.create_session("ada", "Set me up in English.")
        results = []
        session.on_tool_result(lambda result: results.append((result.tool_name, result.status, result.text)))
        await session.wait_idle()
    assert [status for _, status, _ in results] == ["error", "success", "success"], results
    assert "language" in results[0][2]  # the setup is not complete without its settings


trio.run(main)
