"""The history is truncated automatically, so that a long conversation does not overflow the context size of the model.

Document: Performance Considerations, 1. Memory Management (Configurable limits based on model context size).
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent


async def main() -> None:
    llm = ScriptedLLM([json.dumps({"final_answer": "Noted."})], repeat=True, context_window=4000)
    async with StepsAgent("clerk", llm=llm, max_tokens=500) as agent:
        talk = await agent.open_conversation()
        for number in range(12):
            assert str(await talk.run(f"Letter {number}: " + "It says little. " * 150)) == "Noted."
        assert len(talk.history) == 24
    sizes = [len(chat.system) + len(str(chat.messages)) for chat in llm.chats]
    assert max(sizes) < 4 * 4000
    assert "Letter 0" not in str(llm.chats[-1].messages)
    assert "Letter 11" in str(llm.chats[-1].messages)


trio.run(main)
