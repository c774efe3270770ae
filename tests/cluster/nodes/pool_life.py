"""A node of one of two pools, as a process that a test may kill: `pool_life.py JOURNAL POOL OTHER NAME GATE`.

If OTHER is empty, the agent `writer` answers as soon as the file GATE exists. Otherwise the agent passes each
message to the writer of the pool OTHER. The node prints each model call on stdout.
"""

import sys
from pathlib import Path

import trio

from actgent import (
    LLM,
    BareAgent,
    Limits,
    ModelResponse,
    PoolAgent,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    open_gateway,
    open_runtime,
)
from tests.clusters import LIMITS, TOKENS, own_loopback


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Telling(LLM):
    """A model that prints each request. A writer answers as soon as the gate file exists."""

    name = "telling"

    def __init__(self, who, gate):
        self.who, self.gate = who, gate

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        results = [part for part in last.parts if isinstance(part, ToolResult)]
        content = "".join(part.text for part in last.parts if isinstance(part, Text))
        say(f"CALL {self.who} {results[0].content if results else content}")
        await trio.lowlevel.checkpoint()
        if self.who == "writer":
            while not self.gate.exists():  # noqa: ASYNC110 - another process changes this state
                await trio.sleep(0.02)
            text = f"written: {content}"
        elif results:
            text = f"got {results[0].error or results[0].content}"
        else:
            return ModelResponse(
                parts=(ToolCall("writer", {"task": content}),), stop="tool_calls", usage=Usage()
            )
        return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=1, output_tokens=1))


async def main():
    journal, pool, other, name, gate = sys.argv[1:6]
    if other:
        tools = [PoolAgent("writer", pool=other, limits=Limits(model_calls=4)).as_tool()]
        agent = BareAgent("editor", llm=Telling("editor", Path(gate)), tools=tools)
    else:
        agent = BareAgent("writer", llm=Telling("writer", Path(gate)))
    async with open_runtime(journal=journal, cluster=pool, node=name) as runtime:
        await runtime.start(agent)
        async with open_gateway(
            runtime, bind=f"{own_loopback()}:0", hosts=["127.0.0.1"], tokens=TOKENS, limits=LIMITS
        ) as gateway:
            say(f"PORT {gateway.url.rpartition('/')[2]}")
            say("READY")
            await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
