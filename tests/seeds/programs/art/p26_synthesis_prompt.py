"""The synthesis prompt has the original query, the intent, the plan, the results of the tools, the history and the system prompt.

Document: The 6 Stages of PES Execution, 5. Synthesis Call.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

NONE = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})
PLAN = json.dumps(
    {"intent": "know a depth", "plan": "look it up", "toolCalls": [{"toolName": "depth", "arguments": {}}]}
)


@tool(effect="pure")
async def depth() -> int:
    """Tell how deep the lake is, in metres."""
    return 1642


async def main() -> None:
    llm = ScriptedLLM([NONE, "Hello Ada.", PLAN, "1642 metres."])
    async with PlanAgent("guide", llm=llm, tools=[depth]) as art:
        thread = await art.create_session("ada", prompt="You love lakes.")
        await art.process("I am Ada.", session=thread)
        await art.process("How deep is Baikal?", session=thread)
    assert len(llm.chats) == 4
    synthesis = f"{llm.chats[3].system} {llm.chats[3].messages}"
    for part in (
        "How deep is Baikal?",
        "know a depth",
        "look it up",
        "1642",
        "I am Ada.",
        "Hello Ada.",
        "You love lakes.",
    ):
        assert part in synthesis, part


trio.run(main)
