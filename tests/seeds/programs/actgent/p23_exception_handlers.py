"""`session.onException(handler)` receives errors, and the session continues.

Document: Core Architecture, Session (exceptionHandlers).
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    llm = ScriptedLLM([ConnectionError("no network"), "I am back."])
    async with BareAgent("clerk", llm=llm) as agent:
        session = await agent.create_session("ada", "Hello")
        failures, answers = [], []
        session.on_exception(failures.append)
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await session.wait_idle()
        assert answers == []
        await session.chat("Are you there?")
        await session.wait_idle()
    assert len(failures) == 1
    assert "no network" in str(failures[0].error)
    assert failures[0].message_id == session.history[0].id
    assert answers == ["I am back."]


trio.run(main)
