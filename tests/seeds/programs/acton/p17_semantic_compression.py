"""Semantic compression keeps the sentences of old messages that are most relevant to the question.

Document: Core Components, 5. Memory Management (Semantic compression).
"""

import json

import trio

from actgent import ScriptedLLM, SemanticCompression, StepsAgent


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": "Noted."})], repeat=True)
    memory = SemanticCompression(trigger=300, max_tokens=120, recent=2)
    async with StepsAgent("clerk", llm=llm, memory=memory) as agent:
        talk = await agent.open_conversation()
        await talk.run("My bicycle has the frame number 4711.")
        for number in range(10):
            await talk.run(f"Letter {number}. " + "The weather was as usual. " * 8)
        await talk.run("What is the frame number of my bicycle?")
    last = [part.text for message in llm.chats[-1].messages for part in message.parts]
    assert any("4711" in text for text in last)
    assert sum(map(len, last)) < sum(len(message.text) for message in talk.history) / 2


trio.run(main)
