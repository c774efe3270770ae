"""A session calls all handlers of a kind in the order of their registration. A handler that raises does not stop the
next handler.

Document: ReAct Message Flow, Handler Selection ("conversationHandlers.forEach").
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    called, failures = [], []

    def broken(reply) -> None:
        called.append("second")
        raise ValueError("a bug in a handler")

    async with BareAgent("clerk", llm=ScriptedLLM(["Good morning.", "Good night."])) as agent:
        session = await agent.create_session("ada", "Hello")
        session.on_conversation(lambda reply: called.append("first"))
        session.on_conversation(broken)
        session.on_conversation(lambda reply: called.append("third"))
        session.on_exception(lambda failure: failures.append(failure.kind))
        await session.wait_idle()
        await session.chat("Bye")
        await session.wait_idle()
    assert called == ["first", "second", "third"] * 2
    assert failures == ["handler", "handler"]


trio.run(main)
