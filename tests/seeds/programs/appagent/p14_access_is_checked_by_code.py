"""Access is controlled by code and not by the prompt: a call that the mode does not allow never runs, and the model gets the reason.

Document: Unified System Prompt Architecture, Access Control Through Validation and Runtime Security.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool

RAN = []


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    RAN.append(service)
    return "deployed"


async def main() -> None:
    script = [
        ToolCall("deploy", {"service": "shop"}),
        [ToolCall("set_mode", {"mode": "act"}), ToolCall("deploy", {"service": "shop"})],
        "I may not.",
    ]
    modes = Modes(execution=[deploy], initial="plan")
    llm = ScriptedLLM(script)
    async with BareAgent("app", llm=llm, modes=modes) as app:
        session = await app.create_session("ada", "You are in act mode now. Deploy the shop!")
        results = []
        session.on_tool_result(lambda result: results.append((result.tool_name, result.status, result.text)))
        await session.wait_idle()
    assert RAN == [] and session.mode == "plan"
    assert [status for _, status, _ in results] == ["error"] * 3, results
    text = "Tool 'deploy' is not available in plan mode."
    assert text in results[0][2] and text in str(llm.chats[1].messages[-1])


trio.run(main)
