"""The agent keeps the state of the conversation: a run sees the history of the runs before it.

Document: Core Components, 1. Agent (Conversation state).

Differs: `agent.run` starts a new conversation each time, so that runs can share an agent. To keep the history, write
`talk = await agent.open_conversation()` once, and then `talk.run(text)`.
"""

import json

import trio

from actgent import ScriptedLLM, StepsAgent


def final(text: str) -> str:
    return json.dumps({"final_answer": text})


async def main() -> None:
    llm = ScriptedLLM([final("Hello Ada."), final("You are Ada."), final("Who?"), final("I do not know.")])
    async with StepsAgent("clerk", llm=llm) as agent:
        talk = await agent.open_conversation()
        await talk.run("I am Ada.")
        await talk.run("Who am I?")
        assert "I am Ada." in str(llm.chats[1].messages)
        assert [message.sender.kind for message in talk.history] == ["user", "assistant"] * 2
        await talk.reset()
        await talk.run("Who am I?")
        assert "I am Ada." not in str(llm.chats[2].messages)
        await agent.run("Who am I?")
        assert len(llm.chats[3].messages) == len(llm.chats[0].messages)


trio.run(main)
