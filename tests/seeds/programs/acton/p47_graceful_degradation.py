"""Reliability first: if the model or a tool fails, the run continues with another model, or with the error as a result.

Document: Design Trade-offs, Performance vs. Reliability (Graceful degradation, Conservative defaults).
"""

import json

import trio

from actgent import FallbackModel, FunctionTool, ScriptedLLM, StepsAgent


class Down:
    def call(self, messages, **kwargs) -> str:
        raise ConnectionError("no route to the model")


def broken() -> str:
    raise OSError("the disk is full")


async def main() -> None:
    step = {"tool_calls": [{"id": "1", "tool_name": "broken", "parameters": {}}]}
    up = ScriptedLLM([json.dumps(step), json.dumps({"final_answer": "The disk is full."})])
    tools = [FunctionTool("broken", "Fails.", broken)]
    async with StepsAgent("clerk", llm=FallbackModel(Down(), up), tools=tools) as agent:
        assert str(await agent.run("Work.")) == "The disk is full."
    assert "the disk is full" in str(up.chats[1].messages)


trio.run(main)
