"""A sliding window keeps the last turns of the conversation.

Document: Core Components, 5. Memory Management (Sliding window).
"""

import json

import trio

from actgent import ScriptedLLM, SlidingWindow, StepsAgent


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": "Noted."})], repeat=True)
    async with StepsAgent("clerk", llm=llm, memory=SlidingWindow(turns=4)) as agent:
        talk = await agent.open_conversation()
        for number in range(12):
            await talk.run(f"Letter {number}.")
    for last, chat in enumerate(llm.chats):
        shown = [number for number in range(12) if f"Letter {number}." in str(chat.messages)]
        assert shown == list(range(shown[0], last + 1))
        assert 1 <= len(shown) <= 4
    assert shown[0] > 0


trio.run(main)
