"""The results of a step's tools are formatted and added to the history, and the next iteration gets them.

Document: Data Flow, Standard Agent Run, Format Results, Add to History.
"""

import json

import trio

from actgent import FunctionTool, StepsAgent


class Client:
    def call(self, messages, **kwargs) -> str:
        seen.append([message.content for message in messages])
        if len(seen) == 1:
            calls = [{"id": str(n), "tool_name": "square", "parameters": {"n": n}} for n in (7, 8)]
            return json.dumps({"tool_calls": calls})
        return json.dumps({"final_answer": "49 and 64."})


def square(n: int) -> int:
    return n * n


seen = []


async def main() -> None:
    async with StepsAgent("clerk", llm=Client(), tools=[FunctionTool("square", "Squares.", square)]) as agent:
        talk = await agent.open_conversation()
        await talk.run("What are the squares of 7 and 8?")
        kinds = [message.sender.kind for message in talk.history]
    assert kinds == ["user", "assistant", "tool", "assistant"], kinds
    *before, _ = seen[0]  # the last message of a call is the time
    assert seen[1][: len(before)] == before
    results = " ".join(seen[1][len(before) :])
    assert results.index("49") < results.index("64")
    assert "[square]" in results


trio.run(main)
