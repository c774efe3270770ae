"""Context is managed in SessionContext (the state of a conversation) and ExecutionContext (the runtime environment of tools).

Document: Memory and Context Management.

Differs: Two owners would share one ExecutionContext, so a tool takes a `ToolContext`. `context.deps` is the
dependency object of the agent, session or run. `context.state` and `context.owner` belong to the session.
"""

import attrs
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolContext, tool


@attrs.frozen
class Environment:
    """The runtime environment."""

    region: str


@tool(thread=False)
def deploy(service: str, context: ToolContext[Environment]) -> str:
    """Deploy a service."""
    context.state.dispatch(("deployed", service))
    return f"{service} in {context.deps.region} for {context.owner}"


async def main() -> None:
    llm = ScriptedLLM(
        lambda chat: ToolCall("deploy", {"service": "shop"}) if len(chat.messages) == 1 else "Done."
    )
    async with BareAgent("operator", llm=llm, tools=[deploy], deps=Environment("Oslo")) as agent:
        results = []
        for owner, deps in (("ada", None), ("bob", Environment("Turin"))):
            session = await agent.create_session(owner, "Deploy the shop.", deps=deps)
            session.on_tool_result(lambda result: results.append(result.content))
            await session.wait_idle()
            assert session.state["deployed"] == "shop"
    assert results == ["shop in Oslo for ada", "shop in Turin for bob"], results


trio.run(main)
