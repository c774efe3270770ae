"""Short-term memory is the recent context of the conversation: the model gets it within a token limit, and the history keeps all messages.

Document: Memory and Context Management.
"""

import trio

from actgent import BareAgent, ScriptedLLM, ShortTermMemory, SlidingWindow


async def main() -> None:
    for memory in (ShortTermMemory(max_tokens=200), SlidingWindow(turns=3)):
        llm = ScriptedLLM(["Noted."], repeat=True)
        async with BareAgent("clerk", llm=llm, memory=memory) as agent:
            session = await agent.create_session("ada")
            for number in range(12):
                await session.chat(f"This is letter number {number}. " + "It says little. " * 4)
                await session.wait_idle()
        assert "letter number 0." in str(llm.chats[1].messages)
        last = str(llm.chats[-1].messages)
        assert "letter number 11." in last
        assert "letter number 10." in last
        assert "letter number 0." not in last
        assert len(session.history) == 24


trio.run(main)
