"""Defaults are sensible, and everything can be overridden: system prompt, iterations, memory, time zone, form of the final answer.

Document: Design Trade-offs, Flexibility vs. Opinionation.
"""

import json

import trio

from actgent import ScriptedLLM, SlidingWindow, StepsAgent

FINAL = json.dumps({"final_answer": "Hello."})


async def main() -> None:
    llm = ScriptedLLM([FINAL], repeat=True)
    async with StepsAgent("clerk", llm=llm) as plain:
        assert str(await plain.run("Hello?")) == "Hello."
    mine = StepsAgent(
        "mine",
        llm=llm,
        system_prompt="You are a pirate.",
        max_iterations=3,
        memory=SlidingWindow(turns=2),
        timezone="Europe/Rome",
        final_answer_format="Two lines.",
        temperature=0.1,
    )
    async with mine:
        assert str(await mine.run("Hello?")) == "Hello."
        mine.set_final_answer_format("Three lines.")
        mine.set_timezone("Asia/Tokyo")
        await mine.run("Hello?")
        talk = await mine.open_conversation()
        talk.set_system_prompt("You are a poet.")
        talk.add_message("assistant", "Welcome back.")
        await talk.run("Hello?")
    plain, first, second, third = (f"{chat.system} {chat.messages}" for chat in llm.chats)
    assert "final_answer" in plain
    assert all(part in first for part in ("You are a pirate.", "Two lines.", "Europe/Rome", "final_answer"))
    assert all(part in second for part in ("You are a pirate.", "Three lines.", "Asia/Tokyo"))
    assert all(part in third for part in ("You are a poet.", "Welcome back.", "final_answer"))
    assert "pirate" not in third
    assert llm.chats[1].temperature == 0.1


trio.run(main)
