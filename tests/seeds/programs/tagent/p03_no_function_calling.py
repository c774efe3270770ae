"""The framework does not depend on native function calls: the tools are in the prompt, and decisions are JSON in the text.

Document: Core Architecture Principles, Structured Output Integration (No Function Calling).

Differs: A model whose client takes native tools also gets the schemas of the tools, because such models call native
tools more reliably. Decisions in JSON work with every model. A model that is a function or has `call` gets only text.
"""

import json

import trio

from actgent import OpenAI, run_agent
from actgent.testing import open_provider


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


SCRIPT = [
    {"action": "execute", "params": {"tool": "lookup", "args": {}}},
    {"action": "evaluate", "params": {"achieved": True, "answer": "1642 m"}},
]


class TextOnly:
    def __init__(self):
        self.script = [json.dumps(decision) for decision in SCRIPT]

    def call(self, messages, **kwargs) -> str:
        assert "tools" not in kwargs
        assert "lookup" in str(messages)
        return self.script.pop(0)


async def main() -> None:
    assert (await run_agent("How deep?", TextOnly(), tools={"lookup": lookup})).achieved
    async with open_provider([json.dumps(decision) for decision in SCRIPT]) as provider:
        llm = OpenAI("gpt-4", base_url=provider.openai_url, api_key="k")
        assert (await run_agent("How deep?", llm, tools={"lookup": lookup})).achieved
        await llm.aclose()
        for request in provider.requests:
            assert not any(message.get("tool_calls") for message in json.loads(request.body)["messages"])


trio.run(main)
