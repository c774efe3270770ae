"""The planning call and the synthesis call have the system prompt of the thread.

Document: The 6 Stages of PES Execution, 2. Planning Context Assembly, 3. Planning Call, 5. Synthesis Call.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


async def main() -> None:
    llm = ScriptedLLM([PLAN, "Salve.", PLAN, "Hello."])
    async with PlanAgent("guide", llm=llm) as art:
        latin = await art.create_session("ada", prompt="You speak Latin.")
        await art.process("Hello", session=latin)
        await art.process("Hello", session=await art.create_session("ada"))
    assert ["You speak Latin." in chat.system for chat in llm.chats] == [True, True, False, False]


trio.run(main)
