"""Access is checked against the current mode when a call starts: a change of mode applies from the next call.

Document: Mode-Based Tool Access Control ("based on the current mode").
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is deployed"


async def main() -> None:
    calls = [
        ToolCall("deploy", {"service": "shop"}),
        ToolCall("set_mode", {"mode": "plan"}),
        ToolCall("deploy", {"service": "mail"}),
    ]
    modes = Modes(execution=[deploy], initial="act")
    async with BareAgent("app", llm=ScriptedLLM([calls, "Done.", calls[0], "Done."]), modes=modes) as app:
        session = await app.create_session("ada", "Deploy.")
        results = []
        session.on_tool_result(lambda result: results.append((result.tool_name, result.status)))
        await session.wait_idle()
        assert session.mode == "plan"
        await session.set_mode("act", by="user")
        await session.chat("Deploy the shop again.")
        await session.wait_idle()
    assert results == [
        ("deploy", "success"),
        ("set_mode", "success"),
        ("deploy", "error"),
        ("deploy", "success"),
    ], results


trio.run(main)
