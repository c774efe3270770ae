"""State retrieval is a universal tool: in all modes the model fetches the state, the settings, and information on the mode.

Document: Mode-Based Tool Access Control, Universal Tools; State Management (State Retrieval Tools).
"""

import json

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall

NAMES = ("get_agent_state", "get_agent_config", "get_integration_state", "get_mode_info")


async def main() -> None:
    modes = Modes()
    llm = ScriptedLLM(
        lambda chat: "I see." if chat.messages[-1].role == "tool" else [ToolCall(name, {}) for name in NAMES]
    )
    async with BareAgent("app", llm=llm, modes=modes) as app:
        session = await app.create_session("ada")
        session.state.dispatch(("basket", ["tea"]))
        for mode in ("plan", "act", "integration", "onboarding"):
            await session.set_mode(mode, by="user")
            results = {}
            session.on_tool_result(lambda result, results=results: results.update({result.tool_name: result}))
            await session.chat("What do you know?")
            await session.wait_idle()
            assert set(results) == set(NAMES)
            assert all(result.status == "success" for result in results.values())
            assert "tea" in results["get_agent_state"].text
            assert json.loads(results["get_mode_info"].content)["mode"] == mode, results["get_mode_info"]


trio.run(main)
