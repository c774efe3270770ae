"""Integration mode is for testing and documenting tools before they are used in production.

Document: Agent Modes, Integration Mode.
"""

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall, tool


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is deployed"


CALLS = [
    ToolCall("deploy", {"service": "shop"}),
    ToolCall("record_test_result", {"tool_name": "deploy", "status": "passed"}),
    ToolCall(
        "document_tool", {"tool_name": "deploy", "description": "Deploys a service.", "status": "working"}
    ),
    ToolCall("generate_test_report", {}),
    ToolCall("get_integration_state", {}),
    ToolCall("complete_integration_testing", {}),
]


async def main() -> None:
    modes = Modes(execution=[deploy], initial="integration")
    async with BareAgent("app", llm=ScriptedLLM([*CALLS, "Tested."]), modes=modes) as app:
        session = await app.create_session("admin", "Test deploy.")
        results = {}
        session.on_tool_result(lambda result: results.update({result.tool_name: result}))
        await session.wait_idle()
        for name in ("record_test_result", "document_tool", "generate_test_report"):
            assert not modes.allows("act", app.tools.get(name))
            assert modes.allows("integration", app.tools.get(name))
    assert [result.status for result in results.values()] == ["success"] * 6, results
    assert "1" in results["generate_test_report"].text
    state = results["get_integration_state"].text
    assert "Deploys a service." in state and "passed" in state, state


trio.run(main)
