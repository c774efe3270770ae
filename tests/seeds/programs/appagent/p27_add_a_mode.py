"""A new mode is a name, a section of the unified system prompt, a transition message, and access rules.

Document: Adding New Functionality, Add New Modes.
"""

import trio

from actgent import BareAgent, Mode, Modes, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return "deployed"


@tool(thread=False)
def approve(service: str) -> str:
    """Approve a service."""
    return "approved"


async def main() -> None:
    review = Mode(
        "review",
        [approve],
        prompt="check what was deployed.",
        message="You review now; before it was {{previous}}.",
    )
    calls = [ToolCall("approve", {"service": "shop"}), ToolCall("deploy", {"service": "shop"})]
    llm = ScriptedLLM([calls, "Approved.", calls, "Deployed."])
    modes = Modes(review, execution=[deploy], initial="plan")
    async with BareAgent("app", llm=llm, modes=modes) as app:
        assert "- review: check what was deployed." in app.system_prompt
        session = await app.create_session("ada")
        results = []
        session.on_tool_result(lambda result: results.append((session.mode, result.tool_name, result.status)))
        for mode in ("review", "act"):
            await session.set_mode(mode, by="user")
            await session.chat("Go on.")
            await session.wait_idle()
    assert results == [
        ("review", "approve", "success"),
        ("review", "deploy", "error"),
        ("act", "approve", "error"),
        ("act", "deploy", "success"),
    ], results
    assert "You review now; before it was plan." in str(llm.chats[0].messages)


trio.run(main)
