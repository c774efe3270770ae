"""Priorities: an URGENT message interrupts the turn of its session, and precedes all queued messages.

In this example, the inbox is full of messages of normal priority, and the agent generates a slow answer.
"""

import trio

from actgent import BareAgent, InboxFull, ModelRequest, Priority, ScriptedLLM, Text


async def answer(chat: ModelRequest) -> str:
    """Answer as a model that needs an hour for a report, and answers all other messages at once."""
    said = "".join(part.text for part in chat.messages[-1].parts if isinstance(part, Text))
    if said == "Write a report.":
        await trio.sleep(3600)
    return f"Done: {said}"


async def main() -> None:
    clerk = BareAgent("clerk", llm=ScriptedLLM(answer), inbox_capacity=3)
    async with clerk:
        session = await clerk.create_session("ada", "Write a report.")
        session.on_conversation(print)
        session.on_exception(lambda failure: print(failure.error))

        for number in (1, 2, 3):
            await session.chat(f"file letter {number}")
        try:
            await session.chat("file letter 4", enqueue_timeout=0.1)
        except InboxFull as error:
            print("refused:", error)

        await session.chat("Leave the building!", priority=Priority.URGENT)
        await session.wait_idle()


if __name__ == "__main__":
    trio.run(main)
