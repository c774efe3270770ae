"""An unexpected error of the orchestration does not escape from `process`: its result has the status `error` and the error.

Document: Error Handling, Top-Level.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM

PLAN = json.dumps({"intent": "greet", "plan": "answer", "toolCalls": []})


class Broken:
    """A client with a fault of its own."""

    async def complete(self, chat, *, on_text=None):
        raise ZeroDivisionError("a fault in the client")


def broken_memory(history):
    raise ZeroDivisionError("a fault in the memory")


async def main() -> None:
    agents = [
        PlanAgent("guide", llm=Broken()),
        PlanAgent("guide", llm=ScriptedLLM([PLAN, "Hello."]), memory=broken_memory),
    ]
    for art in agents:
        async with art:
            thread = await art.create_session("ada")
            result = await art.process("Hello?", session=thread)
            errors = await thread.observations(types=["ERROR"])
        assert result.status == "error"
        assert "a fault in the" in f"{result.error} {result.error.__cause__}"
        assert len(errors) == 1


trio.run(main)
