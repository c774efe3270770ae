"""The planning call gets the recent messages of the thread, at most `historyLimit` messages.

Document: The 6 Stages of PES Execution, 2. Planning Context Assembly; Configuration (historyLimit).
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    llm = ScriptedLLM([PLAN, "A1", PLAN, "A2", PLAN, "A3", PLAN, "A4"])
    async with PlanAgent("guide", llm=llm) as art:
        thread = await art.create_session("ada")
        for number in (1, 2, 3):
            await art.process(f"Q{number}", session=thread)
        everything = str(llm.chats[4].messages)
        assert all(text in everything for text in ("Q1", "A1", "Q2", "A2", "Q3"))
        art.configure(thread, history=2)
        await art.process("Q4", session=thread)
    recent = str(llm.chats[6].messages)
    assert [text in recent for text in ("Q1", "A1", "Q2", "A2", "Q3", "A3", "Q4")] == [False] * 4 + [
        True
    ] * 3, recent


trio.run(main)
