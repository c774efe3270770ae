"""A custom memory has one method, `manage_history(history)`, which returns the messages for the model.

Document: Core Components, 5. Memory Management; Extension Points, Custom Memory.

Differs: The base class `AgentMemory` does not exist. Write the class without a base class, or a function of the
history.
"""

import json
from typing import List

import trio

from actgent import Message, ScriptedLLM, StepsAgent


class MyMemory:
    def manage_history(self, history: List[Message]) -> List[Message]:
        lengths.append(len(history))
        return history[-3:]


lengths = []


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": f"A{number}"}) for number in (1, 2, 3)])
    async with StepsAgent("clerk", llm=llm, memory=MyMemory()) as agent:
        talk = await agent.open_conversation()
        for number in (1, 2, 3):
            await talk.run(f"Q{number}")
        assert len(talk.history) == 6
    shown = str(llm.chats[2].messages)
    assert [text in shown for text in ("Q1", "A1", "Q2", "A2", "Q3")] == [False, False, True, True, True]
    assert lengths == [1, 3, 5]


trio.run(main)
