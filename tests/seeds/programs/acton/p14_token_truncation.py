"""`SimpleAgentMemory` truncates the history to a number of tokens, 8,000 by default, so that the prompt never exceeds it.

Document: Core Components, 5. Memory Management; Performance Considerations, 1. Memory Management.

Differs: The class is named `Truncation`. The default memory removes larger parts at once, so that a provider can
cache the prompt. Write `memory=Truncation(max_tokens=8000)`.
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent, Truncation


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": "Noted."})], repeat=True)
    async with StepsAgent("clerk", llm=llm, memory=Truncation(max_tokens=300)) as agent:
        talk = await agent.open_conversation()
        for number in range(12):
            await talk.run(f"Letter {number}: " + "It says little. " * 10)
        assert len(talk.history) == 24
    sizes = [
        len(str([part.text for message in chat.messages for part in message.parts])) for chat in llm.chats
    ]
    assert max(sizes) < 4 * 300 + 1000, sizes
    last = str(llm.chats[-1].messages)
    assert "Letter 11" in last
    assert "Letter 0" not in last
    assert Truncation().max_tokens == 8000


trio.run(main)
