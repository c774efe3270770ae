"""A message has metadata with further context, which the program reads and the model does not see.

Document: Message Flow Overview, Message Senders ("specified in its metadata").
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    seen = []
    llm = ScriptedLLM(["Noted."])
    agent = BareAgent("clerk", llm=llm)
    agent.on_message(lambda message: seen.append(dict(message.metadata)))
    async with agent:
        session = await agent.create_session("ada")
        await session.chat("Please note.", metadata={"ticket": 7, "parameters": {"page": "start"}})
        await session.wait_idle()
    assert seen[0] == dict(session.history[0].metadata) == {"ticket": 7, "parameters": {"page": "start"}}
    assert "ticket" not in str(llm.chats[0])


trio.run(main)
