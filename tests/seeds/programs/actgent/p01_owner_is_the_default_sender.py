"""A session has an owner, which is the default sender of its messages.

Document: Message Flow Overview, Session Ownership and Message Senders.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    async with BareAgent("clerk", llm=ScriptedLLM(["Hello."], repeat=True)) as agent:
        session = await agent.create_session("ada", "hi")
        await session.chat("again")
        await session.chat("from bob", "bob")
        await session.wait_idle()
    messages = [message.sender.name for message in session.history if message.sender.kind == "user"]
    assert messages == ["ada", "ada", "bob"], messages


trio.run(main)
