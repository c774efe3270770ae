"""Messages are enqueued into a PriorityInbox: high before normal before low, and in order of arrival within a level.

Document: Message Flow Overview, Inbound Messages; Message Processing Pipeline.
"""

import trio

from actgent import BareAgent, ScriptedLLM


async def main() -> None:
    order = []
    release = trio.Event()

    async def model(chat):
        await release.wait()
        return chat.messages[-1].parts[0].text

    async with BareAgent("clerk", llm=ScriptedLLM(model), max_concurrent_sessions=1) as agent:
        letters = ["first", "low 1", "normal 1", "high 1", "low 2", "high 2", "normal 2"]
        for letter in letters:
            session = await agent.create_session(letter)
            session.on_conversation(lambda reply: order.append(str(reply)))
            await session.chat(letter, priority=letter.split()[0] if " " in letter else "normal")
        release.set()
    assert order == ["first", "high 1", "high 2", "normal 1", "normal 2", "low 1", "low 2"], order


trio.run(main)
