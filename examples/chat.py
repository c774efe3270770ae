"""Hold a conversation with one agent in one session. The session remembers the earlier messages.

A script replaces the model, so the example needs no API key. With a key, change only the argument `llm=`, for example to
`llm="openai:gpt-5.2"` or `llm="anthropic:claude-sonnet-4-5"`.
"""

import trio

from actgent import BareAgent, ScriptedLLM

SCRIPT = [
    "Good morning, Ada! What are you working on?",
    "Then start with the smallest program that could work.",
    "You are Ada, and you are writing a compiler.",
]


async def main() -> None:
    coach = BareAgent("coach", role="a patient programming coach", llm=ScriptedLLM(SCRIPT))
    async with coach:  # the agent runs until the block exits
        session = await coach.create_session("Ada")
        session.on_conversation(lambda reply: print("coach:", reply))
        session.on_exception(lambda failure: print("no answer:", failure.error))

        for line in ("Good morning, I am Ada.", "I am writing a compiler.", "Who am I?"):
            print("Ada:  ", line)
            await session.chat(line)  # returns when the inbox has accepted the message
            await session.wait_idle()  # returns when all messages are answered

        print(f"The session remembers {len(session.history)} messages.")


if __name__ == "__main__":
    trio.run(main)
