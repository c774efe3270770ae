"""One call creates the subsystems and the core, and injects the chosen parts: storage, model, tools, history, dependencies.

Document: Instantiation (AgentFactory, createArtInstance).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, SlidingWindow, ToolContext, open_runtime, tool

PLAN = json.dumps(
    {"intent": "know", "plan": "look up", "toolCalls": [{"toolName": "depth", "arguments": {}}]}
)


@tool(effect="pure")
async def depth(context: ToolContext[dict]) -> int:
    """Tell how deep the lake is, in metres."""
    return context.deps["Baikal"]


async def main() -> None:
    art = PlanAgent(
        "guide",
        llm=ScriptedLLM([PLAN, "1642 metres."]),
        tools=[depth],
        memory=SlidingWindow(turns=20),
        deps={"Baikal": 1642},
    )
    async with open_runtime(journal="memory:") as storage:
        await storage.start(art)
        result = await art.process("How deep?")
    assert result.tool_results[0].content == "1642"
    assert result.text == "1642 metres."


trio.run(main)
