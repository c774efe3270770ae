"""`session.chat()` wraps a text in a Message object with the context of its session: session, sender, time, priority, correlation id.

Document: Message Flow Overview, Inbound Messages.
"""

import time

import trio

from actgent import BareAgent, Message, Priority, ScriptedLLM


async def main() -> None:
    async with BareAgent("clerk", llm=ScriptedLLM(["Noted."])) as agent:
        session = await agent.create_session("ada")
        number = await session.chat("Please note.", priority="high")
        await session.wait_idle()
    asked, answered = session.history
    assert isinstance(asked, Message)
    assert (asked.id, asked.session_id, asked.sender.name) == (number, session.id, "ada")
    assert asked.priority is Priority.HIGH
    assert abs(asked.created_at - time.time()) < 60
    assert answered.correlation_id == answered.causation_id == asked.id


trio.run(main)
