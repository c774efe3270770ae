"""A query is answered in three phases: the first model call makes a plan, the planned tool calls run, and the second model call
writes the answer.

Document: The Plan-Execute-Synthesize (PES) Pattern.
"""

import json

import trio

from actgent import PlanAgent, ScriptedLLM, tool

order = []
PLAN = {"intent": "know a depth", "plan": "look it up", "toolCalls": [{"toolName": "depth", "arguments": {}}]}


@tool(effect="pure")
async def depth() -> int:
    """Tell how deep the lake is."""
    order.append("execute")
    return 1642


def plans(chat):
    order.append("plan")
    return json.dumps(PLAN)


def synthesizes(chat):
    order.append("synthesize")
    return "It is 1642 metres deep."


async def main() -> None:
    models = {"planning": ScriptedLLM([plans]), "synthesis": ScriptedLLM([synthesizes])}
    async with PlanAgent("guide", llm=ScriptedLLM([]), models=models, tools=[depth]) as art:
        result = await art.process("How deep is it?")
    assert order == ["plan", "execute", "synthesize"], order
    assert result.text == "It is 1642 metres deep."


trio.run(main)
