"""Custom handlers are functions, async functions and objects, attached to one session or to each session of an agent, and removed again.

Document: Extension Points (Custom Handlers).
"""

import trio

from actgent import BareAgent, ScriptedLLM


class Counter:
    def __init__(self):
        self.count = 0

    def __call__(self, reply) -> None:
        self.count += 1


async def main() -> None:
    counter, texts = Counter(), []

    async def keep(reply, session) -> None:
        await trio.lowlevel.checkpoint()
        texts.append(f"{session.owner.name}: {reply}")

    agent = BareAgent("clerk", llm=ScriptedLLM(["Hello."], repeat=True))

    @agent.on_session
    def attach(session) -> None:
        session.on_conversation(keep)

    async with agent:
        for owner in ("ada", "bob"):
            session = await agent.create_session(owner, "Hello")
            session.on_conversation(counter)
            await session.wait_idle()
        session.remove_handler(counter)
        await session.chat("Again")
        await session.wait_idle()
    assert counter.count == 2
    assert texts == ["ada: Hello.", "bob: Hello.", "bob: Hello."], texts


trio.run(main)
