"""Summarization replaces old messages by a summary that a model writes.

Document: Core Components, 5. Memory Management (Summarization).
"""

import json

import trio
import trio.testing

from actgent import ScriptedLLM, StepsAgent, SummarizingMemory


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": "Noted."})], repeat=True)
    writer = ScriptedLLM(["Ada lives in Turin and likes bicycles."], repeat=True)
    memory = SummarizingMemory(llm=writer, keep=2, trigger=200)
    async with StepsAgent("clerk", llm=llm, memory=memory) as agent:
        talk = await agent.open_conversation()
        for number in range(8):
            await talk.run(f"Letter {number}: I am Ada of Turin. " + "It says little. " * 10)
            await trio.testing.wait_all_tasks_blocked()
    last = str(llm.chats[-1].messages)
    assert writer.chats
    assert "Ada lives in Turin and likes bicycles." in last
    assert "Letter 7" in last
    assert "Letter 0" not in last


trio.run(main)
