"""A process that converses until it is killed: `conversing.py FOLDER FIRST LAST`.

Each message of a session contains a number. The agent's model remembers the number with a tool, messages are
summarized, and idle sessions are consolidated. Every model here writes the numbers of its request, so that its
output shows its input. The process prints the numbers of answered messages. If LAST is not 0, the process ends
when all messages have been sent and consolidated.
"""

import json
import os
import re
import sys

import trio

from actgent import (
    BareAgent,
    Consolidation,
    LongTermMemory,
    ScriptedLLM,
    SummarizingMemory,
    ToolCall,
    open_runtime,
)

SESSIONS = 2
NUMBER = re.compile(r"#\d+")


def text_of(message):
    return "\n".join(getattr(part, "text", "") for part in message.parts)


def clerk(chat):
    """Remember the number of the newest message, then reply "Noted."."""
    last = chat.messages[-1]
    if last.role == "tool":
        return "Noted."
    (number,) = NUMBER.findall(text_of(last))
    return ToolCall("remember", {"text": f"heard {number}"})


def summarizer(chat):
    """Return all numbers in the request, including those of the last summary."""
    return " ".join(dict.fromkeys(NUMBER.findall(text_of(chat.messages[0]))))


def reader(chat):
    """Return a memory for each number in the user messages of the request."""
    part = text_of(chat.messages[-1]).partition("Remembered already:")[0]
    texts = [line for line in part.splitlines() if "] user: " in line]
    found = [{"text": f"read {number}"} for line in texts for number in NUMBER.findall(line)]
    return json.dumps({"memories": found})


async def converse(agent, session_id, numbers):
    session = await agent.ensure_session("ada", session_id)
    for number in numbers:
        await session.chat(f"It is #{number} " + "and so on " * 10, message_id=f"m{number}")
        await session.wait_idle()
        os.write(1, f"{number}\n".encode())


async def live(folder, first, last):
    """Send all numbers from FIRST on. Print each answered number."""
    memories = LongTermMemory(f"sqlite:///{folder}/memories.db")
    shown = SummarizingMemory(llm=ScriptedLLM(summarizer), keep=2, trigger=100)
    agent = BareAgent("clerk", llm=ScriptedLLM(clerk), long_term_memory=memories, memory=shown)
    Consolidation(agent, memories, llm=ScriptedLLM(reader), idle=0.2)
    async with memories, open_runtime(journal=f"sqlite:///{folder}/agents.db") as runtime:
        await runtime.start(agent)
        async with trio.open_nursery() as nursery:
            for index in range(SESSIONS):
                end = last or 1_000_000
                numbers = range(first + (index - first) % SESSIONS, end, SESSIONS)
                nursery.start_soon(converse, agent, f"s{index}", numbers)
        while len(await memories.page(owner="ada", limit=100_000)) < 2 * last:  # noqa: ASYNC110 - told nowhere else
            await trio.sleep(0.05)


if __name__ == "__main__":
    trio.run(live, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
