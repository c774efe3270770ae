"""`session.createMessage(text)` creates a message of the owner, and `createMessage(text, sender)` a message of another
sender. `core.receive(message)` enqueues a message.

Document: Implementation Details, Message Creation; ReAct Message Flow, User/Application to Agent Flow.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    async with BareAgent("clerk", llm=ScriptedLLM(["Good morning.", "I see."])) as agent:
        session = await agent.create_session("ada")
        answers = []
        session.on_conversation(lambda reply: answers.append(str(reply)))
        hello = session.create_message("Hello")
        result = session.create_message("Tool result", "assistant")
        assert (hello.sender.name, hello.sender.kind) == ("ada", "user")
        assert result.sender.kind == "assistant"
        assert session.history == ()  # a message that was only created is not said
        for message in (hello, result):
            await agent.receive(message)
            await session.wait_idle()
    assert answers == ["Good morning.", "I see."]
    assert [message.text for message in session.history][::2] == ["Hello", "Tool result"]


trio.run(main)
