"""`createSession(owner, description)` enqueues the description as the first message. Handlers attached afterwards receive its answer.

Document: Message Flow Overview, Inbound Messages.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    llm = ScriptedLLM(["Good morning."])
    async with BareAgent("clerk", llm=llm) as agent:
        session = await agent.create_session("ada", "Say good morning.")
        answers = []
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await session.wait_idle()
    assert answers == ["Good morning."]
    assert session.description == session.history[0].text == "Say good morning."
    assert llm.chats[0].messages[-1].parts[0].text == "Say good morning."


trio.run(main)
