"""The framework keeps the sender of a message, although the model sees only a role.

Document: Implementation Details, OpenAI Compatibility.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    received = []
    llm = ScriptedLLM(["Hello, both."], repeat=True)
    agent = BareAgent("clerk", llm=llm)
    agent.on_message(lambda message: received.append(message.sender.name))
    async with agent:
        session = await agent.create_session("ada", "I am Ada.")
        await session.wait_idle()
        await session.chat("And I am Bob.", "bob")
        await session.wait_idle()
    assert [message.sender.name for message in session.history] == ["ada", "clerk", "bob", "clerk"]
    assert received == ["ada", "clerk", "bob", "clerk"]
    assert [message.role for message in llm.chats[-1].messages] == ["user", "assistant", "user"]


trio.run(main)
