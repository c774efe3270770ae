"""The planning prompt shows the model the schemas of only the tools that are enabled for the thread.

Document: The 6 Stages of PES Execution, 2. Planning Context Assembly.

Differs: The prompt always has the schemas of all tools, so that a provider can cache the prompt. The end of the
prompt names the enabled tools. `agent.configure(thread, tools=[...])` enables tools, and calls of other tools are
rejected.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = {"intent": "know", "plan": "look up", "toolCalls": [{"toolName": "height", "arguments": {}}]}


@tool(effect="pure")
async def depth() -> int:
    """Tell how deep the lake is."""
    return 1642


@tool(effect="pure")
async def height() -> int:
    """Tell how high the mountain is."""
    raise AssertionError("a disabled tool ran")


async def main() -> None:
    llm = ScriptedLLM([json.dumps(PLAN), "I cannot know."])
    async with PlanAgent("guide", llm=llm, tools=[depth, height]) as art:
        thread = await art.create_session("ada")
        art.configure(thread, tools=["depth"])
        result = await art.process("How high?", session=thread)
    request = f"{llm.chats[0].system} {llm.chats[0].messages} {llm.chats[0].tools}"
    assert "Tell how deep the lake is." in request
    assert "Tell how high the mountain is." in request  # here it differs
    enabled = str(llm.chats[0].messages[-1].parts[-1])
    assert "depth" in enabled
    assert "height" not in enabled
    assert result.tool_results[0].status == "error"
    assert result.status == "error"


trio.run(main)
