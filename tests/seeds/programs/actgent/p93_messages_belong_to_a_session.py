"""The core finds the context of a message by its session id, and rejects a message of an unknown session.

Document: ReAct Message Flow, Message Processing ("this.sessionContextManager[message.sessionId]").
"""

import trio

from actgent import ActgentError, BareAgent, Message, ScriptedLLM, Sender


async def main() -> None:
    llm = ScriptedLLM(lambda chat: f"{len(chat.messages)}: {chat.messages[-1].parts[0].text}")
    async with BareAgent("clerk", llm=llm) as agent:
        answers = []
        sessions = [await agent.create_session(owner) for owner in ("ada", "bob")]
        for session in sessions:
            session.on_conversation(
                lambda reply, session=session: answers.append((session.owner.name, str(reply)))
            )
            await agent.receive(Message(session_id=session.id, sender=Sender("guest"), parts="Hello"))
            await session.wait_idle()
        try:
            await agent.receive(Message(session_id="other", sender=Sender("ada"), parts="Hello"))
        except ActgentError as error:
            assert "other" in str(error), error
        else:
            raise AssertionError("a message without a session was taken")
    assert answers == [("ada", "1: Hello"), ("bob", "1: Hello")], answers


trio.run(main)
