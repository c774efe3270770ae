"""A node, as a process of its own that may be killed: `life.py JOURNAL BROKER POOL NAME`.

Its agent answers after a moment, asks people before it deploys, and says each model call that it makes on stdout.
"""

import signal
import sys

import trio

from actgent import LLM, Answer, BareAgent, Text, ToolCall, Usage, open_runtime, tool

DELAY = 0.05


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@tool(approval=True, effect="once")
async def deploy(place: str) -> str:
    """Deploy to a place."""
    return f"deployed to {place}"


class Slow(LLM):
    """Says again what it was told, word by word, each after a moment."""

    name = "slow"

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
        said = "".join(part.text for part in last.parts if isinstance(part, Text))
        say(f"CALL {said}")
        if said.startswith("deploy "):
            return Answer(parts=(ToolCall("deploy", {"place": said[7:]}),), stop="tool_use", usage=Usage())
        if said == "kill":
            signal.raise_signal(signal.SIGKILL)
        text = f"done: {results[0].content}" if results else f"you said: {said}"
        words = text.split(" ")
        pause = 3.0 / len(words) if said.startswith("slowly") else DELAY / len(words)
        for number, word in enumerate(words):
            await trio.sleep(pause)
            if on_text is not None:
                await on_text(word if number == 0 else f" {word}", 0)
        return Answer(parts=(Text(text),), usage=Usage(input_tokens=1, output_tokens=1))


async def main():
    journal, broker, pool, name = sys.argv[1:5]
    async with open_runtime(journal=journal, broker=broker, pool=pool, node=name) as runtime:
        await runtime.start(BareAgent("clerk", llm=Slow(), tools=[deploy]))
        say("READY")
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                break
    say("LEFT")


if __name__ == "__main__":
    trio.run(main)
