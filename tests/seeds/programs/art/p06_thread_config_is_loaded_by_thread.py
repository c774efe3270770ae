"""Each thread has a configuration: its model, its enabled tools, its system prompt and the length of its history.

Document: The 6 Stages of PES Execution, 1. Initiation and Configuration Loading; Configuration.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


@tool(effect="pure")
async def depth() -> int:
    """Tell how deep the lake is."""
    return 1642


@tool(effect="pure")
async def height() -> int:
    """Tell how high the mountain is."""
    return 4808


async def main() -> None:
    small, large = ScriptedLLM([PLAN, "small"] * 2), ScriptedLLM([PLAN, "large"] * 2)
    async with PlanAgent("guide", llm=small, models={"large": large}, tools=[depth, height]) as art:
        one = await art.create_session("ada", session_id="t1", prompt="You are a poet.")
        two = await art.create_session("ada", session_id="t2")
        art.configure(one, model="large", tools=["depth"], history=0)
        assert (await art.process("first", session=one)).text == "large"
        assert (await art.process("again", session=one)).text == "large"
        assert (await art.process("first", session=two)).text == "small"
        assert ["height" in art.enabled_tools(thread) for thread in (one, two)] == [False, True]
        assert all("depth" in art.enabled_tools(thread) for thread in (one, two))
    assert all("You are a poet." in chat.system for chat in large.chats)
    assert all("poet" not in chat.system for chat in small.chats)
    assert "first" not in str(large.chats[2].messages)


trio.run(main)
