"""An agent maintains a context for each session. Messages of one session are not shown in another.

Document: Core Architecture, AgentCore and Session.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    llm = ScriptedLLM(["Noted."], repeat=True)
    async with BareAgent("clerk", llm=llm) as agent:
        ada = await agent.create_session("ada", "My colour is red.")
        bob = await agent.create_session("bob", "My colour is blue.")
        for session in (ada, bob):
            await session.wait_idle()
            await session.chat("Which is my colour?")
            await session.wait_idle()
    assert [message.text for message in ada.history if message.sender.kind == "user"] == [
        "My colour is red.",
        "Which is my colour?",
    ]
    for chat in llm.chats:
        mine, other = ("red", "blue") if chat.session == ada.id else ("blue", "red")
        assert mine in str(chat.messages)
        assert other not in str(chat.messages)


trio.run(main)
