"""`core.receive(message)` enqueues a message into the PriorityInbox, and returns before it is processed.

Document: Core Architecture, AgentCore.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    release, answers = trio.Event(), []

    async def model(chat):
        await release.wait()
        return f"re: {chat.messages[-1].parts[0].text}"

    async with BareAgent("clerk", llm=ScriptedLLM(model), max_concurrent_sessions=1) as agent:
        session = await agent.create_session("ada")
        session.on_conversation(lambda reply: answers.append(str(reply)))
        await agent.receive(session.create_message("one"))
        await agent.receive(session.create_message("two", priority="low"))
        await agent.receive(session.create_message("three", priority="high"))
        assert answers == []
        release.set()
        await session.wait_idle()
    assert answers == ["re: one", "re: three", "re: two"], answers


trio.run(main)
