"""The planning prompt has the query, the history, the system prompt and the schemas of the tools.

Document: The 6 Stages of PES Execution, 3. Planning Call.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Tell how deep a lake is, in metres.

    Args:
        lake: The name of the lake.
    """
    return len(lake)


async def main() -> None:
    llm = ScriptedLLM([PLAN, "Hello Ada."] * 2)
    async with PlanAgent("guide", llm=llm, tools=[depth]) as art:
        thread = await art.create_session("ada", prompt="You love lakes.")
        await art.process("I am Ada.", session=thread)
        await art.process("How deep is Baikal?", session=thread)
    chat = llm.chats[2]
    request = f"{chat.system} {chat.messages} {chat.tools}"
    for part in ("How deep is Baikal?", "I am Ada.", "Hello Ada.", "You love lakes."):
        assert part in request, part
    for part in ("depth", "Tell how deep a lake is, in metres.", "The name of the lake.", "string"):
        assert part in request, part


trio.run(main)
