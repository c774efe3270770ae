"""Access rules are code: a custom rule (in AppAgent `validateToolAccessForMode`) sees the call, the tool and the session.

Document: Adding New Functionality ("Add validation rules in validateToolAccessForMode").
"""

import trio

from actgent import BareAgent, Mode, Modes, ScriptedLLM, ToolCall, tool

RAN = []


@tool(thread=False)
def deploy(service: str) -> str:
    """Deploy a service."""
    RAN.append(service)
    return f"{service} is deployed"


def rehearsal(call, tool, context) -> bool:
    return tool.name == "deploy" and call.arguments["service"] == "test" and context.owner == "ada"


async def main() -> None:
    calls = [ToolCall("deploy", {"service": "test"}), ToolCall("deploy", {"service": "shop"})]
    llm = ScriptedLLM(lambda chat: "Done." if chat.messages[-1].role == "tool" else calls)
    modes = Modes(Mode("rehearsal", rehearsal), execution=[deploy], initial="rehearsal")
    async with BareAgent("app", llm=llm, modes=modes) as app:
        results = []
        for owner in ("ada", "bob"):
            session = await app.create_session(owner, "Deploy.")
            session.on_tool_result(lambda result: results.append(result.status))
            await session.wait_idle()
    assert results == ["success", "error", "error", "error"], results
    assert RAN == ["test"]


trio.run(main)
